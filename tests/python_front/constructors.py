"""Constructors with one hazard each. Every function gives {name: tensor}; it runs once for real and once under the
skeleton.

What it makes must not depend on the process's random numbers.
"""

import copy
import io

import numpy as np
import torch
from torch import nn


def views():
    x = torch.arange(12.0).view(3, 4)
    x[1].mul_(2)
    x.t()[0].add_(1)
    x.flatten()[::5].neg_()
    x.as_strided((3, 4), (1, 1)).fill_(9)  # as many elements as x has, but not all of them
    return {"x": x, "row": x[2], "transposed": x.t(), "strided": x[:, ::2]}


def in_place():
    x = torch.zeros(4)
    y = x + 1
    x += y
    z = x.clone()
    x.mul_(3).sub_(y)
    return {"x": x, "y": y, "z": z}


def old_version_is_read():
    x = torch.arange(4.0)
    before = x * 2
    x.fill_(9)
    after = x * 2
    x.add_(before)
    return {"before": before, "after": after, "x": x}


def data_attribute():
    p = nn.Parameter(torch.empty(3))
    p.data.fill_(2)
    q = nn.Parameter(torch.zeros(2))
    q.data = torch.arange(2.0) + 5
    q.data[0] = 7
    r = nn.Parameter(torch.zeros(2))
    r.data = torch.from_numpy(np.array([1.5, 2.5], dtype=np.float32))
    return {"p": p, "q": q, "r": r}


def items():
    total = int(torch.arange(5).sum().item())
    x = torch.full((total,), float(torch.tensor(0.25)))
    if torch.ones(2).sum() > 1:
        x[0] = 3
    return {"x": x, "rates": torch.tensor([rate.item() for rate in torch.linspace(0, 0.3, 4)])}


def lists():
    rates = torch.linspace(0, 0.1, 5).tolist()
    return {"x": torch.tensor(rates) * 2, "y": torch.tensor(torch.eye(2).tolist())}


def numpy_reads():
    table = torch.arange(6.0).view(2, 3).numpy()
    return {"x": torch.tensor(np.sin(table)), "y": torch.from_numpy(np.asarray(torch.ones(2)) * 3) + 1}


def numpy_shares_memory():
    x = torch.zeros(4)
    array = x.numpy()
    array[1] = 5
    y = x * 2
    array[2] = 6
    x.add_(1)
    z = torch.from_numpy(array.copy())
    return {"x": x, "y": y, "z": z + 0, "w": x[1:3]}


def numpy_underneath():
    array = np.zeros(3, dtype=np.float32)
    x = torch.from_numpy(array)
    array[0] = 1
    y = x + torch.ones(3)
    array[1] = 1
    z = x + torch.ones(3)
    return {"y": y, "z": z}


OUTSIDE = torch.arange(4.0)


def real_tensors():
    x = torch.ones(4) * OUTSIDE
    y = torch.ones(4)
    y[:2].copy_(OUTSIDE[2:])
    return {"x": x, "y": y}


def captured_then_changed():
    real = torch.from_numpy(np.array([1.0, 2.0]))
    x = torch.ones(2, dtype=torch.float64) + real
    real.fill_(99)
    return {"x": x}


def writes_into_real():
    real = torch.from_numpy(np.zeros(3, dtype=np.float32))
    real.copy_(torch.arange(3.0))
    real[0] = torch.tensor(8.0)
    return {"x": torch.zeros(3) + real}


def data_dependent_shapes():
    x = torch.tensor([3, 0, 2, 0, 3])
    mask = x > 0
    y = torch.arange(5.0)
    y[mask] = -1
    return {
        "nonzero": x.nonzero(),
        "unique": x.unique(),
        "picked": x[mask],
        "y": y,
        "repeat": torch.repeat_interleave(x[:1], torch.tensor([4])),
    }


def default_dtype():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return {
            "ones": torch.ones(2) / 3,
            "quotient": torch.arange(4) / 3,
            "made": torch.tensor([0.1]),
            "range": torch.arange(0, 1, 0.25),
        }
    finally:
        torch.set_default_dtype(before)


def dtypes():
    x = torch.linspace(0, 1, 7)
    return {
        "half": x.half(),
        "bf16": x.to(torch.bfloat16) * 3,
        "int": (x * 10).long(),
        "bool": x > 0.5,
        "full": torch.full((2,), 0.1, dtype=torch.bfloat16),
    }


