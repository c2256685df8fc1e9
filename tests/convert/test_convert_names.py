"""`lading convert --rename`, `--drop`, `--mapping`: the new tensors against what torch makes of the old ones."""

import json
import os
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file


def convert(lading, folder, *arguments):
    command = [lading.command, "convert", str(folder), str(folder.parent / "out"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def converted(lading, folder, *arguments):
    done = convert(lading, folder, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    found = {}
    for path in sorted((folder.parent / "out").glob("*.safetensors")):
        found.update(load_file(path))
    assert [key["key"] for key in answer["keys"]] == sorted(found)
    verified = subprocess.run([lading.command, "verify", answer["directory"], f"{answer['directory']}/lading.ledger.json"], capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    return answer, found


def refused(lading, folder, *arguments, exit_code=4):
    done = convert(lading, folder, *arguments)
    assert done.returncode == exit_code, done.stdout + done.stderr
    assert os.listdir(folder.parent) == ["in"]
    return done.stderr


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.contiguous().view(-1).view(torch.uint8).equal(b.contiguous().view(-1).view(torch.uint8))


def written(tmp_path, tensors, config=None):
    folder = tmp_path / "in"
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def moe():
    torch.manual_seed(0)
    tensors = {"embed.weight": torch.randn(20, 8), "norm.weight": torch.randn(8).bfloat16()}
    for layer in range(2):
        tensors[f"layers.{layer}.q.weight"] = torch.randn(8, 8)
        tensors[f"layers.{layer}.k.weight"] = torch.randn(4, 8)
        for expert in range(12):
            for name, shape in {"w1": (6, 8), "w2": (8, 6), "w3": (6, 8)}.items():
                tensors[f"layers.{layer}.experts.{expert}.{name}"] = torch.randn(shape).bfloat16()
    return tensors


@pytest.fixture
def checkpoint(tmp_path):
    return written(tmp_path, moe())


def test_R43_patterns_rename_as_in_python(lading, checkpoint):
    names = {"layers.*.experts.*.w1": "blocks.*.mlp.*.gate", "layers.*": "blocks.*", "embed.weight": "wte"}
    renames = [f"--rename={old}={new}" for old, new in names.items() if old != "layers.*"]
    _, after = converted(lading, checkpoint, *renames, "--rename", "layers.0.q.weight=layers.0.k.weight", "--rename", "layers.0.k.weight=layers.0.q.weight")
    wanted = moe()
    wanted["layers.0.q.weight"], wanted["layers.0.k.weight"] = wanted["layers.0.k.weight"], wanted["layers.0.q.weight"]
    wanted["wte"] = wanted.pop("embed.weight")
    for layer in range(2):
        for expert in range(12):
            wanted[f"blocks.{layer}.mlp.{expert}.gate"] = wanted.pop(f"layers.{layer}.experts.{expert}.w1")
    assert wanted.keys() == after.keys()
    assert all(same(tensor, after[name]) for name, tensor in wanted.items())


def test_R43_the_first_star_takes_as_much_as_it_can(lading, tmp_path):
    folder = written(tmp_path, {"a.b.a.b.c": torch.zeros(1), "a.b": torch.ones(1)})
    _, after = converted(lading, folder, "--rename", "*.b*=*/*")
    assert sorted(after) == ["a.b.a/.c", "a/"]


def test_R38_dropped_tensors_are_listed(lading, checkpoint):
    answer, after = converted(lading, checkpoint, "--drop", "layers.*.experts.*", "--drop", "norm.weight", "--dtype", "bf16")
    wanted = {name: tensor.bfloat16() for name, tensor in moe().items() if "experts" not in name and name != "norm.weight"}
    assert answer["dropped"] == sorted(moe().keys() - wanted.keys())
    assert wanted.keys() == after.keys()
    assert all(same(tensor, after[name]) for name, tensor in wanted.items())


def test_R43_what_matches_nothing_or_twice_is_refused_with_everything_else(lading, checkpoint):
    arguments = ["--drop=nothing.*", "--drop=embed.weigth", "--rename=none=x", "--rename=zz*=y*", "--rename=embed.weight=norm.weight"]
    text = refused(lading, checkpoint, *arguments)
    for words in ("drop: \"nothing.*\" matches no tensor", "similar ones are \"embed.weight\"", "rename: \"none\"", "two tensors of the checkpoint would get the name \"norm.weight\""):
        assert words in text, text
    assert "\"zz*\" matches no tensor" in text, text
    text = refused(lading, checkpoint, "--rename=layers.*.q.weight=a.*", "--rename=layers.0.*=b.*", "--rename=norm.*=x", "--rename=embed.weight=")
    for words in ("two renames give the tensor different names", "different numbers of \"*\"", "empty"):
        assert words in text, text
    assert "renamed and dropped" in refused(lading, checkpoint, "--rename=norm.weight=x", "--drop=norm.*")
    assert "no tensor is left" in refused(lading, checkpoint, "--drop=*")
    refused(lading, checkpoint, "--rename=norm.weight", exit_code=2)
    refused(lading, checkpoint, "--rename=a=b=c", exit_code=2)
    refused(lading, checkpoint, "--keep=a", exit_code=2)


def mapping(checkpoint, *rules):
    path = checkpoint.parent.parent / f"{checkpoint.parent.name}.mapping.json"
    path.write_text(json.dumps({"schema": "lading.mapping/1", "rules": [{"id": f"r{i}", **rule} for i, rule in enumerate(rules)]}))
    return path


def stacked(name):
    return {"stack": {"dim": 0, "over": "e", "of": f"layers.{{layer}}.experts.{{e}}.{name}"}}


RULES = [
    {"kind": "build", "to": "l.{layer}.gate_up", "expression": {"concat": {"dim": 1, "parts": [stacked("w1"), stacked("w3")]}}},
    {"kind": "build", "to": "l.{layer}.down", "expression": {"transpose": {"dims": [1, 2], "of": stacked("w2")}}},
    {"kind": "build", "to": "l.{layer}.qk", "expression": {"concat": {"dim": 0, "parts": ["layers.{layer}.q.weight", "layers.{layer}.k.weight"]}}},
    {"kind": "build", "to": "top", "expression": {"chunk": {"dim": 0, "index": 0, "count": 2, "of": "embed.weight"}}},
    {"kind": "build", "to": "bottom", "expression": {"chunk": {"dim": 0, "index": 1, "count": 2, "of": "embed.weight"}}},
]


def test_R47_a_mapping_makes_the_new_tensors(lading, checkpoint):
    _, after = converted(lading, checkpoint, "--mapping", mapping(checkpoint, *RULES, {"kind": "rename_pattern", "from": "norm\\.(.*)", "to": "n.\\1"}))
    old, wanted = moe(), {}
    for layer in range(2):
        experts = {name: torch.stack([old[f"layers.{layer}.experts.{e}.{name}"] for e in range(12)]) for name in ("w1", "w2", "w3")}
        wanted[f"l.{layer}.gate_up"] = torch.cat([experts["w1"], experts["w3"]], 1)
        wanted[f"l.{layer}.down"] = experts["w2"].transpose(1, 2)
        wanted[f"l.{layer}.qk"] = torch.cat([old[f"layers.{layer}.q.weight"], old[f"layers.{layer}.k.weight"]])
    wanted["top"], wanted["bottom"] = old["embed.weight"].chunk(2)
    wanted["n.weight"] = old["norm.weight"]
    assert wanted.keys() == after.keys()
    assert all(same(tensor, after[name]) for name, tensor in wanted.items())


def test_R38_what_a_mapping_does_not_reach_is_refused_kept_or_dropped(lading, checkpoint):
    path = mapping(checkpoint, *RULES[:2])
    text = refused(lading, checkpoint, "--mapping", path)
    for name in ("embed.weight", "norm.weight", "layers.{0,1}.q.weight", "layers.{0,1}.k.weight"):
        assert f"\"{name}\"" in text, text
    assert "6 tensors: the mapping does not reach the tensor" in text
    answer, after = converted(lading, checkpoint, "--mapping", path, "--keep", "layers.*", "--drop", "*.weight", "--exist", "replace")
    assert sorted(after) == ["l.0.down", "l.0.gate_up", "l.1.down", "l.1.gate_up"] and len(answer["dropped"]) == 6


def test_R47_a_hole_in_a_stack_is_no_shorter_stack(lading, tmp_path):
    tensors = moe()
    del tensors["layers.1.experts.7.w1"]
    folder = written(tmp_path, tensors)
    text = refused(lading, folder, "--mapping", mapping(folder, *RULES[:2]), "--keep", "*")
    assert "no key \"layers.1.experts.7.w1\"" in text and "R47" in text, text
    counted = {"stack": {"dim": 0, "over": "e", "count": 11, "of": "layers.{layer}.experts.{e}.w2"}}
    fewer = {"kind": "build", "to": "l.{layer}.down", "expression": counted}
    text = refused(lading, folder, "--mapping", mapping(folder, fewer), "--keep", "*")
    assert "layers.0.experts.11.w2" in text and "reads other keys of this name's form" in text, text


def test_R43_a_mapping_that_holds_twice_or_for_nothing_is_refused(lading, checkpoint):
    double = {"kind": "rename", "from": "norm.weight", "to": "l.0.down"}
    assert "R43" in refused(lading, checkpoint, "--mapping", mapping(checkpoint, *RULES, double))
    lost = {"kind": "rename", "from": "nrm.weight", "to": "n"}
    assert "r5" in refused(lading, checkpoint, "--mapping", mapping(checkpoint, *RULES, lost), "--keep", "norm.weight")
    assert refused(lading, checkpoint, "--mapping", mapping(checkpoint, *RULES), "--keep=norm.weight", "--drop=layers.0.q.weight")
    refused(lading, checkpoint, "--mapping", mapping(checkpoint, *RULES), "--rename=a=b", exit_code=2)


def quantized():
    torch.manual_seed(1)
    return {
        "m.weight": torch.randn(256, 256).to(torch.float8_e4m3fn),
        "m.weight_scale_inv": torch.rand(2, 2) + 0.5,
        "o.weight": torch.randn(128, 128).to(torch.float8_e4m3fn),
        "o.weight_scale_inv": torch.rand(1, 1) + 0.5,
        "norm.weight": torch.randn(8, dtype=torch.bfloat16),
    }


CONFIG = {"torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}


def dequantized():
    tensors = quantized()
    scales = tensors["m.weight_scale_inv"].double().repeat_interleave(128, 0).repeat_interleave(128, 1)
    return (tensors["m.weight"].double() * scales).bfloat16()


@pytest.mark.parametrize("how", ["rename", "pattern", "mapping"])
def test_R48_quantized_weights_are_renamed_and_dropped_with_their_scales(lading, tmp_path, how):
    folder = written(tmp_path, quantized(), CONFIG)
    ways = {
        "rename": ["--rename", "m.weight=x.weight"],
        "pattern": ["--rename", "m.*=x.*"],
        "mapping": ["--mapping", mapping(folder, {"kind": "rename_pattern", "from": "m\\.(.*)", "to": "x.\\1"}), "--keep=norm.weight"],
    }
    answer, after = converted(lading, folder, *ways[how], "--drop", "o.weight")
    assert answer["dequantized"] == 1 and answer["dropped"] == ["o.weight"]
    assert sorted(after) == ["norm.weight", "x.weight"]
    assert same(after["x.weight"], dequantized())


def test_R48_scales_are_never_dropped_or_renamed_alone(lading, tmp_path):
    folder = written(tmp_path, quantized(), CONFIG)
    assert "dequantized with it" in refused(lading, folder, "--drop", "m.weight_scale_inv")
    assert "matches no tensor" in refused(lading, folder, "--drop", "*_scale_inv")
    alone = mapping(folder, {"kind": "rename", "from": "m.weight_scale_inv", "to": "s"})
    assert "part of a quantized weight" in refused(lading, folder, "--mapping", alone, "--keep=*")


def test_R48_packed_weights_are_renamed_by_the_name_of_the_weight(lading, tmp_path):
    torch.manual_seed(2)
    packed = torch.randint(-(2**31), 2**31 - 1, (64, 6), dtype=torch.int32)
    zeros = torch.randint(-(2**31), 2**31 - 1, (4, 6), dtype=torch.int32)
    tensors = {"m.qweight": packed, "m.qzeros": zeros, "m.scales": torch.rand(4, 48).half() + 0.5, "norm.weight": torch.randn(8)}
    config = {"torch_dtype": "float16", "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"}}
    folder = written(tmp_path, tensors, config)
    _, plain = converted(lading, folder)
    _, renamed = converted(lading, folder, "--rename", "m.*=x.*", "--exist", "replace")
    assert sorted(renamed) == ["norm.weight", "x.weight"] and same(plain["m.weight"], renamed["x.weight"])
    half = {"kind": "build", "to": "half", "expression": {"slice": {"dim": 0, "begin": 0, "end": 24, "of": "m.weight"}}}
    other = {"kind": "build", "to": "other", "expression": {"slice": {"dim": 0, "begin": 24, "end": 48, "of": "m.weight"}}}
    _, halves = converted(lading, folder, "--mapping", mapping(folder, half, other), "--keep", "norm.weight", "--exist", "replace")
    assert same(torch.cat([halves["half"], halves["other"]]), plain["m.weight"])
    _, without = converted(lading, folder, "--drop", "m.weight", "--exist", "replace")
    assert sorted(without) == ["norm.weight"]
