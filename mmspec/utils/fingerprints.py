"""Fingerprints of what an output depends on: weights, tokenizers and processors, settings, files, and all that a function reads."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any

_ELSEWHERE = ("_name_or_path", "name_or_path", "transformers_version", "_diffusers_version", "dtype", "torch_dtype")
"""Entries of a config that say where, by what or in which dtype it was stored."""
_MANY = 32  # entries of a container that is read at once
_OURS = ("mmspec", "__main__")
"""This package, and a recipe."""


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
        if tensor.is_meta:  # offloaded: its numbers are not in memory
            continue
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
        tokenizer: a tokenizer, an image, video or sound processor, a processor that holds some, or a noise schedule.

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
    elif isinstance(settings := getattr(tokenizer, "config", None), Mapping):  # a schedule of diffusers
        told["settings"] = {key: value for key, value in settings.items() if not key.startswith("_")}
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
    for name, part in parts(holder, *known):
        digest.update(f"{name} {part}\n".encode())
    return digest.hexdigest()


def parts(holder: Any, *known: Any) -> Iterator[tuple[str, str]]:
    """Yield the place and the fingerprint of every part of a value.

    Args:
        holder: a record, a container, an object of this package, or a function, which is what it reads: the variables around it and its
            defaults. Of an object of another package a function reads the numbers and words that its code names.
        known: parts that are left out.

    Yields:
        A place, such as ".data.ids", and a digest; of numbers and words the value. Of what nothing is known of, its type.
    """
    yield from _parts(holder, "", {id(each): each for each in known})


def _parts(value: Any, name: str, seen: dict[int, Any]) -> Iterator[tuple[str, str]]:
    """The fingerprint of every part of a value, by its place. `seen` keeps what it holds alive: an id is used again."""
    import numpy as np
    import torch

    if isinstance(value, bool | int | float | range | torch.dtype | None):
        yield name, repr(value)
    elif isinstance(value, str):
        yield name, "" if "/" in value else value  # a place, which may change
    elif id(value) in seen:
        return
    elif isinstance(value, torch.nn.Module):
        seen[id(value)] = value
        yield name, weights(value)
        if _reads(config := getattr(value, "config", None)):
            yield f"{name}.config", reader(config)
    elif _reads(value):
        yield name, reader(value)
    elif isinstance(value, torch.Tensor):
        told = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        yield name, f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(told.tobytes()).hexdigest()}"
    elif isinstance(value, np.ndarray):
        yield name, f"{value.dtype} {value.shape} {hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    elif isinstance(value, Path):
        yield name, file(value) if value.is_file() else ""
    elif isinstance(value, bytes | set | frozenset) or (isinstance(value, Mapping | list | tuple) and len(value) > _MANY and _plain(value)):
        yield name, data(sorted(map(repr, value)) if isinstance(value, set | frozenset) else value)
    else:
        seen[id(value)] = value
        inside = _inside(value)
        if inside is None:
            yield name, type(value).__qualname__
        for key, part in sorted((inside or {}).items(), key=lambda each: str(each[0])):
            yield from _parts(part, f"{name}.{key}", seen)


def _plain(value: Any) -> bool:
    """Whether a container is one of numbers and words throughout, which are read at once."""
    try:
        json.dumps(value, sort_keys=True)
    except (TypeError, ValueError):
        return False
    return True


def _inside(value: Any) -> Mapping[Any, Any] | None:
    """The parts of a container, a record, a function or an object of this package; None of others."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if isinstance(value, SimpleNamespace):
        return vars(value)
    if isinstance(value, FunctionType):
        return _read(value)
    if isinstance(value, MethodType):
        return {"self": value.__self__}
    if isinstance(value, partial):
        return {"function": value.func, **dict(enumerate(value.args)), **value.keywords}
    if hasattr(value, "__wrapped__"):  # a function with a memory
        return {"function": value.__wrapped__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value) if each.compare}
    if (
        type(value).__module__.partition(".")[0] in _OURS
    ):  # what is private, or a property, follows from the rest, as fields do that are not compared
        held = getattr(value, "__dict__", {})
        return {
            name: part
            for name, part in held.items()
            if name[0] != "_" and not isinstance(getattr(type(value), name, None), cached_property)
        }
    return None


def _read(function: FunctionType) -> dict[str, Any]:
    """What a function reads beside its arguments and its module, by name."""
    found = {f"{place}": value for place, value in enumerate(function.__defaults__ or ())} | (function.__kwdefaults__ or {})
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # a variable without a value so far
            continue
        if _inside(value) is None:
            settings = {each: getattr(value, each, None) for each in _names(function.__code__)}
            found |= {f"{name}.{each}": part for each, part in settings.items() if isinstance(part, bool | int | float | str)}
        found[name] = value
    return found


def _names(code: CodeType) -> set[str]:
    """The names of attributes and globals in some code and the functions that it makes."""
    return {*code.co_names}.union(*(_names(each) for each in code.co_consts if isinstance(each, CodeType)))


def _reads(value: Any) -> bool:
    """Whether a value is a tokenizer or a processor: transformers' are saved like models, and are none."""
    import torch

    return hasattr(value, "save_pretrained") and not isinstance(value, torch.nn.Module | type)
