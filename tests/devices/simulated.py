"""CUDA devices simulated on the CPU: whole generations run with real values, and devices, synchronisations and float64 work are watched.

A `SimulatedTensor` holds its values in CPU memory and reports `cuda:0` or `cuda:1` as its device. Every operation passes through
`__torch_dispatch__`, as with torch's FakeTensorMode, whose no-op device guard and lifting of CPU tensors are used here. FakeTensorMode has
no values: what a drafter does after a transfer to the host would have to be made up, and the tokens could not be compared.
"""

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

import mmspec
from mmspec.models import alterations

CPU, FIRST, SECOND = torch.device("cpu"), torch.device("cuda:0"), torch.device("cuda:1")
PACKAGE = str(Path(mmspec.__file__).parent)

_DATA_DEPENDENT = {  # operations whose output's size, or whose result for the host, depends on values: the host waits
    "_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "_unique2", "unique_dim", "unique_consecutive", "bincount",
    "repeat_interleave",
}  # fmt: skip
_TAKES_CPU_SCALARS = ("where", "masked_fill", "masked_fill_", "fill_", "clamp", "scatter_", "full")
_TAKES_CPU_INDICES = ("index", "index_put_", "index_put", "_index_put_impl_")


class MixedDevices(AssertionError):
    """An operation got tensors of several devices."""


@dataclass(frozen=True)
class Event:
    """One host synchronisation or one float64 result, and the line of mmspec that asked for it."""

    name: str
    site: str


@dataclass
class Watch:
    """What happened on the simulated devices."""

    syncs: list[Event] = field(default_factory=list)
    doubles: set[Event] = field(default_factory=set)
    operations: int = 0

    def sync(self, name: str) -> None:
        self.syncs.append(Event(name, site()))


def site() -> str:
    """The innermost function of mmspec on the stack, as module:function."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(PACKAGE):
            return f"{_module(path)}:{frame.f_code.co_qualname}"
        frame = frame.f_back
    return "tests"


@cache
def _module(path: str) -> str:
    return Path(path).relative_to(PACKAGE).with_suffix("").as_posix()


@cache
def _name(func: Any) -> str:
    return func._schema.name.removeprefix("aten::")


class SimulatedTensor(Tensor):
    """A tensor on a simulated CUDA device.

    Args:
        values: the values, in CPU memory that the tensor shares.
        device: the device it reports.
    """

    values_: Tensor
    claimed: torch.device

    @staticmethod
    def __new__(cls, values: Tensor, device: torch.device) -> "SimulatedTensor":
        out = Tensor._make_subclass(cls, values, values.requires_grad, dispatch_device=True)
        out.values_, out.claimed = values, device
        return out

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"can't convert {self.claimed} device type tensor to numpy")

    __array__ = numpy

    def __deepcopy__(self, memo: Any) -> "SimulatedTensor":
        return _wrapped(self.values_.clone(), self.claimed, isinstance(self, nn.Parameter))

    def __repr__(self, *args: Any, **kwargs: Any) -> str:
        return f"{self.values_!r} on {self.claimed}"


def _wrapped(values: Tensor, device: torch.device, parameter: bool = False) -> Any:
    out = SimulatedTensor(values, device)
    return nn.Parameter(out, requires_grad=values.requires_grad) if parameter else out


_watch: Watch | None = None


class _Mode(TorchDispatchMode):
    """Puts what is made with `device="cuda"` on a simulated device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if torch.is_inference_mode_enabled() and func.namespace == "aten":  # composite operations arrive whole
            with self:
                found = func.decompose(*args, **(kwargs or {}))
            if found is not NotImplemented:
                return found
        return _run(func, args, kwargs or {})


def _values(thing: Any) -> Any:
    if isinstance(thing, SimulatedTensor):
        return thing.values_
    return type(thing)(map(_values, thing)) if type(thing) in (list, tuple) else thing


def _tensors(things: Any) -> Iterator[Tensor]:
    for thing in things:
        if isinstance(thing, Tensor):
            yield thing
        elif isinstance(thing, (list, tuple)):
            yield from _tensors(thing)


