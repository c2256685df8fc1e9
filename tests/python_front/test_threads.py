"""Loads in several threads: the same bits as loads alone, and nothing that another thread of the process can see.

LADING_THREAD_LOADS=500 runs the campaign: that many loads of each kind, in four threads.
"""

import os
import random
import threading
from contextlib import contextmanager

import lading
import numpy as np
import pytest
import torch
from lading.own_numbers import own_random_numbers
from safetensors.torch import save_file
from torch import nn

LOADS = int(os.environ.get("LADING_THREAD_LOADS", "12"))
THREADS = 4


class Bystander:
    """A thread that makes tensors and draws numbers all the time, and knows what it would see alone."""

    def __init__(self):
        self.wrong, self.rounds, self._ends = [], 0, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._torch = torch.Generator()
        self._torch.set_state(torch.get_rng_state())
        self._random = random.Random()
        self._random.setstate(random.getstate())
        self._numpy = np.random.RandomState()
        self._numpy.set_state(np.random.get_state())

    def _run(self):
        while not self._ends.is_set():
            self.rounds += 1
            made = torch.tensor([0.1]), torch.zeros(1), torch.arange(3) / 2
            if any(tensor.dtype != torch.float32 or tensor.is_meta for tensor in made):
                self.wrong.append([tensor.dtype for tensor in made])
            drawn = torch.rand(2), random.random(), np.random.rand()
            alone = torch.rand(2, generator=self._torch), self._random.random(), self._numpy.rand()
            if not torch.equal(drawn[0], alone[0]) or drawn[1:] != alone[1:]:
                self.wrong.append((drawn, alone))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ends.set()
        self._thread.join()

    def saw_nothing(self):
        assert self.rounds > 0
        assert self.wrong == []
        assert torch.equal(torch.get_rng_state(), self._torch.get_state())
        assert random.getstate() == self._random.getstate()


@contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def in_threads(jobs):
    """Runs all, a fourth of them in each thread. What fails is raised here."""
    errors = []

    def work(own):
        try:
            for job in own:
                job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(jobs[place::THREADS],)) for place in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class Model(nn.Module):
    """Every kind of buffer whose value depends on a generator or on the default dtype."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4))
        base = torch.zeros(3000)
        for name, value in {
            "like": torch.rand_like(base),
            "normal": torch.randn_like(base).cumsum(0),
            "coins": torch.bernoulli(base + 0.5),
            "dropped": nn.functional.dropout(base + 1, 0.3, training=True),
            "order": torch.randperm(100),
            "drawn": torch.rand(7) * torch.randn(7),
            "truncated": nn.init.trunc_normal_(torch.empty(64)) + 1,
        }.items():
            self.register_buffer(name, value)
        self.register_buffer("table", (torch.arange(300) / 7).cos().cumsum(0), persistent=False)
        self.register_buffer("counted", torch.linspace(0, 1, 9) * torch.arange(9), persistent=False)


@pytest.fixture
def checkpoint(tmp_path):
    save_file({"w": torch.ones(4)}, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def load(model, path, **options):
    lading.materialize(
        model, path, device="cpu", group=False, progress=False, cast="destination", allow_missing=["*"], **options
    )
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def built(dtype, model=Model):
    with default_dtype(dtype), lading.skeleton():
        return model()


def test_loads_in_threads_are_those_of_one_thread(checkpoint):
    dtypes = (torch.float32, torch.float64, torch.bfloat16)
    want = {dtype: load(built(dtype), checkpoint) for dtype in dtypes}
    models = [(dtype, built(dtype)) for _ in range(-(-LOADS // len(dtypes))) for dtype in dtypes]
    different = []

    def job(dtype, model):
        got = load(model, checkpoint)
        different.extend(
            (dtype, name)
            for name in want[dtype]
            if got[name].dtype != want[dtype][name].dtype or not torch.equal(got[name], want[dtype][name])
        )

    with Bystander() as bystander:
        in_threads([lambda dtype=dtype, model=model: job(dtype, model) for dtype, model in models])
    assert different == []
    bystander.saw_nothing()


def test_recordings_in_threads_do_not_meet(checkpoint):
    """Constructors at the same time, some of them outside of skeleton()."""
    want = load(built(torch.float32), checkpoint)
    from torch.nn import init

    original = init._no_grad_trunc_normal_
    different = []

    def job(place):
        if place % 3 == 0:
            real = nn.Linear(3, 3)
            assert not real.weight.is_meta and not real.weight.isnan().any()
            return
        with lading.skeleton():
            model = Model()
        got = load(model, checkpoint)
        different.extend(name for name in want if not torch.equal(got[name], want[name]))

    in_threads([lambda place=place: job(place) for place in range(LOADS)])
    assert different == []
    assert init._no_grad_trunc_normal_ is original
    assert not torch._C._only_lift_cpu_tensors()


class Initialised(nn.Module):
    """On plain meta; its initialiser draws, and seeds, as it likes."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4))
        self.register_buffer("table", torch.zeros(8), persistent=False)
        self.register_buffer("recipe", torch.zeros(9), persistent=False)

    def reset_buffers(self):
        torch.rand(3), random.random(), np.random.rand(3), torch.rand_like(torch.zeros(2))
        torch.manual_seed(1), random.seed(1), np.random.seed(1)
        nn.functional.dropout(torch.ones(4), 0.5)
        self.table = torch.arange(8.0)


