"""Small encoder-decoder models that take sound and write text, and what each of them hears: three clips of different lengths.

Every clip is what the model's feature extractor would give for it alone; in a batch, clips are padded with zeros on the right.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.sweep.case import Inputs
from tests.sweep.seq2seq import livelier, padded_right
from tests.sweep.shrink import OVERRIDES, POSITIONS, small_config, small_model

PARAKEET = {"model_type": "parakeet_encoder", "subsampling_conv_channels": 16, "conv_kernel_size": 5, "num_mel_bins": 16}
CONVOLUTIONS = {"conv_dim": [32, 32], "conv_stride": [5, 4], "conv_kernel": [10, 4], "num_conv_pos_embeddings": 8}
CONVOLUTIONS |= {"num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2}
CONFORMER = {"speech_encoder_layers": 2, "speech_encoder_attention_heads": 4, "speech_encoder_intermediate_size": 64}
CONFORMER |= {"feature_projection_input_dim": 16, "conv_depthwise_kernel_size": 3, "num_conv_pos_embeddings": 8}
CONFORMER |= {"max_source_positions": 512, "num_conv_pos_embedding_groups": 2}

OVERRIDES.update(
    {
        "canary": {"encoder_config": PARAKEET, "decoder_start_token_id": 1},
        "cohere_asr": {"encoder_config": PARAKEET, "decoder_start_token_id": 1},
        "moonshine": {"encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4},
        "moonshine_streaming": {"num_key_value_heads": 4, "encoder_config": {"sliding_windows": [[4, 2], [4, 0]]}},
        "speech_to_text": {"conv_channels": 32, "input_feat_per_channel": 16},
        "speecht5": {**CONVOLUTIONS, "max_text_positions": POSITIONS, "speech_decoder_prenet_units": 16},
        "pop2piano": {"composer_vocab_size": 4},
    }
)


@dataclass(frozen=True)
class Clips:
    """`sizes` of the three clips, the shape of one step, and the input's name; `masked`: does the extractor give a mask?"""

    name: str
    sizes: tuple[int, int, int]
    step: tuple[int, ...] = ()
    masked: bool = True

    def alone(self, model: Any, row: int) -> Inputs:
        generator = torch.Generator().manual_seed(100 + row)
        size = self.sizes[row]
        sound = torch.randn(1, size, *self.step, generator=generator) + torch.randn(1, 1, *self.step, generator=generator)
        return {self.name: sound} | ({"attention_mask": torch.ones(1, size, dtype=torch.long)} if self.masked else {})

    def batch(self, model: Any, rows: int) -> Inputs:
        return padded_right([self.alone(model, row) for row in range(rows)])


@dataclass(frozen=True)
class Windows:
    """Clips of one fixed length, features before time (Whisper)."""

    def alone(self, model: Any, row: int) -> Inputs:
        generator = torch.Generator().manual_seed(100 + row)
        features = torch.randn(1, 8, 2 * POSITIONS, generator=generator) + 3 * torch.randn(1, 8, 1, generator=generator)
        return {"input_features": features}

    def batch(self, model: Any, rows: int) -> Inputs:
        return padded_right([self.alone(model, row) for row in range(rows)])


WAVES, FRAMES = (4000, 8000, 6000), (48, 96, 72)
HEARD: dict[str, Any] = {
    "canary": Clips("input_features", (64, 128, 96), (16,)),
    "cohere_asr": Clips("input_features", (64, 128, 96), (16,)),
    "moonshine": Clips("input_values", WAVES),
    "moonshine_streaming": Clips("input_values", WAVES),
    "seamless_m4t": Clips("input_features", FRAMES, (16,)),
    "seamless_m4t_v2": Clips("input_features", FRAMES, (16,)),
    "speech-encoder-decoder": Clips("input_values", (400, 800, 600)),
    "speech_to_text": Clips("input_features", FRAMES, (16,)),
    "speecht5": Clips("input_values", (400, 800, 600)),
    "whisper": Windows(),
    "pop2piano": Clips("input_features", (24, 24, 24), (32,), masked=False),
}


def make(model_type: str, architecture: str) -> Any:
    """A small random model without ids of its own that are forced."""
    kinds: dict[str, Callable[[], Any]] = {"speech-encoder-decoder": _wav2vec_to_bert}
    given = CONFORMER if model_type.startswith("seamless") else {}
    config = kinds[model_type]() if model_type in kinds else small_config(CONFIG_MAPPING[model_type], **given)
    model = small_model(getattr(transformers, architecture), config)
    if model_type == "whisper":
        torch.nn.init.normal_(model.model.decoder.embed_positions.weight, std=0.6)
    else:
        livelier(model)
    settings = model.generation_config
    settings.decoder_start_token_id, settings.num_beams = 1, 1
    settings.forced_eos_token_id = settings.forced_bos_token_id = None
    settings.suppress_tokens = settings.begin_suppress_tokens = None
    return model


def _wav2vec_to_bert() -> Any:
    encoder = small_config(transformers.Wav2Vec2Config, **CONVOLUTIONS)
    decoder = small_config(transformers.BertConfig, is_decoder=True, add_cross_attention=True)
    config = transformers.SpeechEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.pad_token_id, config.decoder_start_token_id = 0, 1
    return config


def after_the_start(model: Any, inputs: Inputs, tokens: int) -> list[int]:
    """New tokens of one row by the class's own greedy `generate`; Whisper's leaves out the start and the end token."""
    out = model.generate(**inputs, do_sample=False, max_new_tokens=tokens)
    out = out if isinstance(out, Tensor) else out.sequences
    if model.config.model_type != "whisper":
        return out[0, 1:].tolist()
    return out[0].tolist() + [model.generation_config.eos_token_id] * (out.shape[1] < tokens)
