"""A tiny Gemma4 with its three towers: the seeds' model. Its clamps are buffers of the checkpoint, 0-dim ones among them."""


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
        pad_token_id=0,
    )  # fmt: skip
    vision = Gemma4VisionConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, intermediate_size=40,
        head_dim=16, use_clipped_linears=True,
    )  # fmt: skip
    audio = Gemma4AudioConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, output_proj_dims=32)
    return Gemma4Config(text_config=text, vision_config=vision, audio_config=audio)


def build():
    from transformers.models.gemma4.modeling_gemma4 import Gemma4ForConditionalGeneration

    return Gemma4ForConditionalGeneration(config())


def original():
    """Seeded values that no constructor would choose, and the seed's own where its clamps are."""
    import zoo

    zoo.seed_all(7)
    model = build()
    zoo.overwrite(model)
    for name, buffer in model.named_buffers():
        for part, value in (("input_max", 42.0), ("output_min", -42.0), ("layer_scalar", 0.5)):
            if name.endswith(part):
                buffer.fill_(value)
    return model
