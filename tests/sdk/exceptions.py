"""Which exception an official SDK raises in each of several conditions: a line of JSON for each.

usage: exceptions.py CLIENT URL < [{"condition": …, "key": …, "model": …, "text": …}, …]
"""

import json
import sys

from clients import CLIENTS

name, url = sys.argv[1:]
for case in json.load(sys.stdin):
    raised, words = "nothing", ""
    try:
        CLIENTS[name](url, case["key"]).embed(case["model"], [case["text"]])
    except Exception as error:  # noqa: BLE001 - whatever is raised is what is asked for
        raised, words = type(error).__name__, str(error)
    print(json.dumps({"condition": case["condition"], "raised": raised, "words": words}))
