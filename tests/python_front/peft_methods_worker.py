"""Every method of PEFT, with every value of its options for initial values, over a tiny Llama. The oracle is PEFT
itself: `PeftModel.from_pretrained` over the base for an adapter's file, `get_peft_model` over the base for a model that
was built over other weights. lading gives the same bits, or a LadingError."""

import copy
import dataclasses
import functools
import os
import re
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
warnings.filterwarnings("ignore")

import peft
import ranks_models as models
import torch
import tqdm
from lading.bits import same_bits
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

import lading

# What a method needs beside its defaults, for a width of 32.
OPTIONS = {
    "LORA": {"r": 2},
    "ADALORA": {"total_step": 10},
    "OFT": {"oft_block_size": 4},
    "BOFT": {"boft_block_size": 4},
    "FOURIERFT": {"n_frequency": 10},
    "RANDLORA": {"r": 2},
    "VBLORA": {"num_vectors": 8, "vector_length": 4, "topk": 2},
    "IA3": {"feedforward_modules": []},
    "C3A": {"block_size": 4},
    "TRAINABLE_TOKENS": {"token_indices": [1, 2]},
    "MISS": {"r": 4},
    "SHIRA": {"r": 2},
    "WAVEFT": {"n_frequency": 10},
    "HRA": {"r": 2},
    "ROAD": {"group_size": 4},
    "PSOFT": {"r": 2},
    "GRALORA": {"r": 4, "gralora_k": 2},
    "POLY": {"r": 2},
}
INITS = ("gaussian", "eva", "olora", "pissa", "pissa_niter_2", "corda", "loftq", "orthogonal", "mica", "lora_ga")
# Further options of LoRA, which compute from base weights.
MORE = {"LORA": ({"use_dora": True}, {"trainable_token_indices": [1, 2]}, {"modules_to_save": ["lm_head"]})}
CHANGES_BASE = ("olora", "pissa", "pissa_niter_2", "corda", "loftq")
CANNOT_BE_BUILT = {  # and why: what it says
    "ADAMSS": "scikit-learn",
    "ADAPTION_PROMPT": "",
    "XLORA": "use_cache",
    "LORA loftq": "scipy",
    "LORA corda": "preprocess_corda",
}


def ways(kind, config):
    """The options of a method, one case each: the defaults, and every other value of what decides on initial values."""
    found = {"": {}}
    for field in dataclasses.fields(config):
        values = []
        if field.name == "init_lora_weights":
            values = [False, *INITS] if kind == "LORA" else ["pissa"]
        elif field.name.startswith("init_") and re.search("bool|Literal", str(field.type)):
            values = [True, False] if "bool" in str(field.type) else []
            values += re.findall(r"'([a-z_]+)'", str(field.type).replace("<class 'bool'>", ""))
        elif field.name == "ab_svd_init":
            values = ["pissa_init"]
        found |= {str(value): {field.name: value} for value in values if value != field.default}
    return found | {next(iter(options)): options for options in MORE.get(kind, ())}


def config_of(kind, config, options):
    fields = {field.name for field in dataclasses.fields(config)}
    given = OPTIONS.get(kind, {}) | options
    if "target_modules" in fields and kind not in ("LN_TUNING", "TRAINABLE_TOKENS"):
        given["target_modules"] = ["q_proj", "v_proj"]
    if "num_virtual_tokens" in fields:
        given |= {"num_virtual_tokens": 3, "task_type": "CAUSAL_LM"}
    if options.get("init_lora_weights") == "lora_ga":
        given["lora_ga_config"] = peft.LoraGAConfig()
    if options.get("init_lora_weights") == "loftq":
        given["loftq_config"] = peft.LoftQConfig()
    if options.get("init_lora_weights") == "corda":
        given["corda_config"] = peft.tuners.lora.config.CordaConfig()
    return config(**copy.deepcopy(given))


def tensors(model):
    found = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: tensor.detach().clone() for name, tensor in found}


def differences(found, wanted):
    """By their bits: some methods leave memory as they find it when they are told not to initialise it, NaN included."""
    return [name for name in wanted if name not in found or not same_bits(found[name], wanted[name])]


