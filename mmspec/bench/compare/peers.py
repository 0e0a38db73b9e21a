"""The contenders of a benchmark: transformers plain, transformers assisted, mmspec plain, mmspec with the drafter."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from mmspec.loading.text import Pair
from mmspec.models.families.registry import family_of, positions_of
from mmspec.run.settings.processors import end_ids
from mmspec.text.inputs.prompt import TextPrompt

PLAIN, ASSISTED, ENGINE, DRAFTED = "transformers", "transformers assisted", "mmspec plain", "mmspec"


@dataclass(frozen=True)
class Outcome:
    """One contender on one batch: new tokens per row, target forwards and seconds. `refused` is the reason if it could not run."""

    tokens: list[list[int]]
    calls: int
    row_calls: int
    seconds: float
    phases: dict[str, float] | None = None
    refused: str | None = None

    @property
    def count(self) -> int:
        """Number of new tokens, over all rows."""
        return sum(map(len, self.tokens))


Contender = Callable[[dict[str, Any], int], Outcome]
"""(inputs, seed) -> Outcome."""


def contenders(pair: Pair, draft_tokens: int) -> dict[str, Contender]:
    """Return every contender by name. `draft_tokens` is the draft length of transformers' assisted generation."""
    found: dict[str, Contender] = {PLAIN: lambda inputs, seed: run_transformers(pair, inputs, seed, {})}
    assist = assistance(pair, draft_tokens)
    if assist is not None:
        found[ASSISTED] = lambda inputs, seed: _assisted(pair, inputs, seed, assist, draft_tokens)
    found[ENGINE] = lambda inputs, seed: run_mmspec(pair, inputs, seed, drafter=None, tree=None, accept="exact")
    if pair.drafter is not None:
        found[DRAFTED] = lambda inputs, seed: run_mmspec(pair, inputs, seed)
    return found


def assistance(pair: Pair, draft_tokens: int) -> dict[str, Any] | None:
    """Return the options of `generate` for the pair's kind of drafter; None if transformers has no such drafter."""
    if pair.model is not None:
        tokenizers = {} if pair.own_tokenizer is None else {"tokenizer": pair.tokenizer, "assistant_tokenizer": pair.own_tokenizer}
        return {"assistant_model": pair.model, **tokenizers}
    return {"prompt_lookup_num_tokens": draft_tokens} if pair.drafter_name == "lookup" else None


def run_mmspec(pair: Pair, inputs: dict[str, Any], seed: int, **changes: Any) -> Outcome:
    """Run `mmspec.text.generate` with the pair's settings; `changes` override them."""
    synchronize(pair.target.device)
    start = perf_counter()
    out = pair.generate(inputs, seed=seed, **changes)
    synchronize(pair.target.device)
    seconds = perf_counter() - start
    rows = [ids[:length].tolist() for ids, length in zip(out.sequences, out.lengths, strict=True)]
    return Outcome(rows, out.stats.target_calls, out.stats.row_calls, seconds, dict(out.stats.seconds))


def _assisted(pair: Pair, inputs: dict[str, Any], seed: int, assist: dict[str, Any], draft_tokens: int) -> Outcome:
    try:
        with constant_draft_tokens(assist.get("assistant_model"), draft_tokens):
            return run_transformers(pair, inputs, seed, assist)
    except (ValueError, NotImplementedError) as error:
        return Outcome([], 0, 0, 0.0, refused=" ".join(str(error).split()))


def run_transformers(pair: Pair, inputs: dict[str, Any], seed: int, assist: dict[str, Any]) -> Outcome:
    """Run transformers' own `generate`; `assist` holds the options of assisted generation. Forwards of its first layers are not calls."""
    calls, config = 0, pair.target.config.get_text_config()
    layers = config.num_hidden_layers
    prompt = TextPrompt.of(pair.target, family_of(pair.target), inputs)
    prompt.check_length(positions_of(pair.target), pair.config.run.max_new_tokens)  # before a forward over all of it

    def count(module: Any, args: Any, kwargs: Any) -> None:
        nonlocal calls
        calls += config.num_hidden_layers == layers  # which early exit lowers for its drafts

    handle = pair.target.register_forward_pre_hook(count, with_kwargs=True)
    try:
        torch.manual_seed(seed)
        synchronize(pair.target.device)
        start = perf_counter()
        out = pair.target.generate(**inputs, **sampling(pair), **assist)
        synchronize(pair.target.device)
        seconds = perf_counter() - start
    except RuntimeError as error:
        if "probability tensor" in str(error):  # logits divided by a temperature near 0
            raise FloatingPointError("transformers cannot draw at this temperature, its probabilities overflow: give 0, or more") from None
        raise
    finally:
        handle.remove()
    tokens = new_tokens(pair.target, inputs, out)
    return Outcome(tokens, calls, calls if len(tokens) == 1 else sum(map(len, tokens)), seconds)


def sampling(pair: Pair) -> dict[str, Any]:
    """Return the pair's settings as options of `generate`. The checkpoint's own sampling settings are not used, as in mmspec."""
    run = pair.config.run
    common: dict[str, Any] = {"max_new_tokens": run.max_new_tokens, "num_beams": 1, "repetition_penalty": run.repetition_penalty or 1.0}
    if pair.sees:  # `generate` could write placeholders of pictures, and then fail for want of the picture
        common["suppress_tokens"] = [
            *(pair.target.generation_config.suppress_tokens or ()),
            *getattr(family_of(pair.target), "never_generated_ids", ()),
        ]
    if run.temperature == 0:
        return common | {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}
    return common | {"do_sample": True, "temperature": run.temperature, "top_k": run.top_k or 0, "top_p": run.top_p or 1.0}


def new_tokens(model: Any, inputs: dict[str, Any], out: Tensor) -> list[list[int]]:
    """Return the tokens that `generate` added to each row, up to and including the end token."""
    first = 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    first = 0 if model.config.model_type == "whisper" else first  # its generate leaves the decoder's prompt out
    ends = set(end_ids(model.generation_config))
    return [_until_end(row, ends) for row in out[:, first:].tolist()]


def _until_end(ids: list[int], ends: set[int]) -> list[int]:
    for index, value in enumerate(ids):
        if value in ends:
            return ids[: index + 1]
    return ids


@contextmanager
def constant_draft_tokens(assistant: Any, draft_tokens: int) -> Iterator[None]:
    """Context in which an assistant drafts `draft_tokens` tokens every round, whatever its confidence."""
    if assistant is None:
        yield
        return
    wanted = {"num_assistant_tokens": draft_tokens, "num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}
    config = assistant.generation_config
    before = {name: getattr(config, name) for name in wanted}
    try:
        for name, value in wanted.items():
            setattr(config, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
