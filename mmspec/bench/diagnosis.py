"""Why a drafter is or is not accepted: by kind of token, with the wrong picture, with the target as its own drafter, and in seconds.

`diagnose` says it all of a drafter that is a transformers model. Plain decoding's output is the same whatever a drafter sees, so equality
of outputs says nothing of its eyes: acceptance does. Rounds are counted as `Stats` counts them: a row's call is its share of one forward.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from math import ceil, comb
from statistics import median
from typing import Any

import torch
from torch import Tensor

from mmspec.bench.kinds import Kinds, TokenKinds, kinds_of_gain, kinds_of_words, picture_gain
from mmspec.core.records import Step
from mmspec.core.stats import Stats
from mmspec.drafters.model.ensemble import Views
from mmspec.drafters.views.base import View
from mmspec.models.families.multimodal import Merged
from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget
from mmspec.run.views import view_for
from mmspec.text.generation import generate

_WORDS = {"input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids", "cross_attention_mask"}  # of a row's words, not pictures
_TOWERS = ("vision_tower", "visual", "vision_model", "vision_encoder", "audio_tower")


# --- the wrong picture ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Swapped:
    """`view` of requests whose pictures (or sounds) have changed places: row r has those of row r + 1."""

    view: View

    @property
    def late(self) -> bool:
        """True if `view` needs the target to have run the prompt."""
        return getattr(self.view, "late", False)

    def __call__(self, prompt: Any, session: Any) -> Any:
        """Return what the drafter reads of `prompt`, with the pictures of row r + 1 in row r.

        Raises:
            ValueError: for fewer than two rows, and for rows whose pictures differ in number or size.
        """
        rows, marked = _marked(prompt, session)
        if rows < 2 or len(set(marked.sum(1).tolist())) > 1:
            raise ValueError(
                "pictures change places among rows that are alike: give two requests or more whose pictures are as many and of one size"
            )
        turned = {name: value if name in _WORDS else _turned(value, rows) for name, value in prompt.items()}
        read = self.view(turned, session)
        seen = read.get("merged")
        if isinstance(seen, Merged):
            return {**read, "merged": _turned_features(seen, marked)}
        return {name: value for name, value in read.items() if name != "merged"}  # other models look again


def swapped(view: View) -> View:
    """`view`, with another row's pictures; of several views, all of them."""
    return replace(view, views=tuple(map(Swapped, view.views))) if isinstance(view, Views) else Swapped(view)


def _marked(prompt: Any, session: Any) -> tuple[int, Tensor]:
    """How many rows there are, and where in each stands what is not words [B, P], packed to the left."""
    family = session.target.family
    ids, mask = family.prompt(session.target.model, prompt)
    marked = torch.isin(ids, torch.tensor(getattr(family, "placeholders", ()), dtype=torch.long, device=ids.device)) & mask
    return len(ids), marked.gather(1, torch.argsort((~mask).long(), dim=1, stable=True))


