"""A forward pass of every model of the zoo, and how far one of a loaded model is from it.

    given, wanted, note = forward.reference(original)
    forward.distance(wanted, forward.outputs(loaded, given))        # 0.0 where every output has the same bits

Inputs are read off the config and the signature: words, a picture, a sound. A model that reads pictures among words
gets a word for each feature of the picture. Where the tiny config of a model cannot take a picture it gets words only.

What a pass proves: that the framework computes with what was loaded, rather than with a copy that it made before. It
does not replace the comparison of bits: with the zoo's small weights a wrong row deep inside changes outputs little.
"""

import inspect

import torch

WORDS = 12
WITHOUT_PICTURE = "a forward pass of words only: its tiny config takes no picture"
# What a distance may be where ranks share a sum, which is then added in another order: float32 rounds to 6e-8 of a
# number, and the sums of a few layers add that up. RESULTS.md has the largest that was seen. Everywhere else it is 0.
SHARED_SUMS = 1e-5


class CannotRunError(Exception):
    """The original itself has no forward pass that is known here."""


def reference(model):
    """(keyword arguments, outputs, a note) of a forward pass of the original."""
    failures = []
    for with_picture in (True, False):
        try:
            given = _inputs(model, with_picture=with_picture)
            return given, outputs(model, given), WITHOUT_PICTURE if failures else ""
        except (RuntimeError, ValueError, AssertionError, TypeError) as error:
            failures.append(f"{type(error).__name__}: {error}")
    raise CannotRunError(failures[-1])


def _inputs(model, *, with_picture):
    generator = torch.Generator().manual_seed(7)
    accepted = inspect.signature(model.forward).parameters
    config, found = model.config, {}
    if "input_ids" in accepted:
        found["input_ids"] = _words(config, generator)
    if "decoder_input_ids" in accepted and "input_ids" in accepted:
        found["decoder_input_ids"] = found["input_ids"].flip(1)
    if "input_values" in accepted:
        channels = [config.audio_channels] if hasattr(config, "audio_channels") else []
        found["input_values"] = torch.randn(1, *channels, 800, generator=generator)
    vision = getattr(config, "vision_config", None) if "input_ids" in accepted else config
    if with_picture and "pixel_values" in accepted and vision is not None:
        found |= _picture(model, vision, accepted, generator)
    if "pixel_values" in found and hasattr(config, "image_token_id"):
        found |= _words_with_picture(model, found, accepted)
    if "use_cache" in accepted:
        found["use_cache"] = False
    return found


def _words(config, generator):
    special = {value for name, value in config.to_dict().items() if name.endswith(("token_id", "token_index"))}
    ordinary = [word for word in range(3, config.get_text_config().vocab_size) if word not in special]
    return torch.tensor(ordinary)[torch.randint(len(ordinary), (1, WORDS), generator=generator)]


def _picture(model, vision, accepted, generator):
    """Of 32 x 32 points, or as a row of 4 x 4 patches."""
    channels = next((getattr(vision, name) for name in ("num_channels", "in_channels") if hasattr(vision, name)), 3)
    if "image_grid_thw" not in accepted:
        return {"pixel_values": torch.randn(1, channels, 32, 32, generator=generator)}
    size = channels * getattr(vision, "temporal_patch_size", 1) * vision.patch_size**2
    patches = torch.randn(16, size, generator=generator)
    return {"pixel_values": patches, "image_grid_thw": torch.tensor([[1, 4, 4]])}


def _features(model, pixels, grid=None):
    with torch.no_grad():
        more = {} if grid is None else {"image_grid_thw": grid}
        found = model.get_image_features(pixel_values=pixels, **more)
    found = getattr(found, "pooler_output", found)
    return torch.cat([one.reshape(-1, one.shape[-1]) for one in found]) if isinstance(found, (list, tuple)) else found


def _words_with_picture(model, found, accepted):
    features = _features(model, found["pixel_values"], found.get("image_grid_thw"))
    count = features.numel() // features.shape[-1]
    picture = torch.full((1, count), model.config.image_token_id)
    ids = found["input_ids"]
    ids = torch.cat([ids[:, :4], picture, ids[:, 4:]], 1)
    kinds = {"mm_token_type_ids": (ids == model.config.image_token_id).int()} if "mm_token_type_ids" in accepted else {}
    return {"input_ids": ids, **kinds}


def outputs(model, given):
    """Every tensor that a forward pass gives, in order. The model is left in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    torch.manual_seed(7)  # one or two models draw numbers even when they do not train
    try:
        with torch.no_grad():
            answer = model(**given)
    finally:
        for module, mode in modes:
            module.training = mode
    found = [value for value in answer.to_tuple() if isinstance(value, torch.Tensor)]
    found = [value.full_tensor() if hasattr(value, "full_tensor") else value for value in found]
    if not found:
        raise AssertionError("the forward pass gave no tensor")
    return found


def distance(wanted, got):
    """The largest difference of an output, as a part of its largest number. Shapes and kinds must be the same."""
    if [(one.shape, one.dtype) for one in wanted] != [(one.shape, one.dtype) for one in got]:
        return float("inf")
    largest = 0.0
    for one, other in zip(wanted, got, strict=True):
        if torch.equal(one, other):
            continue
        if not one.is_floating_point() or not bool(torch.isfinite(one).all() and torch.isfinite(other).all()):
            return float("inf")
        largest = max(largest, float((one - other).abs().max() / one.abs().max().clamp_min(1e-30)))
    return largest
