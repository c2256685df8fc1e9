"""`lading.audit` after loaders that are wrong today, in one process, and after the same ones where they are right.

Each load is the real one, and what is flagged is what a comparison that knows nothing of lading finds.
docs/guides/audit.md has the list.
"""

import audit_models as models
import pytest
import torch
from geometry.launch import wrong_in
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn

import lading

UNWRITTEN = {("value", "inv_freq"), ("value", "softcap")}


def flagged(report):
    return {(problem.code, problem.tensor) for problem in report.problems}


def judge(model, folder, expected, want, like=None, **options):
    """Exactly these are flagged, exactly these are wrong, and the audit raises if there are any."""
    report = lading.audit(model, folder, like=like, **options)
    assert flagged(report) == expected
    assert report.warnings == ()
    assert set(models.wrong(model, want)) == {name for _, name in expected}
    if expected:
        with pytest.raises(lading.LadingError) as failure:
            lading.audit(model, folder, like=like, raise_on="error", **options)
        assert set(failure.value.tensors) == {name for _, name in expected}
    else:
        lading.audit(model, folder, like=like, raise_on="warning", **options)


def judge_model(model, folder, expected, is_mixed=False, **shape):
    judge(model, folder, expected, models.original(is_mixed=is_mixed, **shape), models.twin(**shape))


@pytest.fixture
def folder(tmp_path):
    return models.save(tmp_path)


