"""The cases of a self-test: what is run on a twin and on the model itself, the tolerances, and the messages of failures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from mmspec.models.alterations import Alteration
from mmspec.models.columns import EXACT, REPEATED, REPEATED_ROUGHLY, ROUGHEST, dependence, difference
from mmspec.models.compat import execution_device
from mmspec.models.families.registry import family_of, positions_of
from mmspec.models.proof.facts import edges, has_experts, has_plain_reference
from mmspec.models.proof.probes import ACROSS, CHAIN, SHORT, TREE, TREE_ACROSS, Probe, ProbeRound
from mmspec.models.proof.twin import twin_of

_FACTOR, _ROUGH = 4, 0.05  # in lower precision: four times the model's own rounding and a little
_ROUGHEST_FLOAT32 = 0.01
_SHORT, _LONG = (2, 4, 3), (3, 15, 9)
"""Lengths of a twin's prompts: within its window, and where drafts cross it and the rope switch."""
_TRIES = 4  # of a case, where arithmetic is coarse
_WIDEST = 512  # a model without a twin is probed across its own window up to here
_LARGE = 1_000_000_000  # parameters; of a larger model on a CPU only repeated forwards are compared, if its twin is right


class NoTwin(Exception):
    """No small model like the user's could be built; the message gives the reason."""


class Failed(Exception):
    """A case that failed; the message describes it. `trees_only` if chains are right; `place` is the module at fault, if one was found."""

    def __init__(self, line: str, trees_only: bool = False, place: str = ""):
        super().__init__(line)
        self.trees_only, self.place = trees_only, place


@dataclass(frozen=True)
class Case:
    """Rows of a probe's prompts and the rounds run on them. `kind`: chain, batch, window, tree or tree window."""

    kind: str
    where: str  # in words
    rows: tuple[int, ...]
    rounds: tuple[ProbeRound, ...]

    @property
    def trees(self) -> bool:
        """True if drafts branch."""
        return self.kind.startswith("tree")


def twin_cases(model: Any, long: bool, trees: bool) -> list[Case]:
    """The cases for a twin of `model`; `long` if it has enough positions to cross its window."""
    across = _across(model)
    short, late = (0, 1, 2), (3, 4, 5)
    found = [Case("chain", "a chain", (row,), CHAIN) for row in (0, 3)]
    found.append(Case("batch", "a batch of unequal prompts", short, CHAIN))
    if long:
        found.append(Case("window", f"a chain{across}", late[1:2], ACROSS))
        found.append(Case("window", f"a batch of unequal prompts{across}", late, ACROSS))
    if trees:
        found += [Case("tree", "a branching draft", (1,), TREE), Case("tree", "branching drafts in a batch", short, TREE)]
    if trees and long:
        found.append(Case("tree window", f"branching drafts{across}", late, TREE_ACROSS))
    return found


def check_twin(model: Any) -> str | None:
    """Run every case on a small random twin of `model`.

    Returns:
        None if all pass; the reason if there is no twin.

    Raises:
        Failed: where logits differ.
    """
    try:
        cases, found = twin_probe(model)
    except NoTwin as error:
        return str(error)
    cases.check_causal()
    for case in found:
        cases.run(case)
    return None


def twin_probe(model: Any) -> tuple["Cases", list[Case]]:
    """A probe of a small random twin of `model`, and its cases. NoTwin, with the reason, if none can be built."""
    try:
        twin = twin_of(model)
        family = family_of(twin)
        probe = Probe(twin, family, _SHORT + _LONG, whole=True)
        for row in range(len(_SHORT + _LONG)):
            probe.forward(row, probe.prompts[row])
    except Exception as error:  # what a constructor or a forward raises where sizes do not fit together
        raise NoTwin(f"no small model like it could be built ({_line(error)})") from None
    cases = Cases(model, probe, lambda rows: EXACT)
    limit = positions_of(twin)
    long = limit is None or limit >= max(_LONG) + 16
    if long:
        probe.whole = cases.steady(4, (9, 14, 20, 28))
    return cases, twin_cases(model, long, getattr(family, "trees", True))


