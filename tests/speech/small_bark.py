"""A small random Bark: short windows, so that a few dozen codes make several of them."""

from typing import Any

import torch
import transformers as hf
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers.models.bark.generation_configuration_bark import BarkGenerationConfig

LETTERS = " abcdefghijklmnopqrstuvwxyz"
SEMANTIC, BOOK = 40, 16  # semantic tokens 0..39, 40 ends and pads; text from 50 on
SIZES = {"hidden_size": 32, "num_heads": 4, "block_size": 96}
CODEC = {"num_filters": 4, "hidden_size": 16, "upsampling_ratios": [4, 2], "codebook_size": BOOK, "codebook_dim": 16}


def bark(layers: int = 2, seed: int = 0) -> Any:
    """`layers` layers a stage. Windows of 12 ids behind at most 20."""
    torch.manual_seed(seed)
    stage = {**SIZES, "num_layers": layers}
    config = hf.BarkConfig(
        semantic_config=hf.BarkSemanticConfig(**stage, input_vocab_size=90, output_vocab_size=48).to_dict(),
        coarse_acoustics_config=hf.BarkCoarseConfig(**stage, input_vocab_size=80, output_vocab_size=80).to_dict(),
        fine_acoustics_config=hf.BarkFineConfig(
            **stage, input_vocab_size=BOOK + 1, output_vocab_size=BOOK + 1, n_codes_total=4, n_codes_given=1
        ).to_dict(),
        codec_config=hf.EncodecConfig(**CODEC, sampling_rate=8000, target_bandwidths=[16.0]).to_dict(),
    )
    model = hf.BarkModel(config).eval()
    for part in (model.semantic, model.coarse_acoustics):
        for parameter in part.parameters():
            parameter.data.mul_(6 if parameter.dim() > 1 else 1)
    model.generation_config = BarkGenerationConfig(
        semantic_config={
            "eos_token_id": SEMANTIC,
            "semantic_vocab_size": SEMANTIC,
            "text_encoding_offset": 50,
            "text_pad_token": 88,
            "semantic_infer_token": 89,
            "max_input_semantic_length": 16,
            "max_new_tokens": 30,
        },
        coarse_acoustics_config={
            "coarse_semantic_pad_token": 76,
            "coarse_infer_token": 77,
            "max_coarse_input_length": 16,
            "max_coarse_history": 20,
            "sliding_window_len": 12,
        },
        fine_acoustics_config={"max_fine_history_length": 16, "max_fine_input_length": 32, "n_fine_codebooks": 4},
        codebook_size=BOOK,
        sample_rate=8000,
    )
    return model


def tokenizer() -> hf.PreTrainedTokenizerFast:
    made = Tokenizer(models.WordLevel({letter: place for place, letter in enumerate(LETTERS)}, unk_token="z"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    return hf.PreTrainedTokenizerFast(tokenizer_object=made)


def voice(seed: int = 7) -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    return {
        "semantic_prompt": torch.randint(0, SEMANTIC, (9,), generator=drawn),
        "coarse_prompt": torch.randint(0, BOOK, (2, 14), generator=drawn),
        "fine_prompt": torch.randint(0, BOOK, (4, 14), generator=drawn),
    }