@pytest.fixture
def process_group(tmp_path):
    """Of one rank: torch's distributed loaders want one even then."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# ---- torch


def set_full(model, folder, **options):
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    with models.unwritten_is_nan():
        state = load_file(folder / "model.safetensors")
        set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True, **options))
    return model


def test_g_load_state_dict_assign(folder):
    """It unties, and what has no key stays on meta. What was frozen stays so (case m)."""
    model = models.meta()
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=False, assign=True)
    missing = {("meta", name) for name in ("head.weight", "inv_freq", "softcap")}
    judge_model(model, folder, missing | {("untied", "head.weight")})


def test_g_dcp_on_meta(folder, process_group):
    model = set_full(models.meta(has_derived=False), folder)
    judge_model(model, folder, {("meta", "head.weight"), ("untied", "head.weight")}, has_derived=False)


def test_h_dcp_strict_with_a_missing_key(tmp_path, process_group):
    """strict=True says that all keys matched."""
    folder = models.save(tmp_path / "lacking", without=("norm.weight",), is_tied=False)
    shape = {"is_tied": False, "has_derived": False}
    judge_model(set_full(models.emptied(models.meta(**shape)), folder), folder, {("plan", "norm.weight")}, **shape)


def test_n_reset_parameters_of_the_layers(tmp_path):
    """Preloaded embeddings stay, but a norm has no reset_parameters, and what no file holds is gone."""
    model = models.original(is_tied=False)
    folder = models.save(tmp_path / "n", is_tied=False)
    for layer in (model.norm, model.lin):
        models.emptied(layer)
        layer.load_state_dict({}, strict=False)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model.lin.reset_parameters()
    for name in ("softcap", "inv_freq"):
        setattr(model, name, models.emptied(_holder(getattr(model, name))).held)
    expected = UNWRITTEN | {("value", "norm.weight"), ("value", "lin.weight")}
    judge_model(model, folder, expected, is_tied=False)


def _holder(tensor):
    module = nn.Module()
    module.register_buffer("held", tensor)
    return module


def test_n_reset_parameters_of_the_whole(tmp_path):
    folder = models.save(tmp_path / "n", is_tied=False)
    model = models.emptied(models.original(is_tied=False))
    with torch.random.fork_rng():
        for module in model.children():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    everything = {("value", name) for name in models.tensors(model)}
    judge_model(model, folder, everything, is_tied=False)
    assert not model.frozen.requires_grad


# ---- accelerate


@wrong_in("accelerate")
def test_c_accelerate_after_to_empty(folder):
    """Cases c and g: to_empty unties, and the loader does not know."""
    accelerate = pytest.importorskip("accelerate")
    model = models.emptied(models.meta())
    accelerate.load_checkpoint_in_model(model, str(folder))
    judge_model(model, folder, UNWRITTEN | {("value", "head.weight"), ("untied", "head.weight")})


def test_right_accelerate_dispatch(folder):
    """Parameters alone on meta: what the constructor made survives. What was frozen stays so (case m)."""
    accelerate = pytest.importorskip("accelerate")
    with accelerate.init_empty_weights(include_buffers=False):
        model = models.Model()
    model.head.weight = model.embed.weight
    accelerate.load_checkpoint_and_dispatch(model, str(folder), device_map={"": "cpu"})
    model.head.weight = model.embed.weight
    judge_model(model, folder, set())


# ---- transformers


@pytest.fixture
def outsider(tmp_path):
    pytest.importorskip("transformers")
    models.outsider().save_pretrained(tmp_path)
    return tmp_path


def from_pretrained(folder, **options):
    with models.unwritten_is_nan():
        return models.out_of_tree()[1].from_pretrained(folder, **options)


@wrong_in("transformers")
def test_c_m_from_pretrained(outsider):
    """A buffer that only the constructor knows is lost, and the frozen parameter trains."""
    model = from_pretrained(outsider)
    judge(model, outsider, {("value", "softcap"), ("unfrozen", "frozen")}, models.outsider())


@wrong_in("transformers")
def test_d_from_pretrained_rounds(outsider):
    """A request of bf16 narrows what the file has in fp32, buffers too; the pinned parameter stays."""
    model = from_pretrained(outsider, dtype=torch.bfloat16)
    model.softcap.fill_(50.0)
    model.frozen.requires_grad_(False)
    want = models.outsider()
    want.softcap = want.softcap.to(model.softcap.dtype)  # either is what the constructor makes
    names = ("embed.weight", "frozen", "gain.scale", "lin.bias", "lin.weight")
    judge(model, outsider, {("dtype", name) for name in names}, want, dtype="bf16")
    assert lading.audit(model, outsider, dtype="bf16", cast="exact").ok


@wrong_in("transformers")
def test_d_restored_dtype_with_rounded_values(outsider):
    """fp32 → bf16 → fp32, as nemo's `_restore_loaded_model_dtype` leaves it: only values tell (R24)."""
    model = from_pretrained(outsider, dtype=torch.float32)
    model.softcap.fill_(50.0)
    model.frozen.requires_grad_(False)
    judge(model, outsider, set(), models.outsider(), dtype="bf16")
    with torch.no_grad():
        for tensor in (model.A_log, model.gain.scale):
            tensor.copy_(tensor.bfloat16().float())
    judge(model, outsider, {("rounded", "A_log"), ("rounded", "gain.scale")}, models.outsider(), dtype="bf16")
    (first, _) = lading.audit(model, outsider, dtype="bf16").problems
    assert "4 of 4 elements, the first at [0], and it holds what rounding to bfloat16 leaves" in first.message


@wrong_in("transformers")
def test_d_one_dtype_for_all(tmp_path):
    """Without a request a mixed file becomes one dtype: here fp32, and what the file has in bf16 is widened."""
    pytest.importorskip("transformers")
    mixed = models.outsider()
    mixed.lin.bfloat16()
    mixed.save_pretrained(tmp_path)
    model = from_pretrained(tmp_path, dtype="auto")
    model.softcap.fill_(50.0)
    model.frozen.requires_grad_(False)
    judge(model, tmp_path, {("dtype", "lin.weight"), ("dtype", "lin.bias")}, mixed)


@wrong_in("transformers")
def test_i_mismatched_sizes_that_were_ignored(outsider):
    """Rows that come from nowhere."""
    model = from_pretrained(outsider, config=models.outsider(rows=7).config, ignore_mismatched_sizes=True)
    report = lading.audit(model, outsider)
    assert flagged(report) == {("plan", "embed.weight"), ("value", "softcap"), ("unfrozen", "frozen")}


def test_right_from_pretrained(tmp_path):
    """Of a model that transformers knows: everything it makes itself is right, RoPE tables too."""
    pytest.importorskip("transformers")
    import zoo

    original = zoo.make("llama", str(tmp_path))
    judge(type(original).from_pretrained(tmp_path), tmp_path, set(), original)
