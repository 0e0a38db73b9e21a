"""Parts of Qwen's speech networks that transformers has inside other models: Qwen3-TTS's codec and voice encoder are made of them.

Relies on classes of `qwen3_omni_moe` (its Code2Wav, since 4.57) and of `qwen2_5_omni` (its ECAPA-TDNN, since 4.52), on the attributes
`left_pad` and `right_pad` of the transposed convolution, and on where `MimiModel` has the parts of its encoder.
"""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from torch import nn

_ENCODER = {
    "mel_dim": 128,
    "enc_dim": 1024,
    "enc_channels": [512, 512, 512, 512, 1536],
    "enc_kernel_sizes": [5, 3, 3, 3, 1],
    "enc_dilations": [1, 2, 3, 4, 1],
    "enc_attention_channels": 128,
    "enc_res2net_scale": 8,
    "enc_se_channels": 128,
}
"""Sizes of the published voice encoder."""


def speaker_encoder(config: Mapping[str, Any]) -> nn.Module:
    """Return an untrained ECAPA-TDNN, mel spectrograms [B, T, M] to [B, D]; `config` replaces the published sizes."""
    from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import ECAPA_TimeDelayNet

    return ECAPA_TimeDelayNet(SimpleNamespace(**_ENCODER | {name: config[name] for name in _ENCODER if name in config}))  # pyright: ignore[reportArgumentType]


def causal_conv(inputs: int, outputs: int, kernel: int) -> nn.Module:
    """Return a causal convolution over [B, D, T]."""
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCausalConvNet

    return Qwen3OmniMoeCausalConvNet(inputs, outputs, kernel)


def upsampling(width: int, factor: int) -> nn.ModuleList:
    """Return a transposed convolution that repeats steps `factor` times, and a ConvNeXt block."""
    from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as own

    return nn.ModuleList([_causal(own.Qwen3OmniMoeCausalTransConvNet(width, width, factor, factor)), own.Qwen3OmniMoeConvNeXtBlock(width)])


def wave_decoder(config: Any, width: int) -> nn.ModuleList:
    """Return the convolutions of Code2Wav, [B, `width`, T] to samples, with transposed ones that do not look ahead."""
    from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as own

    last = config.decoder_dim // 2 ** len(config.upsample_rates)
    blocks = [own.Qwen3OmniMoeCode2WavDecoderBlock(config, number) for number in range(len(config.upsample_rates))]
    for block in blocks:
        _causal(block.block[1])
    first, end = causal_conv(width, config.decoder_dim, 7), causal_conv(last, 1, 7)
    return nn.ModuleList([first, *blocks, type(blocks[0].block[0])(last), end])


def wave_transformer(config: Any) -> Any:
    """Return Code2Wav's transformer over [B, T, D]."""
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2WavTransformerModel

    return Qwen3OmniMoeCode2WavTransformerModel._from_config(config)


def wave_config(config: Mapping[str, Any]) -> Any:
    """Return Code2Wav's config of the published sizes of a decoder."""
    from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig

    names = Qwen3OmniMoeCode2WavConfig().to_dict()
    told = {name: value for name, value in config.items() if name in names and name not in ("model_type", "dtype", "transformers_version")}
    return Qwen3OmniMoeCode2WavConfig(
        **told, rope_parameters={"rope_type": "default", "rope_theta": float(config.get("rope_theta", 10000))}
    )


def hearing_mimi(config: Mapping[str, Any]) -> tuple[Any, Callable[[str], str]]:
    """Return an untrained `MimiModel` without what makes sound, and the name that it has for a tensor as 4.57 called it.

    Args:
        config: the fields of a `MimiConfig`.
    """
    from transformers import MimiConfig, MimiModel

    model: Any = MimiModel(MimiConfig(**{name: value for name, value in config.items() if name != "model_type"})).eval()
    for part in ("upsample", "decoder_transformer", "decoder"):
        if part in model._modules:
            setattr(model, part, None)
    if not hasattr(model.encoder, "encoder_seanet"):
        return model, lambda name: name
    inside = {
        "encoder.": "encoder.encoder_seanet.",
        "encoder_transformer.": "encoder.encoder_transformer.",
        "downsample.": "encoder.downsample.",
    }
    return model, lambda name: next((own + name[len(old) :] for old, own in inside.items() if name.startswith(old)), name)


def _causal(module: Any) -> Any:
    """Cut what a transposed convolution adds behind, and nothing in front."""
    module.left_pad, module.right_pad = 0, module.conv.kernel_size[0] - module.conv.stride[0]
    return module
