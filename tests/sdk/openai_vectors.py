"""The official OpenAI SDK, unchanged but for its base URL: vectors through the gateway are those of a direct call.

usage: openai_vectors.py GATEWAY_URL KEY MODEL DIRECT_URL
Exit 0: equal number for number; 1: they differ, and how; 2: could not run.
"""

import base64
import sys

import numpy
from openai import OpenAI

WIDTH = 384
TEXTS = [f"{n}: mutual TLS, é 日本 \"{n * n}\"\n" for n in range(50)]


def numbers(embedding):
    """The 32-bit numbers of a vector in any form; an explicit base64 is left to the caller by the SDK."""
    if isinstance(embedding, str):
        return numpy.frombuffer(base64.b64decode(embedding), dtype="<f4")
    return numpy.array(embedding, dtype="<f4")


def differences(name, got, direct, as_it_came=False):
    """Everything in which an answer differs from that of the direct call: as it came, or as 32-bit numbers."""
    if len(got.data) != len(direct.data):
        yield f"{name}: {len(got.data)} vectors, directly {len(direct.data)}"
    for position, (ours, theirs) in enumerate(zip(got.data, direct.data)):
        if ours.index != position:
            yield f"{name}: index {ours.index} at position {position}"
        if len(numbers(ours.embedding)) != WIDTH:
            yield f"{name}: vector {position} has {len(numbers(ours.embedding))} numbers"
        if as_it_came and ours.embedding != theirs.embedding:
            yield f"{name}: vector {position} differs: {ours.embedding[:3]}… directly {theirs.embedding[:3]}…"
        if not numpy.array_equal(numbers(ours.embedding), numbers(theirs.embedding)):
            yield f"{name}: vector {position} differs as 32-bit numbers"
    if got.usage.prompt_tokens != direct.usage.prompt_tokens:
        yield f"{name}: {got.usage.prompt_tokens} tokens, directly {direct.usage.prompt_tokens}"


def main():
    gateway_url, key, model, direct_url = sys.argv[1:]
    gateway = OpenAI(base_url=gateway_url, api_key=key, max_retries=0)
    direct = OpenAI(base_url=direct_url, api_key="none", max_retries=0)
    found = []
    # Without a word about the encoding the SDK asks for base64 and decodes it.
    forms = [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}]

    # One string of its own for each form: nothing is cached, so what comes is what the server sent.
    for form in forms:
        asked = {"model": model, "input": f"What does a breaker do? ({form})", **form}
        reference = direct.embeddings.create(**asked)
        for turn in ["called", "cached"]:
            answer = gateway.embeddings.create(**asked)
            found += differences(f"one string, {form or 'default'}, {turn}", answer, reference, as_it_came=True)

    # The same list in every form: called once, and rendered for each. A list of numbers is the server's own text.
    asked = {"model": model, "input": TEXTS}
    reference = direct.embeddings.create(**asked, encoding_format="float")
    for form, turn in [(forms[1], "called"), (forms[1], "cached"), (forms[0], "cached"), (forms[2], "cached")]:
        answer = gateway.embeddings.create(**asked, **form)
        name = f"a list of 50, {form or 'default'}, {turn}"
        found += differences(name, answer, reference, as_it_came=form == forms[1])
    # The other way round: called as base64.
    asked = {"model": model, "input": [f"again {text}" for text in TEXTS[:5]]}
    reference = direct.embeddings.create(**asked)
    for form, turn in [(forms[0], "called"), (forms[1], "cached")]:
        name = f"a list of 5, {form or 'default'}, {turn}"
        answer = gateway.embeddings.create(**asked, **form)
        found += differences(name, answer, reference, as_it_came=form == forms[0])

    for difference in found[:10]:
        print(difference)
    return 1 if found else 0


try:
    sys.exit(main())
except Exception as error:  # noqa: BLE001 - whatever it is, it is told and is not a difference
    print(f"could not run: {type(error).__name__}: {error}")
    sys.exit(2)
