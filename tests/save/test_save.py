"""`lading.save` in one process: which keys, dtypes and files it writes, and what it refuses."""

import json
import math
import os
import shutil
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import packed  # noqa: E402
import packed_models  # noqa: E402
import quantized_models  # noqa: E402
import save_models as models  # noqa: E402
from huggingface_hub import split_torch_state_dict_into_shards  # noqa: E402
from lading import _engine  # noqa: E402
from lading.save_names import SavedTensor, in_files, size_of  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from save_checks import only, refused, save  # noqa: E402

import lading  # noqa: E402

# ---- what is written


@pytest.mark.parametrize("name", models.MODELS)
def test_R69_the_files_are_those_of_save_pretrained(folder, tmp_path, name):
    target = tmp_path / "out"
    report = save(models.original(name), target)
    assert models.differences(target, folder / name) == []
    assert only(target) and report.path == target and not report.replaced
    assert f"{len(report.keys)} keys in 1 file" in str(report) and json.loads(report.to_json())["bytes"] == report.bytes
    assert report.bytes == (target / "model.safetensors").stat().st_size


@pytest.mark.parametrize("name", models.OF_TRANSFORMERS)
@pytest.mark.parametrize("size", [1, 9_000, models.SHARD_BYTES])
def test_files_are_shared_out_as_save_pretrained_does(tmp_path, name, size):
    """A tensor that is larger than a file may be, and fused experts, which transformers keeps together."""
    model = models.original(name)
    model.save_pretrained(tmp_path / "wanted", max_shard_size=size)
    report = save(model, tmp_path / "out", max_shard_size=size)
    assert models.differences(tmp_path / "out", tmp_path / "wanted") == []
    assert "model.safetensors.index.json" in report.beside and len(report.files) > 1


@pytest.mark.parametrize("name", models.OF_TRANSFORMERS)
def test_R69_load_and_save_are_inverse(folder, tmp_path, name):
    """With the load's report as its base: the same files again, whatever was loaded."""
    base = folder / f"{name}-shards"
    model = lading.from_pretrained(base, device="cpu", progress=False)
    save(model, tmp_path / "out", base=lading.report_of(model))
    assert models.differences(tmp_path / "out", base) == []


def test_keys_that_were_renamed_get_their_names_back(folder, tmp_path):
    state = load_file(folder / "small" / "model.safetensors")
    renamed = {key.replace("blocks.", "transformer.h."): value for key, value in state.items()}
    save_file(renamed, tmp_path / "old.safetensors")
    with lading.skeleton():
        model = models.MODELS["small"]()
    mapping = {"transformer.h.*": "blocks.*"}
    report = lading.materialize(model, tmp_path / "old.safetensors", device="cpu", mapping=mapping, progress=False)
    saved = save(model, tmp_path / "out", base=report)
    (file,) = saved.files
    found = load_file(tmp_path / "out" / file)
    assert found.keys() == renamed.keys() and all(torch.equal(found[key], renamed[key]) for key in renamed)


def test_memory_that_is_not_contiguous(tmp_path):
    model = torch.nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
    model.register_buffer("turned", torch.arange(12.0).reshape(3, 4).t())
    report = save(model, tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())
    assert any("not contiguous" in note for note in report.notes)


def test_config_and_tokenizer(folder, tmp_path):
    """The config is the model's, and the tokenizer the base's. The model's own config is not touched."""
    base = tmp_path / "base"
    base.mkdir()
    for path in (folder / "llama").iterdir():
        shutil.copy(path, base / path.name)
    (base / "tokenizer.json").write_text('{"mine": 1}')
    (base / "tokenizer.model").mkdir()
    (base / "notes.txt").write_text("not copied")
    (base / "evil.py").write_text("not copied, because no config names code")
    model = models.original("llama")
    model.config.rope_theta = 77.0
    before = json.dumps(model.config.to_dict(), default=str)
    report = save(model, tmp_path / "out", base=base, dtype="bf16")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["dtype"], config["architectures"], config["rope_theta"]) == ("bfloat16", ["LlamaForCausalLM"], 77.0)
    assert json.dumps(model.config.to_dict(), default=str) == before
    assert set(report.beside) == {"config.json", "generation_config.json", "tokenizer.json", "lading.ledger.json"}
    assert (tmp_path / "out" / "tokenizer.json").read_text() == '{"mine": 1}'
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*report.beside, *report.files}


