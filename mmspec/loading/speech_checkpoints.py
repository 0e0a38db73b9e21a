"""Speech models of transformers by folder or hub name. `trust_remote_code` is off.

Classes that generate speech (Bark, CSM, Dia, MusicGen) need no further information. A codec language model is any causal model with a
codec, and its folder does not say which ids are codes: that is given by a layout, passed by the caller or stored as `speech.json` in the
folder, such as

    {"codec": "HKUSTAudio/xcodec2-hf", "pattern": "<|s_{}|>", "end": "<|SPEECH_GENERATION_END|>", "template": "{text}"}

with the options of `CodecLM.of` that are numbers, texts or lists, and "block" for the codec.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mmspec.models.checkpoint_loading import loaded
from mmspec.speech.codecs.transformers import BLOCK, HFCodec
from mmspec.speech.families import ADAPTERS, REFUSED, speech_model
from mmspec.speech.families.base import SpeechModel
from mmspec.speech.families.codec_lm import CodecLM

LAYOUT = ("codec", "block", "pattern", "end", "template", "voices", "places", "skip", "codes", "longest", "least")
NEEDED = ("codec", "pattern", "end")


def load_checkpoint(
    name: str, layout: Mapping[str, Any] | None = None, dtype: str = "float32", device: torch.device | str = "cpu"
) -> SpeechModel:
    """Return the speech model in a folder or under a hub name. Codecs run in float32.

    Args:
        name: folder or hub name.
        layout: which ids are codes; see the module's description. Read from `speech.json` by default.
        dtype: float32, bfloat16, float16 or auto.
        device: device of model and codec.

    Raises:
        ValueError: if the model cannot be loaded.
    """
    import transformers as hf

    try:
        config = hf.AutoConfig.from_pretrained(name, trust_remote_code=False)
        kind = next((each for each in config.architectures or [] if each in (*ADAPTERS, *REFUSED) and hasattr(hf, each)), None)
        options = {"dtype": dtype, "trust_remote_code": False}
        if kind is not None:
            model = loaded(getattr(hf, kind), name, **options).to(device).eval()
            reader = (hf.AutoTokenizer if kind == "BarkModel" else hf.AutoProcessor).from_pretrained(name, trust_remote_code=False)
            return speech_model(model, reader)
        found = _layout(name, layout)
        model = loaded(hf.AutoModelForCausalLM, name, **options).to(device).eval()
        tokenizer = hf.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        place = Path(name) / found.pop("codec")
        codec_place = place if place.exists() else str(place.relative_to(name))
        codec = loaded(hf.AutoModel, codec_place, extras=True, trust_remote_code=False)
        return CodecLM.of(model, tokenizer, HFCodec(codec.to(device), found.pop("block", BLOCK)), **found)
    except (OSError, ValueError, KeyError, ImportError) as error:
        lines = str(error).strip().splitlines()
        raise ValueError(f"model {name} cannot be loaded: {lines[0] if lines else type(error).__name__}") from None


def _layout(name: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The layout `given`, or that of the folder. ValueError names what is missing or unknown."""
    layout: dict[str, Any] = _written(name) if given is None else dict(given)
    missing, unknown = [key for key in NEEDED if key not in layout], [key for key in layout if key not in LAYOUT]
    if missing or unknown:
        wrong = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown)}, which is unknown"
        raise ValueError(f"the layout {wrong}; valid: {', '.join(LAYOUT)}")
    return layout


def _written(name: str) -> dict[str, Any]:
    place = Path(name) / "speech.json"
    if not place.is_file():
        raise ValueError(f"it is a language model, and nothing says which ids are codes: give a layout, or write one to {place}")
    return json.loads(place.read_text(encoding="utf-8"))
