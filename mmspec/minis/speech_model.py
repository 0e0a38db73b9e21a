"""Mini speech from its folder: the codec language model that speaks, what drafts for it, and the recogniser that scores it."""

from pathlib import Path
from typing import Any

from mmspec.drafters.checkpoints.load import load_drafter
from mmspec.minis.char_tokenizer import FIRST_CODE, TEMPLATE
from mmspec.minis.speech_data import VOICES
from mmspec.minis.weights import llama
from mmspec.speech.codecs.small import PatchCodec
from mmspec.speech.families.base import SpeechSampling
from mmspec.speech.families.codec_lm import CodecLM
from mmspec.speech.families.letters import Letters
from mmspec.speech.sound.recogniser import Recogniser

LONGEST = 96
"""Ids of a prompt: a voice, letters, and the mark behind them."""
SAMPLING = SpeechSampling(temperature=1.0, top_p=0.8)
"""What the mini is meant to be drawn with; its drafters learned from sound drawn so."""
EXAMPLES = {
    "texts": ["three five seven", "nine zero two one", "the red bird sings by the river", "please open the old door now"],
    "voice": ["jackson", "theo", "espeak", "espeak-high"],
}


def speaker(folder: Path, name: str = "target") -> CodecLM:
    """The codec language model in `folder`/`name`, with the folder's tokenizer and codec."""
    from transformers import PreTrainedTokenizerFast

    codec = PatchCodec.load(folder / "codec")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    return CodecLM(
        llama(folder / name),
        codec,
        Letters(tokenizer, TEMPLATE, VOICES, LONGEST),
        first=FIRST_CODE,
        codes=codec.config.codes,
        end=tokenizer.eos_token_id,
        rate=codec.config.rate,
        pace=codec.config.rate / codec.config.samples,
        sampling=SAMPLING,
    )


def load_utterances(folder: Path) -> dict[str, Any]:
    """The parts of a `Mini`. FileNotFoundError when it is not there."""
    if not (folder / "target" / "model.safetensors").exists():
        raise FileNotFoundError(f"mini speech is not in {folder}: make it with mmspec recipe speech/train_target.py -- --out {folder}")
    target, drafters = speaker(folder), {}
    if (folder / "drafter").is_dir():
        drafters["model"] = speaker(folder, "drafter")
    for path in sorted((folder / "drafters").glob("*/config.json")):
        drafters[path.parent.name] = load_drafter(path.parent, target.model)
    return {"target": target, "drafters": drafters, "processor": target.letters, "examples": EXAMPLES}


def load_recogniser(folder: Path) -> Recogniser:
    """Return the recogniser that scores mini speech."""
    return Recogniser.load(folder / "recogniser")