def recipe(module, name):
    """Draws first from whatever there is, then from what it seeds itself."""
    torch.rand(5), random.random(), np.random.rand(), torch.randn_like(torch.zeros(3))
    torch.manual_seed(7), random.seed(7), np.random.seed(7)
    drawn = [torch.rand(3), torch.randn_like(torch.zeros(4)).cumsum(0)]
    return torch.cat([*drawn, torch.tensor([random.random(), np.random.rand()])])


def test_initialisers_and_recipes_in_threads(checkpoint):
    with torch.random.fork_rng(devices=[]):
        states = random.getstate(), np.random.get_state()
        want = recipe(None, "")
        random.setstate(states[0]), np.random.set_state(states[1])
    models = []
    for _ in range(LOADS):
        with torch.device("meta"):
            models.append(Initialised())
    different = []

    def job(model):
        got = load(model, checkpoint, recipes={"recipe": recipe})
        if not torch.equal(got["table"], torch.arange(8.0)) or not torch.equal(got["recipe"], want):
            different.append(got)

    with Bystander() as bystander:
        in_threads([lambda model=model: job(model) for model in models])
    assert different == []
    bystander.saw_nothing()


# ---------------------------------------------------------------- numbers of a function's own


@pytest.fixture
def process_numbers():
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()
    functions = torch.manual_seed, random.random, np.random.rand
    yield
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()
    assert all(np.array_equal(one, two) for one, two in zip(before[2], np.random.get_state(), strict=True))
    assert functions == (torch.manual_seed, random.random, np.random.rand)


def drawn():
    return torch.cat([torch.rand(3), torch.randperm(5), torch.tensor([random.random(), np.random.rand()])])


def drawn_by_the_process(seed=None):
    state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
        value = drawn()
    random.setstate(state[0]), np.random.set_state(state[1])
    return value


def test_own_numbers_are_those_that_the_process_would_give(process_numbers):
    with own_random_numbers():
        assert torch.equal(drawn(), (first := drawn_by_the_process_outside()))
        assert not torch.equal(drawn(), first)  # they go on
    with own_random_numbers(seed=3):
        assert torch.equal(drawn(), drawn_in_a_thread(3))
    with own_random_numbers():
        torch.manual_seed(4), random.seed(4), np.random.seed(4)
        assert torch.equal(drawn(), drawn_in_a_thread(4))
        with own_random_numbers(seed=5):
            assert torch.equal(drawn(), drawn_in_a_thread(5))
        state = torch.get_rng_state()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(9)
            torch.rand(4)
        assert torch.equal(state, torch.get_rng_state())


def drawn_in_a_thread(seed):
    """By a thread that has no numbers of its own, so by the process."""
    found = []
    thread = threading.Thread(target=lambda: found.append(drawn_by_the_process(seed)))
    thread.start()
    thread.join()
    return found[0]


def drawn_by_the_process_outside():
    return drawn_in_a_thread(None)


def test_own_numbers_follow_who_seeds_the_process(process_numbers):
    """Nothing can stand between a function and torch.default_generator; the draws are then the seed's."""
    before = torch.get_rng_state()
    try:
        with own_random_numbers(seed=1):
            torch.rand(1)
            torch.default_generator.manual_seed(12345)
            got = torch.rand(3)
    finally:
        torch.set_rng_state(before)
    assert torch.equal(got, torch.rand(3, generator=torch.Generator().manual_seed(12345)))


# ---------------------------------------------------------------- models of transformers


def test_from_pretrained_in_threads(tmp_path):
    """Of different dtypes at the same time: each model is that of one thread."""
    transformers = pytest.importorskip("transformers")
    folders = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        config = transformers.LlamaConfig(
            hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
            vocab_size=32,
        )  # fmt: skip
        folders[dtype] = tmp_path / str(dtype)
        transformers.LlamaForCausalLM(config).to(dtype).save_pretrained(folders[dtype])

    def state(dtype):
        model = lading.from_pretrained(folders[dtype], device="cpu", group=False, progress=False)
        return {**dict(model.named_parameters()), **dict(model.named_buffers())}

    want = {dtype: state(dtype) for dtype in folders}
    original, wrong = torch.nn.init.normal_, []

    def job(dtype):
        got = state(dtype)
        wrong.extend(
            (dtype, name)
            for name, value in want[dtype].items()
            if got[name].dtype != value.dtype or not torch.equal(got[name], value)
        )

    dtypes = list(folders)
    with Bystander() as bystander:
        in_threads([lambda dtype=dtypes[place % 3]: job(dtype) for place in range(LOADS)])
    assert wrong == []
    bystander.saw_nothing()
    assert torch.get_default_dtype() == torch.float32 and torch.nn.init.normal_ is original
