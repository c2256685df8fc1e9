"""Several pipeline stages on one rank: `materialize` takes a list of parts, and an interleaved schedule trains them."""

import pytest
from geometry.launch import require, run_ranks, run_worker

require("torch", exactly=False)
pytest.importorskip("transformers")

DEADLINE_S = 120
STAGES, LAYERS, ROUNDING = 4, 4, 1e-5


@pytest.fixture(scope="module")
def found():
    return run_worker("test_several_stages", DEADLINE_S, package="python_front")


@pytest.mark.parametrize("how", ("skeleton", "meta"))
def test_R51_two_stages_on_each_of_two_ranks(found, how):
    """Stages 0 and 2 on one rank, 1 and 3 on the other; the head of stage 3 is tied to the embedding of stage 0."""
    for rank, stages in zip(found, ([0, 2], [1, 3]), strict=True):
        assert rank[how]["stages"] == stages
        assert rank[how]["wrong"] == []
        assert rank[how]["largest difference of a gradient"] < ROUNDING
    assert abs(found[1][how]["loss"] - found[1][how]["loss in one process"]) < ROUNDING


@pytest.mark.parametrize("how", ("skeleton", "meta"))
def test_R51_all_stages_on_one_rank(found, how):
    """In one process, without a schedule, on the GPU if there is one: what two parts share is one tensor."""
    for rank in found:
        assert rank[f"{how}, alone"] == []


def main():
    import tempfile

    folder = tempfile.mkdtemp()
    original().save_pretrained(folder)
    return run_ranks(2, on_a_rank, DEADLINE_S - 20, folder)


def make():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=97, tie_word_embeddings=True, **sizes))


def original():
    import torch
    import zoo

    torch.manual_seed(0)
    model = make()
    zoo.overwrite(model)
    return model


def stage_of(model, number):
    """One layer under the names of the whole; the first has the embedding, the last the norm and the head."""
    import torch
    from torch import nn

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = nn.Module()
            self.model.layers = nn.ModuleDict({str(number): model.model.layers[number]})
            self.model.rotary_emb = model.model.rotary_emb
            if number == 0:
                self.model.embed_tokens = model.model.embed_tokens
            if number == STAGES - 1:
                self.model.norm, self.lm_head = model.model.norm, model.lm_head

        def forward(self, hidden):
            if number == 0:
                hidden = self.model.embed_tokens(hidden)
            places = torch.arange(hidden.shape[1], device=hidden.device)[None]
            mask = torch.full((hidden.shape[1],) * 2, float("-inf"), device=hidden.device).triu(1)[None, None]
            embeddings = self.model.rotary_emb(hidden, places)
            layer = self.model.layers[str(number)]
            hidden = layer(hidden, attention_mask=mask, position_ids=places, position_embeddings=embeddings)
            return self.lm_head(self.model.norm(hidden)) if number == STAGES - 1 else hidden

    return Stage()


def on_a_rank(rank, folder):
    found = {}
    for how in ("skeleton", "meta"):
        found[how] = interleaved(rank, folder, how)
        found[f"{how}, alone"] = alone(folder, how, "cpu")
    return found


def parts_of(how, numbers):
    import torch

    import lading

    with lading.skeleton() if how == "skeleton" else torch.device("meta"):
        whole = make()
    return whole, [stage_of(whole, number) for number in numbers]


def loss_of(logits, ids):
    from torch.nn.functional import cross_entropy

    return cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def words():
    import torch

    return torch.randint(0, 97, (4, 10), generator=torch.Generator().manual_seed(3))


def interleaved(rank, folder, how):
    import torch
    from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

    import lading

    numbers = list(range(rank, STAGES, 2))
    whole, parts = parts_of(how, numbers)
    lading.materialize(parts, folder, device="cpu", whole=whole, progress=False, timeout=60)
    numbered, cpu = zip(parts, numbers, strict=True), torch.device("cpu")
    stages = [PipelineStage(part, number, STAGES, cpu) for part, number in numbered]
    ids, losses = words(), []
    schedule = ScheduleInterleaved1F1B(stages, n_microbatches=4, loss_fn=loss_of)
    schedule.step(*([ids] if rank == 0 else []), **({"target": ids, "losses": losses} if rank == 1 else {}))
    reference = original()
    expected = torch.stack([loss_of(reference(row[None]).logits, row[None]) for row in ids]).mean()
    # Each end of the tie is on another stage, and has a gradient of its own.
    reference.lm_head.weight = torch.nn.Parameter(reference.lm_head.weight.detach().clone())
    torch.stack([loss_of(reference(row[None]).logits, row[None]) for row in ids]).mean().backward()
    return {
        "stages": numbers,
        "wrong": wrong(parts, reference),
        "loss": float(torch.stack(losses).mean()) if losses else 0.0,
        "loss in one process": float(expected),
        "largest difference of a gradient": max(gradients_apart(parts, reference)),
    }


def gradients_apart(parts, reference):
    want = dict(reference.named_parameters())
    for part in parts:
        for name, parameter in part.named_parameters():
            yield float((parameter.grad - want[name].grad).abs().max())


def wrong(parts, reference):
    import zoo

    want = zoo.tensors(reference)
    return [
        name
        for part in parts
        for name, (_, tensor) in zoo.tensors(part).items()
        if tensor.is_meta or not zoo.same_bits(want[name][1].detach(), tensor.detach().cpu())
    ]


def alone(folder, how, device):
    """Every stage in this process: what is wrong."""
    import torch

    import lading

    whole, parts = parts_of(how, range(STAGES))
    lading.materialize(parts, folder, device=device, whole=whole, progress=False, group=False)
    reference = original()
    problems = [f"{name} is wrong" for name in wrong(parts, reference)]
    elsewhere = [name for part in parts for name, one in part.named_parameters() if str(one.device) != device]
    problems += [f"{name} is elsewhere" for name in elsewhere]
    if parts[-1].lm_head.weight is not parts[0].model.embed_tokens.weight:
        problems.append("the tie is gone")
    if parts[0].model.rotary_emb is not parts[1].model.rotary_emb:
        problems.append("the table is not shared")
    hidden = words().to(device)
    with torch.no_grad():
        for part in parts:
            hidden = part(hidden)
        apart = float((hidden.cpu() - reference(words()).logits).abs().max())
    return problems + ([] if apart < 1e-4 else [f"the output differs by {apart}"])
