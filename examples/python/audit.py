"""Audit: what is wrong with a model that something else loaded.

python examples/python/audit.py
"""

import torch
from common import Model, sample
from safetensors.torch import load_file

import lading

with sample() as (checkpoint, trained):
    # A usual way to load by hand, and a wrong one: the tie is gone, and what is in no file was never written.
    with torch.device("meta"):
        model = Model()
    model.to_empty(device="cpu")
    model.load_state_dict(load_file(f"{checkpoint}/model.safetensors"), strict=False)

    with lading.skeleton():  # what the constructor makes is the measure for what no file has
        like = Model()
    report = lading.audit(model, checkpoint, like=like)
    print(report)
    assert not report.ok
    assert set(report.tensors) == {"head.weight", "softcap"}

    lading.materialize(like, checkpoint, device="cpu")
    assert lading.audit(like, checkpoint, raise_on="error").ok
