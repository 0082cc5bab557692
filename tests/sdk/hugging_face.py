"""What huggingface_hub's client makes of a TEI server besides its vectors, as one line of JSON.

usage: hugging_face.py URL KEY < {"model": …, "sentence": …, "others": […]}
"""

import json
import sys

from huggingface_hub import InferenceClient

url, key = sys.argv[1:]
asked = json.load(sys.stdin)
# A server of one's own is this provider to the SDK: only for it are there `info` and `health`.
own = {"provider": "hf-inference", "api_key": key}
root = InferenceClient(model=url, **own)
one = InferenceClient(model=f"{url}/tei/{asked['model']}", **own)
got = {}
for name, client in [("root", root), ("model", one)]:
    got[name] = {
        "similar": client.sentence_similarity(asked["sentence"], asked["others"]),
        "vectors": client.feature_extraction(asked["others"]).tolist(),
        "info": client.get_endpoint_info()["model_id"],
        "healthy": client.health_check(),
    }
print(json.dumps(got))
