"""Where `lading.save` writes, and which checkpoint its base is: paths, links, names, and a directory that exists."""

import json
import os
import shutil

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import save_models as models  # noqa: E402
from lading import _engine  # noqa: E402
from save_checks import only, refused, save  # noqa: E402

import lading  # noqa: E402

# ---- the directory


def test_what_is_there_stays(folder, tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "mine.txt").write_text("mine")
    model = models.original("small")
    assert "exist" in str(refused(lambda: save(model, target)))
    assert [path.name for path in target.iterdir()] == ["mine.txt"] and only(target)
    report = save(model, target, exist="replace")
    assert report.replaced and models.differences(target, folder / "small") == [] and only(target)


def test_a_parent_that_is_missing(tmp_path):
    error = refused(lambda: save(models.original("small"), tmp_path / "no" / "out"))
    assert "no" in str(error) and not list(tmp_path.iterdir())


def test_a_directory_without_a_name(tmp_path, monkeypatch):
    """An empty path would mean the working directory, and all that is in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("mine")
    for directory in ("", b""):
        with pytest.raises(ValueError, match="directory is empty"):
            save(models.original("small"), directory, exist="replace")
    with pytest.raises(ValueError, match="UTF-8"):
        save(models.original("small"), os.fsencode(tmp_path) + b"/\xff")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_name_that_is_too_long(tmp_path):
    for size in (226, 255, 256):
        error = refused(lambda size=size: save(models.original("small"), tmp_path / ("x" * size)))
        assert error.code == "usage" and "225 bytes" in str(error) and not list(tmp_path.iterdir())
    save(models.original("small"), tmp_path / ("x" * 225))
    assert only(tmp_path / ("x" * 225))


def test_links_are_followed_before_a_parent_is_taken(folder, tmp_path, monkeypatch):
    """As the kernel does it: `link/..` is the parent of where the link leads."""
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("elsewhere/deep")
    monkeypatch.chdir(tmp_path)
    report = save(models.original("llama"), "link/../out")
    assert models.differences(tmp_path / "elsewhere" / "out", folder / "llama") == []
    assert report.path.samefile(tmp_path / "elsewhere" / "out") and not (tmp_path / "out").exists()
    ledger = json.loads((report.path / "lading.ledger.json").read_text())
    assert _engine.verify(report.path, ledger)["ok"]
    for name in ("elsewhere/deep/..", "..", "no/../out"):
        refused(lambda name=name: save(models.original("small"), name, exist="replace"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "link"]


# ---- the base


@pytest.mark.parametrize("through", ["path", "link", "cache"])
def test_the_report_of_a_load_is_of_what_was_loaded(folder, tmp_path, monkeypatch, through):
    """Wherever the working directory, a link or a branch leads by now."""
    for place, name in (("one", "llama-shards"), ("other", "qwen3_moe-shards")):
        shutil.copytree(folder / name, tmp_path / place / "models" / "ckpt")
        repository = tmp_path / "hub" / "models--org--llama"
        shutil.copytree(folder / name, repository / "snapshots" / place.encode().hex())
    named = {"path": "models/ckpt", "link": "latest", "cache": "org/llama"}[through]
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(b"one".hex())
    (tmp_path / "one" / "latest").symlink_to("models/ckpt")
    monkeypatch.chdir(tmp_path / "one")
    with lading.skeleton():
        model = models.MODELS["llama"]()
    report = lading.materialize(model, named, device="cpu", progress=False)
    (repository / "refs" / "main").write_text(b"other".hex())
    (tmp_path / "one" / "latest").unlink()
    (tmp_path / "one" / "latest").symlink_to(tmp_path / "other" / "models" / "ckpt")
    if through == "path":
        monkeypatch.chdir(tmp_path / "other")
    save(model, tmp_path / "out", base=report)
    assert models.differences(tmp_path / "out", folder / "llama-shards") == []


def test_a_revision_of_nothing(folder, tmp_path):
    """It belongs to a repository; the report of a load has its own."""
    model = lading.from_pretrained(folder / "llama", device="cpu", progress=False)
    for base in (None, lading.report_of(model)):
        with pytest.raises(ValueError, match="revision"):
            save(model, tmp_path / "out", base=base, revision="main")
    assert not list(tmp_path.iterdir())
