"""Runs with one thing changed, whose acceptance tells what costs acceptance: the same prompts, otherwise the same settings."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from mmspec.loading.text import Pair
from mmspec.models.families.registry import positions_of
from mmspec.models.stack import numbered, stack
from mmspec.text.generation import aligned_drafter

GREEDY, TRANSLATED, IN_TEMPLATE, BARE, SHORT = "greedy", "translated", "in the chat template", "without the chat template", "short prompts"
REFERENCE, REFERENCE_DRAFTS = "full precision", "full precision as drafter"
BELOW, ABOVE = "states one layer below", "states one layer above"
MARKERS = (
    *("<|im_start|>", "[INST]", "<start_of_turn>", "<|start_header_id|>", "<|user|>", "<|User|>", "<|start_of_role|>", "<|turn>"),
    *("<|START_OF_TURN_TOKEN|>", "<|begin▁of▁sentence|>"),
)
"""Marks with which known chat templates open a turn: tokens of the models they belong to."""
_LEAST_PROMPT = 8  # tokens

Run = tuple[Pair, list[dict[str, Any]]]
"""A pair, and the batches that it generates from."""


def batches_of(pair: Pair, prompts: Sequence[Any], size: int) -> list[dict[str, Any]]:
    """Return prompts as batches of `size` rows, as the target takes them."""
    return [pair.inputs(list(prompts[first : first + size])) for first in range(0, len(prompts), size)]


def probes_of(
    pair: Pair, prompts: Sequence[Any], size: int, batches: Sequence[dict[str, Any]], reference: Any = None, drafter_tokenizer: Any = None
) -> dict[str, Run]:
    """Return the probes that apply to a pair; none has run yet.

    Args:
        pair: target, drafter and rule.
        prompts: as `Pair.inputs` takes them.
        size: rows of a batch.
        batches: the prompts in batches.
        reference: the target in full precision, if its weights are quantised.
        drafter_tokenizer: the tokenizer of a drafter model that is run without a translation of its ids.

    Returns:
        By name, a pair and the batches to run it on.
    """
    found: dict[str, Run] = {}
    given = list(batches)
    if pair.config.run.temperature > 0 and not hasattr(pair.drafter, "begin"):
        found[GREEDY] = (greedy_pair(pair), given)
    elif pair.config.run.temperature > 0 and pair.own_tokenizer is not None:
        found[GREEDY] = (_translated(greedy_pair(pair), pair.own_tokenizer), given)
    found |= {name: (replace(pair, drafter=net), given) for name, net in _shifted(pair).items()}
    if drafter_tokenizer is not None and pair.model is not None:
        try:
            found[TRANSLATED] = (_translated(pair, drafter_tokenizer), given)
        except ValueError:  # too few tokens are shared
            pass
    other = _other_template(pair, prompts)
    if other is not None:
        found[other[0]] = (other[1], batches_of(other[1], prompts, size))
    short = _short(pair, batches)
    if short is not None:
        found[SHORT] = (pair, short)
    if reference is not None:
        found[REFERENCE] = (replace(pair, target=reference), given)
        found[REFERENCE_DRAFTS] = (replace(pair, drafter=reference, model=reference, own_tokenizer=None, view=None), given)
    return found


def greedy_pair(pair: Pair) -> Pair:
    """Return the pair at temperature 0, with the exact rule."""
    run = replace(pair.config.run, temperature=0.0, top_k=None, top_p=None)
    return replace(pair, accept="exact", config=replace(pair.config, run=run))


def _translated(pair: Pair, tokenizer: Any) -> Pair:
    run = pair.config.run
    drafter = aligned_drafter(pair.target, pair.tokenizer, pair.model, tokenizer, run.temperature, pair.accept)
    return replace(pair, drafter=drafter, own_tokenizer=tokenizer)


def _shifted(pair: Pair) -> dict[str, Any]:
    """The drafter reading the target's hidden states one layer below and above; drafters that read none have no such probe."""
    net, reads = pair.drafter, getattr(pair.drafter, "reads", ())
    if not reads or not hasattr(net, "guide"):
        return {}
    layers = len(stack(pair.target))
    own, found = numbered(reads, layers), {}
    for name, shift in ((BELOW, -1), (ABOVE, 1)):
        moved = tuple(state + shift for state in own)
        if min(moved) >= 0 and max(moved) <= layers:
            found[name] = copy.copy(net)
            found[name].reads = moved
    return found


def _other_template(pair: Pair, prompts: Sequence[Any]) -> tuple[str, Pair] | None:
    """The pair with the chat template where it is not used, or without it; None for models without one and prompts already in one."""
    if pair.tokenizer is None or getattr(pair.tokenizer, "chat_template", None) is None:
        return None
    if not all(isinstance(prompt, str) for prompt in prompts):
        return None
    if pair.chat:
        return BARE, replace(pair, chat=False)
    known = pair.tokenizer.get_vocab()
    if any(mark in prompt for mark in MARKERS if mark in known for prompt in prompts):
        return None
    return IN_TEMPLATE, replace(pair, chat=True)


def foreign_markers(pair: Pair, prompts: Sequence[Any]) -> tuple[str, ...]:
    """Return the `MARKERS` that stand in the prompts and are no tokens of the target."""
    if pair.tokenizer is None:
        return ()
    known, texts = pair.tokenizer.get_vocab(), [pair.wrapped(prompt) for prompt in prompts if isinstance(prompt, str)]
    return tuple(mark for mark in MARKERS if mark not in known and any(mark in text for text in texts))


def drafter_limit(pair: Pair) -> int | None:
    """Return the positions that the drafter has; None for no limit of its own."""
    if pair.model is not None:
        return positions_of(pair.model)
    layer = getattr(pair.drafter, "llama", None)
    return getattr(layer, "max_position_embeddings", None)


def longest_request(pair: Pair, batches: Sequence[Mapping[str, Tensor]]) -> int:
    """Return the tokens of the longest prompt and its output."""
    return max(int(inputs["attention_mask"].sum(1).max()) for inputs in batches) + pair.config.run.max_new_tokens


def _short(pair: Pair, batches: Sequence[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The ends of the prompts, short enough for the drafter's positions; None where all fit, or none can."""
    limit = drafter_limit(pair)
    if limit is None or longest_request(pair, batches) <= limit:
        return None
    budget = limit - pair.config.run.max_new_tokens
    if budget < _LEAST_PROMPT or pair.target.config.is_encoder_decoder:
        return None
    return [{name: values[:, -budget:] for name, values in inputs.items()} for inputs in batches]