class Bench:
    """A base checkpoint, and models over it or over other weights."""

    def __init__(self, folder):
        self.folder, self.adapter = folder / "base", folder / "adapter"
        torch.manual_seed(0)
        models.save(models.fill(models.MODELS["llama"]()), self.folder)
        self.plain = models.MODELS["llama"]()
        self.state = models.fill(models.MODELS["llama"]()).state_dict()
        self.other = models.fill(models.MODELS["llama"](), seed=8).state_dict()

    def base(self, state):
        model = copy.deepcopy(self.plain)
        model.load_state_dict(state)
        return model

    def over(self, state, config):
        """A real model with this base. Adapters begin with the same random numbers."""
        torch.manual_seed(3)
        return peft.get_peft_model(self.base(state), config)

    def from_pretrained(self, adapter):
        """As PEFT loads an adapter."""
        return peft.PeftModel.from_pretrained(self.base(self.state), adapter)

    def base_of(self, model):
        """What the base weights of a wrapped model are."""
        inner = r"\.(base_layer|original_module|token_adapter)\b"
        plain = {re.sub(inner, "", name): tensor for name, tensor in model.state_dict().items()}
        prefix = "base_model.model." if "base_model.model.lm_head.weight" in plain else "base_model."
        return {name: plain[prefix + name] for name in self.state}


def check(bench, kind, config, options):
    """Problems of one way, with a file and without; None where PEFT cannot build it here."""
    init = options.get("init_lora_weights") if kind == "LORA" else None
    want = bench.over(bench.state, config_of(kind, config, options))
    before = tensors(want)
    problems = []
    is_changed = bool(differences(bench.base_of(want), bench.state))
    if is_changed != (init in CHANGES_BASE):
        problems.append(f"PEFT {'changes' if is_changed else 'does not change'} base weights")
    model = bench.over(bench.other, config_of(kind, config, options))
    problems += verdict("over another base", model, before, init, lambda: lading.materialize(model, bench.folder))
    want = bench.over(bench.state, config_of(kind, config, options))
    with torch.no_grad():
        for parameter in want.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.01)
    want.save_pretrained(bench.adapter)
    expected = tensors(bench.from_pretrained(bench.adapter))
    for how in (lading.skeleton, lambda: torch.device("meta"))[: 2 if kind == "LORA" else 1]:
        try:
            with how():
                model = peft.get_peft_model(models.MODELS["llama"](), peft.PeftConfig.from_pretrained(bench.adapter))
        except (RuntimeError, NotImplementedError, lading.LadingError):
            continue  # its constructor looks at values
        problems += verdict(
            "from a file", model, expected, init, lambda model=model: lading.materialize(
                model, bench.folder, device="cpu", adapter=bench.adapter
            )
        )  # fmt: skip
    return problems


def verdict(what, model, expected, init, load):
    try:
        load()
    except lading.LadingError as error:
        is_loud = all(problem.code in ("adapter", "plan", "skeleton") for problem in error.problems)
        must_load = not init and what == "from a file"
        return [f"{what}: {error}"] if not is_loud or (must_load and "init_lora_weights=" in error.full_text()) else []
    wrong = differences(tensors(model), expected)
    if init in CHANGES_BASE:
        return [f"{what}: it was not refused"]
    return [f"{what}: {wrong[:3]} differ"] if wrong else []


MUST_LOAD = ("LORA", "ADALORA", "OFT", "BOFT", "IA3", "LOHA", "LOKR", "VERA", "HRA", "MISS", "LN_TUNING")


def loads_from_a_file(bench, kind, config):
    """Whether the method's adapter file loads at all: a refusal would hide everything else."""
    want = bench.over(bench.state, config_of(kind, config, {}))
    want.save_pretrained(bench.adapter)
    with lading.skeleton():
        model = peft.get_peft_model(models.MODELS["llama"](), peft.PeftConfig.from_pretrained(bench.adapter))
    try:
        lading.materialize(model, bench.folder, device="cpu", adapter=bench.adapter)
    except lading.LadingError as error:
        return [error.full_text()]
    return []


# ---- PiSSA, with what makes it loadable


def pissa(**options):
    return peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], **{"init_lora_weights": "pissa"} | options)


def saved_pissa(bench):
    """An adapter that was trained a little; and PEFT's model of it."""
    want = bench.over(bench.state, pissa())
    with torch.no_grad():
        for parameter in want.parameters():
            if parameter.requires_grad:
                parameter.add_(0.01)
    want.save_pretrained(bench.adapter)
    return bench.from_pretrained(bench.adapter)


