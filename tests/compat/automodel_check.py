"""The real NeMo Automodel: Gemma4 as its fine-tuning recipes build it, filled by lading, beside what Automodel loads.

    PYTHONPATH=python python tests/compat/automodel_check.py        # one line, and 0 if right

Two ranks. `NeMoAutoModelForImageTextToText.from_pretrained` with Automodel's FSDP2, LoRA and BF16 policy; the vision
tower is frozen and standardizes (`std_bias`, `std_scale`, F32 in the file). Once as it is; once with lading in the place
of Automodel's two steps, `Checkpointer.initialize_model_weights` and `Checkpointer.load_base_model`. Every tensor is
compared bit by bit, with dtype, device and `requires_grad`; then the loss of one step with an image, and all gradients.

Automodel knows CUDA devices only. Two replacements make it run on CPUs: `torch.cuda.current_device`, and the device
that `from_pretrained` hands to `apply_model_infrastructure`. So that both models get the same adapters, the random
numbers are seeded before Automodel initialises them. Nothing else of it is touched.

Tried with nemo-automodel 0.7.0, transformers 5.18.0 and torch 2.13.0. Its imports need datasets, torchdata and torchao;
what else it requires (megatron-fsdp, quack-kernels, mistral-common, flashoptim, …) is not imported here.
"""

import importlib.metadata
import os
import socket
import subprocess
import sys
import tempfile

DEADLINE_S = 300
IMAGE = 150  # the token that stands for a piece of an image


def main():
    if "RANK" in os.environ:
        return on_a_rank(os.environ["LADING_CHECKED"])
    from lading import _engine

    with tempfile.TemporaryDirectory(prefix="lading_automodel_") as folder:
        save_checkpoint(folder)
        wrong, said = on_two_ranks(folder)
    names = ("nemo-automodel", "transformers", "torch")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    print(f"{versions}, lading {_engine.version()}: {said}: {'right' if not wrong else '; '.join(wrong)}")
    return 1 if wrong else 0


def save_checkpoint(folder):
    """BF16, as Gemma4 is published, but for the statistics of the vision tower."""
    import torch
    from transformers import Gemma4ForConditionalGeneration
    from transformers.models.gemma4.configuration_gemma4 import Gemma4Config, Gemma4TextConfig, Gemma4VisionConfig

    small = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
    text = Gemma4TextConfig(
        num_hidden_layers=2, intermediate_size=48, global_head_dim=16, vocab_size=160, vocab_size_per_layer_input=160,
        hidden_size_per_layer_input=8, pad_token_id=0, layer_types=["sliding_attention", "full_attention"], **small,
    )  # fmt: skip
    vision = Gemma4VisionConfig(
        num_hidden_layers=2, intermediate_size=40, use_clipped_linears=True, standardize=True, patch_size=4,
        pooling_kernel_size=2, **small,
    )  # fmt: skip
    config = Gemma4Config(text_config=text, vision_config=vision, audio_config=None, image_token_id=IMAGE)
    torch.manual_seed(0)
    model = Gemma4ForConditionalGeneration(config)
    stored = set(model.state_dict())
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name not in stored:
                continue
            if name.endswith("_min"):
                tensor.copy_(-torch.rand_like(tensor) - 2)
            elif name.endswith(("_max", "layer_scalar", "std_scale")):
                tensor.copy_(torch.rand_like(tensor) + 0.5)
            else:
                tensor.copy_(torch.randn_like(tensor) * 0.2)
            tensor.data = tensor.data.to(torch.float32 if ".std_" in name else torch.bfloat16)
    model.config.dtype = torch.bfloat16
    model.save_pretrained(folder)


def on_two_ranks(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    address |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "LADING_CHECKED": folder}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__], env=os.environ | address | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        for rank in range(2)
    ]
    wrong, said = [], ""
    for rank, process in enumerate(ranks):
        try:
            output, _ = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        said = output.splitlines()[-1] if output else ""
        if process.returncode != 0:
            wrong.append(f"rank {rank}: {output[-2500:]}")
    return wrong, said


def on_a_rank(folder):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.cuda.current_device = lambda: 0
    theirs = recipe_model(folder)
    with filled_by_lading():
        ours = recipe_model(folder)
    wrong = differences(theirs, ours)
    losses = [step(model) for model in (theirs, ours)]
    wrong += [] if losses[0] == losses[1] == losses[1] else [f"the losses are {losses}"]
    wrong += differences(gradients(theirs), gradients(ours))
    count = len(tensors(ours))
    wrong += [] if count > 100 and gradients(ours) else ["there is nothing to compare"]
    print("; ".join(wrong))
    print(f"{count} tensors and {len(gradients(ours))} gradients of {type(ours).__name__}, LoRA and FSDP2 on two ranks")
    dist.destroy_process_group()
    return 1 if wrong else 0


