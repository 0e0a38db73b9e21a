"""Parts of a codec's decoder that are run piece by piece: layers with the earlier steps they need."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor, nn

BLOCK, FIRST_BLOCK = 8, 2
"""Codes decoded together by default, and of the first block, so that sound begins sooner."""


@dataclass(frozen=True)
class Layer:
    """A convolution, or with `up` a transposed one. An output depends on the inputs within its kernel."""

    kernel: int  # extent in steps, dilation included
    left: int  # padding before the first input; of a transposed one, outputs cut off there
    right: int
    up: int = 0  # stride of a transposed one
    mirrored: bool = False  # padded with its own first inputs

    def span(self, first: int, stop: int) -> tuple[int, int]:
        """Return the half-open range of inputs that outputs `first` .. `stop - 1` depend on; it reaches into the padding below 0 and beyond
        the end.
        """
        if self.up:
            return -((self.kernel - 1 - first - self.left) // self.up), (stop - 1 + self.left) // self.up + 1
        return first - self.left, stop - self.left + self.kernel - 1

    def ready(self, known: int) -> int:
        """Return the number of outputs that depend on the first `known` inputs only."""
        if self.mirrored and known <= self.left:
            return 0
        return max(0, known * self.up - self.left if self.up else known - (self.kernel - 1 - self.left))

    def length(self, inputs: int) -> int:
        """Return the number of outputs for `inputs` inputs."""
        if self.up:
            return (inputs - 1) * self.up + self.kernel - self.left - self.right
        return inputs + self.left + self.right - self.kernel + 1


class Local:
    """A stretch of a decoder whose outputs depend on nearby inputs: `run` maps [1, D, n] to [1, E, length(n)] through `layers`."""

    def __init__(self, run: Callable[[Tensor], Tensor], layers: Sequence[Layer] = ()):
        self.run, self.layers = run, tuple(layers)
        self.scale = prod(layer.up or 1 for layer in self.layers)

    def stop(self, known: int, closed: bool) -> int:
        """Return the number of outputs available from `known` inputs; all of them once `closed`."""
        for layer in self.layers:
            known = layer.length(known) if closed else layer.ready(known)
        return known

    def window(self, x: Tensor, first: int, stop: int) -> Tensor:
        """Return outputs `first` .. `stop - 1` from the inputs `x` known so far, running only those they depend on."""
        lowest, highest = first, stop
        for layer in reversed(self.layers):
            lowest, highest = layer.span(lowest, highest)
        lowest = max(0, lowest)
        before = first - lowest * self.scale
        return self.run(x[..., lowest : min(highest, x.shape[-1])])[..., before : before + stop - first]


def layers_of(net: nn.Module) -> list[Layer]:
    """Return the convolutions of a decoder, in order. ValueError for those that cannot be run piece by piece."""
    found, inside = [], set()
    for module in net.modules():
        if hasattr(module, "conv") and hasattr(module, "causal"):  # EnCodec's and Mimi's wrappers, which pad and cut by themselves
            inside.add(module.conv)
            found.append(_wrapped(module))
        elif isinstance(module, (nn.Conv1d, nn.ConvTranspose1d)) and module not in inside:
            extent, pad = (module.kernel_size[0] - 1) * module.dilation[0] + 1, int(module.padding[0])
            more = int(module.output_padding[0])  # of a transposed one: outputs added behind
            found.append(Layer(extent, pad, pad - more, module.stride[0] if isinstance(module, nn.ConvTranspose1d) else 0))
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
    """A decoder in three parts: codes [1, K, n] to latents (local), a causal memory, and latents to samples (local)."""

    enter: Local
    carry: Callable[[Tensor, Any], tuple[Tensor, Any]]  # (new latents [1, D, n], state) -> (the same length, the next state)
    leave: Local
