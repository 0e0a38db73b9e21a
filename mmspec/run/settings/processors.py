"""Constraints of a generation config as mmspec's processors, and stop strings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers.generation import logits_process as known

from mmspec.core.processors import pipeline as native
from mmspec.core.processors.history import Processor
from mmspec.core.processors.sequence import NoRepeatNGram, SequenceBias, biases_of
from mmspec.utils.strict import strict


@strict
@dataclass(frozen=True)
class StopStrings:
    """Stopping criterion: ends a row once its text contains one of `strings`. The token that completes the string is kept.

    Args:
        strings: the strings, none of them empty.
        decode: maps a list of ids to text.

    Raises:
        ValueError: for no strings, or an empty one.
    """

    strings: tuple[str, ...]
    decode: Callable[[list[int]], str]

    def __post_init__(self):
        if not self.strings or not all(self.strings):
            raise ValueError(f"stop strings are {self.strings!r}: give at least one, none of them empty")

    def __call__(self, row: int, committed: list[int]) -> bool:
        """Tell whether one of the strings occurs at the end of a row.

        Args:
            row: number of the row; not read.
            committed: ids that the row has committed so far.

        Returns:
            True if the row should end.
        """
        tail = self.decode(committed[-(max(map(len, self.strings)) + 4) :])
        return any(string in tail for string in self.strings)


def constraints(config: Any, prompt: int, max_new_tokens: int, never_generated_ids: Sequence[int] = ()) -> tuple[Processor, ...]:
    """Return the processors of a generation config that apply whatever the sampling: bans, forced ids, minimum length.

    Args:
        config: the generation config.
        prompt: length of the prompt.
        max_new_tokens: largest number of new tokens.
        never_generated_ids: ids that the model's family reads but never writes.
    """
    found: list[Processor] = [native.Suppress(tuple(never_generated_ids))] if never_generated_ids else []
    ends = end_ids(config)
    if config.no_repeat_ngram_size:
        found.append(NoRepeatNGram(config.no_repeat_ngram_size))
    if config.bad_words_ids:
        found.append(SequenceBias(biases_of(known.NoBadWordsLogitsProcessor(config.bad_words_ids, ends).sequence_bias)))
    if config.min_length and ends:
        found.append(native.SuppressAt(tuple(ends), 0, config.min_length - prompt))
    if config.min_new_tokens and ends:
        found.append(native.SuppressAt(tuple(ends), 0, config.min_new_tokens))
    if config.forced_bos_token_id is not None:
        found.append(native.ForceAt((config.forced_bos_token_id,), 1 - prompt))
    if config.forced_eos_token_id is not None:
        forced = config.forced_eos_token_id
        found.append(native.ForceAt(tuple(forced) if isinstance(forced, list) else (forced,), max_new_tokens - 1))
    if config.suppress_tokens:
        found.append(native.Suppress(tuple(config.suppress_tokens)))
    if config.begin_suppress_tokens:
        first = 0 if prompt > 1 or config.forced_bos_token_id is None else 1  # a forced first token comes before
        found.append(native.SuppressAt(tuple(config.begin_suppress_tokens), first, first + 1))
    return tuple(found)


def end_ids(config: Any) -> list[int]:
    """Return the end-of-sequence ids of a generation config."""
    ends = config.eos_token_id
    return [] if ends is None else list(ends) if isinstance(ends, (list, tuple)) else [ends]
