"""Why a drafter is or is not accepted: by kind of token, with the wrong picture, with the target as its own drafter, and in seconds.

Plain decoding's output is the same whatever a drafter sees, so equality of outputs says nothing of its eyes: acceptance does.
Rounds are counted as `Stats` counts them: a row's call is its share of one target forward.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from math import ceil, comb, log
from statistics import median
from typing import Any

import torch
from torch import Tensor

from mmspec.core.families import family_of
from mmspec.core.hf import HFTarget
from mmspec.core.multimodal import Merged
from mmspec.core.records import Step
from mmspec.drafters.ensemble import Views
from mmspec.drafters.views import View, text_alone
from mmspec.options import view_for
from mmspec.text.generation import generate

OTHER = "other"
_WORDS = {"input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids", "cross_attention_mask"}  # of a row's words, not pictures
_TOWERS = ("vision_tower", "visual", "vision_model", "vision_encoder", "audio_tower")


# --- what became of every guess ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Judged:
    """One guess that was looked at: it stood for output position `position` of its row, `depth` guesses behind the frontier."""

    row: int
    position: int
    depth: int
    accepted: bool


class Rounds:
    """An `on_step`: every judged guess of a generation, and by row how many calls it took part in and how much it has said."""

    def __init__(self):
        self.judged: list[Judged] = []
        self.calls: list[int] = []
        self.said: list[int] = []
        self.steps: list[tuple[bool, float]] = []  # was there a guess, and the round's seconds; not of rounds that ran prompts
        self.starts: float = 0.0  # seconds of encoders, prompt and the drafter's own start

    def __call__(self, step: Step) -> None:
        settled, rows = step.settled, len(step.settled.values)
        self.calls, self.said = self.calls or [0] * rows, self.said or [0] * rows
        for row, values in enumerate(settled.values):
            if not values and not settled.drafted[row]:
                continue
            accepted = settled.accepted[row]
            for depth in range(min(accepted + 1, step.draft.height, settled.drafted[row], len(values))):
                self.judged.append(Judged(row, self.said[row] + depth, depth, depth < accepted))
            self.calls[row] += 1
            self.said[row] += len(values)
        if {"prefill", "draft_prefill"} & step.seconds.keys():
            self.starts += sum(step.seconds.get(phase, 0.0) for phase in ("encode", "prefill", "draft_prefill"))
        else:
            self.steps.append((step.draft.size > step.draft.roots, step.seconds["total"]))


@dataclass
class Kinds:
    """Guesses judged and accepted, by kind of the token that the target settled where they stood, and by depth."""

    drafted: dict[str, list[int]] = field(default_factory=dict)  # [d]: guesses at depth d + 1
    accepted: dict[str, list[int]] = field(default_factory=dict)

    def add(self, judged: Sequence[Judged], kinds: Sequence[Sequence[str]]) -> None:
        """Count guesses of one generation; `kinds` are its rows' kinds, position by position."""
        for guess in judged:
            kind = kinds[guess.row][guess.position]
            for counts, by in ((self.drafted, 1), (self.accepted, int(guess.accepted))):
                line = counts.setdefault(kind, [])
                line.extend([0] * (guess.depth + 1 - len(line)))
                line[guess.depth] += by

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """By kind: judged and accepted guesses and their ratio, in all and by depth. Ready for JSON."""
        found = {}
        for kind, tried in sorted(self.drafted.items(), key=lambda each: -sum(each[1])):
            hit = self.accepted[kind]
            depths = {"drafted_by_position": tried, "accepted_by_position": hit}
            found[kind] = {"drafted": sum(tried), "accepted": sum(hit), "acceptance": sum(hit) / sum(tried), **depths}
        return found

    def table(self) -> str:
        """The same as Markdown."""
        lines = ["| kind | judged | accepted | share | by position |", "|---|---|---|---|---|"]
        for kind, row in self.to_dict().items():
            pairs = zip(row["accepted_by_position"], row["drafted_by_position"], strict=True)
            shares = " ".join(f"{hit / tried:.0%}" if tried else "-" for hit, tried in pairs)
            lines.append(f"| {kind} | {row['drafted']} | {row['accepted']} | {row['acceptance']:.0%} | {shares} |")
        return "\n".join(lines)


# --- kinds of tokens --------------------------------------------------------------------------------------------------


def kinds_of_tokens(rows: Sequence[Sequence[int]], kind: Callable[[int], str]) -> list[list[str]]:
    """Kinds of outputs, token by token."""
    return [[kind(token) for token in row] for row in rows]


def kinds_of_words(
    rows: Sequence[Sequence[int]], tokenizer: Any, kinds: Mapping[str, str] | Callable[[list[str]], Sequence[str]]
) -> list[list[str]]:
    """Kinds of outputs by the words that tokens are part of: a word list (word -> kind), or a function from an output's words to theirs.

    Words are compared in lower case. A token of no word, or of one that is not listed, is of kind "other".
    """
    return [_kinds_of_words(list(row), tokenizer, kinds) for row in rows]


def _kinds_of_words(row: list[int], tokenizer: Any, kinds: Any) -> list[str]:
    ends = [len(tokenizer.decode(row[: place + 1], skip_special_tokens=True)) for place in range(len(row))]
    words = list(re.finditer(r"\w+", tokenizer.decode(row, skip_special_tokens=True)))
    names = [word.group().lower() for word in words]
    named = [kinds.get(name, OTHER) for name in names] if isinstance(kinds, Mapping) else list(kinds(names))
    found = []
    for start, end in zip([0, *ends], ends, strict=False):
        part = [kind for word, kind in zip(words, named, strict=True) if word.start() < end and start < word.end()]
        found.append(part[-1] if part else OTHER)
    return found


