"""Many pictures through one model: the worker of picture jobs, and what identifies such a job."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mmspec.core.rules.base import TOKEN_EXACT
from mmspec.core.stats import Stats
from mmspec.jobs.rows import continued
from mmspec.loading.vision import Loaded
from mmspec.run.request import Request
from mmspec.serving.models.pictures import PictureModel, PictureOptions, PictureSettings
from mmspec.vision.checkpoints.vqgan import VQGANDecoder
from mmspec.vision.continuous.generation import WINDOW, check_draft_steps
from mmspec.vision.continuous.latents import Sampling
from mmspec.vision.continuous.methods import ContinuousPictures, way_of
from mmspec.vision.families.base import ImageModel
from mmspec.vision.generation import Pictures, generate
from mmspec.vision.plan import PicturePlan, guidance_of, usual_window
from mmspec.vision.quality.contact_sheets import picture_bytes

COUNTED = ("tokens", "target_calls", "row_calls", "drafted", "accepted")
_OWN = ("temperature", "top_k", "top_p", "guidance")  # options of one picture in an engine
_SHARED = ("method", "size", "couple", "init")  # of all its pictures
_PLANNED = ("window", "couple", "init", "drift_budget")  # what is read beside the method when it is chosen how to draw


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
        self.add_stats(out.stats, len(out.sequences))

    def add_stats(self, stats: Stats, pictures: int) -> None:
        """Add the counts of a number of pictures."""
        self.pictures += pictures
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
    models of codes the bytes do not depend on the batch. `rows` is the most pictures that are drawn at a time, of batches that may be
    larger; None for whole batches. `continuous` lets pictures join as others end, where model and method allow it; else, and where `rows`
    is None, batches begin and end together.
    """

    loaded: Loaded
    options: dict[str, Any]  # method, window, guidance, temperature, top_k ...
    seed: int = 0
    rows: int | None = None
    continuous: bool = True
    totals: PictureTotals = field(default_factory=PictureTotals)

    def __post_init__(self):
        if self.rows is not None and self.rows < 1:
            raise ValueError(f"batch size is {self.rows}: give at least 1")
        generate_options(self.loaded, self.options)  # what it has no use for is told before anything is drawn
        if isinstance(model := self.loaded.model, ContinuousPictures):
            method = self.options.get("method", model.method)
            check_draft_steps(model.fit(method), method, self.options.get("draft_steps"))
        else:
            self._plan(model)
            guidance_of(model, self.options.get("guidance"))

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
        seeded = [record | {"seed": record.get("seed", self.seed + index)} for index, record in batch]
        made = self._together(seeded) if self._model is None else self._joining(self._model, seeded)
        for (out, row), record in zip(made, seeded, strict=True):
            model, codes = out.model, out.tokens
            picture = model.decode_row(codes, row) if isinstance(model, ImageModel) else model.decode(codes[row : row + 1])[0]
            yield picture_bytes(picture), record

    def _together(self, records: Sequence[dict[str, Any]]) -> Iterator[tuple[Pictures, int]]:
        """Every picture as a row of a result, from batches that begin and end together."""
        size = self.rows or max(1, len(records))
        for part in (records[first : first + size] for first in range(0, len(records), size)):
            prompts, seeds = [wanted(record) for record in part], [record["seed"] for record in part]
            out = generate(self.loaded.model, prompts, seed=seeds, **generate_options(self.loaded, self.options))
            self.totals.add(out)
            yield from ((out, row) for row in range(len(part)))

    def _joining(self, model: PictureModel, records: Sequence[dict[str, Any]]) -> Iterator[tuple[Pictures, int]]:
        """Every picture as a row of a result, from one generation that pictures join and leave."""
        stats, own = Stats(exactness=model.rule.exactness), self._given(_OWN)
        works = (model.read(wanted(record), PictureOptions(record["seed"], **own)) for record in records)
        for out in continued(model, works, self.rows or 1, stats.add):
            yield out, 0
        self.totals.add_stats(stats, len(records))

    @cached_property
    def _model(self) -> PictureModel | None:
        """Target and drafter for continuous batching; None without it, and where rows cannot join a generation: see `mmspec.Engine`."""
        model, others = self.loaded.model, set(self._given(self.options)) - {*_OWN, *_SHARED, *_PLANNED}
        if self.rows is None or not self.continuous or isinstance(model, ContinuousPictures) or others:
            return None
        plan = self._plan(model)
        if plan.method.rows is not None or plan.rule.exactness != TOKEN_EXACT:
            return None
        window = self._given(["window"]).get("window", usual_window(plan.method))
        request = Request.of(draft_length=window - 1 if isinstance(window, int) else window)
        return PictureModel.of(model, request, None, PictureSettings(**self._given(_SHARED)))

    @property
    def joins(self) -> bool:
        """True if pictures join as others end. ValueError without the model that the method drafts with."""
        return self._model is not None

    def _plan(self, model: ImageModel) -> PicturePlan:
        """How a model of codes draws, without drafts. ValueError for options that the method does not read."""
        return PicturePlan.of(model, self.options.get("method"), None, **self._given(_PLANNED))

    def _given(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: value for name in names if (value := self.options.get(name)) is not None}

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
    """Return what the pictures depend on beside prompts and options: fingerprints of target, config, codebook, decoder, text encoder,
    tokenizers and grid and, where the method `drafts` with it, of the trained net; for continuous tokens also of the autoencoder and the
    chain's numbers.
    """
    from mmspec.utils.fingerprints import config_digest, rest, weights

    if isinstance(work.loaded.model, ContinuousPictures):
        return _continuous_identity(work)
    model = work.loaded.model
    found = {"target": weights(model.model), "config": config_digest(model.model.config)}
    if isinstance(decoder := getattr(model, "to_pictures", None), VQGANDecoder):
        found["decoder"] = weights(decoder)
    found["everything else"] = rest(model, model.model, model.drafter, model.assistant)
    return found | ({"drafter": weights(model.drafter)} if drafts and model.drafter is not None else {})


def _continuous_identity(work: Draw) -> dict[str, str]:
    from mmspec.utils.fingerprints import config_digest, data, rest, weights

    model: Any = work.loaded.model
    way, found = way_of(work.options["method"]), model.fit(work.options["method"])
    facts = {"target": weights(found.model), "config": config_digest(found.model.config)}
    if work.loaded.autoencoder is not None:
        facts["autoencoder"] = weights(work.loaded.autoencoder) + config_digest(work.loaded.autoencoder.config)
    if (way.accept is not None or way.form == "sets") and found.drafter is not None:
        facts["drafter"] = weights(found.drafter) + config_digest(found.drafter.config)
    facts["everything else"] = rest(found, found.model, found.drafter, work.loaded.autoencoder)
    if found.head != "mixture":
        sampling = generate_options(work.loaded, work.options)["sampling"].filled(found.model.config)
        noise_schedule = sampling.noise_schedule(work.options.get("temperature", 1.0))
        tables = [
            [f"{x:.9g}" for x in table.tolist()]
            for table in (noise_schedule.timesteps, noise_schedule.keep, noise_schedule.gain, noise_schedule.std)
        ]
        facts["sampling"] = data(tables)
    return facts
