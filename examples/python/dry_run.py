"""A dry run: what a load would read, where the values come from, and how much memory it takes. Nothing is allocated.

python examples/python/dry_run.py
"""

from common import Model, sample, start, this_device

import lading

device = this_device(start())
with sample(device) as (checkpoint, _):
    with lading.skeleton():
        model = Model()
    plan = lading.plan(model, checkpoint, device=device)
    print(plan)

    assert all(parameter.is_meta for parameter in model.parameters())
    assert lading.materialize(model, checkpoint, device=device).plan_digest == plan.plan_digest
