"""Chat by the official SDKs, unchanged but for base URL and key.

Reads a list of `{"sdk", "stream", "model"}` and prints a line of JSON for each: the text that came and the usage that the
SDK tells, or the class of the exception and its words. `stop` leaves a stream after so many pieces of text.
"""

import json
import sys

URL, KEY = sys.argv[1:3]
TIMEOUT_S = 60


def openai_client():
    import openai

    return openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=TIMEOUT_S)


def chat(ask):
    messages = [{"role": "user", "content": "one two three"}]
    wish = {"stream_options": {"include_usage": True}} if ask.get("usage") else {}
    answer = openai_client().chat.completions.create(
        model=ask["model"], messages=messages, max_tokens=20, stream=ask["stream"], **wish
    )
    if not ask["stream"]:
        return answer.choices[0].message.content, answer.usage.completion_tokens
    text, usage, pieces = "", None, 0
    for chunk in answer:
        if ask.get("usage") and not chunk.choices:
            usage = chunk.usage.completion_tokens
            continue
        # What a client does that never heard of usage: an event without a choice would end it here.
        text += chunk.choices[0].delta.content or ""
        pieces += 1
        if pieces == ask.get("stop"):
            answer.close()
            break
    return text, usage


def completions(ask):
    answer = openai_client().completions.create(
        model=ask["model"], prompt="one two three", max_tokens=20, stream=ask["stream"]
    )
    if not ask["stream"]:
        return answer.choices[0].text, answer.usage.completion_tokens
    return "".join(chunk.choices[0].text for chunk in answer), None


def responses(ask):
    answer = openai_client().responses.create(
        model=ask["model"], input="one two three", max_output_tokens=20, stream=ask["stream"]
    )
    if not ask["stream"]:
        return answer.output[0].content[0].text, answer.usage.output_tokens
    text, usage = "", None
    for event in answer:
        if event.type == "response.output_text.delta":
            text += event.delta
        if event.type == "response.completed":
            usage = event.response.usage.output_tokens
    return text, usage


def messages(ask):
    import anthropic

    client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0, timeout=TIMEOUT_S)
    asked = dict(model=ask["model"], max_tokens=20, messages=[{"role": "user", "content": "one two three"}])
    if not ask["stream"]:
        answer = client.messages.create(**asked)
        return answer.content[0].text, answer.usage.output_tokens
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        return text, stream.get_final_message().usage.output_tokens


CALLS = {"chat": chat, "completions": completions, "responses": responses, "messages": messages}

for ask in json.load(sys.stdin):
    try:
        text, usage = CALLS[ask["sdk"]](ask)
        told = {"text": text, "usage": usage}
    except Exception as error:
        family = [kind.__name__ for kind in type(error).__mro__]
        told = {"raised": type(error).__name__, "family": family, "message": str(error)}
    print(json.dumps(told), flush=True)
