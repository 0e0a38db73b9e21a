"""transformers models with their tokenizers or processors, by local path, GGUF file or hub name: in eval mode, with every weight found.

`trust_remote_code` stays off: nothing that a checkpoint brings along is executed.
"""

import errno
import importlib.util
import logging
import shutil
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmspec.models import compat
from mmspec.models.checkpoint_loading import CONFIG, READER, contents_of, loaded
from mmspec.models.compat.shared_states import buildable
from mmspec.utils.files import is_path, whole_folder
from mmspec.utils.names import shown
from mmspec.utils.private_copy import drop_earlier, kept_version

_FETCH = "mmspec recipe text/fetch_model.py tells how to fetch a model"
_THINKERS = ("qwen2_5_omni", "qwen3_omni_moe")
"""Models of which the part that writes text is loaded, and the part that speaks is left out."""
DTYPES = ("float32", "bfloat16", "float16", "auto")


def dtype_of(name: str) -> Any:
    """The torch dtype called `name`; None for "auto"."""
    import torch

    if name not in DTYPES:
        raise ValueError(f"unknown dtype {shown(name)}; valid: {', '.join(DTYPES)}")
    return None if name == "auto" else getattr(torch, name)


@dataclass(frozen=True)
class _Place:
    """Where `from_pretrained` finds a checkpoint: a folder or hub name, its options for configs and tokenizers, and for models, and the
    folder of the tokenizer where that is another."""

    where: str
    beside: str | None = None
    reading: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Any] = field(default_factory=dict)
    kept: Path | None = None  # where a GGUF file's dense weights are to be kept


def load_model(name: str, dtype: str, device: Any, device_map: str | None = None, *, keep: bool = True) -> tuple[Any, Any]:
    """A transformers model in eval mode, and its tokenizer or processor.

    Args:
        name: a folder with config.json and weights, a GGUF file (*.gguf), or a hub name. What a GGUF file was turned into is kept in
            `gguf/` of the cache folder, if the disk has room for it, so that only the first load of a file takes long.
        dtype: "float32", "bfloat16", "float16", or "auto" for the checkpoint's own. Weights of a GGUF file are dequantized to it.
        device: a torch device.
        device_map: as in `from_pretrained`, such as "auto" or "cuda:1", instead of `device`. It must lead to one device.
        keep: whether what a GGUF file was turned into is kept.

    Returns:
        The model, and its tokenizer or processor, ready for batches.

    Raises:
        FileNotFoundError: for a path where nothing is.
        ValueError: for a checkpoint that cannot be loaded or does not serve, with the reason in one line.
    """
    import transformers as hf
    from transformers.models.auto.modeling_auto import MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES

    from mmspec.models.families.registry import HEARS, SEES
    from mmspec.run.settings.generation_config import one_path

    weights, place = dtype_of(dtype) or "auto", _place(name, dtype)
    if place.kept is not None:
        size = Path(name).expanduser().stat().st_size / 1e9
        _say("%s: reading %.1f GB of GGUF and making the weights dense, which takes minutes for large models", name, size)
    try:
        with contents_of(CONFIG):
            config = hf.AutoConfig.from_pretrained(place.where, trust_remote_code=False, **place.reading)
        whole = config.model_type in _THINKERS
        config = config.thinker_config if whole else config
        compat.forget_gguf(buildable(config))
        hears = config.is_encoder_decoder and config.model_type in MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES
        writes = config.is_encoder_decoder or config.model_type in HEARS  # transformers lists speech language models with these
        sees = config.model_type in SEES
        if not sees:
            _refuse_other_sight(config.model_type)
        reads = hf.AutoModelForImageTextToText if sees else hf.AutoModelForCausalLM
        kind = hf.AutoModelForSpeechSeq2Seq if hears else hf.AutoModelForSeq2SeqLM if writes else reads
        with compat.gguf_progress(name):
            placed: dict[str, Any] = {} if device_map is None else {"device_map": device_map}
            model = loaded(
                kind, place.where, config=config, dtype=weights, extras=whole, trust_remote_code=False, **place.weights, **placed
            )
        model.eval()
        processor = _processor(name, place, hears or sees, "right" if config.is_encoder_decoder else "left")
        if place.kept is not None and keep:
            _keep(name, place.kept, model, processor)
        model = model.to(device) if device_map is None else _on_one_device(model)
    except (OSError, ValueError, RecursionError, KeyError, IndexError, struct.error) as error:
        raise ValueError(f"model {name} cannot be loaded: {_reason(error)}") from None
    changed = one_path(model)
    if changed is not None:
        logging.getLogger(__name__).warning("%s: %s", name, changed)
    return model, processor


