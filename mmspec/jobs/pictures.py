"""Many pictures through one model: the worker of picture jobs, and what identifies such a job."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mmspec.loading.vision import Loaded
from mmspec.vision.checkpoints.vqgan import VQGANDecoder
from mmspec.vision.continuous.generation import WINDOW, check_draft_steps
from mmspec.vision.continuous.latents import Sampling
from mmspec.vision.continuous.methods import ContinuousPictures, way_of
from mmspec.vision.families.base import ImageModel
from mmspec.vision.generation import Pictures, generate
from mmspec.vision.quality.contact_sheets import picture_bytes

COUNTED = ("tokens", "target_calls", "row_calls", "drafted", "accepted")


@dataclass
class PictureTotals:
    """Counts over several generations."""

    pictures: int = 0
    counts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    seconds: float = 0.0
    drift: float | None = None  # total variation spent, summed over pictures; None where nothing is spent or it was not measured
    exactness: str = ""

    def add(self, out: Pictures) -> None:
        """Add the counts of one generation."""
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
        """Codes and controls, or vectors, a forward; 1 for plain decoding."""
        return self.counts["tokens"] / max(1, self.counts["row_calls"])

    def to_dict(self) -> dict[str, Any]:
        """Return the totals as plain data."""
        figures = {"pictures": self.pictures, "forwards": self.forwards, "step_compression": self.compression, "seconds": self.seconds}
        return figures | {"exactness": self.exactness, "drift": self.drift} | self.counts


@dataclass(frozen=True)
class Draw:
    """Worker that writes a picture file for each record's "prompt" (or "class"), with its "seed" or else seed + index.

    `options` go to `mmspec.vision.generate` (`head_steps` and `sigma_out` as its `sampling`). Pictures are decoded one by one, so that for
    models of codes the bytes do not depend on the batch.
    """

    loaded: Loaded
    options: dict[str, Any]  # method, window, guidance, temperature, top_k ...
    seed: int = 0
    totals: PictureTotals = field(default_factory=PictureTotals)

    def __post_init__(self):
        generate_options(self.loaded, self.options)  # what it has no use for is told before anything is drawn
        if isinstance(model := self.loaded.model, ContinuousPictures):
            method = self.options.get("method", model.method)
            check_draft_steps(model.fit(method), method, self.options.get("draft_steps"))

    def check(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return the record. ValueError for a missing prompt, an unknown class, or an invalid seed."""
        prompt, seed = wanted(record), record.get("seed", 0)
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise ValueError(f"seed is {seed!r}: give a whole number, or leave it out")
        if not isinstance(prompt, int | str) or isinstance(prompt, bool) or not str(prompt).strip():
            raise ValueError('no "prompt" or "class" with something in it')
        if isinstance(model := self.loaded.model, ContinuousPictures):
            model.classes([prompt])
        elif _by_class(model):
            model.encode([prompt], guided=False)
        elif not isinstance(prompt, str):
            raise ValueError(f"prompt {prompt!r} is not text: give a caption")
        return record

    def __call__(self, batch: Sequence[tuple[int, dict[str, Any]]]) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Draw a batch of (index, record) and yield the bytes of each picture with its record."""
        model = self.loaded.model
        seeds = [record.get("seed", self.seed + index) for index, record in batch]
        out = generate(model, [wanted(record) for _, record in batch], seed=seeds, **generate_options(self.loaded, self.options))
        self.totals.add(out)
        for row, (_, record) in enumerate(batch):
            made = out.model
            picture = made.decode_row(out.tokens, row) if isinstance(made, ImageModel) else made.decode(out.tokens[row : row + 1])[0]
            yield picture_bytes(picture), record | {"seed": seeds[row]}

    def measures(self) -> dict[str, float]:
        """Return the counts so far."""
        return self.totals.counts | {"pictures": self.totals.pictures, "drift": self.totals.drift or 0.0}


def wanted(record: dict[str, Any]) -> Any:
    """Return the prompt or class of a record."""
    return record["class"] if record.get("class") is not None else record.get("prompt")


def _by_class(model: ImageModel) -> bool:
    return getattr(model.model.config, "condition", None) == "class"


def generate_options(loaded: Loaded, options: dict[str, Any]) -> dict[str, Any]:
    """Return `options` as `generate` takes them, with settings of a head's chain in a `Sampling`. ValueError for those where the model has
    codes.
    """
    rest = {name: value for name, value in options.items() if name not in ("head_steps", "sigma_out")}
    if not isinstance(loaded.model, ContinuousPictures):
        if said := [name for name in ("head_steps", "sigma_out", "draft_steps") if options.get(name) is not None]:
            raise ValueError(f"{said[0]} is for continuous tokens, and {loaded.name} writes codes: leave it out, or take continuous")
        return rest
    return rest | {"sampling": Sampling(options.get("head_steps"), options.get("sigma_out"))}


def drawn_by(loaded: Loaded, method: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the head that `method` uses, its steps and noise, and the tokens in flight; nothing for models of codes."""
    if not isinstance(loaded.model, ContinuousPictures):
        return {}
    found = loaded.model.fit(method)
    window = 1 if method in ("plain", "chain") else options.get("window", WINDOW)
    if found.head == "mixture":
        return {"head": found.head, "window": window}
    chain = Sampling(options.get("head_steps"), options.get("sigma_out")).filled(found.model.config)
    return {"head": found.head, "head_steps": chain.steps, "sigma_out": chain.sigma_out, "window": window}