def _turned(value: Any, rows: int) -> Any:
    return value.roll(-(len(value) // rows), 0) if isinstance(value, Tensor) and value.dim() and len(value) % rows == 0 else value


def _turned_features(merged: Merged, marked: Tensor) -> Merged:
    """What has been seen, in the places of the row before."""
    embeds = merged.embeds.clone()
    embeds[marked] = merged.embeds.roll(-1, 0)[marked.roll(-1, 0)]
    if merged.deep is None:
        return replace(merged, embeds=embeds)
    deep = merged.deep.clone()
    deep[:, marked] = merged.deep.roll(-1, 1)[:, marked.roll(-1, 0)]
    return replace(merged, embeds=embeds, deep=deep)


@dataclass(frozen=True)
class WrongPicture:
    """Requests drafted for with their own picture and with another's; the outputs are the same, so their calls are compared in pairs."""

    more: int = 0  # requests that took more calls with the wrong picture
    fewer: int = 0
    same: int = 0
    changed: int = 0  # requests for which anything else was drafted
    tokens: int = 0
    calls: int = 0
    wrong_calls: int = 0

    def __add__(self, other: "WrongPicture") -> "WrongPicture":
        return WrongPicture(*(a + b for a, b in zip(asdict(self).values(), asdict(other).values(), strict=True)))

    @property
    def p_value(self) -> float:
        """The chance of as many requests getting dearer, or more, if either way were as likely: the exact sign test, one-sided."""
        pairs = self.more + self.fewer
        return sum(comb(pairs, k) for k in range(self.more, pairs + 1)) / 2**pairs

    def verdict(self, level: float = 0.05) -> str:
        """Does it see? "sees"; "blind" where not a single draft token is another; "unclear" between the two: ask with more requests."""
        return "blind" if self.changed == 0 else "sees" if self.p_value <= level else "unclear"

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data that `json.dump` can write."""
        paces = {"tokens_per_call": self.tokens / max(1, self.calls), "wrong_tokens_per_call": self.tokens / max(1, self.wrong_calls)}
        return asdict(self) | paces | {"p_value": self.p_value, "verdict": self.verdict()}


def wrong_picture(
    model: Any, inputs: Mapping[str, Tensor], drafter: Any, draft_length: int = 5, view: Any = None, **options: Any
) -> WrongPicture:
    """Draft for the requests `inputs`, two or more, with each row's own picture and with the next row's. `options` go to `generate`.

    ValueError for drafters that are no transformers models, and for rows whose pictures cannot change places.
    """
    own = view_for(view, HFTarget(model, family_of(model)), drafter)
    runs, draft_tokens, outs = (TokenKinds(), TokenKinds()), (_Guesses(), _Guesses()), []
    for rounds, row_drafted, read in zip(runs, draft_tokens, (own, swapped(own)), strict=True):
        note = _both(rounds, row_drafted)
        outs.append(generate(model, inputs, drafter, draft_length=draft_length, view=read, on_step=note, **options))
    if not torch.equal(outs[0].sequences, outs[1].sequences):
        raise ValueError("the outputs differ, so calls cannot be compared: accept with 'exact' or 'coupled', and calculate in float32")
    right, wrong = runs
    pairs = list(zip(right.calls, wrong.calls, strict=True))
    more, fewer = sum(b > a for a, b in pairs), sum(b < a for a, b in pairs)
    changed = sum(draft_tokens[0].rows[row] != draft_tokens[1].rows[row] for row in range(len(pairs)))
    return WrongPicture(more, fewer, len(pairs) - more - fewer, changed, sum(right.said), sum(right.calls), sum(wrong.calls))


class _Guesses:
    """An `on_step`: what was drafted for each row, round by round. It waits for the device once more."""

    def __init__(self):
        self.rows: dict[int, list[Any]] = defaultdict(list)

    def __call__(self, step: Step) -> None:
        row_drafted = torch.where(step.draft.valid, step.draft.nodes, -1)[:, step.draft.roots :].tolist()
        for row, drafted in enumerate(step.committed.drafted):
            if drafted:
                self.rows[row].append(row_drafted[row])


def _both(*notes: Callable[[Step], None]) -> Callable[[Step], None]:
    def note(step: Step) -> None:
        for each in notes:
            each(step)

    return note


def own_drafter(model: Any, inputs: Mapping[str, Tensor], draft_length: int = 5, **options: Any) -> dict[str, Any]:
    """The target as its own drafter: every draft token is right and every call but a row's last commits `draft_length` + 1 tokens, or
    something on the drafter's side (pixels, positions, cache) is not as on the target's. Equality of outputs cannot see that."""
    rounds = TokenKinds()
    stats = generate(model, inputs, model, draft_length=draft_length, on_step=rounds, **options).stats
    fewest = [ceil(said / (draft_length + 1)) for said in rounds.said]
    whole = sum(calls == least for calls, least in zip(rounds.calls, fewest, strict=True))
    found = {"rows": len(fewest), "whole": whole, "calls": sum(rounds.calls), "fewest_calls": sum(fewest)}
    return found | {"tokens_per_call": stats.tokens_per_call, "passed": whole == len(fewest)}


# --- seconds and forwards ---------------------------------------------------------------------------------------------


def break_even(plain: Sequence[tuple[bool, float]], drafted: Sequence[tuple[bool, float]], start: float, tau: float) -> dict[str, Any]:
    """Whether drafting pays: `plain` and `drafted` rounds as in `TokenKinds.steps`, seconds of the drafter's `start`, tokens per call
    `tau`.

    `needed` tokens a call cost as much as plain rounds; `earned_after`: the tokens that a row must say to earn the start back.
    """
    base, rounds = [s for _, s in plain], [s for row_drafted, s in drafted if row_drafted]
    if not base or not rounds:
        return {"needed": None, "pays": None, "earned_after": None}
    needed = median(rounds) / median(base)
    pays = tau > needed
    return {"needed": needed, "pays": pays, "earned_after": start / median(base) / (1 - needed / tau) if pays else None}


@contextmanager
def counted(model: Any) -> Iterator[dict[str, int]]:
    """Inside, how often `model`'s decoder runs ("decoder") and what looks at its pictures ("tower"). Not for captured models."""
    counts, base, handles = {"decoder": 0, "tower": 0}, getattr(model, "model", model), []
    tower = next((getattr(base, name) for name in _TOWERS if getattr(base, name, None) is not None), None)

    def count(name: str) -> Callable[..., None]:
        def hook(*given: Any) -> None:
            counts[name] += 1

        return hook

    try:
        handles = [part.register_forward_hook(count(name)) for name, part in (("decoder", model), ("tower", tower)) if part is not None]
        yield counts
    finally:
        for handle in handles:
            handle.remove()


def diagnose(
    model: Any, batches: Sequence[Mapping[str, Tensor]], drafter: Any, tokenizer: Any, words: Any, view: Any = None, **options: Any
) -> tuple[dict[str, Any], Kinds, Kinds]:
    """Everything about `drafter`, a transformers model with a `view`, over `batches` of requests that are alike: ready for JSON.

    `words` are kinds as `kinds_of_words` takes them; `options`, a fixed draft_length among them, go to `generate`. The kinds of
    words, and of what was seen and what was not, also come as they are, for their tables.
    """
    stats, words_found, vision, wrong = Stats(), Kinds(), Kinds(), WrongPicture()
    plain: list[tuple[bool, float]] = []
    drafted: list[tuple[bool, float]] = []
    runs = {"decoder": 0, "tower": 0}
    for inputs in batches:
        base, rounds = TokenKinds(), TokenKinds()
        generate(model, inputs, on_step=base, **{**options, "draft_length": 0})
        with counted(drafter) as found:
            out = generate(model, inputs, drafter, view=view, on_step=_both(stats.add, rounds), **options)
        rows = [ids[:size].tolist() for ids, size in zip(out.sequences, out.lengths, strict=True)]
        words_found.add(rounds.judged, kinds_of_words(rows, tokenizer, words))
        vision.add(rounds.judged, kinds_of_gain(picture_gain(model, inputs, rows)))
        wrong += wrong_picture(model, inputs, drafter, view=view, **options)
        plain, drafted = [*plain, *base.steps], [*drafted, *rounds.steps]
        runs, stats.exactness = {name: runs[name] + found[name] for name in runs}, out.stats.exactness
    calls = {"drafter_calls": runs["decoder"], "drafter_tower_runs": runs["tower"]}
    kinds = {"by_word": words_found.to_dict(), "by_sight": vision.to_dict(), "wrong_picture": wrong.to_dict()}
    paying = break_even(plain, drafted, stats.seconds["draft_prefill"] / len(batches), stats.tokens_per_call)
    return {**stats.to_dict(), **calls, **kinds, "break_even": paying}, words_found, vision
