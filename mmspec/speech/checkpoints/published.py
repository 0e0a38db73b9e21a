"""Published layouts of language models over codec codes, told apart by the tokens of their tokenizers, and their codecs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mmspec.models.checkpoint_loading import loaded
from mmspec.speech.codecs.snac import load_snac
from mmspec.speech.codecs.transformers import HFCodec
from mmspec.speech.families.codec_lm import CodecLM
from mmspec.speech.language_models import llasa, orpheus

_FAMILIES = {"llasa": llasa, "orpheus": orpheus}
EXPECTED = "the tokens of Llasa (<|SPEECH_GENERATION_START|>) or Orpheus (<custom_token_0>)"


def published(tokenizer: Any) -> Callable[..., CodecLM] | None:
    """Return what makes a speech model of a published language model, by the tokens it has.

    Args:
        tokenizer: the model's tokenizer.

    Returns:
        A function of (model, tokenizer, codec), or None for other models.
    """
    names = tokenizer.get_vocab()
    return next((getattr(family, name) for name, family in _FAMILIES.items() if all(one in names for one in family.NAMES)), None)


def codec_of(name: str, given: Any, family: str, device: torch.device | str) -> Any:
    """Return the codec of a published model.

    Args:
        name: folder or hub name of the model.
        given: a codec, its folder or hub name; None for the folder `codec` of the model's, or else the published one.
        family: the family's name.
        device: where it runs.

    Returns:
        The codec.

    Raises:
        ValueError: if it cannot be loaded, naming it.
    """
    if given is not None and not isinstance(given, str | Path):
        return given
    inside = Path(name) / "codec"
    place = str(given or (inside if inside.is_dir() else _FAMILIES[family].CODEC))
    try:
        return _loaded(place, family, device)
    except (OSError, ValueError, RecursionError, KeyError, RuntimeError) as error:
        lines = str(error).strip().splitlines()
        raise ValueError(f"its codec {place}: {lines[0] if lines else type(error).__name__}") from None


def _loaded(place: str, family: str, device: torch.device | str) -> Any:
    if family == "orpheus":
        codec = load_snac(place)
        codec.model.to(device)
        return codec
    import transformers as hf

    return HFCodec(loaded(hf.AutoModel, place, extras=True, trust_remote_code=False).to(device))
