"""Optimizer state: saved in one layout, loaded in another, with the same next steps."""

import json
import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import save_models as models  # noqa: E402
from geometry.launch import run_worker  # noqa: E402

import lading  # noqa: E402

DEADLINE_S = 900
ALL = ("fsdp2x1", "ddp", "fsdp2", "fsdp2x4", "hsdp", "tp", "fsdp2tp")
# Twice as many layouts take four times as long.
LAYOUTS = ALL if os.environ.get("LADING_ALL_LAYOUTS") else ("fsdp2", "fsdp2x4", "fsdp2tp")
CASES = (
    "others_are_refused", "a_checkpoint_without_state_is_refused", "before_the_first_step", "what_cannot_be_saved",
    "ranks_that_differ", "a_rank_that_cannot_read", "a_hook_that_raises", "into_a_directory_that_exists",
)  # fmt: skip


def optimizers_of(*layouts):
    sharded = set(layouts) - {"one", "ddp"}
    return ("adamw", "sgd") if sharded else ("adamw", "sgd", "adafactor")


SAVES = [f"{name} saved in {layout}" for layout in LAYOUTS for name in optimizers_of(layout)]
LOADS = [
    f"{name} of {source} in {layout}"
    for layout in ("one", *LAYOUTS)
    for source in ("one", *LAYOUTS)
    if (layout, source) != ("one", "one")
    for name in optimizers_of(layout, source)
    if name == "adamw" or source in ("one", layout)
]


@pytest.fixture(scope="module")
def results():
    return run_worker("optimizer_worker", DEADLINE_S, package="save", layouts=LAYOUTS)


@pytest.mark.parametrize("case", SAVES)
def test_R69_state_is_what_dcp_gathers(results, case):
    assert results[case] == []


@pytest.mark.parametrize("case", LOADS)
def test_R69_the_next_steps_are_the_same(results, case):
    assert results[case] == []


@pytest.mark.parametrize("case", CASES)
def test_R69_case(results, case):
    assert results[f"{case} in fsdp2"] == []


def test_none_is_forgotten(results):
    straight = [f"{name} in one" for name in optimizers_of("one")]
    assert set(results) == {*SAVES, *LOADS, *straight, *(f"{case} in fsdp2" for case in CASES)}
    assert all(results[case] == [] for case in straight)


# ---- documents


def document(**changes):
    whole = {
        "schema": "lading.optimizer/1",
        "class": "AdamW",
        "groups": [{"parameters": ["w"], "options": {"lr": 0.5, "betas": [0.9, {"float": "inf"}], "foreach": None}}],
        "parameters": {
            "w": {
                "shape": [2, 3],
                "tensors": {"exp_avg": {"dtype": "F32", "shape": [2, 3]}},
                "values": {"step": {"tensor": "F32", "value": 4.0}},
            }
        },
    }
    return whole | changes


def read(folder, text):
    from lading.optimizer_document import read_document

    (folder / "optimizer.json").write_text(text)
    return read_document(folder)


def test_R69_a_document_is_read_as_it_was_written(tmp_path):
    found = read(tmp_path, json.dumps(document()))
    assert found.groups[0].options == {"lr": 0.5, "betas": (0.9, float("inf")), "foreach": None}
    assert found.parameters["w"].values["step"].item() == 4.0
    assert read(tmp_path, found.to_json()).to_json() == found.to_json()


SAVED = document()["parameters"]["w"]
DAMAGED = {
    "no JSON": ("{", "damaged"),
    "a member twice": (json.dumps(document())[:-1] + ', "class": "SGD"}', "occurs twice"),
    "NaN": (json.dumps(document(groups=[{"parameters": ["w"], "options": {"lr": float("nan")}}])), "NaN"),
    "another schema": (json.dumps(document(schema="lading.optimizer/2")), "lading.optimizer/2"),
    "a member too many": (json.dumps(document(more=1)), "should be an object of"),
    "a parameter in no group": (json.dumps(document(groups=[])), "in no group"),
    "a parameter in two groups": (json.dumps(document(groups=document()["groups"] * 2)), "in two groups"),
    "an unknown dtype": (json.dumps(document(parameters={"w": SAVED | {"tensors": {"m": {"dtype": "X", "shape": []}}}})), "unknown dtype"),
    "a negative size": (json.dumps(document(parameters={"w": SAVED | {"shape": [-1]}})), "a shape that is none"),
    "a step that does not fit": (
        json.dumps(document(parameters={"w": SAVED | {"values": {"step": {"tensor": "U8", "value": 300}}}})),
        "does not fit",
    ),
    "an object as a value": (json.dumps(document(groups=[{"parameters": ["w"], "options": {"lr": {"code": "x"}}}])), "no known form"),
    "params as an option": (json.dumps(document(groups=[{"parameters": ["w"], "options": {"params": None}}])), "should not have params"),
    "too deep": ("[" * 100_000, "damaged"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_R69_a_damaged_document_is_refused(tmp_path, case):
    from lading import LadingError

    text, words = DAMAGED[case]
    with pytest.raises(LadingError, match=words) as caught:
        read(tmp_path, text)
    assert caught.value.code == "optimizer_state" and "optimizer.json" in str(caught.value)


def test_R69_a_snapshot_has_the_optimizers_state_too(tmp_path):
    """Training goes on while both are written; twice, because the second snapshot takes the first one's memory."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.Linear(96, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(seed):
        model(torch.randn(4, 64, generator=torch.Generator().manual_seed(seed))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def copied(model, optimizer):
        states = {name: optimizer.state[parameter] for name, parameter in model.named_parameters()}
        return {(name, kind): value.clone() for name, state in states.items() for kind, value in state.items()}

    for turn in range(2):
        step(turn)
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        moments = copied(model, optimizer)
        pending = lading.save(model, tmp_path / f"out{turn}", optimizer=optimizer, background=True, group=False)
        step(100 + turn)
        report = pending.result()
        assert pending.snapshot_bytes >= report.bytes // 2 + report.optimizer.bytes // 2
        fresh = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.Linear(96, 8))
        again = torch.optim.AdamW(fresh.parameters(), lr=1e-2)
        lading.materialize(fresh, report.path, device="cpu", optimizer=again, group=False)
        assert all(torch.equal(tensor, weights[name]) for name, tensor in fresh.state_dict().items())
        found = copied(fresh, again)
        assert found.keys() == moments.keys() and all(torch.equal(found[name], moments[name]) for name in moments)


def test_R69_the_state_of_a_lora_lies_beside_the_adapter(tmp_path):
    peft = pytest.importorskip("peft")
    models.original("llama").save_pretrained(tmp_path / "base")

    def made():
        model = peft.get_peft_model(models.original("llama"), peft.LoraConfig(target_modules=["q_proj"]))
        return model, torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-2)

    def losses(model, optimizer, seeds):
        found = []
        for seed in seeds:
            ids = torch.randint(97, (1, 8), generator=torch.Generator().manual_seed(seed))
            found.append(model(ids, labels=ids).loss)
            found[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
        return [loss.item() for loss in found]

    model, optimizer = made()
    losses(model, optimizer, range(3))
    lading.save(model, tmp_path / "adapter", adapter="default", optimizer=optimizer, group=False)
    wanted = losses(model, optimizer, range(3, 6))
    model, optimizer = made()
    lading.materialize(
        model, tmp_path / "base", adapter=tmp_path / "adapter", optimizer=optimizer, device="cpu", group=False
    )
    assert losses(model, optimizer, range(3, 6)) == wanted