def check_itself(model: Any, family: Any, twinless: str | None, altered: Sequence[Alteration] = ()) -> tuple[int | None, str]:
    """Run the short cases on the model itself; without a twin (`twinless` is the reason) across its window, too, if that is affordable.

    A model that is `altered` is not what its twin is, so that its columns are compared with each other as well.

    Returns:
        The positions up to which it is proven, None for all, and the reason.

    Raises:
        Failed: where logits differ, are random or hold NaN.
    """
    probe = check_repeats(model, family)
    coarse = any(each.arithmetic for each in altered)
    if altered:
        check_columns(model, probe, coarse)
    large = execution_device(model).type == "cpu" and sum(p.numel() for p in model.parameters()) > _LARGE
    if large and twinless is None:
        return None, ""
    if twinless is None and not has_plain_reference(model, family):
        return None, ""
    cases = Cases(model, probe, allowance(model, probe), coarse)
    if twinless is not None or altered:
        cases.check_causal()
    trees = getattr(family, "trees", True)
    separate = own_cases(trees)
    try:
        cases.run(separate[-1])  # all at once, if trees may be drafted
    except Failed:
        for case in separate:
            cases.run(case)
        raise
    return (None, "") if twinless is None else _itself_across(model, family, twinless)


def own_cases(trees: bool) -> list[Case]:
    """The short cases for the model itself."""
    found = [Case("chain", "a chain", (0,), CHAIN), Case("batch", "a batch of unequal prompts", (0, 1), CHAIN)]
    return [*found, Case("tree", "branching drafts in a batch", (0, 1), SHORT)] if trees else found


def check_columns(model: Any, probe: Probe, coarse: bool) -> None:
    """Failed if a column of a forward depends on others. `coarse` if the model's arithmetic may round as that of int8 does."""
    exact, name = model.dtype is torch.float32, type(model).__name__
    equal = REPEATED if exact else _ROUGH if has_experts(model) else REPEATED_ROUGHLY  # experts get as many columns as choose them
    allowed = ROUGHEST if coarse else EXACT if exact else allowance(model, probe)((1,))
    found = dependence(probe, equal, allowed, coarse or not exact)
    if found is not None:
        raise Failed(found.line(name), place=found.place)


def check_repeats(model: Any, family: Any) -> Probe:
    """Check that two identical forwards have finite and equal logits. Returns the probe, for further cases.

    Raises:
        Failed: where they do not, or where the model has no plain forward of text alone.
    """
    name = type(model).__name__
    try:
        probe = Probe(model, family, (3, 6, 3), whole=True)
        first, second = (probe.forward(1, probe.prompts[1]) for _ in range(2))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise Failed(f"{name}: its self-test could not run, as a plain forward of text stopped with {_line(error)}") from None
    if first.isnan().any() or (first == torch.inf).any():
        raise Failed(f"{name}: the logits of its own forward hold NaN or infinity, so check its weights and dtype")
    away, allowed = difference(second, first), REPEATED if model.dtype is torch.float32 else REPEATED_ROUGHLY
    if away > allowed:
        raise Failed(
            f"{name}: two identical forwards differ by {away:.2g} of the logits' spread (allowed {allowed:g}), because {_random(model)}"
        )
    return probe


