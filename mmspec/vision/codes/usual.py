"""The codes that stand most often at each place of a model's pictures, from which its next ones begin.

A Jacobi window has to begin somewhere. Noise is the worst place: the distributions of the next round follow it. The draft changes the
speed of token-exact methods only, so what was learnt from earlier pictures of the process may be used by them without changing a picture.
"""

from collections import deque
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from mmspec.core.processors.raster import FREE, Raster
from mmspec.core.rules.base import TOKEN_EXACT, Accept

KEPT = 64
"""Pictures of a model and a raster that are remembered."""
_TWICE = 2  # pictures that have to agree at a place
_OFTEN = 0.05  # share of the pictures in which a place has to hold its commonest code: below it, a copied neighbour is the better guess
_GROUND = 0.25  # share of all codes from which the commonest of them is a ground that stands wherever a place has no code of its own


class CodeRecord:
    """The last pictures of a model on one raster. Safe under threads.

    Args:
        raster: the raster.
    """

    def __init__(self, raster: Raster):
        self.raster = raster
        self._pictures: deque[Tensor] = deque(maxlen=KEPT)  # [T] each
        self._codes: tuple[int, ...] | None = None
        self._lock = Lock()

    def add(self, sequences: Tensor) -> None:
        """Take in finished pictures, LongTensor [B, T] of codes and controls."""
        with self._lock:
            self._pictures.extend(sequences.to("cpu", torch.int32))
            self._codes = None

    @property
    def codes(self) -> tuple[int, ...] | None:
        """The usual code of every output position, FREE at controls; None before the first picture."""
        with self._lock:
            if self._codes is None and self._pictures:
                self._codes = usual_codes(torch.stack(list(self._pictures)), self.raster)
            return self._codes


def usual_codes(sequences: Tensor, raster: Raster) -> tuple[int, ...]:
    """Return the commonest code of every output position.

    Args:
        sequences: LongTensor [N, T], pictures as a model writes them, with controls.
        raster: their raster.

    Returns:
        T codes: the one that stands there most often; where the pictures differ, the one that is commonest in them all if they have a
        ground, else FREE, as at controls.
    """
    cells = torch.tensor(raster.cells)
    codes = sequences.cpu().long()[:, cells]
    mode = codes.mode(0).values
    counts = codes.flatten().bincount()
    ground = counts.argmax() if counts.max() >= _GROUND * codes.numel() else FREE
    chosen = torch.where((codes == mode).sum(0) >= max(_TWICE, _OFTEN * len(codes)), mode, ground)
    found = torch.full((raster.length,), FREE)
    found[cells] = chosen
    return tuple(found.tolist())


_records: "WeakKeyDictionary[nn.Module, dict[Raster, CodeRecord]]" = WeakKeyDictionary()
_records_lock = Lock()


def code_record(model: Any, raster: Raster) -> CodeRecord:
    """Return what this process has seen of a model's pictures.

    Args:
        model: the network.
        raster: the raster of its pictures.
    """
    with _records_lock:
        return _records.setdefault(model, {}).setdefault(raster, CodeRecord(raster))


def known_codes(model: Any, raster: Raster, shipped: tuple[int, ...] | None, rule: Accept) -> tuple[int, ...] | None:
    """Return the codes that a model's next pictures begin with.

    Args:
        model: the network.
        raster: the raster of its pictures.
        shipped: those that came with the model.
        rule: the accept rule: where the pictures depend on what was drafted, those that this process has seen are not used.

    Returns:
        T codes, FREE where there is none; None if none are known.
    """
    if shipped is not None and len(shipped) == raster.length:
        return shipped
    return code_record(model, raster).codes if rule.exactness == TOKEN_EXACT else None
