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
from huggingface_hub import constants  # noqa: E402


def facts(model):
    return {
        "class": f"{type(model).__module__.partition('.')[0]}.{type(model).__name__}",
        "generation": model.generation_config.to_dict(),
        "config": {key: str(value) for key, value in model.config.to_dict().items()},
        "buffers": [name for name, _ in model.named_buffers()],
        "sum": sum(float(tensor.double().sum()) for tensor in model.state_dict().values()),
        "generates": callable(getattr(model, "generate", None)) and getattr(model.generate, "__name__", "custom"),
    }


def ours(name, trust):
    before = len(attempts)
    try:
        lading.skeleton_of(name, trust_remote_code=trust)
        model = lading.from_pretrained(name, device="cpu", progress=False, trust_remote_code=trust)
    except lading.LadingError as error:
        return {"refused": error.full_text(), "attempts": attempts[before:]}
    return {"ours": facts(model), "attempts": attempts[before:]}


def theirs(name, trust):
    constants.HF_HUB_OFFLINE = True  # else it waits for a network
    model = transformers.AutoModelForCausalLM.from_pretrained(name, trust_remote_code=trust)
    return {"theirs": facts(model)}


asked = {name: (name.rstrip("!"), name.endswith("!")) for name in sys.argv[1:]}
answers = {name: ours(*which) for name, which in asked.items()}
for name, which in asked.items():
    if "ours" in answers[name]:
        answers[name] |= theirs(*which)
print("\n" + json.dumps(answers))
