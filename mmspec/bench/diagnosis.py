"""Diagnosis of a drafter: acceptance by kind of token, with the wrong picture, with the target as its own drafter, and cost in seconds.

`diagnose` runs all of it for a drafter that is a transformers model. Under exact rules the output does not depend on the drafter's
pictures, so only acceptance shows whether it uses them. Rounds are counted as in `Stats`: a row's call is its share of one forward.
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
from mmspec.models.families.registry import family_of
from mmspec.models.proof.require import require
from mmspec.models.rows.merged import Merged
from mmspec.models.target import HFTarget
from mmspec.run.views import view_for
from mmspec.text.generation import generate

_WORDS = {"input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids", "cross_attention_mask"}  # of a row's words, not pictures
_TOWERS = ("vision_tower", "visual", "vision_model", "vision_encoder", "audio_tower")


# --- the wrong picture ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Swapped:
    """A view of requests with permuted pictures (or sounds): row r has those of row r + 1."""

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
                "pictures are exchanged between rows: give two requests or more with the same number of pictures, all of one size"
            )
        turned = {name: value if name in _WORDS else _turned(value, rows) for name, value in prompt.items()}
        read = self.view(turned, session)
        seen = read.get("merged")
        if isinstance(seen, Merged):
            return {**read, "merged": _turned_features(seen, marked)}
        return {name: value for name, value in read.items() if name != "merged"}  # other models encode the pictures again


def swapped(view: View) -> View:
    """Return `view` with another row's pictures; of several views, all of them."""
    return replace(view, views=tuple(map(Swapped, view.views))) if isinstance(view, Views) else Swapped(view)


def _marked(prompt: Any, session: Any) -> tuple[int, Tensor]:
    """Return the number of rows, and a mask [B, P] of positions that are not text, packed to the left."""
    family = session.target.family
    ids, mask = family.prompt(session.target.model, prompt)
    marked = torch.isin(ids, torch.tensor(getattr(family, "placeholders", ()), dtype=torch.long, device=ids.device)) & mask
    return len(ids), marked.gather(1, torch.argsort((~mask).long(), dim=1, stable=True))


