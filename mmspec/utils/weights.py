"""A drafter's files: its `config.json` and its tensors, from safetensors (in one file or several) or a PyTorch pickle.

Pickles are opened with `weights_only=True`, so nothing in a file is executed.
"""

import json
import os
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "medusa_lm_head.safetensors",
    "pytorch_model.bin",
    "medusa_lm_head.pt",
    "hydra_lm_head.pt",
)
"""File names of a drafter's tensors, in the order of search."""


def is_file(path: Path) -> bool:
    """True where `path` is a file; False for names that no file system takes, too."""
    try:
        return path.is_file()
    except (OSError, ValueError, RecursionError):
        return False


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` of a drafter's folder. ValueError where there is none."""
    if is_file(folder):
        raise ValueError(f"{folder} is a file: give the folder of a drafter, with config.json and weights")
    return read_mapping(folder / "config.json", "give the folder of a drafter, with config.json and weights")


def read_mapping(path: Path, remedy: str) -> dict[str, Any]:
    """A JSON object from `path`. ValueError, which ends in `remedy` if the file is missing, for anything else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{path} does not exist: {remedy}") from None
    except OSError as error:
        raise ValueError(f"{str(path)[:200]} cannot be read ({error.strerror}): {remedy}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {_line(error)}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds {type(found).__name__}, but a mapping is needed")
    return found


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a drafter's folder by name, from the first of `FILES` that exists. ValueError if it is broken."""
    path = weights_file(folder)
    if path.suffix == ".json":
        return {name: tensor for part in _parts(path) for name, tensor in read_tensors(part).items()}
    return read_tensors(path)


def read_names(folder: Path) -> set[str]:
    """The names of a folder's tensors, without reading the tensors where the format allows that."""
    path = weights_file(folder)
    if path.suffix == ".json":
        return set(read_mapping(path, "").get("weight_map") or {})
    if path.suffix == ".safetensors":
        with _in_one_line(path), safe_open(path, framework="pt") as file:
            return set(file.keys())
    return set(read_tensors(path))


def weights_file(folder: Path) -> Path:
    """The first of `FILES` in `folder`."""
    for name in FILES:
        if (folder / name).is_file():
            return folder / name
    raise ValueError(f"{folder} holds no weights: the drafter's {FILES[0]} is missing (also read: {', '.join(FILES[1:])})")


def refuse_other_folder(folder: Path, replaceable: Callable[[Path], bool]) -> None:
    """Raise ValueError if `folder` holds something that `write_folder` does not replace."""
    if folder.exists() and not (folder.is_dir() and (not any(folder.iterdir()) or replaceable(folder))):
        raise ValueError(f"{folder} exists and is no drafter: it would be replaced; give a new folder")


def write_folder(folder: Path, config: dict[str, Any], weights: dict[str, Tensor], replaceable: Callable[[Path], bool]) -> None:
    """Write `config.json` and `model.safetensors` to `folder`, which is replaced completely or not at all.

    An existing folder is replaced if it is empty or `replaceable`, else refused with a ValueError, as are weights that are not finite.
    """
    broken = first_not_finite(weights.items())
    if broken is not None:
        raise ValueError(f"tensor {broken} holds NaN or infinity in {weights[broken].dtype}: nothing is written to {folder}")
    refuse_other_folder(folder, replaceable)
    new, old = (folder.with_name(f".{folder.name}.{word}-{os.getpid()}") for word in ("new", "old"))
    new.mkdir(parents=True)
    try:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
        save_file(tensors, new / FILES[0], metadata={"format": "pt"})
        (new / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        if folder.exists():
            os.replace(folder, old)
        os.replace(new, folder)
    except BaseException:
        if old.exists() and not folder.exists():
            os.replace(old, folder)
        raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _parts(index: Path) -> Iterator[Path]:
    """The files that an index of sharded safetensors names."""
    places = read_mapping(index, "").get("weight_map")
    if not isinstance(places, dict):
        raise ValueError(f"{index} has no weight_map: it is not the index of sharded safetensors")
    for name in sorted(set(places.values())):
        if Path(name).name != name:
            raise ValueError(f"{index} names {name!r}: its files must be in the same folder")
        yield index.parent / name


def read_tensors(path: Path, mapped: bool = False) -> dict[str, Tensor]:
    """Every tensor of one file by name. ValueError if it is broken or holds anything else.

    With `mapped` tensors of safetensors stay on disk until they are read, for files that only this process's work folder knows.
    """
    with _in_one_line(path):
        if path.suffix == ".safetensors":
            return load_file(path, mapped)
        found = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise ValueError(f"{path} holds no mapping from names to tensors: save a state_dict() there")
    return found


def load_file(path: str | Path, mapped: bool = False) -> dict[str, Tensor]:
    """Return every tensor of a safetensors file by name, in memory of its own: the file may then be written over or cut short.

    safetensors' own function returns tensors that stay `mapped` to the file. One tensor is copied at a time.
    """
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) if mapped else file.get_tensor(name).clone() for name in file.keys()}


def own_memory(model: Any) -> Any:
    """Copy the parameters and buffers of a model that are mapped to a file, as `from_pretrained` leaves them, one at a time.

    Written over, such a file changes the answers of a running model; cut short, it ends the process (SIGBUS).

    Args:
        model: a torch module; changed in place.

    Returns:
        The model.
    """
    ranges = _mapped()
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu" and tensor.numel() and (ranges is None or _lies_in(tensor.data_ptr(), ranges)):
            tensor.data = tensor.data.clone()
    return model


def _mapped() -> list[tuple[int, int]] | None:
    """Addresses that are mapped to files, ascending; None where the system does not say."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    found = [line.split(maxsplit=5) for line in lines]
    named = [parts[0].split("-") for parts in found if len(parts) == 6 and parts[5].startswith("/") and "/torch_" not in parts[5]]
    return sorted((int(first, 16), int(end, 16)) for first, end in named)


def _lies_in(address: int, ranges: list[tuple[int, int]]) -> bool:
    place = bisect_right(ranges, (address, 1 << 64)) - 1
    return place >= 0 and ranges[place][0] <= address < ranges[place][1]


def first_not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """Return the name of the first of `tensors` that holds NaN or infinity, None if there is none.

    Integers and tensors without data pass. No memory of a tensor's size is allocated.
    """
    for name, tensor in tensors:
        if tensor.is_floating_point() and tensor.numel() and not tensor.is_meta and not _is_finite(tensor.detach()):
            return name
    return None


def _is_finite(tensor: Tensor) -> bool:
    ends = torch.aminmax(tensor.float() if tensor.itemsize == 1 else tensor)  # float8 has no aminmax
    return all(bool(torch.isfinite(end)) for end in ends)


@contextmanager
def _in_one_line(path: Path) -> Iterator[None]:
    """Turn errors of reading `path` into a ValueError of one line."""
    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist: a part of the drafter's weights is missing") from None
    except SafetensorError as error:
        raise ValueError(f"{path} is truncated or not safetensors: {_line(error)}") from None
    except (UnpicklingError, RuntimeError, EOFError, OSError, KeyError) as error:
        raise ValueError(f"{path} is truncated, or more than a PyTorch state_dict of tensors: {_line(error)}") from None


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def fill(net: Any, weights: Mapping[str, Tensor], source: Path, theirs: Callable[[str], str] = str) -> Any:
    """`net` with `weights`, after every name, shape and kind of number has been checked: bad ones change nothing.

    `theirs` gives the name of a tensor of the net in `weights`.
    """
    needed = {theirs(name): (name, tensor) for name, tensor in net.state_dict().items()}
    for name, (_, tensor) in needed.items():
        if name not in weights:
            raise ValueError(f"{source}: tensor {name} of shape {tuple(tensor.shape)} is missing")
        if weights[name].shape != tensor.shape:
            raise ValueError(f"{source}: tensor {name} has shape {tuple(weights[name].shape)}, but {tuple(tensor.shape)} is needed")
        if weights[name].is_floating_point() != tensor.is_floating_point():
            shape = tuple(tensor.shape)
            raise ValueError(f"{source}: tensor {name} is {weights[name].dtype} {shape}, but {tensor.dtype} {shape} is needed")
    for name in weights:
        if name not in needed:
            raise ValueError(f"{source}: tensor {name} of shape {tuple(weights[name].shape)} belongs to no part of this {net.kind} drafter")
    broken = first_not_finite(weights.items())
    if broken is not None:
        raise ValueError(f"{source}: tensor {broken} holds NaN or infinity: the file is damaged, or its training failed")
    state = {ours: weights[name].to(tensor.dtype) for name, (ours, tensor) in needed.items()}
    if hasattr(net, "check"):
        try:
            net.check(state)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from None
    net.load_state_dict(state)
    return net.eval()
