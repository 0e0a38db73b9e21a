"""Round by round, every draft token's recorded distribution against a plain reading of the rules, position by position."""

from dataclasses import replace

import pytest
import torch

from mmspec.core.control import Fixed
from mmspec.core.decode import decode
from mmspec.core.noise import Noise
from mmspec.core.processors.raster import FREE, Raster
from mmspec.core.rules.match import Match
from mmspec.core.rules.token import Token
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.jacobi.couplers import fresh, gumbel, maximal
from mmspec.drafters.jacobi.initialisers import INITIALISERS, carried, left, uniform, up, up_left, usual
from mmspec.drafters.jacobi.windows import Window
from tests.drafters.rasters import OPEN, Rows, tables, under
from tests.oracles.tables import Table

RASTER = Raster.grid(3, 2, 2, row_end=2)  # row ends at 2, 5 and 8
BARE = Raster.grid(4, 2, 3)
_CODES = replace(usual, name="codes", codes=(1, 0, FREE, 1, FREE, 0, 1, 1, 0))
INITS = {**INITIALISERS, "codes": _CODES}
INIT = pytest.mark.parametrize("init", INITS.values(), ids=INITS)


def neighbour(places, position: int, edge: int) -> int:
    """The nearest known position from `position` along `places`, or FREE."""
    while True:
        position = places[position]
        if position < edge:
            return position


def either(one, other):
    return [a if a != FREE else b for a, b in zip(one, other, strict=True)]


def expected(
    raster: Raster, init, position: int, edge: int, values: dict[int, int], distributions: dict[int, torch.Tensor]
) -> torch.Tensor:
    """The distribution of a position of which none was seen. `values` and `distributions` hold everything before `edge`."""
    eye, walks = torch.eye(raster.values, dtype=torch.float64), []
    if raster.forced[position] != FREE:
        return eye[raster.forced[position]]
    if init.codes is not None and init.codes[position] != FREE:
        return eye[init.codes[position]]
    if init is left:
        walks = [either(raster.left, raster.up)]
    if init is up:
        walks = [either(raster.up, raster.left)]
    if init in (up_left, usual) or init.codes is not None:
        walks = [raster.up, raster.left]
    if init is carried:
        walks = [raster.up]
    found = [place for walk in walks if (place := neighbour(walk, position, edge)) != FREE]
    if not found:
        return torch.tensor([1 / raster.codes] * raster.codes + [0.0] * raster.controls, dtype=torch.float64)
    if init is carried:
        return distributions[found[0]]
    return sum(eye[values[place]] for place in found) / len(found)


@INIT
@pytest.mark.parametrize("couple", [fresh, maximal, gumbel], ids=["fresh", "maximal", "gumbel"])
@pytest.mark.parametrize("raster", [RASTER, BARE], ids=["row-ends", "bare"])
def test_the_recorded_distribution_is_what_the_rules_say(raster, couple, init):
    """q is the newest distribution of the position; where there is none, the initialiser's: windows of 6 look more than a row ahead."""
    rows, size, most = 6, 6, 8
    table = tables(7, length=8)
    table = under(raster, table) if raster.controls else table
    init = init if init.codes is None else replace(init, codes=init.codes[: raster.length])
    stopping, noise = DefaultStopping(rows, most), Noise.from_seed(0, rows)
    steps = decode(
        Rows(table),
        Window(raster, couple, init, size, torch.float64),
        Token(),
        rows,
        stopping=stopping,
        noise=noise,
        control=Fixed(size - 1),
    )
    drafts = [step.draft for step in steps]
    newest: list[dict[int, torch.Tensor]] = [{} for _ in range(rows)]
    drawn_from: list[dict[int, torch.Tensor]] = [{} for _ in range(rows)]
    looked_up = 0
    for draft in drafts:
        for row in range(rows):
            if not draft.valid[row, 0]:
                continue
            start = int(draft.start[row])
            values = dict(enumerate(stopping.outputs[row][:start]))
            code = 1 + row % 2
            for position in range(start):
                drawn_from[row].setdefault(position, table.probs[code])
                code = code * 3 + values[position]
            seen, edge = {}, start
            distributions = dict(drawn_from[row])
            while edge in newest[row]:
                distributions[edge] = newest[row][edge]
                edge += 1
            draft_tokens = {start + i: int(value) for i, value in enumerate(draft.draft_tokens[row])}
            known = values | {position: value for position, value in draft_tokens.items() if position < edge}
            for column in range(draft.size):
                position = start + column - 1
                if column:
                    if not draft.valid[row, column]:
                        continue
                    distribution = (
                        newest[row].get(position) if position < edge else expected(raster, init, position, edge, known, distributions)
                    )
                    assert torch.allclose(draft.q.probs()[row, column - 1], distribution)
                    assert distribution[draft_tokens[position]] > 0
                    looked_up += position >= edge
                    code = code * 3 + draft_tokens[position]
                seen[position + 1] = table.probs[code]
            newest[row] = seen
    assert looked_up > 3 * rows


@INIT
def test_a_picture_is_drafted_from_the_first_round(init):
    stopping, noise = DefaultStopping(2, 8), Noise.from_seed(0, 2)
    target = Rows(under(RASTER, tables(3, length=8)))
    first = next(decode(target, Window(RASTER, maximal, init, 6), Token(), 2, stopping=stopping, noise=noise, control=Fixed(9)))
    assert first.draft.size == 6
    assert first.draft.draft_tokens[:, 2].tolist() == [2, 2]  # the row's end, known beforehand
    assert first.draft.q.probs()[:, 2].tolist() == [[0, 0, 1]] * 2


def test_a_round_may_ask_for_less():
    stopping, noise = DefaultStopping(2, 8), Noise.from_seed(0, 2)
    target = Rows(tables(3, length=8))
    sizes = [s.draft.size for s in decode(target, Window(BARE, window=6), Token(), 2, stopping=stopping, noise=noise, control=Fixed(2))]
    assert set(sizes) == {3}


def test_what_does_not_fit_is_refused_in_one_line():
    with pytest.raises(ValueError, match="window is 1: give at least 2"):
        Window(OPEN, window=1)
    for init in (up, up_left, carried):
        with pytest.raises(ValueError, match="give the window a raster"):
            Window(None, init=init)
    Window(None, init=uniform)
    for codes in ((0,) * 8, (2,) * 9, (-2,) * 9):
        with pytest.raises(ValueError, match=rf"{len(codes)} usual codes up to .*: give 9, each below 2"):
            next(
                decode(
                    Rows(tables(3, length=8)),
                    Window(RASTER, init=replace(usual, codes=codes), window=4),
                    Token(),
                    1,
                    stopping=DefaultStopping(1, 8),
                    noise=Noise.from_seed(0, 1),
                    control=Fixed(3),
                )
            )
    wide = Rows(Table.random(4, 7, seed=1))
    with pytest.raises(ValueError, match="over 4 values, the raster has 3"):
        list(decode(wide, Window(OPEN), Match(), 1, stopping=DefaultStopping(1, 5), noise=Noise.from_seed(0, 1), control=Fixed(3)))
