"""A Qwen3-MoE that transformers itself has loaded and sharded over two ranks, saved by both: what its own distributed
save writes, and what `lading.save` writes of the same memory."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}

import save_models as models
import torch.distributed as dist
from geometry.launch import run_ranks
from safetensors import safe_open

import lading

RANKS_DEADLINE_S = 100


def main():
    """By case, what its files have and lack, and how ours differ from what one process writes."""
    from transformers import Qwen3MoeForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    assert Qwen3MoeForCausalLM
    scratch = Path(os.environ["LADING_SCRATCH"])
    folder = models.make_checkpoints(scratch) / "qwen3_moe"
    return run_ranks(2, run, RANKS_DEADLINE_S, folder, scratch)[0]


def run(rank, folder, scratch):
    from transformers import Qwen3MoeForCausalLM
    from transformers.distributed.checkpoint import consolidate_distributed_checkpoint
    from transformers.distributed.configuration_utils import DistributedConfig

    answers = {}
    for case, sizes in {"fsdp": {"fsdp_size": 2}, "tp": {"tp_size": 2}}.items():
        model = Qwen3MoeForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(**sizes))
        theirs, ours = scratch / f"{case}-theirs", scratch / f"{case}-ours"
        model.save_pretrained(theirs, distributed_checkpoint=True)
        lading.save(model, ours, timeout=60)
        dist.barrier()
        if rank == 0:
            consolidate_distributed_checkpoint(theirs, theirs / "whole")
            wanted, found = keys_in(folder), keys_in(theirs / "whole")
            problems = [one for one in models.differences(ours, folder) if not one.startswith("config.json")]
            answers[case] = {"missing": len(wanted - found), "unknown": len(found - wanted), "ours": problems}
        dist.barrier()
    return answers


def keys_in(folder):
    found = set()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= set(file.keys())
    return found
