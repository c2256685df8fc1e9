"""A quantized checkpoint into a BF16 model on one GPU: lading, transformers and torch's own reader in one run, every
tensor compared.

    python bench/gpu/quantized.py [--scheme fp8|mxfp4] [--rounds 5] [--layers N] [--no-peers] [--dir DIR] [--output FILE]

fp8: the Llama-8B shape, in blocks of 128 x 128. mxfp4: the shape of gpt-oss-20b, whose experts are in MXFP4; torch's
reader does not know it. Each loader runs in a process of its own. Files are cached. The expectation is computed on the
GPU from payload and scale, in F64, rounded once by integer arithmetic.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

BLOCK = 128
SHAPE = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
         "vocab_size": 128256, "tie_word_embeddings": False, "max_position_embeddings": 8192}  # fmt: skip
LOADERS = ["lading", "lading_later", "transformers", "dcp"]


EXPERTS_SHAPE = {"hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8,
                 "head_dim": 64, "vocab_size": 201088, "num_local_experts": 32, "tie_word_embeddings": False}  # fmt: skip
LAYERS = {"fp8": 32, "mxfp4": 24}
CODES = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def config_of(scheme: str, layers: int):
    from transformers import GptOssConfig, LlamaConfig

    if scheme == "mxfp4":
        return GptOssConfig(num_hidden_layers=layers, dtype="bfloat16", architectures=["GptOssForCausalLM"],
                            **EXPERTS_SHAPE)  # fmt: skip
    return LlamaConfig(num_hidden_layers=layers, dtype="bfloat16", architectures=["LlamaForCausalLM"], **SHAPE)


def class_of(scheme: str):
    from transformers import GptOssForCausalLM, LlamaForCausalLM

    return GptOssForCausalLM if scheme == "mxfp4" else LlamaForCausalLM


def stored_fp8(name: str, shape: tuple[int, ...], random: torch.Generator) -> dict[str, torch.Tensor]:
    made = torch.randn(shape, generator=random, device="cuda")
    if "_proj" not in name:
        return {name: made.to(torch.bfloat16)}
    blocks = [-(-extent // BLOCK) for extent in shape]
    scale = torch.rand(blocks, generator=random, device="cuda") * 1e-3 + 1e-5
    return {name: (made * 100).clamp(-448, 448).to(torch.float8_e4m3fn), f"{name}_scale_inv": scale}


def stored_mxfp4(name: str, shape: tuple[int, ...], random: torch.Generator) -> dict[str, torch.Tensor]:
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        return {name: torch.randn(shape, generator=random, device="cuda").to(torch.bfloat16)}
    experts, inner, outer = shape
    groups = (experts, outer, inner // 32)
    blocks = torch.randint(0, 256, (*groups, 16), generator=random, device="cuda", dtype=torch.uint8)
    scales = torch.randint(110, 130, groups, generator=random, device="cuda", dtype=torch.uint8)
    return {f"{name}_blocks": blocks, f"{name}_scales": scales}


def quantization_of(scheme: str) -> dict:
    if scheme == "mxfp4":
        skipped = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
        return {"quant_method": "mxfp4", "modules_to_not_convert": skipped}
    return {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK], "modules_to_not_convert": ["lm_head"]}


def write(scheme: str, folder: Path, layers: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with torch.device("meta"):
        model = class_of(scheme)(config_of(scheme, layers))
        shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    random = torch.Generator("cuda").manual_seed(1)
    shards: list[dict[str, torch.Tensor]] = [{}]
    index, used = {}, 0
    for name, shape in shapes.items():
        stored = stored_mxfp4 if scheme == "mxfp4" else stored_fp8
        for key, tensor in stored(name, shape, random).items():
            shards[-1][key] = tensor.cpu()
            index[key] = len(shards) - 1
            used += tensor.nbytes
        if used > 3 << 30 and name != list(shapes)[-1]:
            shards.append({})
            used = 0
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for tensors, name in zip(shards, names, strict=True):
        save_file(tensors, folder / name, {"format": "pt"})
    weight_map = {key: names[i] for key, i in index.items()}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    config = config_of(scheme, layers).to_dict()
    config["quantization_config"] = quantization_of(scheme)
    (folder / "config.json").write_text(json.dumps(config))


def nearest_bf16(exact: torch.Tensor) -> torch.Tensor:
    bits = exact.view(torch.int64)
    odd = (bits >> 45) & 1
    return (((bits + (1 << 44) - 1 + odd) >> 45) << 45).view(torch.float64).to(torch.bfloat16)


def expected(name: str, get) -> torch.Tensor:
    """`get` reads a key, or gives None."""
    stored = get(name)
    if stored is None:
        blocks, scales = get(f"{name}_blocks"), get(f"{name}_scales")
        codes = torch.tensor(CODES, dtype=torch.float64, device="cuda")
        low, high = codes[(blocks & 15).int()], codes[(blocks >> 4).int()]
        values = torch.stack([low, high], -1).flatten(-2) * torch.exp2(scales.double() - 127).unsqueeze(-1)
        return nearest_bf16(values.flatten(-2)).transpose(1, 2)
    if stored.dtype == torch.float8_e4m3fn:
        scale = get(f"{name}_scale_inv").double()
        rows, columns = stored.shape
        scale = scale.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
        return nearest_bf16(stored.double() * scale)
    return stored


def wrong_tensors(model: torch.nn.Module, folder: Path) -> list[str]:
    weight_map = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    files = {name: safe_open(folder / name, "pt", device="cuda") for name in set(weight_map.values())}

    def one(key: str, expert: int | None):
        if key not in weight_map:
            return None
        if expert is None:
            return files[weight_map[key]].get_tensor(key)
        return files[weight_map[key]].get_slice(key)[expert : expert + 1]

    wrong = []
    for name, parameter in model.named_parameters():
        # Expert by expert where the F64 values of a whole tensor would need too much memory.
        parts = range(parameter.shape[0]) if name not in weight_map else [None]
        for part in parts:
            wanted = expected(name, lambda key, part=part: one(key, part))
            found = parameter if part is None else parameter[part : part + 1]
            same = found.dtype == wanted.dtype and torch.equal(
                found.contiguous().view(torch.int16), wanted.contiguous().view(torch.int16)
            )
            if not same:
                wrong.append(name)
                break
    return wrong


def load(loader: str, scheme: str, folder: Path, layers: int) -> tuple[torch.nn.Module, float]:
    cls = class_of(scheme)
    torch.zeros(1, device="cuda")
    if loader.startswith("lading"):
        import lading

        with lading.skeleton():
            model = cls(config_of(scheme, layers)).to(torch.bfloat16)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        lading.materialize(model, folder, device="cuda:0")
    elif loader == "transformers":
        from transformers import FineGrainedFP8Config, Mxfp4Config

        quantization = Mxfp4Config(dequantize=True) if scheme == "mxfp4" else FineGrainedFP8Config(dequantize=True)
        begin = time.perf_counter()
        model = cls.from_pretrained(
            folder, dtype=torch.bfloat16, device_map="cuda:0", quantization_config=quantization
        )
    else:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.quantized_hf_storage import QuantizedHuggingFaceStorageReader

        with torch.device("cuda"):
            model = cls(config_of(scheme, layers)).to(torch.bfloat16)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        reader = QuantizedHuggingFaceStorageReader(str(folder), target_dtype=torch.bfloat16, block_size=BLOCK)
        dcp.load(dict(model.state_dict()), storage_reader=reader, no_dist=True)
    torch.cuda.synchronize()
    return model, time.perf_counter() - begin


def measure(loader: str, scheme: str, folder: Path, layers: int) -> None:
    if loader == "lading_later":
        load(loader, scheme, folder, layers)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model, seconds = load(loader, scheme, folder, layers)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wrong = wrong_tensors(model, folder)
    print(json.dumps({"seconds": seconds, "host_mb": (peak - before) / 1024, "wrong": len(wrong), "first": wrong[:2]}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scheme", choices=sorted(LAYERS), default="fp8")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", choices=LOADERS)
    arguments = parser.parse_args()
    scheme = arguments.scheme
    arguments.layers = arguments.layers or LAYERS[scheme]
    arguments.dir = arguments.dir or Path("build") / f"bench-{scheme}"
    if not (arguments.dir / "config.json").exists():
        write(scheme, arguments.dir, arguments.layers)
    if arguments.only:
        return measure(arguments.only, scheme, arguments.dir, arguments.layers)
    size = sum(file.stat().st_size for file in arguments.dir.glob("*.safetensors"))
    loaders = [loader for loader in LOADERS if scheme == "fp8" or loader != "dcp"]
    if arguments.no_peers:
        loaders = [loader for loader in loaders if loader.startswith("lading")]
    results: dict[str, list[dict]] = {loader: [] for loader in loaders}
    for round_number in range(arguments.rounds):
        for loader in loaders:
            if not loader.startswith("lading") and round_number >= 2:
                continue  # slow, and far from the others
            command = [sys.executable, __file__, "--scheme", scheme, "--only", loader, "--layers", str(arguments.layers)]
            done = subprocess.run([*command, "--dir", str(arguments.dir)], capture_output=True, text=True, timeout=300,
                                  env=os.environ | {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}, check=False)  # fmt: skip
            if done.returncode != 0:
                results[loader].append({"error": done.stderr.strip().splitlines()[-1:]})
            else:
                results[loader].append(json.loads(done.stdout.strip().splitlines()[-1]))
            print(loader, results[loader][-1], flush=True)
    print(f"{size / 1e9:.2f} GB of files")
    for loader, rounds in results.items():
        good = [one for one in rounds if "seconds" in one]
        if not good:
            print(loader, rounds)
            continue
        seconds = statistics.median(one["seconds"] for one in good)
        print(f"{loader}: {size / seconds / 1e9:.1f} GB/s of files, {seconds:.3f} s, median of {len(good)}; "
              f"host +{max(one['host_mb'] for one in good):.0f} MB; wrong tensors {max(one['wrong'] for one in good)} "
              f"{good[0]['first']}")  # fmt: skip
    if arguments.output:
        arguments.output.write_text(json.dumps({"files_bytes": size, "loaders": results}, indent=1))


if __name__ == "__main__":
    main()
