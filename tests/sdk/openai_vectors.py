"""The official OpenAI SDK, unchanged but for its base URL: vectors through the gateway are those of a direct call.

usage: openai_vectors.py GATEWAY_URL KEY MODEL DIRECT_URL
Exit 0: equal number for number; 1: they differ, and how; 2: could not run.
"""

import sys

from openai import OpenAI

WIDTH = 384
TEXTS = [f"Paragraph {n}: how to turn on mutual TLS for service number {n * n}, é, 日本語, \"quoted\"\n" for n in range(50)]


def differences(name, got, direct):
    """Everything in which an answer differs from that of the direct call."""
    if len(got.data) != len(direct.data):
        yield f"{name}: {len(got.data)} vectors, directly {len(direct.data)}"
    for position, (ours, theirs) in enumerate(zip(got.data, direct.data)):
        if ours.index != position:
            yield f"{name}: index {ours.index} at position {position}"
        if len(theirs.embedding) != WIDTH:
            yield f"{name}: the server's own vector {position} has {len(theirs.embedding)} numbers"
        if ours.embedding != theirs.embedding:
            yield f"{name}: vector {position} differs: {ours.embedding[:3]}… directly {theirs.embedding[:3]}…"
    if got.usage.prompt_tokens != direct.usage.prompt_tokens:
        yield f"{name}: {got.usage.prompt_tokens} tokens, directly {direct.usage.prompt_tokens}"


def main():
    gateway_url, key, model, direct_url = sys.argv[1:]
    gateway = OpenAI(base_url=gateway_url, api_key=key, max_retries=0)
    direct = OpenAI(base_url=direct_url, api_key="none", max_retries=0)
    found = []
    # Without a word about the encoding the SDK asks for base64 and decodes it. Each is asked twice: called, then cached.
    for name, text in [("one string", "What does a breaker do?"), ("a list of 50", TEXTS)]:
        for encoding in [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}]:
            asked = {"model": model, "input": text, **encoding}
            reference = direct.embeddings.create(**asked)
            for turn in ["first", "again"]:
                answer = gateway.embeddings.create(**asked)
                found += differences(f"{name}, {encoding or 'default'}, {turn}", answer, reference)
    # A list of texts that were never asked in this mixture, in floats from the start.
    fresh = {"model": model, "input": [f"fresh {text}" for text in TEXTS], "encoding_format": "float"}
    found += differences("a fresh list of 50 in floats", gateway.embeddings.create(**fresh), direct.embeddings.create(**fresh))
    for difference in found[:10]:
        print(difference)
    return 1 if found else 0


try:
    sys.exit(main())
except Exception as error:  # noqa: BLE001 - whatever it is, it is told and is not a difference
    print(f"could not run: {type(error).__name__}: {error}")
    sys.exit(2)
