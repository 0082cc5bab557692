"""The official OpenAI SDK with token ids for a model whose upstreams take texts only: an error that says why.

usage: openai_token_ids.py GATEWAY_URL KEY MODEL
Exit 0: BadRequestError, printed; 1: anything else.
"""

import sys

from openai import BadRequestError, OpenAI

gateway_url, key, model = sys.argv[1:]
client = OpenAI(base_url=gateway_url, api_key=key)
for ids in ([9906, 1917], [[9906, 1917], [15339]]):
    try:
        answer = client.embeddings.create(model=model, input=ids)
    except BadRequestError as error:
        print(f"{error.status_code} {error.code} {error.param} {error.message}")
    else:
        print(f"a vector of {len(answer.data[0].embedding)} numbers for {ids}")
        sys.exit(1)
