"""Hidden states of a target over text it wrote, recorded once on disk and read window by window in training."""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from mmspec.core.stack import numbered, stack, tapped
from mmspec.train.lessons import Window

_IN_MEMORY = 4 << 30  # bytes; larger recordings are memory-mapped


@dataclass(frozen=True)
class Recorded:
    """A recording: ids, whether the target wrote them, and hidden states in half precision."""

    ids: Any  # [N, W] int32
    own: Any  # [N, W] bool
    hidden: Any  # [N, W, F + H] the states asked for, then the last
    width: int  # F

    def __len__(self) -> int:
        return len(self.ids)

    def window(self, rows: Sequence[int], device: torch.device | str = "cpu") -> Window:
        """Windows `rows`, in float32 on `device`."""
        hidden = torch.from_numpy(np.asarray(self.hidden[rows], dtype=np.float32)).to(device)
        ids, own = (torch.from_numpy(np.asarray(x[rows])).to(device) for x in (self.ids, self.own))
        return Window(ids.long(), hidden[..., : self.width], hidden[..., self.width :], own)

    def draw(self, turn: int, rows: int, first: int = 0, device: torch.device | str = "cpu") -> Window:
        """`rows` windows from number `first` on, a function of `turn` alone so that a resumed run sees the same ones."""
        generator = torch.Generator().manual_seed(turn)
        chosen = torch.randint(first, len(self), (rows,), generator=generator)
        return self.window(chosen.sort().values.tolist(), device)


@torch.no_grad()
def record(target: Any, ids: Tensor, own: Tensor, states: Sequence[int], folder: Path, rows: int = 16) -> Recorded:
    """Run `target` over windows `ids` [N, W] and keep hidden states `states` and the last; `own` [N, W] bool marks its own text.

    The folder appears whole or not at all; a recording of the same states that is already there is read instead.
    """
    layers = len(stack(target))
    wanted = [*numbered(states, layers), layers]
    if not folder.exists():
        temporary = folder.with_name(folder.name + ".tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        np.save(temporary / "ids.npy", ids.to(torch.int32).numpy())
        np.save(temporary / "own.npy", own.numpy())
        hidden: Any = None
        for first in track(range(0, len(ids), rows), "record"):
            batch = ids[first : first + rows].to(target.device)
            with tapped(target, wanted) as found:
                target(batch, logits_to_keep=1)
            out = torch.cat([found[state] for state in wanted], -1).to(torch.float16).cpu().numpy()
            if hidden is None:
                shape = (len(ids), *out.shape[1:])
                hidden = np.lib.format.open_memmap(temporary / "hidden.npy", mode="w+", dtype=np.float16, shape=shape)
            hidden[first : first + rows] = out
        hidden.flush()
        (temporary / "states.json").write_text(json.dumps(wanted), encoding="utf-8")
        os.replace(temporary, folder)
    return read(folder, wanted)


def read(folder: Path, wanted: Sequence[int]) -> Recorded:
    """The recording in `folder`. ValueError when it holds other states than `wanted`."""
    found = json.loads((folder / "states.json").read_text(encoding="utf-8"))
    if list(found) != list(wanted):
        raise ValueError(f"{folder} holds hidden states {found}, but {list(wanted)} are needed: delete it or choose another folder")
    mode = "r" if (folder / "hidden.npy").stat().st_size > _IN_MEMORY else None
    ids, own, hidden = (np.load(folder / f"{name}.npy", mmap_mode=mode) for name in ("ids", "own", "hidden"))
    return Recorded(ids, own, hidden, hidden.shape[-1] // len(found) * (len(found) - 1))
