"""Models of save_models.py with adapters of PEFT, and what PEFT itself writes of them."""

import json
import zlib

import peft
import save_models as models
import torch

LORA = {"target_modules": ["q_proj", "v_proj"], "r": 2, "modules_to_save": ["norm"]}
OTHERS = {"small": {"target_modules": ["up", "down"], "r": 2}}


def with_adapters(model, **options):
    name = "small" if not hasattr(model, "config") else ""
    chosen = options or OTHERS.get(name, LORA)
    return peft.get_peft_model(model, peft.LoraConfig(**chosen))


def wrapped(name, **options):
    """The original's values in the base, and in the adapters values that no initialiser would choose."""
    model = with_adapters(models.original(name), **options)
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            if "lora_" in key or "modules_to_save" in key:
                generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
                tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return model


def adapter_differences(found, wanted):
    """The weights byte by byte. PEFT writes sets in the order that the process has them in."""
    weights, config = "adapter_model.safetensors", "adapter_config.json"
    problems = [] if (found / weights).read_bytes() == (wanted / weights).read_bytes() else [why(found, wanted, weights)]
    one, other = (_sorted(json.loads((folder / config).read_text())) for folder in (found, wanted))
    names = sorted(path.name for path in found.iterdir())
    if names != [config, weights, "lading.ledger.json"]:
        problems.append(f"the files are {names}")
    return problems + ([] if one == other else [f"{config}: {one}, not {other}"])


def why(found, wanted, name):
    one, other = models.load_file(found / name), models.load_file(wanted / name)
    if one.keys() != other.keys():
        return f"the keys {sorted(one.keys() ^ other.keys())}"
    return f"other values of {[key for key in one if not torch.equal(one[key], other[key])]}"


def _sorted(config):
    return {key: sorted(value) if isinstance(value, list) else value for key, value in config.items()}