class WithTable(torch.nn.Linear):
    """With a buffer that its own state dict leaves out, as older ones did not."""

    def __init__(self):
        super().__init__(2, 3)
        self.register_buffer("table", torch.arange(4.0) / 3, persistent=False)


def test_R46_a_key_of_a_non_persistent_buffer(tmp_path):
    """It is in the base, and so it is in the new checkpoint, or an error."""
    model, base = WithTable(), tmp_path / "model.safetensors"
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        save_file(model.state_dict() | {"table": torch.zeros(4, dtype=dtype)}, base)
        if dtype == torch.bfloat16:
            break
        report = save(model, tmp_path / str(dtype), base=base)
        found = load_file(tmp_path / str(dtype) / "model.safetensors")
        assert torch.equal(found["table"], model.table.to(dtype)) and not report.dropped_keys
    error = refused(lambda: save(model, tmp_path / "out", base=base))
    assert error.tensors == ("table",) and "non-persistent" in str(error)
    assert save(model, tmp_path / "out", base=base, unmapped="drop").dropped_keys == ("table",)
    save(model, tmp_path / "rounded", base=base, dtype="base")
    assert torch.equal(load_file(tmp_path / "rounded" / "model.safetensors")["table"], model.table.bfloat16())
    model.table = model.table.to("meta")
    assert refused(lambda: save(model, tmp_path / "meta", base=base)).tensors == ("table",)


def test_the_ledger_is_of_the_files(folder, tmp_path):
    """Digests were taken from memory: a file that is damaged later shows."""
    save(models.original("qwen3_moe"), tmp_path / "out")
    ledger = json.loads((tmp_path / "out" / "lading.ledger.json").read_text())
    assert _engine.verify(tmp_path / "out", ledger)["ok"]
    file = tmp_path / "out" / "model.safetensors"
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    assert not _engine.verify(tmp_path / "out", ledger)["ok"]


KILLED = """
    import os, sys
    import lading, save_models
    from lading import save_engine, saving

    step, target = sys.argv[1:]
    die = lambda *arguments, **options: os._exit(9)
    if step == "commit":
        saving.commit = die
    else:
        setattr(save_engine.SavePlan, step, die)
    lading.save(save_models.original("llama"), target, exist="replace", progress=False)
"""


@pytest.mark.parametrize("step", ["write", "finish", "commit"])
def test_R69_a_process_that_is_killed(folder, tmp_path, step):
    """The old checkpoint stays as it is, and the next save cleans up what the killed one has left."""
    target = tmp_path / "out"
    save(models.original("small"), target)
    command = [sys.executable, "-c", textwrap.dedent(KILLED), step, str(target)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False).returncode == 9
    assert models.differences(target, folder / "small") == [] and not only(target)
    save(models.original("llama"), target, exist="replace")
    assert models.differences(target, folder / "llama") == [] and only(target)


def test_R69_an_error_of_the_last_steps_is_not_about_the_model(tmp_path, monkeypatch):
    """A file that vanishes before the ledger is written. Nothing that was loaded is incomplete."""
    write = lading.save_engine.SavePlan.write

    def lost(plan, memories, target, **options):
        written = write(plan, memories, target, **options)
        (tmp_path / target["temporary"] / ".lading-part-0.json").unlink()
        return written

    monkeypatch.setattr(lading.save_engine.SavePlan, "write", lost)
    error = refused(lambda: save(models.original("small"), tmp_path / "out"))
    assert error.code == "incomplete" and "The load" not in error.full_text() and not list(tmp_path.iterdir())


# ---- dtypes


def test_dtypes_of_the_base(folder, tmp_path):
    """F32 memory, a BF16 base: refused, unless somebody says which of the two."""
    model = models.original("bfloat16").float()
    base = folder / "bfloat16-shards"
    error = refused(lambda: save(model, tmp_path / "out", base=base))
    assert "model.embed_tokens.weight" in error.tensors and not list(tmp_path.iterdir())
    save(model, tmp_path / "as_base", base=base, dtype="base")
    assert models.differences(tmp_path / "as_base", base) == []
    report = save(model, tmp_path / "as_memory", base=base, dtype="memory")
    assert {one.dtype for one in report.keys.values()} == {"F32"}
    with pytest.raises(ValueError, match="pass base="):
        save(model, tmp_path / "no", dtype="base")