def picture_job_identity(work: Draw, drafts: bool) -> dict[str, str]:
    """Return what the pictures depend on beside prompts and options: fingerprints of target, config, codebook and text encoder and, where
    the method `drafts` with it, of the trained net; for continuous tokens also of the autoencoder and the chain's numbers.
    """
    from mmspec.jobs.engine.fingerprints import weights

    if isinstance(work.loaded.model, ContinuousPictures):
        return _continuous_identity(work)
    model = work.loaded.model
    found = {"target": weights(model.model), "config": _config(model.model)}
    if model.codebook is not None:
        found["codebook"] = _digest(model.codebook.detach().float().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    if isinstance(decoder := getattr(model, "to_pictures", None), VQGANDecoder):
        found["decoder"] = weights(decoder)
    if (captions := getattr(model, "captions", None)) is not None and hasattr(captions, "encoder"):
        found["captions"] = weights(captions.encoder)
    return found | ({"drafter": weights(model.drafter)} if drafts and model.drafter is not None else {})


def _continuous_identity(work: Draw) -> dict[str, str]:
    from mmspec.jobs.engine.fingerprints import weights

    model: Any = work.loaded.model
    way, found = way_of(work.options["method"]), model.fit(work.options["method"])
    facts = {"target": weights(found.model), "config": _config(found.model)}
    if work.loaded.autoencoder is not None:
        facts["autoencoder"] = weights(work.loaded.autoencoder) + _config(work.loaded.autoencoder)
    if (way.accept is not None or way.form == "sets") and found.drafter is not None:
        facts["drafter"] = weights(found.drafter) + _config(found.drafter)
    if found.head != "mixture":
        sampling = generate_options(work.loaded, work.options)["sampling"].filled(found.model.config)
        noise_schedule = sampling.noise_schedule(work.options.get("temperature", 1.0))
        tables = [
            [f"{x:.9g}" for x in table.tolist()]
            for table in (noise_schedule.timesteps, noise_schedule.keep, noise_schedule.gain, noise_schedule.std)
        ]
        facts["sampling"] = _digest(json.dumps(tables).encode())
    return facts


def _config(model: Any) -> str:
    """A fingerprint of a model's config, without what hangs on where and by what it was stored."""
    config = model.config.to_dict() if hasattr(model.config, "to_dict") else dict(model.config)
    kept = {key: value for key, value in config.items() if key not in ("_name_or_path", "transformers_version", "_diffusers_version")}
    return _digest(json.dumps(kept, sort_keys=True, default=str).encode())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
