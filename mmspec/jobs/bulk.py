"""Many prompts through one pair, batch by batch."""

from collections.abc import Iterator, Sequence
from typing import Any

from mmspec.core.stats import Stats
from mmspec.text.pairs import Pair


def run_bulk(
    pair: Pair, records: Sequence[dict[str, Any]], batch_size: int, stats: Stats, stops: Sequence[Any] = ()
) -> Iterator[dict[str, Any]]:
    """Continue every record's "prompt"; yield the record with "text" and "tokens" added, in order. `stats` counts over all of them.

    Record i draws with seed + i, so under an exact rule its output does not depend on the batch it was in. Lengths are checked
    before anything runs.
    """
    if batch_size < 1:
        raise ValueError(f"batch size is {batch_size}: give at least 1")
    _check_lengths(pair, records)
    seed = pair.config.run.seed
    for first in range(0, len(records), batch_size):
        batch = records[first : first + batch_size]
        inputs = pair.inputs([record["prompt"] for record in batch])
        out = pair.generate(inputs, seed=seed + first, stops=stops, on_step=stats.add)
        stats.exactness = out.stats.exactness
        for row, record in enumerate(batch):
            ids = out.sequences[row, : out.lengths[row]].tolist()
            yield record | {"text": pair.decode(ids), "tokens": ids}


def _check_lengths(pair: Pair, records: Sequence[dict[str, Any]]) -> None:
    from mmspec.text.families import positions_of

    limit, most = positions_of(pair.target), pair.config.run.max_new_tokens
    if limit is None or pair.target.config.is_encoder_decoder:
        return
    for record in records:
        length = len(pair.tokenizer(pair.wrapped(record["prompt"]))["input_ids"])
        if length + most > limit:
            where = f"the prompt on line {record['line']}" if "line" in record else f"prompt {record['prompt'][:40]!r}"
            raise ValueError(
                f"{where} has {length} tokens, and {most} new ones exceed the model's {limit} positions: shorten it, or ask for fewer"
            )