def test_R24_few_bits_without_scales(tmp_path):
    """A float8 base is rounded to on request, and never another dtype without a word."""
    model = torch.nn.Linear(8, 8)
    state = {name: value.to(torch.float8_e4m3fn) for name, value in model.state_dict().items()}
    base = tmp_path / "model.safetensors"
    save_file(state, base)
    error = refused(lambda: save(model, tmp_path / "out", base=base))
    assert error.tensors == ("bias", "weight") and "F8_E4M3" in str(error) and 'dtype="base"' in error.full_text()
    for dtype, wanted in (("base", torch.float8_e4m3fn), ("memory", torch.float32), ("bf16", torch.bfloat16)):
        save(model, tmp_path / dtype, base=base, dtype=dtype)
        found = load_file(tmp_path / dtype / "model.safetensors")
        for name, value in model.state_dict().items():
            assert found[name].dtype == wanted and torch.equal(found[name].float(), value.to(wanted).float())


# ---- quantized


def saved_after_dequantizing(base, tmp_path):
    """What a model of BF16 weights becomes that was loaded from codes: the checkpoint, and the model as it was."""
    model = lading.from_pretrained(base, device="cpu", dtype=torch.bfloat16, progress=False)
    report = save(model, tmp_path / "out", base=lading.report_of(model))
    again = type(model).from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(again[name], value) for name, value in model.state_dict().items())
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())
    model.save_pretrained(tmp_path / "wanted")
    wanted = models.tensors_in(tmp_path / "wanted")
    assert models.tensors_in(tmp_path / "out") == wanted and report.keys.keys() == wanted.keys()
    return report


def test_R48_fp8_is_saved_as_ordinary_weights(tmp_path):
    saved_after_dequantizing(quantized_models.make(tmp_path / "fp8", 192, 256), tmp_path)


def test_R48_packed_codes_are_saved_as_ordinary_weights(tmp_path):
    report = saved_after_dequantizing(packed_models.make(tmp_path / "int4", packed.SCHEMES["int4"]), tmp_path)
    assert any("packed" in note for note in report.notes)


# ---- refusals


def test_a_key_that_no_tensor_makes(folder, tmp_path):
    state = load_file(folder / "small" / "model.safetensors")
    save_file(state | {"surplus.weight": torch.zeros(2)}, tmp_path / "base.safetensors")
    model = models.original("small")
    error = refused(lambda: save(model, tmp_path / "out", base=tmp_path / "base.safetensors"))
    assert "surplus.weight" in str(error)
    report = save(model, tmp_path / "out", base=tmp_path / "base.safetensors", unmapped="drop")
    assert report.dropped_keys == ("surplus.weight",) and report.keys.keys() == state.keys()


def test_R69_a_key_that_no_tensor_makes_is_kept(folder, tmp_path):
    """In its dtype, whatever that of the model's keys is; over names that the model has too; in the background too."""
    state = load_file(folder / "small" / "model.safetensors")
    kept = {
        "surplus.weight": torch.arange(7, dtype=torch.int16),
        "surplus.*": torch.randn(3, 5).to(torch.float8_e4m3fn),
        "base:surplus.weight": torch.randn(4, 4, dtype=torch.float64),
        "empty": torch.zeros(0, 3),
        "table": torch.randn(9).bfloat16(),
    }
    save_file(state | kept, tmp_path / "base.safetensors")
    model = models.original("small")
    model.register_buffer("table", torch.zeros(2), persistent=False)  # of another shape
    for place, options in enumerate(({}, {"background": True}, {"dtype": "bf16"}, {"max_shard_size": 4000})):
        target = tmp_path / f"out{place}"
        report = save(model, target, base=tmp_path / "base.safetensors", unmapped="keep", **options)
        report = report.result() if "background" in options else report
        assert set(report.kept_keys) == kept.keys() and not report.dropped_keys
        found = models.tensors_in(target)
        is_cast = {key: "dtype" in options and value.is_floating_point() for key, value in state.items()}
        wanted = {key: value.bfloat16() if is_cast[key] else value for key, value in state.items()} | kept
        (tmp_path / f"wanted{place}").mkdir()
        save_file(wanted, tmp_path / f"wanted{place}" / "model.safetensors")
        assert found == models.tensors_in(tmp_path / f"wanted{place}")
        assert report.keys["surplus.weight"].tensors == () and report.keys["surplus.weight"].dtype == "I16"
        ledger = json.loads((target / "lading.ledger.json").read_text())
        assert _engine.verify(target, ledger)["ok"]
    with pytest.raises(ValueError, match="pass base="):
        save(model, tmp_path / "no", unmapped="keep")


