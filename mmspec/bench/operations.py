"""Counts of tensor operations: what a generation asks of torch, independent of how fast or how busy the machine is."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_FREE = ("view", "_unsafe_view", "alias", "detach", "expand", "transpose", "t", "unsqueeze", "squeeze", "slice", "select", "permute")
"""Operations that make another view of the same memory."""


@dataclass(frozen=True)
class Operations:
    """The operations of one run.

    Attributes:
        by_name: how often each aten operation was called, by its name without overload.
        largest: elements of the largest tensor that any operation returned and that is not a view of its input.
    """

    by_name: Counter[str] = field(default_factory=Counter)
    largest: int = 0

    @property
    def total(self) -> int:
        """All operations."""
        return self.by_name.total()

    @property
    def copying(self) -> int:
        """Operations without those that only make views."""
        return sum(count for name, count in self.by_name.items() if name not in _FREE)


class _Counting(TorchDispatchMode):
    """Counts every operation that reaches the dispatcher below autograd."""

    def __init__(self):
        super().__init__()
        self.by_name: Counter[str] = Counter()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self.by_name[name] += 1
        if name not in _FREE:
            made = out if isinstance(out, (tuple, list)) else (out,)
            self.largest = max([self.largest, *(each.numel() for each in made if isinstance(each, torch.Tensor))])
        return out


def operations(run: Callable[[], Any]) -> Operations:
    """Count the aten operations of a call.

    Args:
        run: the function, called once.

    Returns:
        Their counts.
    """
    counting = _Counting()
    with torch.no_grad(), counting:
        run()
    return Operations(counting.by_name, counting.largest)


def operations_a_step(run: Callable[[int], int], short: int = 8, long: int = 40) -> float:
    """Count the aten operations of one step of a generation, its opening left out.

    Two generations of different lengths are counted, and the difference is divided by the steps that one has more than the other.

    Args:
        run: generates as many values a row as its argument says, and returns how many steps it took.
        short: values of the shorter generation.
        long: values of the longer one.

    Returns:
        Operations a step.

    Raises:
        ValueError: when both took the same number of steps.
    """
    taken: list[int] = []
    run(short)  # what a process does only once
    counts = [operations(lambda most=most: taken.append(run(most))).total for most in (short, long)]
    if taken[0] == taken[1]:
        raise ValueError(f"generations of at most {short} and {long} values both took {taken[0]} steps: give a prompt that goes on longer")
    return (counts[1] - counts[0]) / (taken[1] - taken[0])
