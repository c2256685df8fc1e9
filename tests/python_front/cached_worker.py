"""Every function that reads a checkpoint, on repositories of a Hugging Face cache, in a process without sockets:
cached_worker.py FOLDER COMMIT

Writes as JSON what each call gave, and every attempt to use a network. `main` of org/name holds zeros in BF16, `v1`
ones in F32."""

import json
import socket
import sys

attempts = []


def refuse(*arguments, **_):
    attempts.append(str(arguments[1:] or arguments)[:80])
    raise OSError("no network here")


socket.socket.__init__ = socket.socket.connect = socket.socket.connect_ex = refuse
socket.getaddrinfo = socket.create_connection = socket.gethostbyname = socket.socketpair = refuse

import lading  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

FOLDER = sys.argv[1]
COMMIT = sys.argv[2]


def skeleton():
    with lading.skeleton():
        return LlamaForCausalLM(LlamaConfig.from_pretrained(FOLDER))


def value(model):
    assert not any(parameter.is_meta for parameter in model.parameters())
    return {float(parameter.detach().min()) for parameter in model.parameters()}.pop()


def materialize(name, **more):
    model = skeleton()
    lading.materialize(model, name, device="cpu", progress=False, **more)
    return value(model)


def from_pretrained(name, **more):
    model = lading.from_pretrained(name, device="cpu", progress=False, **more)
    return [value(model), str(model.config.dtype), model.generation_config.max_length]


def audit(name, **more):
    model = LlamaForCausalLM.from_pretrained(FOLDER)  # of ones
    return sorted({problem.code for problem in lading.audit(model, name, **more).problems})


def plan(name, **more):
    found = lading.plan(skeleton(), name, device="cpu", **more)
    return found.tensors["lm_head.weight"].dtype


def dtypes(name, **more):
    return str(lading.resolve_dtypes(skeleton(), name, **more)["lm_head.weight"].checkpoint)


def skeleton_of(name, **more):
    tensors = json.loads(lading.skeleton_of(name, **more))["tensors"]
    return next(tensor["dtype"] for tensor in tensors if tensor["name"] == "lm_head.weight")


def fingerprint(name, **more):
    return lading.fingerprint(name, **more).tensors["lm_head.weight"].dtype


def said(call):
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - it is the answer
        return f"{type(error).__name__}: {error}"


FUNCTIONS = (materialize, from_pretrained, audit, plan, dtypes, skeleton_of, fingerprint)
answers = {}
for function in FUNCTIONS:
    answers[function.__name__] = {
        "main": said(lambda: function("org/name")),
        "tag": said(lambda: function("org/name", revision="v1")),
        "commit": said(lambda: function("org/name", revision=COMMIT)),
        "absent revision": said(lambda: function("org/name", revision="v9")),
        "absent": said(lambda: function("org/absent")),
        "absent, revision": said(lambda: function("org/absent", revision="v1")),
        "path": said(lambda: function(FOLDER, revision="v1")),
    }
answers["attempts"] = attempts
print("\n" + json.dumps(answers))