def test_R69_keys_are_kept_beside_conversions(folder, tmp_path):
    """Fused experts are taken apart, and what is beside them in the base's files stays there."""
    base = tmp_path / "base"
    shutil.copytree(folder / "qwen3_moe-shards", base)
    file = max(base.glob("*.safetensors"))
    extra = {"mtp.norm.weight": torch.randn(5), "model.layers.0.mlp.experts.99.odd": torch.randn(3, 3)}
    save_file(load_file(file) | extra, file, metadata={"format": "pt"})
    index = json.loads((base / "model.safetensors.index.json").read_text())
    index["weight_map"] |= dict.fromkeys(extra, file.name)
    (base / "model.safetensors.index.json").write_text(json.dumps(index))
    report = save(models.original("qwen3_moe"), tmp_path / "out", base=base, unmapped="keep")
    assert set(report.kept_keys) == extra.keys() and {report.keys[key].file for key in extra} == {file.name}
    assert models.tensors_in(tmp_path / "out") == models.tensors_in(base)


def test_R69_a_base_that_changes_is_not_kept(folder, tmp_path, monkeypatch):
    state = load_file(folder / "small" / "model.safetensors") | {"surplus.weight": torch.zeros(2)}
    base, write = tmp_path / "base" / "model.safetensors", lading.save_engine.SavePlan.write
    base.parent.mkdir()
    save_file(state, base)

    def changed(*arguments, **options):
        save_file(state | {"surplus.weight": torch.ones(2)}, base)
        return write(*arguments, **options)

    monkeypatch.setattr(lading.save_engine.SavePlan, "write", changed)
    error = refused(lambda: save(models.original("small"), tmp_path / "out", base=base, unmapped="keep"))
    assert "changed" in str(error) or "replaced" in str(error), error
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_a_parameter_that_no_key_has(folder, tmp_path):
    state = load_file(folder / "small" / "model.safetensors")
    del state["blocks.1.up.bias"]
    save_file(state, tmp_path / "base.safetensors")
    error = refused(lambda: save(models.original("small"), tmp_path / "out", base=tmp_path / "base.safetensors"))
    assert "blocks.1.up.bias" in str(error)


def test_an_optimizer_of_another_kind(tmp_path):
    error = refused(lambda: save(models.original("small"), tmp_path / "out", optimizer=object()))
    assert error.code == "optimizer_state" and "torch.optim" in str(error) and not list(tmp_path.iterdir())


def test_a_parameter_with_the_name_of_the_header(tmp_path):
    model = torch.nn.Linear(2, 2)
    model.register_parameter("__metadata__", torch.nn.Parameter(torch.ones(2)))
    error = refused(lambda: save(model, tmp_path / "out"))
    assert error.tensors == ("__metadata__",) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("invalid", ["config", "generation_config"])
def test_a_config_that_transformers_refuses(folder, tmp_path, monkeypatch, invalid):
    """Before anything is written. The base's generation config would replace the model's, which is then not asked."""

    def prepare(*_):
        raise AssertionError("the save has begun to write")

    model = models.original("llama")
    monkeypatch.setattr(lading.save_engine.SavePlan, "prepare", prepare)
    if invalid == "config":
        monkeypatch.setattr(type(model.config), "save_pretrained", lambda *_: [][1])
    else:
        model.generation_config.update(do_sample=False, temperature=0.5)
    error = refused(lambda: save(model, tmp_path / "out"))
    assert error.code == "usage" and f"model.{invalid}:" in str(error) and not list(tmp_path.iterdir())
    monkeypatch.undo()
    if invalid == "generation_config":
        save(model, tmp_path / "out", base=folder / "llama")
        assert models.differences(tmp_path / "out", folder / "llama") == []


