"""Many prompts through one pair: the worker of text jobs, and what identifies such a job."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mmspec.core.stats import Stats
from mmspec.jobs.rows import continued
from mmspec.loading.text import Pair
from mmspec.run.request import Request
from mmspec.serving.models.text import TextModel, TextOptions, TextWork

COUNTED = ("tokens", "target_calls", "row_calls", "drafted", "accepted")


@dataclass(frozen=True)
class Continue:
    """Worker that continues a record's "prompt" and adds "text", "tokens" (ids) and "finish_reason" to the record.

    Record i draws with seed + i, so under an exact rule its output does not depend on its batch.

    Args:
        pair: target, drafter and settings.
        stops: stop functions, as in `mmspec.text.generate`.
        stats: counts over everything that was run.
        rows: most records that run at a time, of batches that may be larger; None for whole batches.
        continuous: let records join as others end, where the pair allows it; else, and where `rows` is None, batches begin and end
            together.
    """

    pair: Pair
    stops: Sequence[Any] = ()
    stats: Stats = field(default_factory=Stats)
    rows: int | None = None
    continuous: bool = True

    def check(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return the record. ValueError for a missing prompt, or one too long for the model."""
        prompt = record.get("prompt")
        if not isinstance(prompt, str) or not prompt.strip():
            raise ValueError('no "prompt" with text in it')
        if self._limit is not None:
            length, most = len(self.pair.tokenizer(self.pair.wrapped(prompt))["input_ids"]), self.pair.config.run.max_new_tokens
            if length + most > self._limit:
                raise ValueError(
                    f"has {length} tokens, and {most} new ones exceed the model's {self._limit} positions: shorten it, or ask for fewer"
                )
        return record

    @cached_property
    def _limit(self) -> int | None:
        from mmspec.models.families.registry import positions_of

        return None if self.pair.target.config.is_encoder_decoder else positions_of(self.pair.target)

    def __call__(self, batch: Sequence[tuple[int, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
        """Continue a batch of (index, record) and yield its records, with "text", "tokens" and "finish_reason", in order."""
        model = None if self.rows is None or not self.continuous else self._model
        found = self._together(batch) if model is None else self._joining(model, batch)
        for (_, record), (ids, reason) in zip(batch, found, strict=True):
            yield record | {"text": self.pair.decode(ids), "tokens": ids, "finish_reason": reason}

    @cached_property
    def _model(self) -> TextModel | None:
        return joinable_model(self.pair)

    def _together(self, batch: Sequence[tuple[int, dict[str, Any]]]) -> Iterator[tuple[list[int], str | None]]:
        """The tokens of every record and why they ended, from batches that begin and end together."""
        size = self.rows or max(1, len(batch))
        for part in (batch[first : first + size] for first in range(0, len(batch), size)):
            seeds = [self.pair.config.run.seed + index for index, _ in part]
            inputs = self.pair.inputs([record["prompt"] for _, record in part])
            out = self.pair.generate(inputs, seed=seeds, stops=self.stops, on_step=self.stats.add)
            self.stats.exactness = out.stats.exactness
            yield from ((out.sequences[row, : out.lengths[row]].tolist(), out.finish_reasons[row]) for row in range(len(part)))

    def _joining(self, model: TextModel, batch: Sequence[tuple[int, dict[str, Any]]]) -> Iterator[tuple[list[int], str | None]]:
        """The tokens of every record and why they ended, from one generation that records join and leave."""
        run = self.pair.config.run
        settings = (run.temperature, run.top_k, run.top_p, run.repetition_penalty)
        self.stats.exactness = model.rule.exactness

        def works() -> Iterator[TextWork]:
            for index, record in batch:
                options = TextOptions(run.max_new_tokens, run.seed + index, *settings, stops=self.stops)
                yield model.read(self.pair.inputs([record["prompt"]]), options)

        for out in continued(model, works(), self.rows or 1, self.stats.add):
            yield out.tokens[0].tolist(), out.finish_reasons[0]

    def measures(self) -> dict[str, float]:
        """Return the counts so far."""
        return {name: getattr(self.stats, name) for name in COUNTED}


def joinable_model(pair: Pair) -> TextModel | None:
    """Return target and drafter of a pair for continuous batching.

    Args:
        pair: the pair.

    Returns:
        The model; None for pairs whose rows cannot join a running generation: see `mmspec.Engine`.
    """
    section, run = pair.config.drafter, pair.config.run
    accept = "greedy" if pair.accept == "exact" and run.temperature == 0 else pair.accept
    try:
        given = {"draft_length": section.length, "tree": pair.tree, "stop_below": pair.stop_below, "view": pair.view}
        return TextModel.of(pair.target, Request.of(drafter=pair.drafter, accept=accept, **given), None)
    except ValueError:
        return None


def run_bulk(
    pair: Pair, records: Sequence[dict[str, Any]], batch_size: int, stats: Stats, stops: Sequence[Any] = ()
) -> Iterator[dict[str, Any]]:
    """Continue every record, in order. All prompts are checked first; ValueError names an invalid one."""
    if batch_size < 1:
        raise ValueError(f"batch size is {batch_size}: give at least 1")
    work = Continue(pair, stops, stats, rows=batch_size)
    for record in records:
        try:
            work.check(record)
        except ValueError as error:
            where = f"the prompt on line {record['line']}" if "line" in record else f"prompt {str(record.get('prompt'))[:40]!r}"
            raise ValueError(f"{where} {error}") from None
    yield from work(list(enumerate(records)))


def text_job_identity(pair: Pair) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (model, options): what the outputs of a job depend on beside the prompts. Paths and devices are left out."""
    from mmspec.utils import fingerprints

    target = pair.target
    model = {"target": fingerprints.weights(target), "config": fingerprints.config_digest(target.config)}
    model |= {"generation config": fingerprints.config_digest(target.generation_config), "tokenizer": fingerprints.reader(pair.processor)}
    config = pair.config
    options: dict[str, Any] = {name: asdict(getattr(config, name)) for name in ("drafter", "accept", "run")}
    if hasattr(pair.drafter, "state_dict"):
        model["drafter"] = fingerprints.weights(pair.drafter)
    elif config.drafter.path is not None and Path(config.drafter.path).is_file():  # a datastore, pools, counts
        model["drafter"] = fingerprints.file(config.drafter.path)
    if "drafter" in model:
        del options["drafter"]["path"]
    if isinstance(tree := config.drafter.tree, str) and Path(tree).is_file():
        options["drafter"]["tree"] = fingerprints.file(tree)
    return model, options | {"dtype": config.target.dtype, "chat": pair.chat}
