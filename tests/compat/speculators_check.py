"""The real speculators: a draft of EAGLE-3, filled by lading, beside the one that speculators makes and fills itself.

    PYTHONPATH=python python tests/compat/speculators_check.py      # one line, and 0 if right

In one process, and on two ranks under speculators' own FSDP2 wrapping. The verifier ties its head to its embeddings, so
the draft's `verifier_lm_head` is cut out of `embed_tokens`, which the two ranks share: a value that is computed from a
sharded tensor of the same load. Every tensor is compared bit by bit, and so is the loss of a pass in one process.

Tried with speculators 0.9.0, transformers 5.18.0 and torch 2.13.0. Its imports need openai, datasets, loguru,
pydantic-settings, typer, rich and hs-connectors; it requires torchvision and torchaudio, and imports them nowhere.
"""

import importlib.metadata
import os
import socket
import subprocess
import sys
import tempfile

DEADLINE_S = 240
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}


def main():
    if "RANK" in os.environ:
        return on_a_rank()
    from lading import _engine

    with tempfile.TemporaryDirectory(prefix="lading_speculators_") as folder:
        theirs = save_draft(folder)
        wrong = differences(theirs, filled(folder)) + losses(theirs, filled(folder))
        wrong += on_two_ranks(folder)
    count = len(tensors(theirs))
    names = ("speculators", "transformers", "torch")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    verdict = f"{count} tensors of Eagle3DraftModel, one process and FSDP2 on two ranks"
    print(f"{versions}, lading {_engine.version()}: {verdict}: {'right' if not wrong else '; '.join(wrong)}")
    return 1 if wrong or count != 20 else 0


def save_draft(folder):
    """The draft as speculators fills it, and its checkpoint and the verifier's."""
    import torch
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    verifier = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_hidden_layers=6, tie_word_embeddings=True, **SMALL))
    with torch.no_grad():
        verifier.model.norm.weight.copy_(torch.randn(32))
    verifier.save_pretrained(f"{folder}/verifier")
    layers = LlamaConfig(vocab_size=64, num_hidden_layers=1, **SMALL)
    layers._attn_implementation = "eager"
    speculation = SpeculatorsConfig(
        algorithm="eagle3",
        proposal_methods=[GreedyTokenProposalConfig(proposal_type="greedy", speculative_tokens=3)],
        default_proposal_method="greedy",
        verifier=VerifierConfig.from_pretrained(f"{folder}/verifier"),
    )
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layers,
        draft_vocab_size=32,
        norm_before_residual=False,
        speculators_config=speculation,
        eagle_aux_hidden_state_layer_ids=[1, 3, 4],
    )
    theirs = Eagle3DraftModel(config)
    known = torch.zeros(64, dtype=torch.bool)
    known[1::2] = True
    theirs.load_vocab_mappings(known, torch.arange(32) + 1)
    theirs.load_verifier_weights()
    with torch.no_grad():
        for name in ("norm.weight", "layers.0.input_layernorm.weight"):  # ones, as a constructor would make them
            theirs.get_parameter(name).normal_()
    theirs.save_pretrained(f"{folder}/draft")
    return theirs


def filled(folder, shard=None):
    """The same draft, built on meta, sharded if asked, and filled by lading from the two checkpoints."""
    import lading
    from safetensors import safe_open
    from speculators.models.eagle3 import Eagle3DraftModel

    config = Eagle3DraftModel.config_class.from_pretrained(f"{folder}/draft")
    config.transformer_layer_config._attn_implementation = "eager"
    with lading.skeleton():
        draft = Eagle3DraftModel(config)
    if shard is not None:
        shard(draft)
    with safe_open(f"{folder}/verifier/model.safetensors", framework="pt") as file:
        embeddings, norm = file.get_tensor("model.embed_tokens.weight"), file.get_tensor("model.norm.weight")
    head = lading.Computed(lambda table, known: table[known], "embed_tokens.weight", "t2d")
    lading.materialize(
        draft,
        f"{folder}/draft",
        device="cpu",
        external={"embed_tokens.weight": embeddings},
        recipes={"verifier_lm_head.weight": head, "verifier_norm.weight": lambda module, name: norm},
        allow_missing=["verifier_*"],
        progress=False,
        timeout=60,
    )
    return draft


def tensors(model):
    return dict(model.named_parameters()) | dict(model.named_buffers())


def differences(theirs, ours):
    import torch

    want, found = tensors(theirs), tensors(ours)
    wrong = [f"{name} is missing in one of them" for name in sorted(set(want) ^ set(found))]
    for name in sorted(set(want) & set(found)):
        got = found[name].full_tensor() if hasattr(found[name], "full_tensor") else found[name]
        if found[name].requires_grad != want[name].requires_grad:
            wrong.append(f"{name} is {'frozen' if want[name].requires_grad else 'not frozen'}")
        if got.dtype != want[name].dtype or not torch.equal(got, want[name]):
            wrong.append(f"{name} differs")
    return wrong


def losses(*models):
    """A forward pass of speculators' own, with the verifier's head in the loss."""
    import torch
    from speculators.losses import resolve_loss_config

    found = []
    for model in models:
        torch.manual_seed(5)
        ids = torch.arange(12)[None] * 5 % 64
        states = torch.randn(1, 12, 3 * 32)
        given = {"loss_mask": torch.ones(1, 12), "verifier_last_hidden_states": torch.randn(1, 12, 32)}
        given["loss_config"] = resolve_loss_config("kl_div", "eager")  # the fused one is Triton's
        documents = torch.zeros(1, 12, dtype=torch.int64)
        _, loss, _ = model.eval()(states, ids, documents, ttt_steps=2, **given)
        found.append(loss.item())
    return [] if found[0] == found[1] and found[0] == found[0] else [f"the losses are {found}"]


def on_two_ranks(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    address |= {"OMP_NUM_THREADS": "1", "LADING_CHECKED": folder}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__], env=os.environ | address | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        for rank in range(2)
    ]
    wrong = []
    for rank, process in enumerate(ranks):
        try:
            output, _ = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        if process.returncode != 0:
            wrong.append(f"rank {rank}: {output[-1500:]}")
    return wrong


def on_a_rank():
    import torch.distributed as dist
    from speculators.models.eagle3 import Eagle3DraftModel
    from speculators.train.distributed import apply_fully_sharded

    dist.init_process_group("gloo")
    folder = os.environ["LADING_CHECKED"]
    theirs = Eagle3DraftModel.from_pretrained(f"{folder}/draft")
    theirs.load_verifier_weights()
    wrong = differences(theirs, filled(folder, apply_fully_sharded))
    print("; ".join(wrong))
    dist.destroy_process_group()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