def test_another_shape(tmp_path):
    """The remedies are those of a save, here and everywhere (`refused`)."""
    save_file({"weight": torch.zeros(3, 2), "bias": torch.zeros(3)}, tmp_path / "base.safetensors")
    error = refused(lambda: save(torch.nn.Linear(2, 4), tmp_path / "out", base=tmp_path / "base.safetensors"))
    assert error.tensors == ("bias", "weight") and "[3, 2]" in str(error)


def test_tensors_in_a_form_of_their_own(tmp_path):
    class Wrapped(torch.Tensor):
        def to(self, *arguments, **options):
            raise AssertionError

    model = torch.nn.Linear(2, 2)
    model.bias = torch.nn.Parameter(torch.zeros(2).as_subclass(Wrapped))
    assert refused(lambda: save(model, tmp_path / "out")).tensors == ("bias",)
    model.bias = torch.nn.Parameter(torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]))
    assert refused(lambda: save(model, tmp_path / "out")).tensors == ("bias",)
    assert not list(tmp_path.iterdir())


def test_a_base_without_its_adapter_and_a_merged_model(tmp_path):
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(models.original("llama"), peft.LoraConfig(target_modules=["q_proj"]))
    save(model, tmp_path / "base")
    models.original("llama").save_pretrained(tmp_path / "original")
    assert models.differences(tmp_path / "base", tmp_path / "original") == []
    merged = model.merge_and_unload()
    save(merged, tmp_path / "out")
    merged.save_pretrained(tmp_path / "wanted")
    assert models.differences(tmp_path / "out", tmp_path / "wanted") == []


def test_an_incomplete_model_is_refused(tmp_path):
    model = models.original("small")
    model.__dict__["_lading_incomplete"] = "the disk was gone"
    assert "the disk was gone" in str(refused(lambda: save(model, tmp_path / "out")))


def test_extra_state_is_refused(tmp_path):
    class Stateful(torch.nn.Linear):
        def get_extra_state(self):
            return {"steps": 3}

    error = refused(lambda: save(Stateful(2, 2), tmp_path / "out"))
    assert error.tensors == ("_extra_state",)


def test_code_that_changes_a_state_dict_is_refused(tmp_path):
    """Its values would be missing in the file, without a word."""
    model = models.original("small")
    model.blocks[0].register_state_dict_post_hook(lambda module, state, prefix, metadata: state.update(more=1))
    error = refused(lambda: save(model, tmp_path / "out"))
    assert error.code == "hooks" and "blocks.0" in str(error)


def test_code_that_writes_what_is_no_tensor_of_the_module(tmp_path):
    """As torch's quantized layers do: the weight is packed, and only the override knows it."""

    class Packed(torch.nn.Module):
        def _save_to_state_dict(self, destination, prefix, keep_vars):
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[prefix + "weight"] = torch.ones(3)

    error = refused(lambda: save(torch.nn.Sequential(torch.nn.Linear(2, 2), Packed()), tmp_path / "out"))
    assert error.code == "hooks" and "'1'" in str(error) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [0, -1, True, "5 parsecs", "0GB", 1.5])
def test_sizes_that_are_none(tmp_path, size):
    with pytest.raises(ValueError, match="max_shard_size"):
        save(models.original("small"), tmp_path / "out", max_shard_size=size)


@pytest.mark.parametrize(("text", "size"), [("5GB", 5 * 10**9), ("1.5mb", 1_500_000), (" 2 KB ", 2000), (7, 7)])
def test_sizes(text, size):
    assert size_of(text) == size


# ---- files


def test_files_are_those_of_huggingface_hub():
    """Of any sizes: which tensor is in which file, and what the files are called."""
    generator = torch.Generator().manual_seed(3)
    for _ in range(200):
        count = int(torch.randint(1, 20, (), generator=generator))
        sizes = torch.randint(0, 30, (count,), generator=generator).tolist()
        limit = int(torch.randint(1, 60, (), generator=generator))
        tensors = [SavedTensor(f"t{place}", "U8", (size,)) for place, size in enumerate(sizes)]
        state = {one.key: torch.empty(one.shape, dtype=torch.uint8, device="meta") for one in tensors}
        wanted = split_torch_state_dict_into_shards(state, max_shard_size=limit).filename_to_tensors
        found = {name: [one.key for one in file] for name, file in in_files(tensors, limit).items()}
        assert found == wanted
        assert math.fsum(one.size_bytes for file in in_files(tensors, limit).values() for one in file) == sum(sizes)
