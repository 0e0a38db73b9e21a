"""Checks of a target's logits: repeated forwards, and sessions with drafts, batches, windows and trees against plain forwards.

Comparing logits finds faults that tokens may not show, such as a wrong mask that rarely changes the argmax, or noise of 1 %.
"""

import random
from typing import Any

import torch

from mmspec.bench.check.findings import CAUSES, Finding
from mmspec.models.alterations import alterations
from mmspec.models.columns import COLUMNS
from mmspec.models.families.registry import family_of
from mmspec.models.proof.cases import Case, Cases, Failed, NoTwin, allowance, check_columns, check_repeats, own_cases, twin_probe
from mmspec.models.proof.facts import has_plain_reference, tested
from mmspec.models.proof.probes import Probe, ProbeRound

STEPS = 4
RANDOM = 3
"""Random cases: prompts and drafts of random lengths."""


@torch.no_grad()
def check_model(model: Any, seed: int = 0) -> list[Finding]:
    """Run every check of the logits of `model`, a transformers model. The model is not changed.

    Args:
        model: the target.
        seed: seed of the random cases.

    Returns:
        One finding a check. Attention settings are tested on a small random model with the same settings, whose attention window is short
        enough to be crossed.
    """
    family = family_of(model)
    with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
        try:
            probe = check_repeats(model, family)
        except Failed as failure:
            kind = "nan" if "NaN" in str(failure) else "repeat" if "identical" in str(failure) else ""
            return [Finding("logits: two forwards are equal and finite", False, 2, str(failure), kind)]
        found = [Finding("logits: two forwards are equal and finite", True, 2, "the same twice")]
        trees = getattr(family, "trees", True)
        altered = tuple(alterations(model))
        coarse = any(each.arithmetic for each in altered)
        if altered:
            found.append(_columns(model, probe, coarse))
        if tested(model) and not has_plain_reference(model, family):
            note = "its prompts are read in both directions, which the test suite covers: plain forwards of single tokens are no reference"
            return [*found, Finding("logits: later tokens change nothing", True, 0, note)]
        own = Cases(model, probe, allowance(model, probe), coarse)
        causal = _causal(own, "logits")
        if not (causal.passed or altered):  # for the module at fault
            found.append(_columns(model, probe, coarse))
        found += [causal, *(_finding(own, case, "logits") for case in own_cases(trees))]
        try:
            twin, cases = twin_probe(model)
        except NoTwin as error:
            return [*found, Finding("logits of a small random model like it", True, 0, str(error))]
        where = "logits of a small random model like it"
        found += [_causal(twin, where), *(_finding(twin, case, where) for case in cases)]
        late = any(case.kind == "window" for case in cases)
        return [*found, *(_finding(twin, case, where) for case in random_cases(seed, trees) if late)]


def random_cases(seed: int, trees: bool) -> list[Case]:
    """Score drafts of random lengths and forms, and keep random parts of them, on prompts that cross a probe's attention window."""
    draw, found = random.Random(seed), []
    for number in range(RANDOM):
        branching = trees and number == RANDOM - 1
        rounds = tuple(_random_round(draw, branching) for _ in range(3))
        rows = tuple(draw.sample((0, 3, 4, 5), 3))
        found.append(Case("tree window" if branching else "window", f"random {'trees' if branching else 'draft lengths'}", rows, rounds))
    return found


def _random_round(draw: random.Random, branching: bool) -> ProbeRound:
    count = draw.randint(1, 5)
    parents = tuple(draw.randint(max(0, column - 2), column) if branching else column for column in range(count))
    keep = []
    for _ in range(3):
        path, column = [], draw.randint(0, count)
        while column > 0:
            path.append(column)
            column = parents[column - 1]
        keep.append(tuple(reversed(path)))
    return ProbeRound(parents, tuple(keep))


def _finding(cases: Cases, case: Case, where: str) -> Finding:
    name, compared = f"{where}: {case.where}", len(case.rows) * len(case.rounds)
    try:
        away = cases.run(case)
    except Failed as failure:
        return Finding(name, False, compared, str(failure), case.kind)
    return Finding(name, True, compared, f"within {away:.2g} of their spread", case.kind)


def _columns(model: Any, probe: Probe, coarse: bool) -> Finding:
    name = "logits: the columns of a forward change nothing in each other"
    try:
        check_columns(model, probe, coarse)
    except Failed as failure:
        return Finding(name, False, COLUMNS, str(failure), "columns", f"{failure.place}: {CAUSES['columns']}" if failure.place else "")
    return Finding(name, True, COLUMNS, "the same with other later tokens, with other rows, and one by one", "columns")


def _causal(cases: Cases, where: str) -> Finding:
    name = f"{where}: later tokens change nothing"
    try:
        cases.check_causal()
    except Failed as failure:
        return Finding(name, False, 2, str(failure), "causal")
    return Finding(name, True, 2, "the same with and without them", "causal")
