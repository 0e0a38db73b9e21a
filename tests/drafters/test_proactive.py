"""Trees right behind the pending token: their form, their distributions round by round, and the distribution of whole runs."""

from itertools import pairwise

import pytest
import torch

from mmspec.core.control import Fixed
from mmspec.core.decode import decode
from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.processors.raster import Raster
from mmspec.core.records import validate
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.match import Match
from mmspec.core.rules.sibling_rules import without_replacement_rule
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.jacobi.couplers import fresh, gumbel, maximal, target_noise
from mmspec.drafters.jacobi.initialisers import carried, uniform, up_left
from mmspec.drafters.jacobi.proactive import Proactive, ProactiveSession
from mmspec.drafters.none import NoDraft
from tests.drafters.rasters import OPEN, PICTURE, WORLDS, Rows, outputs, p_value, tables
from tests.oracles.statistics import FAIL, PASS
from tests.oracles.tables import Table, TableTarget, loop_distribution

COUPLE = pytest.mark.parametrize("couple", [fresh, maximal, gumbel], ids=["fresh", "maximal", "gumbel"])
INIT = pytest.mark.parametrize("init", [uniform, up_left, carried], ids=lambda init: init.name)


def proactive(raster, couple, init, size: int, width: int, depth: int) -> Proactive:
    return Proactive(raster, couple, init, size, torch.float64, width, depth)


@COUPLE
@INIT
@pytest.mark.parametrize(("size", "depth"), [(4, 2), (8, 3)])
def test_whole_runs_have_the_targets_distribution(couple, init, size, depth):
    target = TableTarget(Table.random(2, 5, seed=5))
    drafter = proactive(PICTURE, couple, init, size, 2, depth)
    found = loop_distribution(target, drafter, without_replacement_rule(), most=4, length=drafter.levels)
    assert (found - target.table.joint(4)).abs().max() < 1e-9


@COUPLE
@pytest.mark.parametrize("world", WORLDS)
def test_rows_of_unequal_speed_keep_each_its_distribution(world, couple):
    target, raster, end = WORLDS[world]
    for drafter in (proactive(raster, couple, up_left, 9, 2, 3), proactive(raster, couple, uniform, 5, 3, 2)):
        assert p_value(target, drafter, without_replacement_rule(), drafter.levels + 1, rows=4000, end=end) > PASS


@pytest.mark.parametrize(("couple", "rule"), [(target_noise, Coupled()), (maximal, Match())], ids=["coupled", "match"])
def test_sampling_is_plain_sampling(couple, rule):
    for target, raster, end in WORLDS.values():
        ends = () if end is None else (end,)
        plain = outputs(target, NoDraft(), Match(), 4, 1, ends=ends)
        assert torch.equal(outputs(target, proactive(raster, couple, uniform, 9, 2, 3), rule, 4, 9, ends=ends), plain)


def test_a_row_is_the_same_alone_and_in_any_batch():
    for target, raster, _ in list(WORLDS.values())[:3]:
        drafter = proactive(raster, maximal, up_left, 9, 2, 3)
        runs = [outputs(target, drafter, without_replacement_rule(), rows, 9) for rows in (1, 2, 4)]
        assert torch.equal(runs[2][:2], runs[1])
        assert torch.equal(runs[2][:1], runs[0])


def steps_of(target, drafter: Proactive, rows: int, most: int):
    stopping, noise = DefaultStopping(rows, most), Noise.from_seed(1, rows)
    steps = list(decode(target, drafter, without_replacement_rule(), rows, stopping=stopping, noise=noise, control=Fixed(drafter.levels)))
    return steps, stopping.outputs


