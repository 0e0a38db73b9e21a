"""Devices by name."""

from typing import Any

KINDS = ("cpu", "cuda", "mps", "xpu")
"""Kinds of devices that models run on."""


def device_of(name: str) -> Any:
    """A torch device; "auto" is the first CUDA device if there is one. ValueError for unknown or missing devices."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"unknown device {name!r}: give auto, cpu, cuda or cuda:N") from None
    if device.type not in KINDS:
        raise ValueError(f"device {name} does not serve: give auto, cpu, cuda or cuda:N")
    if device.type != "cpu" and device.type != "cuda" and not getattr(torch, device.type).is_available():
        raise ValueError(f"device {name} is not here: give cpu or another one")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {name} is not here: torch sees {torch.cuda.device_count()} CUDA devices; give cpu or another one")
    return device


def to_device(numbers: Any, device: Any, dtype: Any = None) -> Any:
    """Copy numbers from the host to a device. The host does not wait for the device: a GPU is given pinned memory.

    Args:
        numbers: a number, or nested lists of numbers.
        device: a torch device.
        dtype: dtype of the result; that of `torch.tensor` by default.

    Returns:
        A tensor on `device`.
    """
    import torch

    host = torch.tensor(numbers, dtype=dtype)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)
