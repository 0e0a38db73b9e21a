"""transformers models with their tokenizers or processors, by local path or hub name: in eval mode, with every weight found.

`trust_remote_code` stays off: nothing that a checkpoint brings along is executed.
"""

import logging
import os
from pathlib import Path
from typing import Any

from mmspec.models.checkpoint_loading import loaded

DTYPES = ("float32", "bfloat16", "float16", "auto")


def dtype_of(name: str) -> Any:
    """The torch dtype called `name`; None for "auto"."""
    import torch

    if name not in DTYPES:
        raise ValueError(f"unknown dtype {name!r}; valid: {', '.join(DTYPES)}")
    return None if name == "auto" else getattr(torch, name)


def load_model(name: str, dtype: str, device: Any) -> tuple[Any, Any]:
    """A transformers model in eval mode, and its tokenizer or processor, by local path or hub name."""
    import transformers as hf

    from mmspec.models.families.registry import HEARS, SEES
    from mmspec.text.settings.generation_config import one_path

    weights = dtype_of(dtype) or "auto"
    path = Path(name).expanduser()
    if not path.exists() and is_path(name):
        raise FileNotFoundError(f"model path {name} does not exist: give a folder with config.json and weights, or a hub name")
    where = str(path) if path.exists() else name
    try:
        config = hf.AutoConfig.from_pretrained(where, trust_remote_code=False)
        hears = config.is_encoder_decoder and hasattr(config, "num_mel_bins")
        writes = config.is_encoder_decoder or config.model_type in HEARS  # transformers lists speech language models with these
        sees = config.model_type in SEES
        if not sees:
            _refuse_other_sight(config.model_type)
        reads = hf.AutoModelForImageTextToText if sees else hf.AutoModelForCausalLM
        kind = hf.AutoModelForSpeechSeq2Seq if hears else hf.AutoModelForSeq2SeqLM if writes else reads
        model = loaded(kind, where, dtype=weights, trust_remote_code=False).to(device).eval()
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"model {name} cannot be loaded: {_first_line(error)}") from None
    changed = one_path(model)
    if changed is not None:
        logging.getLogger(__name__).warning("%s: %s", name, changed)
    return model, _processor(where, hears or sees, "right" if config.is_encoder_decoder else "left")


def _refuse_other_sight(model_type: str) -> None:
    """ValueError for models that read pictures and are not among those that run."""
    from transformers.models.auto import modeling_auto as known

    from mmspec.models.families.registry import SEES

    if model_type in known.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES and model_type not in known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ValueError(f"models of type {model_type!r} read pictures in a way that is not supported; supported: {', '.join(SEES)}")


def _processor(where: str, senses: bool, side: str) -> Any:
    """A checkpoint's tokenizer or processor, ready for batches."""
    import transformers as hf

    try:
        processor = (hf.AutoProcessor if senses else hf.AutoTokenizer).from_pretrained(where, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        if isinstance(error, ImportError) and "torchvision" in str(error).lower():
            raise ValueError(f"the processor of {where} reads video and needs torchvision: pip install 'mmspec[video]'") from None
        raise ValueError(f"the tokenizer of {where} cannot be loaded: {_first_line(error).rstrip(':')}; save it beside the model") from None
    tokenizer = getattr(processor, "tokenizer", processor)
    tokenizer.padding_side = side
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return processor


def is_path(name: str) -> bool:
    """Whether a name can only mean a place on this machine; hub names are `name` or `owner/name`."""
    return name.startswith((".", "~", os.sep)) or name.count("/") > 1 or "\\" in name


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