@torch.no_grad()
def picture_gain(model: Any, inputs: Mapping[str, Tensor], rows: Sequence[Sequence[int]], without: View = text_alone) -> list[list[float]]:
    """By how many nats the picture raises the target's log-probability of every token of outputs `rows`.

    log p(token | picture, what was said before) - log p(token | the same `without` the picture), at temperature 1: what a token owes to
    the picture, whatever its word. `without` is the view that takes pictures away: the words alone, or `swapped(same_prompt)`.
    """
    target = HFTarget(model, family_of(model))
    session, frontier = target.begin(inputs)
    blind, bare = target.begin(without(inputs, session))
    lengths = torch.tensor([len(row) for row in rows], device=frontier.nodes.device)
    padded = [torch.tensor(list(row), dtype=torch.long, device=lengths.device) for row in rows]
    values = torch.nn.utils.rnn.pad_sequence(padded, batch_first=True)
    gains = torch.zeros(values.shape, device=lengths.device)
    for sign, one, root in ((1, session, frontier), (-1, blind, bare)):
        scored = one.score(root.extend_chain(values, lengths))
        steps = torch.arange(values.shape[1], device=lengths.device).expand(len(values), -1)
        gains += sign * scored.p.at(steps).log_prob(values).float()
    return [line[: len(row)] for line, row in zip(gains.tolist(), rows, strict=True)]


def kinds_of_gain(gains: Sequence[Sequence[float]], least: float = log(2)) -> list[list[str]]:
    """ "seen" where the picture raised a token's log-probability by `least` nats or more (by default: doubled its chance), else "told"."""
    return [["seen" if gain >= least else "told" for gain in row] for row in gains]


# --- the wrong picture ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Swapped:
    """`view` of requests whose pictures (or sounds) have changed places: row r has those of row r + 1."""

    view: View

    @property
    def late(self) -> bool:
        return getattr(self.view, "late", False)

    def __call__(self, prompt: Any, session: Any) -> Any:
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
    changed: int = 0  # requests in which any guess fared otherwise
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
        """ "sees"; "blind" where not a single guess fared otherwise; "unclear" between the two: ask with more requests."""
        return "blind" if self.changed == 0 else "sees" if self.p_value <= level else "unclear"

    def to_dict(self) -> dict[str, Any]:
        paces = {"tokens_per_call": self.tokens / max(1, self.calls), "wrong_tokens_per_call": self.tokens / max(1, self.wrong_calls)}
        return asdict(self) | paces | {"p_value": self.p_value, "verdict": self.verdict()}


def wrong_picture(
    model: Any, inputs: Mapping[str, Tensor], drafter: Any, draft_length: int = 5, view: Any = None, **options: Any
) -> WrongPicture:
    """Draft for the requests `inputs`, two or more, with each row's own picture and with the next row's. `options` go to `generate`.

    ValueError for drafters that are no transformers models, and for rows whose pictures cannot change places.
    """
    own = view_for(view, HFTarget(model, family_of(model)), drafter)
    runs, outs = (Rounds(), Rounds()), []
    for rounds, read in zip(runs, (own, swapped(own)), strict=True):
        outs.append(generate(model, inputs, drafter, draft_length=draft_length, view=read, on_step=rounds, **options))
    if not torch.equal(outs[0].sequences, outs[1].sequences):
        raise ValueError("the outputs differ, so calls cannot be compared: accept with 'exact' or 'coupled', and calculate in float32")
    right, wrong = runs
    pairs = list(zip(right.calls, wrong.calls, strict=True))
    fared = [[[g for g in run.judged if g.row == row] for run in runs] for row in range(len(pairs))]
    more, fewer = sum(b > a for a, b in pairs), sum(b < a for a, b in pairs)
    changed = sum(a != b for a, b in fared)
    return WrongPicture(more, fewer, len(pairs) - more - fewer, changed, sum(right.said), sum(right.calls), sum(wrong.calls))


def own_drafter(model: Any, inputs: Mapping[str, Tensor], draft_length: int = 5, **options: Any) -> dict[str, Any]:
    """The target as its own drafter: every guess is right and every call but a row's last settles `draft_length` + 1 tokens, or
    something on the drafter's side (pixels, positions, cache) is not as on the target's. Equality of outputs cannot see that."""
    rounds = Rounds()
    stats = generate(model, inputs, model, draft_length=draft_length, on_step=rounds, **options).stats
    fewest = [ceil(said / (draft_length + 1)) for said in rounds.said]
    whole = sum(calls == least for calls, least in zip(rounds.calls, fewest, strict=True))
    found = {"rows": len(fewest), "whole": whole, "calls": sum(rounds.calls), "fewest_calls": sum(fewest)}
    return found | {"tokens_per_call": stats.tokens_per_call, "passed": whole == len(fewest)}


# --- seconds and forwards ---------------------------------------------------------------------------------------------


def break_even(plain: Sequence[tuple[bool, float]], drafted: Sequence[tuple[bool, float]], start: float, tau: float) -> dict[str, Any]:
    """Whether drafting pays: `plain` and `drafted` rounds as in `Rounds.steps`, seconds of the drafter's `start`, tokens per call `tau`.

    `needed` tokens a call cost as much as plain rounds; `earned_after`: the tokens that a row must say to earn the start back.
    """
    base, rounds = [s for _, s in plain], [s for guessed, s in drafted if guessed]
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