def loaded(bench, config, adapter, **options):
    with lading.skeleton():
        model = peft.get_peft_model(models.MODELS["llama"](), config)
    report = lading.materialize(model, bench.folder, device="cpu", adapter=adapter, **options)
    return model, report


def pissa_converted(bench):
    """PEFT's own conversion makes a plain adapter of twice the rank, over the base as it is."""
    first, converted = bench.folder.parent / "first", bench.folder.parent / "converted"
    want = bench.over(bench.state, pissa())
    want.peft_config["default"].init_lora_weights = True
    want.save_pretrained(first)
    want.peft_config["default"].init_lora_weights = "pissa"
    with torch.no_grad():
        for parameter in want.parameters():
            if parameter.requires_grad:
                parameter.add_(0.01)
    want.save_pretrained(converted, path_initial_model_for_weight_conversion=first)
    model, _ = loaded(bench, peft.PeftConfig.from_pretrained(converted), converted)
    return differences(tensors(model), tensors(bench.from_pretrained(converted)))


def pissa_by_the_file(bench):
    """The model's config says nothing of it, the adapter's own does: PEFT would change the base."""
    saved_pissa(bench)
    try:
        loaded(bench, pissa(init_lora_weights=True), bench.adapter)
    except lading.LadingError as error:
        return [] if "adapter_config.json" in error.full_text() and error.problems[0].remedy else [error.full_text()]
    return ["it was not refused"]


def pissa_with_the_changed_base(bench):
    """The base weights that PEFT changed may be handed in."""
    want = saved_pissa(bench)
    model, _ = loaded(bench, pissa(), bench.adapter, external={"*_proj.base_layer.weight": want})
    return differences(tensors(model), tensors(want))


def another_config_is_told(bench):
    want = bench.over(bench.state, pissa(init_lora_weights=True, lora_alpha=16))
    want.save_pretrained(bench.adapter)
    _, report = loaded(bench, pissa(init_lora_weights=True, lora_alpha=8), bench.adapter)
    told = [note for note in report.notes if "lora_alpha" in note]
    _, report = loaded(bench, peft.PeftConfig.from_pretrained(bench.adapter), bench.adapter)
    untrue = [note for note in report.notes if "saved with" in note]
    return ([] if len(told) == 1 and "16" in told[0] else [f"the notes are {told}"]) + untrue


def adapters_in_a_plain_model(bench):
    """`inject_adapter_in_model` makes no PeftModel; the config hangs on the model."""
    model = peft.inject_adapter_in_model(pissa(), bench.base(bench.other))
    try:
        lading.materialize(model, bench.folder)
    except lading.LadingError as error:
        return [] if "pissa" in error.full_text() and len(error.tensors) == 4 else [error.full_text()]
    return ["it was not refused"]


CASES = (
    pissa_converted,
    pissa_by_the_file,
    pissa_with_the_changed_base,
    another_config_is_told,
    adapters_in_a_plain_model,
)


def main(only=()):
    """{case or method: problems}"""
    tqdm.tqdm.__init__ = functools.partialmethod(tqdm.tqdm.__init__, disable=True)  # PEFT's bars
    bench = Bench(Path(os.environ["LADING_SCRATCH"]))
    answers = {case.__name__: case(bench) for case in CASES if not only or case.__name__ in only}
    for kind, config in PEFT_TYPE_TO_CONFIG_MAPPING.items():
        name = kind.value
        if only and name not in only:
            continue
        problems = answers.setdefault(name, [])
        for way, options in ways(name, config).items():
            label = f"{name} {way}".strip()
            try:
                found = check(bench, name, config, options)
            except Exception as error:  # PEFT's own
                is_known = label in CANNOT_BE_BUILT or name in CANNOT_BE_BUILT
                words = CANNOT_BE_BUILT.get(label, CANNOT_BE_BUILT.get(name, ""))
                found = [] if is_known and words in str(error) else [f"{type(error).__name__}: {error}"]
            problems += [f"{label}: {problem}" for problem in found]
        if name in MUST_LOAD:
            problems += loads_from_a_file(bench, name, config)
    return answers
