"""Many pictures through one model, batch by batch: the work of a job, and what tells one job from another."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mmspec.vision.family import ImageModel
from mmspec.vision.generation import Pictures, generate
from mmspec.vision.loading import Loaded
from mmspec.vision.sheets import to_bytes

COUNTED = ("tokens", "target_calls", "row_calls", "drafted", "accepted")


@dataclass
class Totals:
    """Counts over several generations."""

    pictures: int = 0
    counts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    seconds: float = 0.0
    drift: float | None = None  # total variation spent, summed over pictures; None where nothing is spent or it was not measured
    exactness: str = ""

    def add(self, out: Pictures) -> None:
        stats = out.stats
        self.pictures += len(out.sequences)
        for name in COUNTED:
            self.counts[name] += getattr(stats, name)
        self.seconds += stats.seconds["total"]
        self.exactness = stats.exactness
        if stats.drift is not None:
            self.drift = (self.drift or 0.0) + stats.drift

    @property
    def forwards(self) -> float:
        """Target forwards a picture."""
        return self.counts["row_calls"] / max(1, self.pictures)

    @property
    def compression(self) -> float:
        """Codes and controls a forward: 1 for plain decoding."""
        return self.counts["tokens"] / max(1, self.counts["row_calls"])

    def to_dict(self) -> dict[str, Any]:
        figures = {"pictures": self.pictures, "forwards": self.forwards, "step_compression": self.compression, "seconds": self.seconds}
        return figures | {"exactness": self.exactness, "drift": self.drift} | self.counts


@dataclass(frozen=True)
class Draw:
    """A worker of `mmspec.jobs`: a picture file for each record's "prompt" (or "class"), by its "seed" or else by seed + index.

    `options` go to `mmspec.vision.generate`. Pictures are decoded one by one, so that their bytes do not depend on the batch.
    """

    loaded: Loaded
    options: dict[str, Any]  # method, window, guidance, temperature, top_k ...
    seed: int = 0
    totals: Totals = field(default_factory=Totals)

    def check(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record as it is. ValueError for no prompt, a class the model has not, or a seed that is no number."""
        prompt, seed = wanted(record), record.get("seed", 0)
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise ValueError(f"seed is {seed!r}: give a whole number, or leave it out")
        if not isinstance(prompt, int | str) or isinstance(prompt, bool) or not str(prompt).strip():
            raise ValueError('no "prompt" or "class" with something in it')
        if _by_class(self.loaded.model):
            self.loaded.model.encode([prompt], guided=False)
        elif not isinstance(prompt, str):
            raise ValueError(f"prompt {prompt!r} is not a text: give a caption")
        return record

    def __call__(self, batch: Sequence[tuple[int, dict[str, Any]]]) -> Iterator[tuple[bytes, dict[str, Any]]]:
        model = self.loaded.model
        seeds = [record.get("seed", self.seed + index) for index, record in batch]
        out = generate(model, [wanted(record) for _, record in batch], seed=seeds, **self.options)
        self.totals.add(out)
        for row, (_, record) in enumerate(batch):
            picture = out.model.decode(out.tokens[row : row + 1])[0]
            yield to_bytes(picture), record | {"seed": seeds[row]}

    def measures(self) -> dict[str, float]:
        """What was counted so far."""
        return self.totals.counts | {"pictures": self.totals.pictures, "drift": self.totals.drift or 0.0}


def wanted(record: dict[str, Any]) -> Any:
    """What a record asks for."""
    return record["class"] if record.get("class") is not None else record.get("prompt")


def _by_class(model: ImageModel) -> bool:
    return getattr(model.model.config, "condition", None) == "class"


def identity(work: Draw, drafts: bool) -> dict[str, str]:
    """What the pictures follow from beside prompts and options: fingerprints of the target, its config and codebook, of the text encoder,
    and, where the method `drafts` with it, of the trained net."""
    from mmspec.jobs.fingerprints import weights

    model = work.loaded.model
    config = {key: value for key, value in model.model.config.to_dict().items() if key not in ("_name_or_path", "transformers_version")}
    found = {"target": weights(model.model), "config": _digest(json.dumps(config, sort_keys=True, default=str).encode())}
    if model.codebook is not None:
        found["codebook"] = _digest(model.codebook.detach().float().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    if (captions := getattr(model, "captions", None)) is not None and hasattr(captions, "encoder"):
        found["captions"] = weights(captions.encoder)
    return found | ({"drafter": weights(model.drafter)} if drafts and model.drafter is not None else {})


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
