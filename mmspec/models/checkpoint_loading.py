"""Strict loading of checkpoints: a missing tensor would be random, and an unused one indicates another model."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import save_file

from mmspec.utils.packing import is_packed, read_bytes
from mmspec.utils.weights import own_memory

WEIGHTS = "model.safetensors"
_HARMLESS = re.compile(r"(rotary_emb\.inv_freq|\.masked_bias|attn\.bias|position_ids|num_batches_tracked)$|(^|\.)mtp\.")
"""Unexpected tensors that no output depends on: buffers of old releases, and layers for multi-token prediction."""


CONFIG, READER = "its config.json", "its tokenizer's or processor's files"


@contextmanager
def contents_of(files: str) -> Iterator[None]:
    """Context in which transformers reads files, for single calls of transformers: an error of this package's own code is none of a file.

    Args:
        files: what is read, such as `CONFIG`.

    Raises:
        ValueError: in one line with `files`, where transformers stumbles over a field of theirs that is missing or of another type.
    """
    try:
        yield
    except (StrictDataclassError, TypeError, AttributeError, KeyError, IndexError, ZeroDivisionError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = re.sub(r"^\w+Error: ", "", lines[-1]) if lines else "a value is of the wrong type"
        said = f"it has no, or an unknown, {said}" if isinstance(error, KeyError) else said
        raise ValueError(f"{files} cannot be used: {said}") from None


def json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. ValueError, naming the file, for anything else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON ({str(error).splitlines()[0]})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds a {type(found).__name__}: expected an object with the settings by name")
    return found


def loaded(kind: Any, where: Any, *, extras: bool = False, **options: Any) -> Any:
    """`kind.from_pretrained(where, **options)`, once its checkpoint holds every tensor of the model and no other.

    The weights are in memory of their own, not mapped to the checkpoint, which may then be written over.

    Tied weights and tensors that the model's class lists as ignorable count as neither missing nor unexpected. Weights that the recipes
    wrote as bytes are read, too.

    Args:
        kind: a transformers model class or Auto class.
        where: a folder or hub name.
        extras: accept tensors that nothing reads (a codec's training state).
        options: passed on.

    Raises:
        ValueError: naming the first tensor that is missing, has another shape, or is unexpected.
    """
    with _as_floats(where) as place, contents_of(CONFIG):
        model, info = kind.from_pretrained(place, output_loading_info=True, ignore_mismatched_sizes=True, **options)
    odd = [] if extras else [name for name in info["unexpected_keys"] if not _HARMLESS.search(name)]
    shapes = [each[0] if isinstance(each, tuple) else each for each in info["mismatched_keys"]]
    for names, why in (
        (info["missing_keys"], "are not in the checkpoint and would be random"),
        (shapes, "have another shape in the checkpoint than in the model"),
        (odd, f"are in the checkpoint but not in {type(model).__name__}"),
    ):
        if names:
            raise ValueError(f"{_listed(names)} {why}: the checkpoint is incomplete, or its config.json belongs to another model")
    return own_memory(model)


@contextmanager
def _as_floats(where: Any) -> Iterator[Any]:
    """`where`, or for a folder with weights as bytes a temporary one with the same numbers in float32."""
    if not is_packed(Path(where) / WEIGHTS):
        yield where
        return
    with TemporaryDirectory() as place:
        for path in Path(where).glob("*.json"):
            copyfile(path, Path(place, path.name))
        save_file(read_bytes(Path(where) / WEIGHTS), Path(place, WEIGHTS), {"format": "pt"})
        yield place


def _listed(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"weights {found[0]}{more}"