def _turned(value: Any, rows: int) -> Any:
    return value.roll(-(len(value) // rows), 0) if isinstance(value, Tensor) and value.dim() and len(value) % rows == 0 else value


def _turned_features(merged: Merged, marked: Tensor) -> Merged:
    """Return picture features moved to the positions of the row before."""
    embeds = merged.embeds.clone()
    embeds[marked] = merged.embeds.roll(-1, 0)[marked.roll(-1, 0)]
    if merged.deep is None:
        return replace(merged, embeds=embeds)
    deep = merged.deep.clone()
    deep[:, marked] = merged.deep.roll(-1, 1)[:, marked.roll(-1, 0)]
    return replace(merged, embeds=embeds, deep=deep)


@dataclass(frozen=True)
class WrongPicture:
    """Requests drafted with their own picture and with another one. The outputs are the same, so calls are compared in pairs."""

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
        """p-value of the one-sided exact sign test that the wrong picture costs more calls."""
        pairs = self.more + self.fewer
        return sum(comb(pairs, k) for k in range(self.more, pairs + 1)) / 2**pairs

    def verdict(self, level: float = 0.05) -> str:
        """Return whether the drafter uses the picture.

        Args:
            level: significance level of the sign test.

        Returns:
            "sees"; "blind" if no draft token differs; "unclear" otherwise, for which more requests are needed.
        """
        return "blind" if self.changed == 0 else "sees" if self.p_value <= level else "unclear"

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data that `json.dump` can write."""
        paces = {"tokens_per_call": self.tokens / max(1, self.calls), "wrong_tokens_per_call": self.tokens / max(1, self.wrong_calls)}
        return asdict(self) | paces | {"p_value": self.p_value, "verdict": self.verdict()}


def wrong_picture(
    model: Any, inputs: Mapping[str, Tensor], drafter: Any, draft_length: int = 5, view: Any = None, **options: Any
) -> WrongPicture:
    """Draft for `inputs`, two or more requests, with each row's own picture and with the next row's. `options` are passed to `generate`.

    ValueError for drafters that are not transformers models, and for rows whose pictures cannot be exchanged.
    """
    own = view_for(view, HFTarget(model, family_of(model)), drafter)
    runs, draft_tokens, outs = (TokenKinds(), TokenKinds()), (_DraftRecorder(), _DraftRecorder()), []
    for rounds, row_drafted, read in zip(runs, draft_tokens, (own, swapped(own)), strict=True):
        note = _both(rounds, row_drafted)
        outs.append(generate(model, inputs, drafter, draft_length=draft_length, view=read, on_step=note, **options))
    if not torch.equal(outs[0].sequences, outs[1].sequences):
        raise ValueError("the outputs differ, so calls cannot be compared: use accept='exact' or 'coupled', in float32")
    right, wrong = runs
    pairs = list(zip(right.calls, wrong.calls, strict=True))
    more, fewer = sum(b > a for a, b in pairs), sum(b < a for a, b in pairs)
    changed = sum(draft_tokens[0].rows[row] != draft_tokens[1].rows[row] for row in range(len(pairs)))
    return WrongPicture(more, fewer, len(pairs) - more - fewer, changed, sum(right.said), sum(right.calls), sum(wrong.calls))


class _DraftRecorder:
    """An `on_step` callback that records each row's draft tokens. It adds one host synchronisation a round."""

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
    """Run the target as its own drafter.

    Every draft token must be accepted, so every call except a row's last commits `draft_length` + 1 tokens; otherwise pixels, positions or
    cache differ on the drafter's side. Comparing outputs cannot detect this.

    Returns:
        Counts of rows, of rows with the fewest possible calls ("whole"), and of calls; "passed" if all rows had the fewest.
    """
    rounds = TokenKinds()
    stats = generate(model, inputs, model, draft_length=draft_length, on_step=rounds, **options).stats
    fewest = [ceil(said / (draft_length + 1)) for said in rounds.said]
    whole = sum(calls == least for calls, least in zip(rounds.calls, fewest, strict=True))
    found = {"rows": len(fewest), "whole": whole, "calls": sum(rounds.calls), "fewest_calls": sum(fewest)}
    return found | {"tokens_per_call": stats.tokens_per_call, "passed": whole == len(fewest)}


# --- seconds and forwards ---------------------------------------------------------------------------------------------


def break_even(plain: Sequence[tuple[bool, float]], drafted: Sequence[tuple[bool, float]], start: float, tau: float) -> dict[str, Any]:
    """Return whether drafting pays off.

    Args:
        plain: seconds of rounds without draft tokens, as in `TokenKinds.steps`.
        drafted: seconds of rounds with draft tokens.
        start: seconds of the drafter's prefill.
        tau: tokens per call.

    Returns:
        `needed`, the tokens per call at which both cost the same; `earned_after`, the tokens per row after which the prefill is repaid.
    """
    base, rounds = [s for _, s in plain], [s for row_drafted, s in drafted if row_drafted]
    if not base or not rounds:
        return {"needed": None, "pays": None, "earned_after": None}
    needed = median(rounds) / median(base)
    pays = tau > needed
    return {"needed": needed, "pays": pays, "earned_after": start / median(base) / (1 - needed / tau) if pays else None}


@contextmanager
def counted(model: Any) -> Iterator[dict[str, int]]:
    """Context that counts the calls of `model`'s decoder ("decoder") and of its vision encoder ("tower"). Not for captured models."""
    counts, base, handles = {"decoder": 0, "tower": 0}, getattr(model, "model", model), []
    tower = next((getattr(base, name) for name in _TOWERS if getattr(base, name, None) is not None), None)

    def count(name: str) -> Callable[..., None]:
        def hook(*given: Any) -> None:
            counts[name] += 1

        return hook

    try:
        handles = [part.register_forward_hook(count(name)) for name, part in (("decoder", model), ("tower", tower)) if part is not None]
        require(model)  # its self-test, which hooks ask for, is not counted
        counts.update(decoder=0, tower=0)
        yield counts
    finally:
        for handle in handles:
            handle.remove()


def diagnose(
    model: Any, batches: Sequence[Mapping[str, Tensor]], drafter: Any, tokenizer: Any, words: Any, view: Any = None, **options: Any
) -> tuple[dict[str, Any], Kinds, Kinds]:
    """Diagnose `drafter`, a transformers model with a `view`, on `batches` of requests of equal form. Returns plain data for JSON.

    `words` are kinds as in `kinds_of_words`; `options` are passed to `generate` and must hold a fixed draft_length. The kinds by word and
    by picture gain are also returned as `Kinds`, for their tables.
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
