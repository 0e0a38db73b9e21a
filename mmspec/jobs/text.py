"""Many prompts through one pair: the worker of text jobs, and what identifies such a job."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from mmspec.core.stats import Stats
from mmspec.loading.text import Pair

COUNTED = ("tokens", "target_calls", "row_calls", "drafted", "accepted")


@dataclass(frozen=True)
class Continue:
    """Worker that continues a record's "prompt" and adds "text" and "tokens" (ids) to the record.

    Record i draws with seed + i, so under an exact rule its output does not depend on its batch.
    """

    pair: Pair
    stops: Sequence[Any] = ()
    stats: Stats = field(default_factory=Stats)  # counts over everything that was run

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
        """Continue a batch of (index, record) and yield its records, with "text" and "tokens", in order."""
        seeds = [self.pair.config.run.seed + index for index, _ in batch]
        inputs = self.pair.inputs([record["prompt"] for _, record in batch])
        out = self.pair.generate(inputs, seed=seeds, stops=self.stops, on_step=self.stats.add)
        self.stats.exactness = out.stats.exactness
        for row, (_, record) in enumerate(batch):
            ids = out.sequences[row, : out.lengths[row]].tolist()
            yield record | {"text": self.pair.decode(ids), "tokens": ids}

    def measures(self) -> dict[str, float]:
        """Return the counts so far."""
        return {name: getattr(self.stats, name) for name in COUNTED}


def run_bulk(
    pair: Pair, records: Sequence[dict[str, Any]], batch_size: int, stats: Stats, stops: Sequence[Any] = ()
) -> Iterator[dict[str, Any]]:
    """Continue every record, in order. All prompts are checked first; ValueError names an invalid one."""
    if batch_size < 1:
        raise ValueError(f"batch size is {batch_size}: give at least 1")
    work = Continue(pair, stops, stats)
    for record in records:
        try:
            work.check(record)
        except ValueError as error:
            where = f"the prompt on line {record['line']}" if "line" in record else f"prompt {str(record.get('prompt'))[:40]!r}"
            raise ValueError(f"{where} {error}") from None
    numbered = list(enumerate(records))
    for first in range(0, len(records), batch_size):
        yield from work(numbered[first : first + batch_size])


def text_job_identity(pair: Pair) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (model, options): what the outputs of a job depend on beside the prompts. Paths and devices are left out."""
    from mmspec.jobs.engine.fingerprints import weights

    settings = pair.target.config.to_dict()
    settings = {key: value for key, value in settings.items() if key not in ("_name_or_path", "transformers_version", "dtype")}
    model = {"target": weights(pair.target), "config": _digest(settings), "tokenizer": _digest(pair.tokenizer.get_vocab())}
    if hasattr(pair.drafter, "state_dict"):
        model["drafter"] = weights(pair.drafter)
    config = pair.config
    options: dict[str, Any] = {name: asdict(getattr(config, name)) for name in ("drafter", "accept", "run")}
    if "drafter" in model:
        del options["drafter"]["path"]
    return model, options | {"dtype": config.target.dtype, "chat": pair.chat}


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()
