"""`mmspec.speech.load`: speech models by folder or hub name. `trust_remote_code` is off.

Classes of transformers that generate speech need no further information. Other models are found by what their folder holds: the tokens of
Llasa's and Orpheus's tokenizers, the files of CosyVoice, the config of Qwen3-TTS. Any other causal
model with a codec is described by a layout, passed by the caller or stored as `speech.json` in its folder, such as

    {"codec": "codec", "pattern": "<|s_{}|>", "end": "<|SPEECH_GENERATION_END|>", "template": "{text}"}

with the options of `CodecLM.of` that are numbers, texts or lists, and "block" for the codec.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mmspec.models.checkpoint_loading import CONFIG, READER, contents_of, json_object, loaded
from mmspec.run.arguments import public_call
from mmspec.speech.checkpoints.cosyvoice import load_cosyvoice, version_of
from mmspec.speech.checkpoints.published import EXPECTED, codec_of, published
from mmspec.speech.checkpoints.qwen3_tts import is_qwen3_tts, load_qwen3_tts
from mmspec.speech.codecs.transformers import BLOCK, HFCodec
from mmspec.speech.families import ADAPTERS, REFUSED, speech_model
from mmspec.speech.families.base import DRAWS, SpeechModel, sampling_of
from mmspec.speech.families.codec_lm import CodecLM

LAYOUT = ("codec", "block", "pattern", "end", "template", "voices", "places", "skip", "codes", "longest", "least")
NEEDED = ("codec", "pattern", "end")


@public_call
def load_checkpoint(
    name: str | Path,
    layout: Mapping[str, Any] | None = None,
    dtype: str = "float32",
    device: torch.device | str = "cpu",
    codec: Any = None,
) -> SpeechModel:
    """Load the speech model in a folder or under a hub name. Codecs run in float32.

    Example:
        model = mmspec.speech.load("HKUSTAudio/Llasa-1B")

    Args:
        name: folder or hub name.
        layout: which ids are codes, for a causal model of no published layout; see the module's description. Read from `speech.json` by
            default.
        dtype: float32, bfloat16, float16 or auto.
        device: device of model and codec.
        codec: folder or hub name of the codec, for models that come without it; or the codec. By default the folder `codec` inside the
            model's, then the published one. For CosyVoice, whose own package makes sound of codes, a `CosyVoicePackage`; without one, it
            writes codes only. Qwen3-TTS brings its own in the folder `speech_tokenizer`.

    Returns:
        The model, as `mmspec.speech.synthesize` takes it.

    Raises:
        ValueError: if the model cannot be loaded, in one line.
    """
    try:
        return _found(str(name), layout, dtype, device, codec)
    except (OSError, ValueError, RecursionError, KeyError, ImportError, RuntimeError) as error:
        lines = (f"a file has no {error}" if isinstance(error, KeyError) else str(error)).strip().splitlines()
        raise ValueError(f"model {name} cannot be loaded: {lines[0] if lines else type(error).__name__}") from None


def _found(name: str, layout: Mapping[str, Any] | None, dtype: str, device: torch.device | str, codec: Any) -> SpeechModel:
    import transformers as hf

    if version_of(Path(name)) is not None:
        return load_cosyvoice(Path(name), dtype, device, codec)
    if is_qwen3_tts(Path(name)):
        return load_qwen3_tts(Path(name), dtype, device, codec)
    with contents_of(CONFIG):
        config = hf.AutoConfig.from_pretrained(name, trust_remote_code=False)
    kind = next((each for each in config.architectures or [] if each in (*ADAPTERS, *REFUSED) and hasattr(hf, each)), None)
    options = {"dtype": dtype, "trust_remote_code": False}
    if kind is not None:
        if codec is not None:
            raise ValueError(f"{kind} comes with its codec: leave codec out")
        model = loaded(getattr(hf, kind), name, **options).to(device).eval()
        with contents_of(READER):
            reader = (hf.BarkProcessor if kind == "BarkModel" else hf.AutoProcessor).from_pretrained(name, trust_remote_code=False)
        return speech_model(model, reader)
    with contents_of(READER):
        tokenizer = hf.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    make = published(tokenizer) if layout is None and not _place(name).is_file() else None
    told = {} if make else _layout(name, layout)
    model = loaded(hf.AutoModelForCausalLM, name, **options).to(device).eval()
    if make is not None:
        return make(model, tokenizer, codec_of(name, codec, make.__name__, device))
    place = Path(name) / told.pop("codec")
    sound = loaded(hf.AutoModel, place if place.exists() else str(place.relative_to(name)), extras=True, trust_remote_code=False)
    own = model.generation_config
    drawn = sampling_of(own, (*DRAWS, "repetition_penalty")) if own.do_sample else None
    return CodecLM.of(model, tokenizer, HFCodec(sound.to(device), told.pop("block", BLOCK)), sampling=drawn, **told)


def _layout(name: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The layout `given`, or that of the folder. ValueError names what is missing or unknown."""
    layout: dict[str, Any] = _written(name) if given is None else dict(given)
    missing, unknown = [key for key in NEEDED if key not in layout], [key for key in layout if key not in LAYOUT]
    if missing or unknown:
        wrong = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown)}, which is unknown"
        raise ValueError(f"the layout {wrong}; valid: {', '.join(LAYOUT)}")
    return layout


def _written(name: str) -> dict[str, Any]:
    place = _place(name)
    if not place.is_file():
        raise ValueError(
            f"it is a language model, and nothing says which ids are codes: give a layout, or write one to {place}, "
            f"or a checkpoint with {EXPECTED}"
        )
    return json_object(place)


def _place(name: str) -> Path:
    return Path(name) / "speech.json"
