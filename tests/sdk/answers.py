"""What an official SDK gets for texts and documents at each of several addresses: a line of JSON for each.

usage: answers.py CLIENT KEY URL… < {"model": …, "ranker": …, "texts": […], "query": …, "documents": […], "top": …}
Without "texts" nothing is embedded, without "query" nothing is ranked.
"""

import json
import sys

from clients import CLIENTS

name, key, *urls = sys.argv[1:]
asked = json.load(sys.stdin)
for url in urls:
    client = CLIENTS[name](url, key)
    got = {}
    if "texts" in asked:
        got["vectors"] = [list(vector) for vector in client.embed(asked["model"], asked["texts"])]
    if "query" in asked:
        got["ranking"] = client.rank(asked["ranker"], asked["query"], asked["documents"], asked["top"])
    print(json.dumps(got))
