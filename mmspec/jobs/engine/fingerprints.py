"""Fingerprints of what a job's outputs depend on beside its records: weights, tokenizers and processors, settings, files."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

_ELSEWHERE = ("_name_or_path", "name_or_path", "transformers_version", "_diffusers_version", "dtype", "torch_dtype")
"""Entries of a config that say where, by what or in which dtype it was stored."""


def weights(module: Any) -> str:
    """Return the SHA-256 over the name, dtype, shape and bytes of every parameter and buffer in a module's state dict.

    Reads all weights once, about a second a gigabyte.

    Args:
        module: a torch module.

    Returns:
        The hexadecimal digest.
    """
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def data(value: Any) -> str:
    """Return the SHA-256 of a value as JSON; what JSON cannot hold counts by its text."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def config_digest(config: Any) -> str:
    """Return the SHA-256 of a config, without where, by what and in which dtype it was stored.

    Args:
        config: one of transformers or diffusers, a mapping, or None.

    Returns:
        The hexadecimal digest.
    """
    told = config.to_dict() if hasattr(config, "to_dict") else dict(config or {})
    return data({key: value for key, value in told.items() if key not in _ELSEWHERE})


def reader(tokenizer: Any) -> str:
    """Return the SHA-256 of everything by which a tokenizer, or a processor with its parts, makes tokens and numbers of an input.

    Args:
        tokenizer: a tokenizer, an image, video or sound processor, or a processor that holds some.

    Returns:
        The hexadecimal digest.
    """
    told: dict[str, Any] = {"class": type(tokenizer).__name__, "template": getattr(tokenizer, "chat_template", None)}
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
        rules = json.loads(backend.to_str())
        told["rules"] = {key: value for key, value in rules.items() if key not in ("padding", "truncation")}  # of the last call
    elif hasattr(tokenizer, "get_vocab"):
        told["tokens"] = tokenizer.get_vocab()
    elif hasattr(tokenizer, "to_dict"):
        told["settings"] = {key: value for key, value in tokenizer.to_dict().items() if key not in _ELSEWHERE}
    if hasattr(tokenizer, "special_tokens_map"):
        told["special"] = tokenizer.special_tokens_map
    told["parts"] = {name: reader(part) for name, part in vars(tokenizer).items() if _reads(part)}
    return data(told)


def file(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with Path(path).open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def rest(holder: Any, *known: Any) -> str:
    """Return the SHA-256 of all that an adapter holds: modules, tokenizers, processors, tensors, numbers and words.

    Args:
        holder: an object of configuration and weights, which carries nothing between calls.
        known: parts that have a fingerprint of their own, or that outputs do not depend on.

    Returns:
        The hexadecimal digest.
    """
    digest = hashlib.sha256()
    for name, part in _parts(holder, "", {id(each) for each in known}):
        digest.update(f"{name} {part}\n".encode())
    return digest.hexdigest()


def _parts(value: Any, name: str, seen: set[int]) -> Iterator[tuple[str, str]]:
    """The fingerprint of every part of a value, by its place."""
    import torch

    if isinstance(value, bool | int | float | None):
        yield name, repr(value)
    elif isinstance(value, str):
        yield name, "" if "/" in value else value  # a place, which may change
    elif id(value) in seen:
        return
    elif isinstance(value, torch.nn.Module):
        seen.add(id(value))
        yield name, weights(value)
    elif _reads(value):
        yield name, reader(value)
    elif isinstance(value, torch.Tensor):
        told = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        yield name, f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(told.tobytes()).hexdigest()}"
    else:
        seen.add(id(value))
        for key, part in sorted(_inside(value).items(), key=lambda each: str(each[0])):
            yield from _parts(part, f"{name}.{key}", seen)


def _inside(value: Any) -> Mapping[Any, Any]:
    """The parts of a container, a record or an object of this package; nothing of others."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if dataclasses.is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if type(value).__module__.startswith("mmspec."):  # what is private, or a property, follows from the rest
        held = getattr(value, "__dict__", {})
        return {
            name: part
            for name, part in held.items()
            if name[0] != "_" and not isinstance(getattr(type(value), name, None), cached_property)
        }
    return {}


def _reads(value: Any) -> bool:
    """Whether a value is a tokenizer or a processor: transformers' are saved like models, and are none."""
    import torch

    return hasattr(value, "save_pretrained") and not isinstance(value, torch.nn.Module | type)
