"""Names that exist, in most of the requests: random ones would get no further than "there is no such model"."""

import zlib

import schemathesis

NAMES = {
    "id": ["t1", "simulated"],
    "name": ["handbook"],
    "order": ["drain", "resume", "open", "close", "drill"],
    "fingerprint": ["0123456789abcdef"],
}


def chosen(names, seed):
    """One of `names`, by what the request looks like; nothing in one of four."""
    number = zlib.crc32(repr(seed).encode(errors="replace"))
    return names[number // 4 % len(names)] if number % 4 else None


def models(path):
    if "rerank" in path:
        return ["simulated-rerank"]
    if any(word in path for word in ("chat", "completions", "responses", "messages")):
        return ["simulated-chat"]
    return ["simulated-embedding"]


@schemathesis.hook
def before_call(context, case, kwargs):
    path = case.operation.path
    known = {"model": models(path), **NAMES}
    for name in case.path_parameters or {}:
        if name in known:
            value = chosen(known[name], (path, case.path_parameters[name], repr(case.body)))
            case.path_parameters[name] = value or case.path_parameters[name]
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        value = chosen(models(path), case.body)
        case.body = {**case.body, "model": value or case.body["model"]}
