"""Tiny Llamas in blocks of 128, quantized by tests/zoo/quantize.py, and how far a model is from the oracle's values,
which knows nothing of lading."""

import quantize
import torch

BLOCKS = quantize.Scheme()


def config(hidden, inner, layers=1):
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


def make(folder, hidden, inner, scheme=BLOCKS, layers=1):
    """Writes `folder`/plain, as transformers saves it in BF16, and returns `folder`/fp8."""
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(config(hidden, inner, layers)).to(torch.bfloat16)
    model.save_pretrained(folder / "plain")
    quantize.quantize(folder / "plain", folder / "fp8", scheme)
    return folder / "fp8"


def oracle(folder, scheme=BLOCKS, dtype=torch.bfloat16):
    return quantize.dequantized(folder, scheme, dtype)


def wrong(model, wanted):
    """{name: the share of its elements that are not the oracle's}, of tensors that have any. Shards are gathered."""
    found = {}
    for name, tensor in model.state_dict().items():
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        differs = whole.view(torch.int16) != wanted[name].view(torch.int16)
        if whole.dtype != wanted[name].dtype:
            found[name] = 1.0
        elif bool(differs.any()):
            found[name] = differs.float().mean().item()
    return found


def by_transformers(folder, **options):
    from transformers import FineGrainedFP8Config, LlamaForCausalLM

    said = FineGrainedFP8Config(dequantize=True)
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, quantization_config=said, **options)
