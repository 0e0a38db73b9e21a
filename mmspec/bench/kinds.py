"""Acceptance of draft tokens by kind of the token that the target committed at their position.

Kinds come from words (a list, or a function of an output's words), from tokens, or from the target: by how much the picture raises a
token's log-probability.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any

import torch
from torch import Tensor

from mmspec.core.records import Step
from mmspec.drafters.views.base import View, text_alone
from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget

OTHER = "other"


# --- what became of every draft token ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JudgedToken:
    """One judged draft token: for output position `position` of its row, `depth` draft tokens behind the pending token."""

    row: int
    position: int
    depth: int
    accepted: bool


class TokenKinds:
    """An `on_step` callback that records every judged draft token, and each row's calls and committed tokens."""

    def __init__(self):
        self.judged: list[JudgedToken] = []
        self.calls: list[int] = []
        self.said: list[int] = []
        self.steps: list[tuple[bool, float]] = []  # was there a draft token, and the round's seconds; not of rounds that ran prompts

    def __call__(self, step: Step) -> None:
        """Count one round."""
        committed, rows = step.committed, len(step.committed.values)
        self.calls, self.said = self.calls or [0] * rows, self.said or [0] * rows
        for row, values in enumerate(committed.values):
            if not values and not committed.drafted[row]:
                continue
            accepted = committed.accepted[row]
            for depth in range(min(accepted + 1, step.draft.height, committed.drafted[row], len(values))):
                self.judged.append(JudgedToken(row, self.said[row] + depth, depth, depth < accepted))
            self.calls[row] += 1
            self.said[row] += len(values)
        drafted = step.draft.size > step.draft.roots
        if "prefill" not in step.seconds and not (drafted and "draft_prefill" in step.seconds):
            self.steps.append((drafted, step.seconds["total"]))


@dataclass
class Kinds:
    """Judged and accepted draft tokens, by kind of the committed token and by depth."""

    drafted: dict[str, list[int]] = field(default_factory=dict)  # [d]: draft tokens at depth d + 1
    accepted: dict[str, list[int]] = field(default_factory=dict)

    def add(self, judged: Sequence[JudgedToken], kinds: Sequence[Sequence[str]]) -> None:
        """Add the draft tokens of one generation; `kinds` holds each row's kinds by position."""
        for draft_token in judged:
            kind = kinds[draft_token.row][draft_token.position]
            for counts, by in ((self.drafted, 1), (self.accepted, int(draft_token.accepted))):
                line = counts.setdefault(kind, [])
                line.extend([0] * (draft_token.depth + 1 - len(line)))
                line[draft_token.depth] += by

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return by kind: judged and accepted draft tokens and their ratio, in total and by depth. Ready for JSON."""
        found = {}
        for kind, tried in sorted(self.drafted.items(), key=lambda each: -sum(each[1])):
            hit = self.accepted[kind]
            depths = {"drafted_by_position": tried, "accepted_by_position": hit}
            found[kind] = {"drafted": sum(tried), "accepted": sum(hit), "acceptance": sum(hit) / sum(tried), **depths}
        return found

    def table(self) -> str:
        """Return the same as Markdown."""
        lines = ["| kind | judged | accepted | share | by position |", "|---|---|---|---|---|"]
        for kind, row in self.to_dict().items():
            pairs = zip(row["accepted_by_position"], row["drafted_by_position"], strict=True)
            shares = " ".join(f"{hit / tried:.0%}" if tried else "-" for hit, tried in pairs)
            lines.append(f"| {kind} | {row['drafted']} | {row['accepted']} | {row['acceptance']:.0%} | {shares} |")
        return "\n".join(lines)


# --- kinds of tokens --------------------------------------------------------------------------------------------------


def kinds_of_tokens(rows: Sequence[Sequence[int]], kind: Callable[[int], str]) -> list[list[str]]:
    """Return the kinds of outputs, token by token."""
    return [[kind(token) for token in row] for row in rows]


def kinds_of_words(
    rows: Sequence[Sequence[int]], tokenizer: Any, kinds: Mapping[str, str] | Callable[[list[str]], Sequence[str]]
) -> list[list[str]]:
    """Return the kinds of outputs by the words that tokens are part of.

    `kinds` is a mapping from words to kinds, or a function from an output's words to their kinds. Words are compared in lower case. A token
    that belongs to no known word is of kind "other".
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
    """Return by how many nats the picture raises the target's log-probability of every token of outputs `rows`.

    That is log p(token | picture, text before) - log p(token | `without` the picture, text before), at temperature 1. `without` is a view
    that
    removes or replaces pictures: the text alone, or `swapped(same_prompt)`.
    """
    target = HFTarget(model, family_of(model))
    session, pending = target.begin(inputs)
    blind, bare = target.begin(without(inputs, session))
    lengths = torch.tensor([len(row) for row in rows], device=pending.nodes.device)
    padded = [torch.tensor(list(row), dtype=torch.long, device=lengths.device) for row in rows]
    values = torch.nn.utils.rnn.pad_sequence(padded, batch_first=True)
    gains = torch.zeros(values.shape, device=lengths.device)
    for sign, one, root in ((1, session, pending), (-1, blind, bare)):
        scored = one.score(root.extend_chain(values, lengths))
        steps = torch.arange(values.shape[1], device=lengths.device).expand(len(values), -1)
        gains += sign * scored.p.at(steps).log_prob(values).float()
    return [line[: len(row)] for line, row in zip(gains.tolist(), rows, strict=True)]


def kinds_of_gain(gains: Sequence[Sequence[float]], least: float = log(2)) -> list[list[str]]:
    """Return kinds of tokens: "seen" where the picture raised the log-probability by at least `least` nats, else "told"."""
    return [["seen" if gain >= least else "told" for gain in row] for row in gains]
