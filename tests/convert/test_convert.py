"""`lading convert`: its files against those that the safetensors package reads, and what torch and transformers make of
them."""

import json
import os
import resource
import subprocess

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

WORDS = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def convert(lading, *arguments, **options):
    return subprocess.run([lading.command, "convert", *map(str, arguments)], capture_output=True, text=True, **options)


def converted(lading, *arguments, **options):
    done = convert(lading, *arguments, "--json", **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def tensors_of(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        found.update(load_file(path))
    return found


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.contiguous().view(-1).view(torch.uint8).equal(b.view(-1).view(torch.uint8))


@pytest.fixture
def checkpoint(tmp_path):
    torch.manual_seed(0)
    tensors = {
        "a": torch.randn(300, 70),
        "b": torch.tensor(3.5),
        "c": torch.zeros(0, 4),
        "d": torch.arange(7),
        "e": torch.randn(129, 33).to(torch.bfloat16),
        "f": torch.randn(1, 5003).to(torch.float16),
        "g": torch.randn(5, dtype=torch.float64),
        "h": torch.tensor([True, False]),
    }
    folder = tmp_path / "in"
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_R69_without_options_every_tensor_stays(lading, checkpoint):
    out = checkpoint.parent / "out"
    answer = converted(lading, checkpoint, out)
    assert answer["schema"] == "lading.convert/1" and answer["ok"] and not answer["replaced"]
    before, after = tensors_of(checkpoint), tensors_of(out)
    assert before.keys() == after.keys() == {key["key"] for key in answer["keys"]}
    assert all(same(before[name], after[name]) for name in before)
    with safe_open(out / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert sorted(os.listdir(out)) == ["lading.ledger.json", "model.safetensors"]
    verified = subprocess.run([lading.command, "verify", out, out / "lading.ledger.json"], capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.parametrize("word", WORDS)
def test_R69_floats_are_what_torch_makes_of_them(lading, checkpoint, word):
    out = checkpoint.parent / "out"
    converted(lading, checkpoint, out, "--dtype", word)
    after = tensors_of(out)
    for name, tensor in tensors_of(checkpoint).items():
        assert same(tensor.to(WORDS[word]) if tensor.is_floating_point() else tensor, after[name]), name


def test_R69_several_files_and_an_index(lading, checkpoint):
    out = checkpoint.parent / "out"
    answer = converted(lading, checkpoint, out, "--max-shard-size", "20KB")
    index = json.loads((out / answer["index"]).read_text())
    before, after = tensors_of(checkpoint), tensors_of(out)
    assert len(answer["files"]) == len(set(index["weight_map"].values())) > 1
    assert index["weight_map"].keys() == before.keys() == after.keys()
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in before.values())
    assert all(same(before[name], after[name]) for name in before)
    for name, file in index["weight_map"].items():
        with safe_open(out / file, "pt") as opened:
            assert name in opened.keys()
    again = checkpoint.parent / "again"
    converted(lading, out, again)
    assert all(same(before[name], tensor) for name, tensor in tensors_of(again).items())


def test_a_directory_that_exists_is_refused_or_replaced(lading, checkpoint):
    out = checkpoint.parent / "out"
    out.mkdir()
    (out / "old").touch()
    done = convert(lading, checkpoint, out)
    assert done.returncode == 2 and "--exist replace" in done.stderr
    assert os.listdir(out) == ["old"]
    assert converted(lading, checkpoint, out, "--exist", "replace")["replaced"]
    assert not (out / "old").exists()
    assert sorted(os.listdir(checkpoint.parent)) == ["in", "out"]


@pytest.mark.parametrize("out", ["in", "in/new", "link", "link/new", ".", "in/../in"])
def test_the_checkpoint_is_never_touched(lading, checkpoint, out):
    (checkpoint.parent / "link").symlink_to("in")
    before = (checkpoint / "model.safetensors").read_bytes()
    done = convert(lading, checkpoint, checkpoint.parent / out, "--exist", "replace")
    assert done.returncode == 2 and "Pass a path outside the checkpoint" in done.stderr
    assert (checkpoint / "model.safetensors").read_bytes() == before
    assert os.listdir(checkpoint) == ["model.safetensors"]
    assert sorted(os.listdir(checkpoint.parent)) == ["in", "link"]


def test_a_repository_in_the_cache(lading, tmp_path, checkpoint):
    repository = tmp_path / "hub" / "models--org--name"
    snapshot = repository / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    for folder in (snapshot, repository / "blobs", repository / "refs"):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text(snapshot.name)
    (checkpoint / "model.safetensors").rename(repository / "blobs" / "weights")
    (repository / "blobs" / "vocabulary").write_text("a b")
    (snapshot / "model.safetensors").symlink_to("../../blobs/weights")
    (snapshot / "vocab.txt").symlink_to("../../blobs/vocabulary")
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub")}
    answer = converted(lading, "org/name", tmp_path / "out", env=environment)
    assert answer["beside"] == ["vocab.txt"]
    assert (tmp_path / "out" / "vocab.txt").read_text() == "a b" and not (tmp_path / "out" / "vocab.txt").is_symlink()
    assert (tmp_path / "out" / "model.safetensors").stat().st_size == answer["bytes"]
    for place in (repository / "new", repository / "blobs" / "new", repository / "snapshots" / "new"):
        done = convert(lading, "org/name", place, env=environment)
        assert done.returncode == 2 and "would be in the checkpoint" in done.stderr
    done = convert(lading, "org/name", repository / "blobs", "--exist", "replace", env=environment)
    assert done.returncode == 2 and "in the directory that would be made" in done.stderr


def test_wrong_words_are_refused(lading, checkpoint):
    out = checkpoint.parent / "out"
    for arguments in (["--dtype", "f64"], ["--max-shard-size", "0"], ["--max-shard-size", "much"], ["--exist", "merge"]):
        assert convert(lading, checkpoint, out, *arguments).returncode == 2, arguments
    done = convert(lading, checkpoint.parent / "none", out, "--json")
    assert done.returncode == 3 and json.loads(done.stdout)["stage"] == "checkpoint"
    assert os.listdir(checkpoint.parent) == ["in"]


def test_R69_a_file_that_cannot_be_written_leaves_nothing(lading, checkpoint):
    limit = (20_000, 20_000)
    done = convert(lading, checkpoint, checkpoint.parent / "out", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    assert done.returncode == 5 and "write_failed" in done.stderr
    assert os.listdir(checkpoint.parent) == ["in"]


def test_R48_fp8_blocks_become_what_transformers_would_compute(lading, tmp_path):
    torch.manual_seed(1)
    folder = tmp_path / "in"
    folder.mkdir()
    payload = torch.randn(300, 520).to(torch.float8_e4m3fn)
    scales = torch.rand(3, 5) + 0.5
    norm = torch.randn(8, dtype=torch.bfloat16)
    save_file(
        {"m.weight": payload, "m.weight_scale_inv": scales, "m.input_scale": torch.ones(1), "norm.weight": norm},
        folder / "model.safetensors",
    )
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = {"model_type": "x", "dtype": "float16", "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    assert converted(lading, folder, tmp_path / "out")["dequantized"] == 1
    after = tensors_of(tmp_path / "out")
    assert after.keys() == {"m.weight", "norm.weight"}
    whole = scales.double().repeat_interleave(128, 0)[:300].repeat_interleave(128, 1)[:, :520]
    assert same(after["m.weight"], (payload.double() * whole).to(torch.float16))
    assert same(after["norm.weight"], norm)
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {"model_type": "x", "dtype": "float16"}


def test_R69_transformers_loads_the_result(lading, tmp_path):
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(2)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=64, tie_word_embeddings=False
    )
    model = transformers.LlamaForCausalLM(config).to(torch.float32)
    model.save_pretrained(tmp_path / "in")
    (tmp_path / "in" / "tokenizer.json").write_text("{}")
    answer = converted(lading, tmp_path / "in", tmp_path / "out", "--dtype", "bf16", "--max-shard-size", "10KiB")
    assert answer["beside"] == ["config.json", "generation_config.json", "tokenizer.json"]
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert loaded.dtype == torch.bfloat16
    wanted = model.to(torch.bfloat16).state_dict()
    assert loaded.state_dict().keys() == wanted.keys()
    assert all(same(tensor, wanted[name]) for name, tensor in loaded.state_dict().items())


def test_R64_a_gigabyte_is_converted_in_300_megabytes(lading, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    # One tensor that is a part by itself several times over, one whose first dim is short, and many small ones.
    shapes = {"large": (70_001, 5_000), "wide": (3, 30_000_001)} | {f"l{i:02}": (1000 + i, 2_000) for i in range(30)}
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)  # zeros, which take no room on the disk
        for begin, _ in (entry["data_offsets"] for entry in header.values()):
            file.seek(8 + len(text) + begin)
            file.write(np.arange(16384, 16484, dtype=np.uint16).tobytes())
    assert at > 1_000_000_000 * 0.99
    limit = 300 << 20
    answer = converted(
        lading, folder, tmp_path / "out", "--dtype", "f16", "--threads", 2, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    )
    assert answer["part_bytes"] <= 130 << 20 and answer["part_count"] > 8
    assert answer["written_bytes"] == at <= answer["read_bytes"] < at * 1.001
    wanted = torch.arange(16384, 16484, dtype=torch.int16).view(torch.bfloat16).to(torch.float16)
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        for name, shape in shapes.items():
            rows = file.get_slice(name)
            assert tuple(rows.get_shape()) == shape
            assert rows[:1, :101].flatten().equal(torch.cat([wanted, torch.zeros(1, dtype=torch.float16)])), name
            assert not rows[-1:, -5000:].any(), name
