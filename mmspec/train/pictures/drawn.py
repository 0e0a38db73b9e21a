"""Pictures that an image model drew, and what drafters learn from them: the model's hidden states before every code."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.core.processors.raster import FREE
from mmspec.train.parallel import join_processes
from mmspec.train.pictures.forward import recorded_states
from mmspec.train.states.identity import checksum, claim_folder, weights_checksum
from mmspec.train.states.window import RecordedWindow
from mmspec.vision.families.base import ImageModel
from mmspec.vision.families.prompts import Prompt
from mmspec.vision.generation import generate


@dataclass(frozen=True)
class DrawnPictures:
    """Pictures that an image model drew.

    Args:
        model: the adapter, as it drew them.
        prompts: one a picture: a list, or tensors with a row for each.
        sequences: LongTensor [N, T] of codes and controls.
        guided: the prompts have unconditional counterparts, which guidance reads.
    """

    model: ImageModel
    prompts: Sequence[Any] | Mapping[str, Tensor]
    sequences: Tensor
    guided: bool

    def prompt(self, rows: Sequence[int], conditional: bool) -> Prompt:
        """Encode the prompts of some pictures.

        Args:
            rows: numbers of the pictures.
            conditional: the prompts; else their unconditional counterparts. ValueError where there are none.
        """
        if not self.guided and not conditional:
            raise ValueError("these pictures were drawn without guidance: they have no unconditional prompts")
        if isinstance(self.prompts, Mapping):
            chosen: Any = {name: tensor[list(rows)] for name, tensor in self.prompts.items()}
        else:
            chosen = [self.prompts[row] for row in rows]
        found = self.model.encode(chosen, guided=self.guided)
        if not self.guided:
            return found
        half = slice(0, len(rows)) if conditional else slice(len(rows), None)
        return replace(found, embeds=found.embeds[half], mask=found.mask[half])

    def values(self, rows: Sequence[int]) -> Tensor:
        """Return the codes and controls [R, T] of some pictures, where the model is."""
        return self.sequences[list(rows)].to(self.model.model.device)

    @property
    def free(self) -> Tensor:
        """[T] bool, the positions that hold codes: no controls are forced there."""
        return torch.tensor(self.model.raster.forced, device=self.model.model.device) == FREE

    def window(self, rows: Sequence[int], conditional: bool, states: Sequence[int] = (-1,)) -> RecordedWindow:
        """Return what a net that reads the model's states learns from some pictures: one more forward of the model over them.

        The value before the first code is the prompt's last position, which no net embeds; it and forced controls are no lessons.

        Args:
            rows: numbers of the pictures.
            conditional: with their prompts; else as guidance's unconditional rows.
            states: the hidden states that the net reads, numbered as in `mmspec.models.stack`.

        Returns:
            Windows of T values, states in float32.
        """
        values = self.values(rows)
        *reads, last = (each.float() for each in recorded_states(self.model, self.prompt(rows, conditional), values, [*states, -1]))
        ids = torch.cat([torch.zeros_like(values[:, :1]), values[:, :-1]], 1)
        own = torch.cat([self.free.new_zeros(1), self.free[:-1]]).expand(ids.shape)
        return RecordedWindow(ids, torch.cat(reads, -1), last, own)


def draw_pictures(
    model: ImageModel, prompts: Sequence[Any], folder: Path, *, batch: int = 64, guidance: float | None = None, **sampling: Any
) -> DrawnPictures:
    """Draw one picture a prompt by Jacobi decoding, as plain decoding draws them. What is in the work folder is not drawn again.

    Args:
        model: the adapter.
        prompts: one a picture.
        folder: the work folder, where the codes are kept batch by batch.
        batch: pictures drawn at once.
        guidance: the scale; None and 1 for none.
        sampling: temperature, top_k and top_p of `mmspec.vision.generate`.

    Returns:
        The pictures.

    Raises:
        ValueError: if the folder holds pictures of another model, of other prompts or settings; and for what `generate` refuses.
    """
    here, path = join_processes("auto" if model.model.device.type != "cpu" else "cpu"), folder / "drawn.pt"
    settings = {"guidance": guidance, **sampling, "positions": model.raster.length, "pictures": len(prompts)}
    identity = {"target": weights_checksum(model.model), "prompts": checksum(map(str, prompts)), **settings}
    flags = {"pictures": "--drawn", "prompts": "--prompts", "positions": "--size"} | {name: f"--{name}" for name in ("guidance", *sampling)}
    claim_folder(folder / "drawn.json", identity, "pictures drawn with", flags, here)
    with here.main_process_first():
        table = torch.load(path) if path.exists() else torch.empty(0, model.raster.length, dtype=torch.int32)
        while len(table) < len(prompts):
            first = len(table)
            some = prompts[first : first + batch]
            out = generate(model, some, method="jacobi", guidance=guidance, seed=first, **sampling)
            table = torch.cat([table, out.sequences.to("cpu", torch.int32)])
            temporary = path.with_suffix(f".tmp-{os.getpid()}")
            torch.save(table, temporary)
            os.replace(temporary, path)
            print(f"{len(table)} of {len(prompts)} pictures drawn", flush=True)
    return DrawnPictures(model, prompts, table[: len(prompts)].long(), guidance not in (None, 1))
