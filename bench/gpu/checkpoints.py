"""Checkpoints for the GPU bench: shapes of a Llama, and many tiny tensors; random numbers with special ones among them.

Written by threads straight into place. The same arguments make the same bytes.
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CHUNK_BYTES = 16 << 20
WORD = {"BF16": np.uint16, "F32": np.uint32}
# Zeros, infinities, NaNs (one of them only in bits that BF16 lacks), subnormals, ties, what rounds to infinity.
SPECIALS = {
    "BF16": [0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x7F81, 0x0001, 0x807F, 0x7F7F],
    "F32": [0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFA5A5A5, 0x00000001, 0x3F808000,
            0x3F818000, 0x3F807FFF, 0x7F7FFFFF, 0x00008000],
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[int, ...]

    @property
    def elems(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Placed:
    """A tensor as a file has it."""

    name: str
    file: Path
    begin: int
    dtype: str
    shape: tuple[int, ...]


def llama(layers: int, scale: float) -> tuple[list[Tensor], dict]:
    """Tensors of Llama 3 8B with so many layers, and its config.json; every extent times `scale`."""
    hidden = max(256, round(4096 * scale / 256) * 256)
    inner, key_value, vocabulary = hidden * 7 // 2, hidden // 4, max(512, round(128256 * scale / 64) * 64)
    tensors = [Tensor("model.embed_tokens.weight", (vocabulary, hidden))]
    for layer in range(layers):
        at = f"model.layers.{layer}."
        tensors += [
            Tensor(at + "input_layernorm.weight", (hidden,)),
            Tensor(at + "mlp.down_proj.weight", (hidden, inner)),
            Tensor(at + "mlp.gate_proj.weight", (inner, hidden)),
            Tensor(at + "mlp.up_proj.weight", (inner, hidden)),
            Tensor(at + "post_attention_layernorm.weight", (hidden,)),
            Tensor(at + "self_attn.k_proj.weight", (key_value, hidden)),
            Tensor(at + "self_attn.o_proj.weight", (hidden, hidden)),
            Tensor(at + "self_attn.q_proj.weight", (hidden, hidden)),
            Tensor(at + "self_attn.v_proj.weight", (key_value, hidden)),
        ]
    tensors += [Tensor("model.norm.weight", (hidden,)), Tensor("lm_head.weight", (vocabulary, hidden))]
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": hidden // 32,
        "vocab_size": vocabulary, "tie_word_embeddings": False, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192, "attention_bias": False, "mlp_bias": False,
    }  # fmt: skip
    return tensors, config


def tiny(count: int) -> list[Tensor]:
    """1 to 4 kB each in BF16."""
    return [Tensor(f"model.parts.{i}.bias", (512 + 8 * (i % 193),)) for i in range(count)]


def split(tensors: list[Tensor], shards: int) -> list[list[Tensor]]:
    """In order, parts of about the same size."""
    whole = sum(tensor.elems for tensor in tensors)
    parts: list[list[Tensor]] = [[] for _ in range(shards)]
    done = 0
    for tensor in tensors:
        parts[min(shards - 1, done * shards // whole)].append(tensor)
        done += tensor.elems
    return [part for part in parts if part]


def noise(dtype: str, size_bytes: int, seed: tuple[int, ...]) -> np.ndarray:
    """Numbers below 2 of either sign, and a special one in about a thousand."""
    generator = np.random.Generator(np.random.SFC64(seed))
    words = generator.integers(0, 2**64, size_bytes // 8 + 1, dtype=np.uint64).view(WORD[dtype])
    words = words[: size_bytes // words.itemsize]
    words &= WORD[dtype](0xBFFF if dtype == "BF16" else 0xBFFFFFFF)
    places = np.arange(int(generator.integers(0, 997)), len(words), 997)
    words[places] = np.resize(np.array(SPECIALS[dtype], dtype=WORD[dtype]), len(places))
    return words


def write_file(path: Path, tensors: list[Tensor], dtype: str, seed: int, pool: ThreadPoolExecutor) -> list:
    header: dict = {"__metadata__": {"format": "pt"}}
    size = 0
    for tensor in tensors:
        end = size + tensor.elems * np.dtype(WORD[dtype]).itemsize
        header[tensor.name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [size, end]}
        size = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    begin = 8 + len(text)
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, begin + size)

    def write_chunk(number: int) -> None:
        at = number * CHUNK_BYTES
        data = memoryview(noise(dtype, min(CHUNK_BYTES, size - at), (seed, number))).cast("B")
        file = os.open(path, os.O_WRONLY)
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(file, data[done:], begin + at + done)
        finally:
            os.close(file)

    return [pool.submit(write_chunk, number) for number in range(-(-size // CHUNK_BYTES))]


def write_index(folder: Path) -> None:
    weight_map, total = {}, 0
    for file in sorted(folder.glob("*.safetensors")):
        for tensor in placed_in(file):
            weight_map[tensor.name] = file.name
            total += int(np.prod(tensor.shape, dtype=np.int64)) * np.dtype(WORD[tensor.dtype]).itemsize
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(text)


def write_checkpoint(folder: Path, tensors: list[Tensor], dtype: str, shards: int, config: dict | None = None) -> None:
    folder.mkdir(parents=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        written = []
        for i, part in enumerate(split(tensors, shards)):
            name = f"model-{i + 1:05}-of-{shards:05}.safetensors" if shards > 1 else "model.safetensors"
            written += write_file(folder / name, part, dtype, i + 1, pool)
        for future in written:
            future.result()
    if shards > 1:
        write_index(folder)
    if config is not None:
        word = {"BF16": "bfloat16", "F32": "float32"}[dtype]
        (folder / "config.json").write_text(json.dumps(config | {"dtype": word}))


def placed_in(file: Path) -> list[Placed]:
    with open(file, "rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        header = json.loads(handle.read(length))
    header.pop("__metadata__", None)
    return [
        Placed(name, file, 8 + length + entry["data_offsets"][0], entry["dtype"], tuple(entry["shape"]))
        for name, entry in header.items()
    ]


def files_of(checkpoint: Path) -> list[Path]:
    return sorted(checkpoint.glob("*.safetensors"))


def placed(checkpoint: Path) -> list[Placed]:
    return [tensor for file in files_of(checkpoint) for tensor in placed_in(file)]
