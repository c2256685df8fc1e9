"""Under torchrun: fills a model that FSDP2 has shared out, and writes the ledger of this rank.

torchrun --nproc-per-node 4 torchrun_worker.py CHECKPOINT FOLDER [EXCHANGE]
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import lading


def main():
    checkpoint, folder, *exchange = sys.argv[1:]
    dist.init_process_group("gloo")
    with lading.skeleton():
        model = torch.nn.Sequential(torch.nn.Linear(24, 37), torch.nn.LayerNorm(37), torch.nn.Linear(37, 5))
    if not exchange:
        fully_shard(model)
    report = lading.materialize(model, checkpoint, device="cpu", exchange=exchange[0] if exchange else "never")
    (Path(folder) / f"ledger.rank{report.rank}.json").write_text(report.ledger)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
