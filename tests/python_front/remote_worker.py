"""`from_pretrained` of cached repositories in a process that is not allowed a network: remote_worker.py ORG/NAME[!]…

`!` stands for trust_remote_code. Counts every attempt to connect or to look up a name, and writes what came out of
each repository and of transformers' own classes, as JSON."""

import json
import socket
import sys

attempts = []


def refuse(*arguments, **_):
    attempts.append(str(arguments[1:] or arguments)[:80])
    raise OSError("no network here")


socket.socket.connect = socket.socket.connect_ex = refuse
socket.getaddrinfo = socket.create_connection = socket.gethostbyname = refuse

import lading  # noqa: E402
import transformers  # noqa: E402


def loaded(name):
    before, trust = len(attempts), name.endswith("!")
    name = name.rstrip("!")
    try:
        document = lading.skeleton_of(name, trust_remote_code=trust)
        model = lading.from_pretrained(name, device="cpu", progress=False, trust_remote_code=trust)
    except lading.LadingError as error:
        return {"refused": str(error), "attempts": attempts[before:]}
    answer = {
        "attempts": attempts[before:],
        "class": f"{type(model).__module__.partition('.')[0]}.{type(model).__name__}",
        "generation": model.generation_config.to_dict(),
        "buffers": [name for name, _ in model.named_buffers()],
        "tensors": len(json.loads(document)["tensors"]),
        "sum": sum(float(tensor.double().sum()) for tensor in model.state_dict().values()),
        "generates": callable(getattr(model, "generate", None)) and getattr(model.generate, "__name__", "custom"),
    }
    theirs = transformers.AutoModelForCausalLM.from_pretrained(name, trust_remote_code=trust, local_files_only=True)
    answer["theirs"] = {
        "class": f"{type(theirs).__module__.partition('.')[0]}.{type(theirs).__name__}",
        "generation": theirs.generation_config.to_dict(),
        "buffers": [name for name, _ in theirs.named_buffers()],
        "sum": sum(float(tensor.double().sum()) for tensor in theirs.state_dict().values()),
        "generates": callable(getattr(theirs, "generate", None)) and getattr(theirs.generate, "__name__", "custom"),
        "config": theirs.config.to_dict() == model.config.to_dict(),
    }
    return answer


print("\n" + json.dumps({name: loaded(name) for name in sys.argv[1:]}))
