"""Pairs of models given as objects or as `module:function`, without a tokenizer: their prompts are token ids, random unless given.

pair = pair_of_models(model, drafter)
findings, stats = verify(pair, Plan(pair.examples))
"""

import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from mmspec.loading.text import Pair
from mmspec.models.families.registry import family_of
from mmspec.models.proof.probes import usable_ids
from mmspec.run.config import Config, RunSection

PROMPT_LENGTHS = (5, 11, 8, 14)


@dataclass(frozen=True)
class IdPair(Pair):
    """A pair whose prompts are tuples of ids; for speech recognisers, the seed of random features."""

    @property
    def tokenizer(self) -> Any:
        return None

    def inputs(self, prompts: Sequence[Any]) -> dict[str, Any]:
        """Return the prompts as the target takes them."""
        if self.hears:
            return {"input_features": torch.cat([_features(self.target, seed) for seed in prompts])}
        rows = [torch.tensor(tuple(prompt), dtype=torch.long) for prompt in prompts]
        longest = max(map(len, rows))
        right = self.target.config.is_encoder_decoder
        ids, mask = torch.zeros(len(rows), longest, dtype=torch.long), torch.zeros(len(rows), longest, dtype=torch.long)
        for row, prompt in enumerate(rows):
            columns = slice(0, len(prompt)) if right else slice(longest - len(prompt), longest)
            ids[row, columns], mask[row, columns] = prompt, 1
        return {"input_ids": ids.to(self.target.device), "attention_mask": mask.to(self.target.device)}

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


def pair_of_models(
    target: Any, drafter: Any = None, *, accept: Any = "exact", config: Config | None = None, prompts: Sequence[Any] | None = None
) -> IdPair:
    """Make a pair for `verify` from models that are already loaded.

    Args:
        target: a transformers model in eval mode.
        drafter: as in `mmspec.text.generate`.
        accept: as in `mmspec.text.generate`.
        config: settings of the generations; by default 24 new tokens, greedy.
        prompts: tuples of ids (seeds of random features for speech recognisers); by default four of random ids.

    Raises:
        ValueError: if mmspec cannot run the target.
    """
    family = family_of(target)
    config = Config(run=RunSection(max_new_tokens=24)) if config is None else config
    pair = IdPair(
        name=type(target).__name__,
        target=target,
        processor=None,
        drafter=drafter,
        drafter_name=drafter if isinstance(drafter, str) else type(drafter).__name__ if drafter is not None else "none",
        accept=accept,
        config=config,
        model=drafter if hasattr(drafter, "generate") else None,
        examples=tuple(prompts or ()),
    )
    if prompts:
        return pair
    if pair.hears:
        found: tuple[Any, ...] = tuple(range(len(PROMPT_LENGTHS)))
    else:
        draw, ids = torch.Generator().manual_seed(3), usable_ids(target, family)
        found = tuple(tuple(ids[torch.randint(len(ids), (length,), generator=draw)].tolist()) for length in PROMPT_LENGTHS)
    return IdPair(**{**vars(pair), "examples": found})


def called(where: str, what: str, *given: Any) -> Any:
    """Call the function `module:function` and return its result.

    The function receives as many of `given` as it has parameters. ValueError if it cannot be imported or called.
    """
    module, _, name = where.partition(":")
    if not module or not name:
        raise ValueError(f"{what} is {where!r}: give module:function, such as my_models:target")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        make = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{what} {where!r} cannot be imported: {error}") from None
    if not callable(make):
        return make
    if inspect.isbuiltin(make):
        raise ValueError(f"{what} {where!r} is a built-in function: give a function of yours that returns a model")
    takes = [p for p in inspect.signature(make).parameters.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(takes) > len(given):
        raise ValueError(f"{what} {where!r} takes {len(takes)} arguments: give a function that takes {len(given) or 'none'}")
    return make(*given[: len(takes)])


def _features(model: Any, seed: int) -> torch.Tensor:
    """Return random features [1, F, T] of one window of sound."""
    config, generator = model.config, torch.Generator().manual_seed(seed)
    frames = 2 * config.max_source_positions
    offset = 3 * torch.randn(1, config.num_mel_bins, 1, generator=generator)
    return (offset + torch.randn(1, config.num_mel_bins, frames, generator=generator)).to(model.device, model.dtype)