@COUPLE
def test_next_distributions_follow_the_best_known_context(couple):
    """A plain reading of the tree: first children below the last kept node while there are any, then the first path."""
    rows, most = 80, 8
    table = tables(5, length=9)
    drafter = proactive(Raster.grid(4, 2, 3), couple, uniform, 9, 2, 3)
    steps, texts = steps_of(Rows(table), drafter, rows, most)
    off_path = 0
    for before, after in pairwise(steps):
        draft = before.draft
        for row in range(rows):
            if not after.draft.valid[row, 0]:
                continue
            code, level = [1 + row % 2], [0]
            for value in texts[row][: int(draft.start[row])]:
                code[0] = code[0] * 3 + value
            parents, nodes = draft.parents[row].tolist(), draft.nodes[row].tolist()
            children = {column: [c for c in range(draft.size) if parents[c] == column] for column in range(draft.size)}
            for column in range(1, draft.size):
                code.append(code[max(parents[column], 0)] * 3 + nodes[column])
                level.append(level[max(parents[column], 0)] + 1)
            spine = [0]
            while children[spine[-1]]:
                spine.append(children[spine[-1]][0])
            kept = max(before.verdict.keep[row].tolist())
            path, accepted = [kept], level[kept]
            while children[path[-1]]:
                path.append(children[path[-1]][0])
            context = spine[: accepted + 1] + path[1:] + spine[accepted + len(path) :]  # by level; only those below `accepted` matter
            off_path += kept not in spine and len(path) > 1
            q, levels = after.draft.q.probs()[row], _levels(after.draft, row)
            for column, at in levels.items():
                if accepted + at < len(context):
                    assert torch.allclose(q[column - 1], table.probs[code[context[accepted + at]]])
                else:
                    assert torch.allclose(q[column - 1], torch.full((3,), 1 / 3, dtype=torch.float64))
    assert off_path > 5


def _levels(draft, row: int) -> dict[int, int]:
    """The level of every draft token of a row, by column."""
    found = {0: 0}
    for column, parent in enumerate(draft.parents[row].tolist()):
        if column and parent >= 0:
            found[column] = found[parent] + 1
    return {column: level for column, level in found.items() if column}


def test_the_form_of_a_draft():
    drafter = proactive(Raster.grid(4, 4, 3), maximal, uniform, 17, 3, 3)
    steps, _ = steps_of(Rows(tables(1, length=9)), drafter, 4, 9)
    for step in steps:
        draft = step.draft
        validate(draft)
        assert draft.size == 17
        for row in range(4):
            parents, nodes = draft.parents[row].tolist(), draft.nodes[row].tolist()
            found: dict[int, list[int]] = {}
            for column in range(1, draft.size):
                if parents[column] >= 0:
                    found.setdefault(parents[column], []).append(nodes[column])
            for values in found.values():
                assert len(set(values)) == len(values)
            assert found.get(1) == found.get(2) == found.get(3)  # a level's nodes share their candidates
    full = steps[0].draft
    assert [full.parents[0].tolist().count(parent) for parent in range(6)] == [3, 3, 3, 3, 1, 0]


def test_sizes_are_checked():
    assert Proactive(OPEN, window=64).levels == 2 + 43
    assert Proactive(OPEN, window=21).tree == 21
    with pytest.raises(ValueError, match="a tree of width 4 and depth 3 has 21 nodes"):
        Proactive(OPEN, window=20)
    with pytest.raises(ValueError, match="at least 1"):
        Proactive(OPEN, width=0)


class FromTheResidual(ProactiveSession):
    """Published: siblings drawn from the residual of the coupling, judged as if drawn from p."""

    def _candidates(self, pending, noise, values, distribution, full):
        before = None if self.seen is None else self.seen.before(torch.arange(values.shape[1]))
        if before is not None:
            kept = before.there & (values == before.values)
            rest = distribution.residual(before.distributions, before.values).where(kept, distribution)
            distribution = Categorical(rest.scores.where(rest.scores > -torch.inf, -30.0))
        return super()._candidates(pending, noise, values, distribution, full)


def test_siblings_from_the_residual_bend_the_distribution():
    class Published(Proactive):
        def begin(self, prompt, session):
            return FromTheResidual(self)

    target = Rows(tables(1, sharp=0.4))
    sizes = (OPEN, maximal, uniform, 9, torch.float64, 2, 3)
    assert p_value(target, Proactive(*sizes), without_replacement_rule(), 9, rows=100_000) > PASS
    assert p_value(target, Published(*sizes), without_replacement_rule(), 9, rows=50_000) < FAIL