def _say(message: str, *values: object) -> None:
    """Tell whoever waits, on standard error where nothing else was set up."""
    logging.getLogger(__name__).warning(message, *values)


def _keep(name: str, place: Path, model: Any, processor: Any) -> None:
    """Keep a model that was read from a GGUF file as a folder, if the disk has room for it; say where it is, or why not."""
    needed = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(place.parent).free < 2 * needed:
            raise OSError(errno.ENOSPC, f"{needed / 1e9:.1f} GB and as much again are not free in {place.parent}")
        with whole_folder(place) as folder:
            model.save_pretrained(folder)
            processor.save_pretrained(folder)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        _say("%s is read so each time, as it could not be kept (%s): save_pretrained of model and tokenizer writes a folder", name, reason)
        return
    drop_earlier(place)
    _say("%s is kept as a folder in %s, which the next load reads", name, place)


def _on_one_device(model: Any) -> Any:
    """`model`. ValueError if its parts are on several devices."""
    places = sorted({str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()})
    if len(places) > 1:
        raise ValueError(f"the device map spreads it over {', '.join(places)}, but models run on one device here: give one of them")
    return model


def _place(name: str, dtype: str = "auto") -> _Place:
    """Where `name` leads. FileNotFoundError for a path where nothing is; ValueError for GGUF files that cannot be read here."""
    path = Path(name).expanduser()
    gguf = path.suffix == ".gguf"
    if not path.exists() and is_path(name):
        kind = "GGUF file" if gguf else "model path"
        raise FileNotFoundError(
            f"{kind} {name} does not exist: give a folder with config.json and weights, a GGUF file (*.gguf) or a hub name; {_FETCH}"
        )
    if not gguf or path.is_dir():
        target = path / "target"  # what text/train_mini.py and text/train_vlm.py write, with one tokenizer for all its models
        if (target / "config.json").is_file() and not (path / "config.json").exists():
            return _Place(str(target), str(path))
        shared = (path.parent / "target").is_dir() and not (path / "tokenizer_config.json").exists()
        return _Place(str(path) if path.exists() else name, str(path.parent) if path.exists() and shared else None)
    if importlib.util.find_spec("gguf") is None:
        raise ValueError(f"model {name} is a GGUF file, and reading it needs the package gguf: pip install 'mmspec[gguf]'")
    try:
        kept = kept_version(path, "gguf", dtype)
    except (OSError, RuntimeError):  # no cache folder
        kept = None
    if kept is not None and (kept / "config.json").exists():
        return _Place(str(kept))
    return _Place(str(path.parent), None, {"gguf_file": path.name}, compat.gguf_options(path.name), kept)


def _refuse_other_sight(model_type: str) -> None:
    """ValueError for models that read pictures and are not among those that run."""
    from transformers.models.auto import modeling_auto as known

    from mmspec.models.families.registry import SEES

    if model_type in known.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES and model_type not in known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ValueError(f"models of type {model_type!r} read pictures in a way that is not supported; supported: {', '.join(SEES)}")


def _processor(name: str, place: _Place, senses: bool, side: str) -> Any:
    """A checkpoint's tokenizer or processor, ready for batches."""
    import transformers as hf

    try:
        with contents_of(READER):
            kind: Any = hf.AutoProcessor if senses else hf.AutoTokenizer
            processor = kind.from_pretrained(place.beside or place.where, trust_remote_code=False, **place.reading)
    except (OSError, ValueError, RecursionError, KeyError, ImportError) as error:
        if isinstance(error, ImportError) and "torchvision" in str(error).lower():
            raise ValueError(f"the processor of {name} reads video and needs torchvision: pip install 'mmspec[video]'") from None
        raise ValueError(f"the tokenizer of {name} cannot be loaded: {_first_line(error).rstrip(':')}; save it beside the model") from None
    tokenizer = getattr(processor, "tokenizer", processor)
    tokenizer.padding_side = side
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return processor


def _reason(error: Exception) -> str:
    """Why a checkpoint cannot be loaded, in one line."""
    line = _first_line(error)
    if isinstance(error, OSError) and "couldn't connect" in line:
        return f"it is no folder here, it is not in the hub's cache, and the hub cannot be reached; {_FETCH}"
    return line


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
