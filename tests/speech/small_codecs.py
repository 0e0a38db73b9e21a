"""Small random codecs of every class, their weights spread so that every code sounds different."""

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

SIZE = 64
"""Codes of a book."""


def spread(make: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    model = make()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def dac(**changes: Any) -> Any:
    sizes = {"encoder_hidden_size": 4, "decoder_hidden_size": 32, "n_codebooks": 3, "codebook_dim": 4}
    return spread(lambda: hf.DacModel(hf.DacConfig(**{"downsampling_ratios": [2, 4, 4, 4], "codebook_size": SIZE} | sizes | changes)))


def encodec(**changes: Any) -> Any:
    sizes = {"num_filters": 4, "hidden_size": 16, "upsampling_ratios": [4, 4, 2], "codebook_dim": 16, "sampling_rate": 8000}
    return spread(lambda: hf.EncodecModel(hf.EncodecConfig(**{"codebook_size": SIZE, "target_bandwidths": [6.0]} | sizes | changes)))


def mimi(**changes: Any) -> Any:
    attention = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8}
    convolutions = {"num_filters": 4, "upsampling_ratios": [4, 4, 2], "upsample_groups": 16, "sampling_rate": 8000, "frame_rate": 125}
    books = {"codebook_size": SIZE, "codebook_dim": 8, "num_quantizers": 4, "vector_quantization_hidden_dimension": 8}
    return spread(
        lambda: hf.MimiModel(hf.MimiConfig(hidden_size=16, intermediate_size=32, **attention, **convolutions, **books, **changes))
    )


def xcodec2(semantic_width: int = 16, **changes: Any) -> Any:
    attention = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
    ears = {"model_type": "wav2vec2-bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = hf.Xcodec2Config(
        hidden_size=32,
        intermediate_size=64,
        encoder_hidden_size=4,
        downsampling_ratios=changes.pop("downsampling_ratios", [2, 2, 4]),
        quantization_dim=48,
        quantization_levels=[4, 4, 4],  # 64 codes
        semantic_model_config=ears | {"feature_projection_input_dim": semantic_width},
        **attention,
        **changes,
    )
    return spread(lambda: hf.Xcodec2Model(config))


BOOKS = {"dac": (dac, 3), "encodec": (encodec, 3), "mimi": (mimi, 4), "xcodec2": (xcodec2, 1)}


def codes(count: int, books: int, seed: int = 0) -> list[Any]:
    """Numbers, or lists of `books` numbers."""
    drawn = torch.randint(0, SIZE, (count, books), generator=torch.Generator().manual_seed(seed))
    return drawn.tolist() if books > 1 else drawn[:, 0].tolist()