def recipe_model(folder):
    """What a recipe of Automodel calls, with what its yaml says."""
    import torch
    from nemo_automodel._transformers import NeMoAutoModelForImageTextToText, auto_model
    from nemo_automodel.components._peft.lora import PeftConfig
    from nemo_automodel.components.checkpoint import checkpointing
    from nemo_automodel.components.distributed.config import DistributedSetup

    apply, init = auto_model.apply_model_infrastructure, checkpointing._init_peft_adapters

    def seeded(model, method):
        torch.manual_seed(3)
        init(model, method)

    auto_model.apply_model_infrastructure = lambda **given: apply(**given | {"device": torch.device("cpu")})
    checkpointing._init_peft_adapters = seeded
    try:
        return NeMoAutoModelForImageTextToText.from_pretrained(
            folder,
            force_hf=True,
            torch_dtype=torch.bfloat16,
            attn_implementation="eager",
            use_liger_kernel=False,
            distributed_setup=DistributedSetup.build("fsdp2"),
            peft_config=PeftConfig(target_modules=["*.language_model.*.q_proj", "*.language_model.*.v_proj"], dim=4),
        )
    finally:
        auto_model.apply_model_infrastructure, checkpointing._init_peft_adapters = apply, init


class filled_by_lading:
    """lading in the place of Automodel's own two steps."""

    def __enter__(self):
        import torch
        from nemo_automodel.components.checkpoint import checkpointing

        import lading

        def initialize(model, device, peft_init_method=None):
            self.adapters = peft_init_method  # everything stays on meta

        def load(checkpointer, model, device, root_dir, model_name, load_base_model=True):
            assert load_base_model and any(parameter.is_meta for parameter in model.parameters())
            adapters = {"*lora_A.weight": zeros, "*lora_B.weight": zeros}
            options = {"recipes": adapters, "allow_missing": list(adapters), "progress": False, "timeout": 60}
            lading.materialize(model, model_name, device=device, compute_dtype=torch.bfloat16, **options)
            checkpointing._init_peft_adapters(model, self.adapters)

        def zeros(module, name):
            return torch.zeros(tuple(getattr(module, name).shape))

        owner = checkpointing.Checkpointer
        self.before = owner.initialize_model_weights, owner.load_base_model
        owner.initialize_model_weights, owner.load_base_model = staticmethod(initialize), load

    def __exit__(self, *_):
        from nemo_automodel.components.checkpoint.checkpointing import Checkpointer

        Checkpointer.initialize_model_weights = staticmethod(self.before[0])
        Checkpointer.load_base_model = self.before[1]


def tensors(model):
    return dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))


def gradients(model):
    return {f"gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}


def differences(theirs, ours):
    import torch

    want, found = (one if isinstance(one, dict) else tensors(one) for one in (theirs, ours))
    wrong = [f"{name} is missing in one of them" for name in sorted(set(want) ^ set(found))]
    for name in sorted(set(want) & set(found)):
        one, two = want[name], found[name]
        facts = [(type(t).__name__, str(t.dtype), str(t.device), t.requires_grad, tuple(t.shape)) for t in (one, two)]
        if facts[0] != facts[1]:
            wrong.append(f"{name}: {facts[1]} for {facts[0]}")
            continue
        one, two = ((t.to_local() if hasattr(t, "to_local") else t).detach() for t in (one, two))
        one, two = (t.reshape(-1).contiguous().view(torch.uint8) for t in (one, two))
        if not torch.equal(one, two):
            wrong.append(f"{name} differs")
    return wrong


def step(model):
    """An image of 4 x 4 patches, which become four pieces, and some words."""
    import torch

    torch.manual_seed(1)
    ids = torch.tensor([[5, IMAGE, IMAGE, IMAGE, IMAGE, 7, 9, 11]])
    places = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij"), -1).reshape(1, 16, 2)
    image = {"pixel_values": torch.rand(1, 16, 48), "image_position_ids": places}
    kinds = (ids == IMAGE).long()
    loss = model(input_ids=ids, labels=ids, mm_token_type_ids=kinds, **image).loss
    loss.backward()
    return loss.item()


if __name__ == "__main__":
    sys.exit(main())