def _run(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    if func is torch.ops.prim.device.default:
        return args[0].claimed
    name = _name(func)
    given = list(_tensors((*args, *kwargs.values())))
    wanted = kwargs.get("device")
    wanted = None if wanted is None else torch.device(wanted)
    place = _device_of(func, name, given) if wanted is None else wanted
    if _watch is not None and (place.type == "cuda" or any(isinstance(t, SimulatedTensor) for t in given)):
        _watch.operations += 1
        _count_syncs(name, args, kwargs, given, place)
    own = {key: value for key, value in kwargs.items() if key != "device"}
    if wanted is not None:
        own["device"] = CPU
    func = _OF_CUDA.get(name, func)
    out = func(*map(_values, args), **{key: _values(value) for key, value in own.items()})
    if place.type != "cuda" or name == "_local_scalar_dense":
        return out
    before = {id(t.values_): t for t in given if isinstance(t, SimulatedTensor)}

    def wrap(made: Any) -> Any:
        if not isinstance(made, Tensor):
            return made
        if made.dtype == torch.float64 and _watch is not None:
            _watch.doubles.add(Event(name, site()))
        return before[id(made)] if id(made) in before else SimulatedTensor(made, _numbered(place))

    return wrap(out) if isinstance(out, Tensor) else tree_map(wrap, out)


def _claimed(tensor: Tensor) -> torch.device:
    """Its `device`, without a dispatch."""
    return tensor.claimed if isinstance(tensor, SimulatedTensor) else tensor.device


def _numbered(device: torch.device) -> torch.device:
    return FIRST if device.index is None and device.type == "cuda" else device


def _device_of(func: Any, name: str, given: list[Tensor]) -> torch.device:
    """The device that an operation runs on.

    Raises:
        MixedDevices: if its tensors are on several. Allowed are, as on a GPU: CPU tensors of no dimensions in pointwise operations,
            CPU indices, and copies.
    """
    devices = {_numbered(_claimed(t)) for t in given}
    if len(devices) <= 1:
        return next(iter(devices), CPU)
    cuda = {d for d in devices if d.type == "cuda"}
    if name == "copy_" or (name == "_to_copy"):
        return _numbered(_claimed(given[0]))
    scalars = all(t.dim() == 0 for t in given if _claimed(t) == CPU) and (torch.Tag.pointwise in func.tags or name in _TAKES_CPU_SCALARS)
    if len(cuda) == 1 and (scalars or name in _TAKES_CPU_INDICES):
        return next(iter(cuda))
    raise MixedDevices(f"{func}: tensors on {', '.join(sorted(map(str, devices)))}, called by {site()}")


def _count_syncs(name: str, args: tuple, kwargs: dict[str, Any], given: list[Tensor], place: torch.device) -> None:
    assert _watch is not None
    if name in _DATA_DEPENDENT and not (name == "repeat_interleave" and kwargs.get("output_size") is not None):
        _watch.sync(name)
    elif name in ("_to_copy", "copy_"):
        source = _claimed(given[-1] if name == "copy_" else given[0])
        written = name == "copy_" and given[-1].dim() == 0  # x[0] = 1, which fills on a GPU
        if (
            not written
            and (source == CPU) != (place == CPU)
            and not kwargs.get("non_blocking", len(args) > 2 and args[2])
            and given[-1].numel()
        ):
            _watch.sync(f"copy {source.type} to {place.type}")
    elif name in _TAKES_CPU_INDICES:
        indices = [t for t in args[1] if t is not None]
        if any(_claimed(t) == CPU for t in indices):
            _watch.sync("copy of cpu indices")
        masks = [t for t in indices if t.dtype in (torch.bool, torch.uint8)]
        filled = name != "index" and len(masks) == len(indices) == 1 and args[2].numel() == 1  # run as masked_fill
        if masks and not filled:
            _watch.sync(f"{name} by bools")


@contextmanager
def simulated_devices() -> Iterator[Watch]:
    """Inside, `cuda:0` and `cuda:1` exist in this thread. The watch counts from the start."""
    global _watch
    lifted, patch = torch._C._only_lift_cpu_tensors(), pytest.MonkeyPatch()
    patch.setattr(torch.cuda, "_lazy_init", lambda: None)
    patch.setattr(Tensor, "pin_memory", lambda self, *args: self)
    patch.setattr(torch.cuda, "get_rng_state", lambda *device: torch.get_rng_state())
    patch.setattr(torch.cuda, "set_rng_state", lambda *state: None)
    patch.setattr(alterations, "alterations", lambda model: iter(()))  # weights here are of a type of their own, as a GPU's are not
    patch.setattr(torch.cuda, "get_device_capability", lambda *device: (7, 0))
    torch._C._ensureCUDADeviceGuardSet()
    torch._C._set_only_lift_cpu_tensors(True)
    _watch = Watch()
    try:
        with _Mode():
            yield _watch
    finally:
        _watch = None
        torch._C._set_only_lift_cpu_tensors(lifted)
        patch.undo()


def _gru_cell(gates: Tensor, hidden_gates: Tensor, state: Tensor, bias: Tensor | None = None, hidden_bias: Tensor | None = None) -> Any:
    """torch's fused cell of CUDA devices, of which the CPU has none: the new state, and a workspace that only training reads."""
    own, other = (part if one is None else part + one for part, one in ((gates, bias), (hidden_gates, hidden_bias)))
    (reset, update, new), (reset_, update_, new_) = own.chunk(3, 1), other.chunk(3, 1)
    update = (update + update_).sigmoid()
    made = (new + (reset + reset_).sigmoid() * new_).tanh()
    return made + update * (state - made), gates.new_zeros(1)


def _lstm_cell(gates: Tensor, hidden_gates: Tensor, cell: Tensor, bias: Tensor | None = None, hidden_bias: Tensor | None = None) -> Any:
    """The same of an LSTM: the new state, the new cell, and a workspace."""
    both = sum(part for part in (gates, hidden_gates, bias, hidden_bias) if part is not None)
    enter, forget, new, leave = both.chunk(4, 1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * cell.tanh(), cell, gates.new_zeros(1)


def _histogram(values: Tensor, bins: int, min: float = 0, max: float = 0) -> Tensor:
    """`torch.histc`, which takes integers on CUDA devices."""
    return torch.histc(values.float(), bins, min, max).to(values.dtype)


_OF_CUDA = {"_thnn_fused_gru_cell": _gru_cell, "_thnn_fused_lstm_cell": _lstm_cell, "histc": _histogram}  # what the CPU does not have


def put(thing: Any, device: torch.device = FIRST) -> Any:
    """A deep copy of a model, or of any object that holds tensors, on a simulated device.

    Args:
        thing: a model or another object; several that share tensors are put as one list.
        device: the device of all tensors of the copy.

    Returns:
        The copy.
    """

    def moved(tensor: Tensor, memo: Any) -> Any:
        return _wrapped(tensor.detach().clone(), device, isinstance(tensor, nn.Parameter))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "__deepcopy__", moved)
        patch.setattr(nn.Parameter, "__deepcopy__", moved)
        patch.setitem(copy._deepcopy_dispatch, torch.Generator, lambda generator, memo: generator)  # type: ignore[attr-defined]
        return copy.deepcopy(thing)