class Cases:
    """Runs cases of one probe and raises `Failed`.

    Where arithmetic is `coarse`, as that of int8, last bits may move single nodes by much, so that the median of a case's nodes counts, and
    the best of some tries.
    """

    def __init__(self, model: Any, probe: Probe, allowed: Callable[[tuple[int, ...]], float], coarse: bool = False):
        self.name, self.probe, self.coarse = type(model).__name__, probe, coarse
        self.allowed = (lambda rows: ROUGHEST) if coarse else allowed

    def run(self, case: Case) -> float:
        """The largest difference found. Failed if it is more than allowed."""
        try:
            away = self._error(case)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise Failed(f"{self.name}: scoring {case.where} stopped with {_line(error)}", case.trees) from None
        if away > EXACT and away > (allowed := self.allowed(case.rows)):
            how = "hold NaN or infinity" if away == float("inf") else f"differ by {away:.2g} of their spread (allowed {allowed:g})"
            raise Failed(f"{self.name}: logits in {case.where} {how} against the model's own forward", case.trees)
        return away

    def _error(self, case: Case) -> float:
        if not self.coarse:
            return self.probe.error(case.rows, case.rounds)
        away = float("inf")
        for _ in range(_TRIES):
            away = min(away, median(self.probe.errors(case.rows, case.rounds)))
            if away <= self.allowed(case.rows):
                break
        return away

    def check_causal(self, after: int = 5) -> None:
        """Failed if a token's logits depend on what follows it."""
        row = max(range(len(self.probe.prompts)), key=lambda row: len(self.probe.prompts[row]))
        path = self.probe.prompts[row]
        logits = self.probe.forward(row, path)
        lengths = range(1, after + 1) if self.coarse else (after,)
        away = median(difference(logits[n - 1], self.probe.forward(row, path[:n])[-1]) for n in lengths)
        if away > self.allowed((row,)):
            raise Failed(
                f"{self.name}: the logits after a token change by {away:.2g} of their spread when tokens follow it, so it is not causal"
            )

    def steady(self, row: int, lengths: tuple[int, ...]) -> bool:
        """True if logits do not change when later tokens extend the path to `lengths` positions, as they do where rope factors change."""
        path = (self.probe.prompts[row] * 3)[: lengths[-1]]
        logits = self.probe.forward(row, path)
        return all(difference(logits[n - 1], self.probe.forward(row, path[:n])[-1]) <= self.allowed((row,)) for n in lengths[:-1])


def allowance(model: Any, probe: Probe) -> Callable[[tuple[int, ...]], float]:
    """The tolerance for the model itself: in lower precision, from the difference of plain cached decoding of each row alone."""
    least, most = (0.0, _ROUGHEST_FLOAT32) if model.dtype is torch.float32 else (_ROUGH, ROUGHEST)

    def allowed(rows: tuple[int, ...]) -> float:
        own = max(probe.control(row) for row in rows)
        return max(EXACT, min(_FACTOR * own + least, most))

    return allowed


def _itself_across(model: Any, family: Any, twinless: str) -> tuple[int | None, str]:
    """Test a model without a twin across its own window, or give the positions up to which it is proven."""
    near = min(edges(model).values(), default=None)
    if near is None:
        return None, ""
    note = f"{type(model).__name__} is not tested across{_across(model).removeprefix(' across')}, as {twinless}"
    size = sum(p.numel() for p in model.parameters())
    limit = positions_of(model)
    if near > _WIDEST or near * size > 2e9 or near < 5 or (limit is not None and limit < near + 16):
        return near, note
    probe = Probe(model, family, (max(2, near // 3), near - 2, near - 4), whole=False)
    cases = Cases(model, probe, allowance(model, probe))
    cases.run(Case("window", f"a batch of unequal prompts{_across(model)}", (0, 1, 2), ACROSS))
    if getattr(family, "trees", True):
        cases.run(Case("tree window", f"branching drafts{_across(model)}", (0, 1, 2), TREE_ACROSS))
    return None, ""


def _across(model: Any) -> str:
    found = edges(model)
    return f" across its {' and '.join(found)}" if found else " over more positions"


def _random(model: Any) -> str:
    """Why two forwards may differ: modules in training mode, if there are any."""
    training = [name or type(module).__name__ for name, module in model.named_modules() if module.training]
    if not training:
        return "something in its forward is random (noise, or dropout outside a module)"
    return f"{training[-1]} is in training mode, where dropout is active: call model.eval()"


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
