"""One process: build on meta, fill from a checkpoint.

python examples/python/single.py
"""

from common import Model, compare, sample, start, this_device

import lading

device = this_device(start())
with sample(device) as (checkpoint, trained):
    with lading.skeleton():  # no memory, and what the constructor does is recorded
        model = Model()
    report = lading.materialize(model, checkpoint, device=device)
    print(report)

    assert model.head.weight is model.embed.weight
    assert model.softcap == 30.0  # no file has it
    compare(model, trained)
