"""The seed's own package: an EAGLE-3 draft of speculators, filled as its trainer would want it. Returns what differs from
the draft that speculators itself makes and fills in one process."""

import tempfile


def main():
    import torch
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig, LlamaForCausalLM

    import lading

    small = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    verifier = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_hidden_layers=2, **small))
    verifier_folder, folder = tempfile.mkdtemp(), tempfile.mkdtemp()
    verifier.save_pretrained(verifier_folder)
    layers = LlamaConfig(vocab_size=64, num_hidden_layers=1, **small)
    layers._attn_implementation = "sdpa"
    proposal = GreedyTokenProposalConfig(proposal_type="greedy", speculative_tokens=3)
    speculation = SpeculatorsConfig(
        algorithm="eagle3",
        proposal_methods=[proposal],
        default_proposal_method="greedy",
        verifier=VerifierConfig.from_pretrained(verifier_folder),
    )
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layers, draft_vocab_size=32, norm_before_residual=False, speculators_config=speculation
    )
    theirs = Eagle3DraftModel(config)
    known = torch.zeros(64, dtype=torch.bool)
    known[::2] = True
    theirs.load_vocab_mappings(known, torch.arange(32))
    theirs.load_verifier_weights()
    theirs.save_pretrained(folder)

    with lading.skeleton():
        ours = Eagle3DraftModel(config)
    head, norm = verifier.lm_head.weight.detach(), verifier.model.norm.weight.detach()
    lading.materialize(
        ours,
        folder,
        device="cpu",
        external={"embed_tokens.weight": verifier.model.embed_tokens.weight.detach()},
        recipes={
            "verifier_lm_head.weight": lading.Computed(lambda kept: head[kept], "t2d"),
            "verifier_norm.weight": lambda module, name: norm,
        },
        allow_missing=["verifier_*"],
        progress=False,
    )
    want, found = tensors(theirs), tensors(ours)
    wrong = sorted(set(want) ^ set(found))
    for name in set(want) & set(found):
        one, two = want[name], found[name]
        if one.dtype != two.dtype or one.requires_grad != two.requires_grad or not torch.equal(one, two):
            wrong.append(name)
    return {"wrong": wrong, "tensors": len(want)}


def tensors(model):
    return dict(model.named_parameters()) | dict(model.named_buffers())
