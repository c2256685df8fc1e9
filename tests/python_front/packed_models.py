"""Tiny models in packed codes (tests/zoo/packed.py), of which no cut meets a group, a word or a byte, and how far a model is
from the values of the oracle, which knows nothing of lading."""

import packed
import quantize
import torch

SCHEMES = packed.SCHEMES
# One for each way of packing: codes along rows, along columns, in another order, with zero points, with two scales.
ON_RANKS = ["int4", "int4 with zero points", "gptq with zero points", "gptq of 8 bits", "awq", "nvfp4", "mxfp8"]
HIDDEN, INNER = 160, 224  # 112 and 56 columns of down_proj a rank; 54 rows a rank of three; flat thirds that end in a byte


def llama_config(hidden=HIDDEN, inner=INNER, layers=1):
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=97,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        tie_word_embeddings=False,
        dtype=torch.bfloat16,
    )


def qwen_config():
    """A mixture of experts, which checkpoints have one by one, and the model stacked."""
    from transformers import Qwen3MoeConfig

    return Qwen3MoeConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=96,
        num_experts=6,
        num_experts_per_tok=2,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        tie_word_embeddings=False,
        dtype=torch.bfloat16,
    )


def gpt_oss_config():
    """Stacked experts, of which the last two dims are swapped in MXFP4."""
    from transformers import GptOssConfig

    return GptOssConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_local_experts=5,
        num_experts_per_tok=2,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=False,
        layer_types=["full_attention"],
        dtype=torch.bfloat16,
    )


def make(folder, scheme, config=None):
    """Writes `folder`/plain, as transformers saves it in BF16, and returns `folder`/quantized."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config or llama_config()).to(torch.bfloat16)
    model.save_pretrained(folder / "plain")
    assert quantize.quantize(folder / "plain", folder / "quantized", scheme)
    return folder / "quantized"


def ordinary(folder, scheme, dtype=torch.bfloat16, arithmetic="exact"):
    """The model of the oracle's values, which transformers loads as an ordinary checkpoint, by names."""
    from transformers import AutoModelForCausalLM

    target = folder.with_name(f"{folder.name}.{arithmetic}.{str(dtype).removeprefix('torch.')}")
    if not target.exists():
        quantize.unquantize(folder, target, scheme, dtype, arithmetic)
    return AutoModelForCausalLM.from_pretrained(target, dtype=dtype).state_dict()


def wrong(model, wanted):
    """{name: the share of its elements that are not the wanted ones}, of tensors that have any. Shards are gathered."""
    found = {}
    held = model.state_dict()
    assert held.keys() == wanted.keys()
    for name, tensor in held.items():
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        if whole.dtype != wanted[name].dtype or whole.shape != wanted[name].shape:
            found[name] = 1.0
            continue
        differs = bits(whole) != bits(wanted[name])
        if bool(differs.any()):
            found[name] = differs.float().mean().item()
    return found


def bits(tensor):
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32}[tensor.element_size()])
