"""CosyVoice 2 and 3 as published: `cosyvoice2.yaml` or `cosyvoice3.yaml`, `llm.pt`, and the Qwen2 folder `CosyVoice-BlankEN`."""

import re
from pathlib import Path
from typing import Any

import torch

from mmspec.speech.language_models.cosyvoice import CosyVoice
from mmspec.speech.language_models.cosyvoice_network import EXTRAS, CosyVoiceIds, cosyvoice_network

FOLDER, WEIGHTS = "CosyVoice-BlankEN", "llm.pt"
SETTINGS = {"cosyvoice2.yaml": 2, "cosyvoice3.yaml": 3, "cosyvoice.yaml": 1}
MARKS = (
    *("<|im_start|>", "<|im_end|>", "<|endofprompt|>", "[breath]", "<strong>", "</strong>", "[noise]", "[laughter]", "[cough]"),
    *("[clucking]", "[accent]", "[quick_breath]", "<laughter>", "</laughter>", "[hissing]", "[sigh]", "[vocalized-noise]"),
    *("[lipsmack]", "[mn]"),
)
"""Tokens that CosyVoice adds to Qwen2's tokenizer. Version 3 adds more behind them, for phonemes; these are read as text."""
_OWN = {"speech_embedding.weight": "model.embed_tokens.weight", "llm_decoder.weight": "lm_head.weight", "llm_decoder.bias": "lm_head.bias"}
_UNREAD = re.compile(r"(epoch|step|llm\.model\.lm_head\.weight|llm\.model\.model\.embed_tokens\.weight|llm_embedding\.weight)$")


def version_of(place: Path) -> int | None:
    """Return the version of CosyVoice in a folder, by its settings file; None for other folders."""
    return next((version for name, version in SETTINGS.items() if (place / name).is_file()), None)


def load_cosyvoice(place: Path, dtype: Any, device: torch.device | str, codec: Any = None) -> CosyVoice:
    """Load a CosyVoice 2 or 3.

    Args:
        place: its folder.
        dtype: of the language model; float32, bfloat16, float16 or auto, which is float32.
        device: of the language model.
        codec: a `CosyVoicePackage`; None for codes without sound.

    Returns:
        The model.

    Raises:
        ValueError: for other versions and incomplete folders.
    """
    import transformers as hf

    version = version_of(place)
    missing = [name for name in (WEIGHTS, FOLDER) if not (place / name).exists()]
    if version not in EXTRAS or missing:
        wrong = f"it lacks {', '.join(missing)}" if missing else f"it is CosyVoice {version}"
        raise ValueError(f"{wrong}: expected CosyVoice 2 or 3, a folder with cosyvoice2.yaml or cosyvoice3.yaml, {WEIGHTS} and {FOLDER}")
    tokenizer = hf.AutoTokenizer.from_pretrained(place / FOLDER, trust_remote_code=False)
    tokenizer.add_special_tokens({"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "additional_special_tokens": list(MARKS)})
    weights = torch.load(place / WEIGHTS, map_location="cpu", weights_only=True)
    model, ids = _network(hf.AutoConfig.from_pretrained(place / FOLDER), weights, version)
    kind = torch.float32 if dtype == "auto" else getattr(torch, dtype)
    return CosyVoice(model.to(device, kind), tokenizer, ids, codec)


def _network(config: Any, weights: dict[str, Any], version: int) -> tuple[Any, CosyVoiceIds]:
    """The language model with its published weights."""
    text, codes = "llm.model.model.embed_tokens.weight", "speech_embedding.weight"
    missing = [name for name in (text, codes, "llm_decoder.weight") if name not in weights]
    if missing:
        raise ValueError(f"{WEIGHTS} has no {missing[0]}: expected the language model of CosyVoice 2 or 3")
    ids = CosyVoiceIds(version, len(weights[codes]) - EXTRAS[version])
    config.vocab_size = len(weights[text])
    model = cosyvoice_network(config, ids)
    controls = weights.get("llm_embedding.weight", torch.zeros(2, config.hidden_size))
    found = {"prompt_table.weight": torch.cat([controls.to(weights[text]), weights[text]])}
    for name, value in weights.items():
        if name in _OWN:
            found[_OWN[name]] = value
        elif not _UNREAD.match(name):
            found[name.removeprefix("llm.model.")] = value
    wrong = sorted(set(found) ^ set(model.state_dict()))
    if wrong:
        raise ValueError(f"{WEIGHTS} and CosyVoice {version} differ in {wrong[0]}: the checkpoint is incomplete, or of another version")
    model.load_state_dict(found)
    return model, ids
