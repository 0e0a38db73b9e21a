"""Small random speech models, fp32, seeded: an untrained codec, language models that write its codes, and a folder of them."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.drafters.checkpoints.load import save_drafter
from mmspec.drafters.checkpoints.nets import new_net
from mmspec.minis.char_tokenizer import FIRST_CODE, TEMPLATE, letter_tokenizer
from mmspec.minis.speech_data import VOICES
from mmspec.speech.codecs.small import PatchCodec, PatchCodecConfig
from mmspec.speech.families.base import SpeechSampling
from mmspec.speech.families.codec_lm import CodecLM
from mmspec.speech.families.letters import Letters

CODES, LONGEST, POSITIONS = 16, 24, 216


def codec() -> PatchCodec:
    """80 samples a code at 8 kHz; codes tell of the 2 behind them, and a block of 4 rests on 3 more."""
    torch.manual_seed(0)
    made = PatchCodec(PatchCodecConfig(hop=40, window=128, bands=16, codes=CODES, width=8, layers=2, kernel=3, block=4, overlap=1))
    made.centres.copy_(torch.randn(made.centres.shape))
    return made.eval()


def network(layers: int, seed: int) -> Any:
    """A Llama over letters and codes, sharp enough that its distributions differ from place to place, and that ends after some dozen
    codes."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    config = LlamaConfig(vocab_size=FIRST_CODE + CODES, num_hidden_layers=layers, max_position_embeddings=POSITIONS, **sizes, **ids)
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        parameter.data.mul_(4 if parameter.dim() > 1 else 1)
    return model


def speaker(layers: int = 2, seed: int = 0, sampling: SpeechSampling | None = None) -> CodecLM:
    """A codec language model with the mini's letters and voices. The target has 2 layers; a drafter may have 1."""
    tokenizer, sound = letter_tokenizer(), codec()
    return CodecLM(
        network(layers, seed),
        sound,
        Letters(tokenizer, TEMPLATE, VOICES, LONGEST),
        first=FIRST_CODE,
        codes=CODES,
        end=tokenizer.eos_token_id,
        rate=sound.config.rate,
        pace=sound.config.rate / sound.config.samples,
        sampling=sampling or SpeechSampling(top_p=0.9),
    )


def heads(target: CodecLM) -> Any:
    """Untrained heads that read the target's hidden states."""
    torch.manual_seed(5)
    return new_net("medusa", target.model, {"heads": 3}).eval()


def folder(place: Path) -> Path:
    """All of these as `speech/train_*.py` write a mini."""
    target = speaker()
    target.model.save_pretrained(place / "target")
    network(1, seed=1).save_pretrained(place / "drafter")
    target.codec.save(place / "codec")
    target.letters.tokenizer.save_pretrained(place)
    save_drafter(heads(target), place / "drafters" / "vadusa")
    (place / "card.md").write_text("# tiny speech\n", encoding="utf-8")
    (place / "tree.json").write_text(json.dumps([[0], [1], [0, 0]]), encoding="utf-8")
    return place
