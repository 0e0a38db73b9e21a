"""Checks of any `mmspec.core.protocols.Target`: output must not depend on scripted drafts that are partly right."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.bench.check.findings import Finding, with_causes
from mmspec.core.control import Fixed
from mmspec.core.decode import generate
from mmspec.core.noise import Noise
from mmspec.core.records import Budget, Draft
from mmspec.core.rules.base import Accept
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.none import NoDraft

LENGTH, RIGHT = 4, 0.7
"""Draft tokens a round, and how many of them are what plain decoding gives."""


@dataclass(frozen=True)
class Scripted:
    """A drafter that knows a row's output and gets some tokens wrong; as a tree, a wrong sibling precedes every right token."""

    rows: Sequence[Sequence[int]]
    size: int
    tree: bool = False

    def begin(self, prompt: Any, session: Any) -> "Scripted":
        return self

    def propose(self, pending: Draft, budget: Budget, noise: Noise) -> Draft:
        if budget.length == 0:
            return pending
        steps, generator = torch.arange(budget.length), torch.Generator().manual_seed(int(pending.start.sum()))
        known = torch.zeros(len(self.rows), budget.length, dtype=torch.long)
        for row, (ids, start) in enumerate(zip(self.rows, pending.start.tolist(), strict=True)):
            left = torch.tensor(list(ids[start : start + budget.length]), dtype=torch.long)
            known[row, : len(left)] = left
        wrong = (known + 1 + torch.randint(self.size - 1, known.shape, generator=generator)) % self.size
        known, wrong = known.to(pending.nodes.device), wrong.to(pending.nodes.device)
        if not self.tree:
            right = (torch.rand(known.shape, generator=generator) < RIGHT).to(known.device)
            return pending.extend_chain(torch.where(right, known, wrong), budget.draft_tokens)
        nodes = torch.stack([wrong, known], -1).flatten(1)
        above = torch.where(steps == 0, pending.roots - 1, pending.roots - 1 + 2 * steps).repeat_interleave(2)
        fits = steps.repeat_interleave(2).to(nodes.device) < budget.draft_tokens[:, None]
        parents = torch.where(fits, above.to(nodes.device), -2)
        return pending.extend(nodes, parents, width=2, levels=budget.length)

    def observe(self, *outcome: Any) -> None:
        """Ignore the outcome: the script is fixed."""
        pass


@torch.no_grad()
def check_target(
    target: Any, prompts: Sequence[Any], drafter: Any = None, *, seeds: Sequence[int] = (0, 1), max_new_tokens: int = 24
) -> list[Finding]:
    """Check a `Target` of your own.

    Args:
        target: a `Target` whose distributions are `Categorical`.
        prompts: prompts for its `begin`, of one or several rows each.
        drafter: a `Drafter` to check besides scripted drafts; None for scripted drafts only.
        seeds: seeds of coupled sampling.
        max_new_tokens: of every row.

    Returns:
        Findings: two forwards agree and are finite; greedy and coupled output does not change with scripted chains and trees, or with
        `drafter`.
    """
    found = [_repeats(target, prompts[0])]
    if not found[0].passed:
        return with_causes(found)
    size = target.begin(prompts[0])
    size = size[0].score(size[1]).p.scores.shape[-1]
    for seed in (None, *seeds):
        plain = [_tokens(target, prompt, NoDraft(), 0, seed, max_new_tokens) for prompt in prompts]
        how = "greedy" if seed is None else f"coupled, seed {seed}"
        for tree in (False, True):
            own = [
                _tokens(target, p, Scripted(rows, size, tree), LENGTH, seed, max_new_tokens) for p, rows in zip(prompts, plain, strict=True)
            ]
            name = f"{how}, scripted {'trees' if tree else 'chains'}: as plain decoding"
            found.append(_same(name, own, plain, "tree" if tree else "chain"))
        if drafter is not None:
            own = [_tokens(target, prompt, drafter, LENGTH, seed, max_new_tokens) for prompt in prompts]
            found.append(_same(f"{how}, with the drafter: as plain decoding", own, plain, "tokens"))
    return with_causes(found)


def _repeats(target: Any, prompt: Any) -> Finding:
    first, second = (_scores(target, prompt) for _ in range(2))
    name = "scores: two forwards are equal and finite"
    if not bool((first < torch.inf).all()):
        return Finding(name, False, 2, "they hold NaN or infinity", "nan")
    away = (first - second).nan_to_num(0.0).abs().max().item()
    return Finding(name, away < 1e-4, 2, f"they differ by {away:.2g}" if away else "the same twice", "repeat")


def _scores(target: Any, prompt: Any) -> Tensor:
    session, pending = target.begin(prompt)
    return session.score(pending).p.scores.float()


def _tokens(target: Any, prompt: Any, drafter: Any, length: int, seed: int | None, most: int) -> list[list[int]]:
    _, pending = target.begin(prompt)
    rows, device = len(pending.nodes), pending.nodes.device
    rule: Accept = Greedy() if seed is None else Coupled()
    stopping, noise = DefaultStopping(rows, most, [], [], device), Noise.from_seed(seed or 0, rows, device)
    out = generate(target, drafter, rule, prompt, stopping=stopping, noise=noise, control=Fixed(length))
    return [ids[:count].tolist() for ids, count in zip(out.sequences, out.lengths, strict=True)]


def _same(name: str, own: list[Any], plain: list[Any], kind: str) -> Finding:
    same, count = sum(a == b for a, b in zip(own, plain, strict=True)), len(own)
    return Finding(name, same == count, count, f"{same} of {count} identical", kind)
