"""The parts of a codec's decoder that are run piece by piece: layers with what they need of earlier steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor, nn

BLOCK = 8


@dataclass(frozen=True)
class Layer:
    """A convolution, or with `up` a transposed one: output o rests on the inputs whose `kernel` reaches it."""

    kernel: int  # extent, holes counted
    left: int  # padding before the first input; of a transposed one, outputs cut off there
    right: int
    up: int = 0  # stride of a transposed one
    mirrored: bool = False  # padded with its own first inputs

    def span(self, first: int, stop: int) -> tuple[int, int]:
        """The inputs that outputs `first` .. `stop - 1` rest on, half open; below 0 and beyond the end where they reach into padding."""
        if self.up:
            return -((self.kernel - 1 - first - self.left) // self.up), (stop - 1 + self.left) // self.up + 1
        return first - self.left, stop - self.left + self.kernel - 1

    def ready(self, known: int) -> int:
        """How many outputs rest on the first `known` inputs alone, whatever follows."""
        if self.mirrored and known <= self.left:
            return 0
        return max(0, known * self.up - self.left if self.up else known - (self.kernel - 1 - self.left))

    def length(self, inputs: int) -> int:
        """Outputs of all there is."""
        if self.up:
            return (inputs - 1) * self.up + self.kernel - self.left - self.right
        return inputs + self.left + self.right - self.kernel + 1


class Local:
    """A stretch of a decoder whose outputs rest on nearby inputs: `run` maps [1, D, n] to [1, E, length(n)] through `layers`."""

    def __init__(self, run: Callable[[Tensor], Tensor], layers: Sequence[Layer] = ()):
        self.run, self.layers = run, tuple(layers)
        self.scale = prod(layer.up or 1 for layer in self.layers)

    def stop(self, known: int, closed: bool) -> int:
        """Outputs that can be had from `known` inputs; once `closed`, all."""
        for layer in self.layers:
            known = layer.length(known) if closed else layer.ready(known)
        return known

    def window(self, x: Tensor, first: int, stop: int) -> Tensor:
        """Outputs `first` .. `stop - 1` from the inputs `x` known so far, running only those they rest on."""
        lowest, highest = first, stop
        for layer in reversed(self.layers):
            lowest, highest = layer.span(lowest, highest)
        lowest = max(0, lowest)
        before = first - lowest * self.scale
        return self.run(x[..., lowest : min(highest, x.shape[-1])])[..., before : before + stop - first]


def layers_of(net: nn.Module) -> list[Layer]:
    """The convolutions of a decoder, in order. ValueError for those that cannot be run piece by piece."""
    found, inside = [], set()
    for module in net.modules():
        if hasattr(module, "conv") and hasattr(module, "causal"):  # EnCodec's and Mimi's wrappers, which pad and cut by themselves
            inside.add(module.conv)
            found.append(_wrapped(module))
        elif isinstance(module, (nn.Conv1d, nn.ConvTranspose1d)) and module not in inside:
            extent, pad = (module.kernel_size[0] - 1) * module.dilation[0] + 1, int(module.padding[0])
            found.append(Layer(extent, pad, pad, module.stride[0] if isinstance(module, nn.ConvTranspose1d) else 0))
    return found


def _wrapped(module: Any) -> Layer:
    conv = module.conv
    if not module.causal or getattr(module, "norm_type", "") == "time_group_norm":
        raise ValueError("it looks ahead, or normalises over all of time")
    extent = (conv.kernel_size[0] - 1) * conv.dilation[0] + 1
    if isinstance(conv, nn.ConvTranspose1d):
        total = extent - conv.stride[0]
        right = -int(-total * module.trim_right_ratio // 1)
        return Layer(extent, total - right, right, conv.stride[0])
    return Layer(extent, extent - 1, 0, mirrored=module.pad_mode == "reflect")


@dataclass(frozen=True)
class Parts:
    """A decoder in three: codes [1, K, n] to latents nearby, a memory that only looks back, and latents to samples nearby."""

    enter: Local
    carry: Callable[[Tensor, Any], tuple[Tensor, Any]]  # (new latents [1, D, n], state) -> (the same length, the next state)
    leave: Local
