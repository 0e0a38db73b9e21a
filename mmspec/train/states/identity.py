"""What wrote the text and states in a work folder: the target, its tokenizer, the prompts and the settings, kept in a file beside them.

A folder is used again only by a run with the same identity. Another one is refused by the name of what differs, and nothing is changed.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch import Tensor, nn

from mmspec.utils import fingerprints
from mmspec.utils.files import write_json
from mmspec.utils.weights import read_mapping

_ROW = 256  # numbers of a weight that its checksum reads at its beginning, middle and end
_VOLATILE = ("transformers_version", "dtype", "torch_dtype", "architectures")
"""Entries of a config that do not change what a model computes; its dtype is compared by itself."""
_LONG = 60  # characters of a value in a message
_OF_MODULES = vars(nn.Module()).keys()  # weights, hooks and the like


def target_identity(model: nn.Module) -> dict[str, Any]:
    """Return what tells a target from others: its class, config, dtype and a checksum of some rows of its weights."""
    config = json.loads(model.config.to_json_string(use_diff=False))  # type: ignore[operator,union-attr]
    kept = {key: value for key, value in config.items() if key not in _VOLATILE and not key.startswith("_")}
    name, dtype = type(model).__name__, str(model.dtype).removeprefix("torch.")
    return {"target": name, "dtype": dtype, "target config": kept, "target weights": weights_checksum(model)}


def weights_checksum(model: nn.Module) -> str:
    """Return a checksum of the names, shapes and some rows of all weights of a model."""
    found = sha256()
    for name, weight in model.named_parameters():
        if not weight.is_meta:
            found.update(f"{name} {tuple(weight.shape)}".encode())
            found.update(_some_rows(weight.detach()).numpy().tobytes())
    return _short_digest(found)


def training_identity(model: nn.Module, loss: Callable[..., Any], plan: Any) -> dict[str, str]:
    """Return what decides the weights that a training ends with, by name: what it begins with, its settings, and all that `loss` reads.

    Args:
        model: the module to train, with its first weights.
        loss: the function that gives the loss of a turn; the variables around it are read, see `mmspec.utils.fingerprints.parts`.
        plan: settings of the training, a dataclass.
    """
    own = {name: _settings(each) for name, each in model.named_modules()}
    settings = {name: value for name, value in asdict(plan).items() if name != "checkpoint_every"}
    found: dict[str, list[str]] = {"first weights": [fingerprints.weights(model)]}
    for place, part in fingerprints.parts({"plan": settings, "model": own, "loss": loss}, *model.modules()):
        top = place.split(".")[1:]
        name = "the model's settings" if top[0] == "model" else ".".join(top[:4])
        found.setdefault(name, []).append(part if name == place[1:] else f"{place} {part}")
    return {name: told[0] if len(told) == 1 and len(told[0]) <= _LONG else checksum(told) for name, told in found.items()}


def _settings(module: nn.Module) -> dict[str, Any]:
    """What a module holds beside its weights. Of what is private, functions and modules that are not its own, such as a target."""
    held = {key: value for key, value in vars(module).items() if key not in _OF_MODULES}
    found = {
        key: value for key, value in held.items() if key[0] != "_" or any(map(callable, value if isinstance(value, tuple) else [value]))
    }
    if isinstance(config := getattr(module, "config", None), Mapping):  # of diffusers
        found["config"] = {key: value for key, value in config.items() if not key.startswith("_")}
    return found


def check_identity(path: Path, found: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """ValueError, naming the first difference, unless a checkpoint is of a training with this identity."""
    for name, old, new in _differences(found, given):
        before, now = (_shown(each) if name in identity else "missing" for identity, each in ((found, old), (given, new)))
        raise ValueError(f"{path} is of another run: {name} is {before} there and {now} here; delete it or choose another folder")


def tokenizer_identity(tokenizer: Any) -> str:
    """Return a checksum of a tokenizer's tokens and their ids."""
    tokens = sorted(tokenizer.get_vocab().items())
    return _short_digest(sha256(json.dumps(tokens).encode()))


def checksum(parts: Iterable[Any]) -> str:
    """Return a checksum of values that JSON can hold, and of tensors."""
    found = sha256()
    for part in parts:
        data = part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if isinstance(part, Tensor) else None
        found.update(json.dumps(part).encode() if data is None else data)
    return _short_digest(found)


def keyed(path: Path, *parts: Any) -> Path:
    """Return `path` with a checksum in its name of what its contents depend on, so that other work is kept in another file.

    Args:
        path: the file.
        parts: values that JSON can hold, tensors, and models, of which `weights_checksum` is taken.
    """
    told = checksum(weights_checksum(part) if isinstance(part, nn.Module) else part for part in parts)
    return path.with_name(f"{path.stem}-{told.rpartition(' ')[2]}{path.suffix}")


def claim_folder(path: Path, identity: Mapping[str, Any], content: str, flags: Mapping[str, str], here: PartialState) -> None:
    """Note in a file what makes the contents of its folder, or check that the file says the same. One process writes, all of them check.

    Args:
        path: the file.
        identity: what the contents depend on, by name, ready for JSON.
        content: what the folder holds, such as "text written with".
        flags: the option that sets an entry, by its name.
        here: the processes, of `join_processes`.

    Raises:
        ValueError: if the folder holds what another identity made: what differs, and the option.
    """
    given = json.loads(json.dumps(dict(identity)))
    if here.is_main_process and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, given)
    here.wait_for_everyone()
    found = read_mapping(path, "delete its folder")
    for name, old, new in _differences(found, given):
        flag = flags.get(name.partition(".")[0])
        before = _shown(old) if name.partition(".")[0] in found else "that was not noted"
        said = f"{path.parent} holds {content} {name.replace('.', ' ')} {before}, not {_shown(new)}"
        raise ValueError(f"{said}: delete it or choose another folder (--work){f', or change {flag}' if flag else ''}")


def _differences(found: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield names of entries that differ, with both values; entries of a config are compared where both have them."""
    for name in {**given, **found}:
        old, new = found.get(name), given.get(name)
        if isinstance(old, dict) and isinstance(new, dict) and name.endswith("config"):
            shared = old.keys() & new.keys()
            inner = ({key: each[key] for key in each if key in shared} for each in (old, new))
            yield from ((f"{name}.{key}", *values) for key, *values in _differences(*inner))
        elif old != new:
            yield name, old, new


def _some_rows(weight: Tensor) -> Tensor:
    """Numbers from the beginning, the middle and the end of a weight, in float32 on the CPU."""
    flat = weight.reshape(-1)
    middle = len(flat) // 2
    return torch.cat([flat[:_ROW], flat[middle : middle + _ROW], flat[-_ROW:]]).float().cpu()


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."


def _short_digest(found: Any) -> str:
    return f"checksum {found.hexdigest()[:12]}"