def complex_numbers():
    angles = torch.outer(torch.arange(3.0), torch.linspace(0, 1, 4))
    turns = torch.polar(torch.ones_like(angles), angles)
    return {
        "turns": turns,
        "conjugate": turns.conj(),
        "real": torch.view_as_real(turns),
        "imaginary": turns.conj().imag.contiguous(),
    }


def own_generator():
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(3, generator=generator)
    y = torch.empty(4).uniform_(generator=generator)
    z = torch.randperm(6, generator=generator)
    generator.manual_seed(6)
    return {"x": x, "y": y, "z": z, "w": torch.rand(2, generator=generator)}


def moves():
    x = torch.zeros(3)
    x.to("cpu").add_(1)
    x.cpu().add_(1)
    x.to(x).add_(1)
    x.to(x.device).add_(1)
    y = x.to(torch.float64)
    y.add_(1)
    return {"x": x, "y": y}


def asks_for_device():
    x = torch.empty(3)
    if x.device.type == "cpu" and not x.is_meta and x.is_cpu:
        x.fill_(4)
    return {"x": x, "y": torch.ones(2, device=x.device)}


def elementwise_python():
    x = torch.arange(3.0)
    x.apply_(lambda v: v * v + 1)
    x.map_(torch.ones(3), lambda a, b: a - b)
    return {"x": x}


def written_piece_by_piece():
    table = torch.empty(4, 6)
    angles = torch.arange(4.0)[:, None] * torch.arange(3.0)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles.cos()
    return {"table": table}


def out_arguments():
    x = torch.empty(3)
    torch.sin(torch.arange(3.0), out=x)
    y = torch.zeros(2)
    torch._foreach_add_([y, x], 1.0)
    return {"x": x, "y": y}


def changed_geometry():
    x = torch.arange(6.0)
    y = torch.empty(0)
    y.set_(x)
    y.resize_(2, 3)
    x[0] = 5
    z = torch.arange(6.0).view(2, 3)
    z.t_()
    grown = torch.empty(0).resize_(3).fill_(2)
    return {"y": y, "z": z, "grown": grown}


def copies():
    layer = nn.BatchNorm1d(3)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(3.0))
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        layer.weight.add_(1)
    return {"weight": layer.weight, "twin": twin.weight, "count": twin.num_batches_tracked}


def loads_inside():
    file = io.BytesIO()
    layer = nn.Linear(2, 2)
    saved = {
        "weight": torch.from_numpy(np.eye(2, dtype=np.float32)),
        "bias": torch.from_numpy(np.ones(2, dtype=np.float32)),
    }
    torch.save(saved, file)
    file.seek(0)
    layer.load_state_dict(torch.load(file))
    return {"weight": layer.weight, "bias": layer.bias}


def expanded():
    x = torch.arange(3).expand((1, -1))
    y = torch.ones(1).expand(4)
    return {"x": x, "y": y, "z": x + 1}


def reads_in_a_loop():
    x = torch.zeros(300)
    x[0] = 1
    for place in range(1, 300):
        x[place] = x[place - 1].item() / 2 + place % 3
    return {"x": x}


def inside_autocast():
    x = torch.arange(16.0).view(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x.sin() * 2
        with torch.autocast("cpu", enabled=False):
            return {"x": x @ x.cos(), "y": y}


def in_inference_mode():
    with torch.inference_mode():
        x = torch.arange(4.0).view(2, 2).to(torch.float64)
        x[0] *= 2
        return {"x": x + x.sum().item(), "y": x.contiguous()}


def indexed_with_lists():
    x = torch.arange(16.0).view(4, 4)
    rows, columns, both, mask = x[[1, 3]], x[..., [0, 2], None], x[[0, 1], [[2], [3]]], x[:, [True, False, True, True]]
    numbers, mixed = x[[np.int64(2), 0]], x[range(1, 3), 1:]
    x[[2]] = 5
    x[:, [1, 3]] += torch.tensor([0.5, 0.25])
    p = nn.Parameter(torch.zeros(4))
    with torch.no_grad():
        p[[False, True, False, True]] = 2
    tensors = {"x": x, "p": p, "rows": rows, "columns": columns, "both": both, "mask": mask}
    return tensors | {"numbers": numbers, "mixed": mixed, "none": x[:, []]}


def no_elements():
    return {"x": torch.empty(0, 3), "y": torch.tensor([]), "z": torch.zeros(2, 0)}


ALL = [value for value in list(globals().values()) if callable(value) and getattr(value, "__module__", "") == __name__]
