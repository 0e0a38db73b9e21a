"""Linear layers with int8 weights, for drafters on a CPU: they read a quarter of the memory that float32 layers read."""

import warnings
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

_LEVELS = 127  # of int8 weights, either side of 0


def check_int8(name: str, device: torch.device, dtype: torch.dtype) -> None:
    """Raise ValueError unless linear layers on `device` and in `dtype` can be replaced by int8 ones.

    Args:
        name: what holds the layers, for the message.
        device: its device.
        dtype: its dtype.
    """
    if device.type != "cpu" or dtype != torch.float32:
        given = str(dtype).removeprefix("torch.")
        raise ValueError(f"int8 is for drafters on a CPU in float32, and {name} is on {device} in {given}: leave int8 out")
    if torch.backends.quantized.engine == "none":
        raise ValueError("int8 needs torch's quantized kernels, which this build has not: leave int8 out")


@lru_cache(1)
def _layer() -> Any:
    """torch's int8 layer, for inputs of any number of dimensions. Its module takes 0.2 s to import."""
    from torch.ao.nn.quantized.dynamic import Linear

    class Int8Linear(Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.dim() > 1 else super().forward(x[None])[0]

    return Int8Linear


def int8_linear(linear: nn.Linear) -> nn.Module:
    """Return `linear` with int8 weights, one scale a row, computed in int8 (`torch.ao.nn.quantized.dynamic.Linear`)."""
    weight = linear.weight.detach()
    scales = weight.abs().amax(1).clamp_min(torch.finfo(weight.dtype).tiny).double() / _LEVELS
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*quantized tensor creation functions")  # deprecated, and the kernels' only form of weights
        made = _layer()(linear.in_features, linear.out_features, linear.bias is not None, dtype=torch.qint8)
        levels = torch.quantize_per_channel(weight, scales, torch.zeros(len(weight), dtype=torch.long), 0, torch.qint8)
    made.set_weight_bias(levels, None if linear.bias is None else linear.bias.detach())
    return made.eval()


def int8_rows(weight: Tensor) -> nn.Module:
    """Return a linear layer without bias of `weight` [out, in], in int8."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
    return int8_linear(linear)


def is_int8(net: nn.Module) -> bool:
    """Whether `put_int8_linears` has replaced layers of `net`."""
    return any(isinstance(module, _layer()) for module in net.modules())


def put_int8_linears(net: nn.Module) -> None:
    """Replace every `nn.Linear` inside `net` by its `int8_linear`, in place."""
    for module in list(net.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                setattr(module, name, int8_linear(child))
