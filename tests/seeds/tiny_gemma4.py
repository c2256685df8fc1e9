"""A tiny Gemma4 with its three towers: the seeds' model. Its clamps are buffers of the checkpoint, 0-dim ones among them;
so are the vision tower's `std_bias` and `std_scale`, and its text layers have routers and experts."""

CLAMPS = ("input_min", "input_max", "output_min", "output_max")
IMAGE, AUDIO = 150, 151  # the words that stand for a picture's and a sound's tokens
PATCH, GRID, POOL, MELS, FRAMES = 4, 4, 2, 16, 12
PICTURE_WORDS, SOUND_WORDS = (GRID // POOL) ** 2, FRAMES // 4


def config():
    from transformers.models.gemma4.configuration_gemma4 import (
        Gemma4AudioConfig,
        Gemma4Config,
        Gemma4TextConfig,
        Gemma4VisionConfig,
    )

    text = Gemma4TextConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, intermediate_size=48,
        head_dim=16, global_head_dim=16, vocab_size=160, vocab_size_per_layer_input=160, hidden_size_per_layer_input=8,
        pad_token_id=0, enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=16,
    )  # fmt: skip
    vision = Gemma4VisionConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, intermediate_size=40,
        head_dim=16, use_clipped_linears=True, standardize=True, patch_size=PATCH, pooling_kernel_size=POOL,
        position_embedding_size=16,
    )  # fmt: skip
    audio = Gemma4AudioConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, output_proj_dims=32,
        subsampling_conv_channels=[MELS, 8],
    )  # fmt: skip
    return Gemma4Config(
        text_config=text, vision_config=vision, audio_config=audio, image_token_id=IMAGE, audio_token_id=AUDIO
    )


def build():
    from transformers.models.gemma4.modeling_gemma4 import Gemma4ForConditionalGeneration

    return Gemma4ForConditionalGeneration(config())


def original():
    """Seeded values that no constructor would choose, and the seed's own where its clamps are. The other two bounds are
    near 0, so that clamping changes what the towers compute."""
    import zoo

    zoo.seed_all(7)
    model = build()
    zoo.overwrite(model)
    for name, buffer in model.named_buffers():
        for part, value in (("input_max", 42.0), ("output_min", -42.0), ("layer_scalar", 0.5)):
            if name.endswith(part):
                buffer.fill_(value)
    return model


def batch(generator, device="cpu"):
    """Two rows of words, each with a picture and a sound in them: all three towers run."""
    import torch

    words = torch.randint(8, IMAGE, (2, 18), generator=generator)
    words[:, 2 : 2 + PICTURE_WORDS] = IMAGE
    words[:, 8 : 8 + SOUND_WORDS] = AUDIO
    places = torch.stack(torch.meshgrid(torch.arange(GRID), torch.arange(GRID), indexing="xy"), -1).reshape(-1, 2)
    kinds = torch.where(words == IMAGE, 1, torch.where(words == AUDIO, 3, 0))
    labels = words.masked_fill(kinds != 0, -100)
    fed = {
        "input_ids": words,
        "labels": labels,
        "mm_token_type_ids": kinds,
        "pixel_values": torch.rand(2, GRID * GRID, 3 * PATCH * PATCH, generator=generator),
        "image_position_ids": places.expand(2, -1, -1).contiguous(),
        "input_features": torch.randn(2, FRAMES, MELS, generator=generator),
        "input_features_mask": torch.ones(2, FRAMES, dtype=torch.bool),
    }
    return {name: value.to(device) for name, value in fed.items()}


def clamping(model):
    """By name, the modules that clamp with buffers."""
    return {name: module for name, module in model.named_modules() if "input_max" in module._buffers}
