"""Parallel Jacobi decoding equals its description, written down a second time; with whole rows above it is exact."""

import itertools

import pytest
import torch

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.processors.raster import Raster
from mmspec.core.records import CONTEXT, Draft, Scored
from mmspec.core.rules.base import UNMETERED
from mmspec.drafters.jacobi.couplers import maximal
from mmspec.drafters.jacobi.initialisers import carried, uniform
from mmspec.vision.codes.pjd import PJD, Deferring
from mmspec.vision.codes.row_streams import Front
from mmspec.vision.codes.row_target import RowSession
from tests.oracles.statistics import FAIL, PASS, chi_square
from tests.oracles.tables import encode
from tests.vision.rows_world import Blur, by_rows, jacobi, plainly, prompts, scribes, steps_of

OPEN = Raster.grid(4, 6, 7)
CLOSED = Raster.grid(3, 5, 7, row_end=7, tail=(8, 9))
PREVIEWED = Raster.grid(3, 4, 7).behind(Raster.grid(1, 2, 7, tail=(7,)))
RASTERS = {"open": OPEN, "closed": CLOSED, "previewed": PREVIEWED}
SEEDS = 3


def distributions(raster):
    return steps_of(raster, temperature=0.9, top_k=5)


def both(raster: Raster, plan: PJD, guidance=None, pictures: int = 2):
    """The output of the code, and of the description."""
    model, prompt = Blur(raster, sharp=3.0), prompts(pictures if guidance is None else 2 * pictures)
    got = by_rows(model, prompt, plan, distributions(raster), seeds=SEEDS, guidance=guidance)
    noise, least = Noise.from_seed(SEEDS, pictures), -(-int(plan.coverage * 100) * raster.width // 100)
    lanes = min(plan.rows or 99, raster.height)
    want, forwards = scribes(
        model, prompt, distributions(raster), noise, lambda scribe: scribe.run(least, plan.window, lanes, jacobi()), guidance
    )
    return got, want, forwards


@pytest.mark.parametrize("guidance", [None, 2.0])
@pytest.mark.parametrize("name", RASTERS)
def test_it_is_what_the_paper_describes(name, guidance):
    for plan in (PJD(4, 0.4, rows=99), PJD(3, 0.25, rows=2), PJD(3, 1.0, rows=99)):
        got, want, forwards = both(RASTERS[name], plan, guidance)
        assert torch.equal(got.sequences, want)
        assert (got.stats.target_calls, got.stats.row_calls) == (max(forwards), sum(forwards))
        assert (got.stats.exactness, got.stats.drift) == (UNMETERED, None)


def differs() -> bool:
    got, want, _ = both(OPEN, PJD(4, 0.4, rows=99))
    return not torch.equal(got.sequences, want)


def test_a_row_never_sees_anothers_draft_tokens(monkeypatch):
    assert not differs()
    monkeypatch.setattr(RowSession, "now", lambda self, slots, roots: self.written.scatter(1, slots.flatten(1), True))
    assert differs()


def test_unwritten_slots_are_not_attended(monkeypatch):
    monkeypatch.setattr(RowSession, "sees", staticmethod(lambda committed, chain, earlier: earlier.expand(-1, -1, committed.shape[-1])))
    assert differs()


def test_draft_tokens_that_fail_are_put_off(monkeypatch):
    from mmspec.vision.codes import pjd

    monkeypatch.setattr(pjd, "deferred", lambda verdict, where: verdict)
    assert differs()


def test_no_row_overtakes_the_one_above():
    """Every cell's neighbour above is committed a forward before it, rows start at their share, and no more lanes run than asked for."""
    raster, committed = OPEN, {}
    rounds = []

    def look(step):
        lanes = len(step.committed.values)
        alive = [lane for lane in range(lanes) if step.draft.valid[lane, 0]]
        starts, known = step.draft.start.tolist(), set(committed)
        for lane in alive:
            for offset, value in enumerate(step.committed.values[lane]):
                place = starts[lane] + offset
                assert place not in committed
                assert raster.up[place] < 0 or raster.up[place] in known
                row = place // raster.width
                assert row == 0 or len([n for n in known if n // raster.width == row - 1]) >= 2
                committed[place] = value
        rounds.append(len(alive))

    got = by_rows(Blur(raster), prompts(1), PJD(4, 0.25, rows=2), distributions(raster), seeds=SEEDS, on_step=look)
    assert [committed[place] for place in range(raster.length)] == got.sequences[0].tolist()
    assert max(rounds) == 2


@pytest.mark.parametrize("plan", [PJD(4, 0.4), PJD(4, 0.4, maximal, uniform)])
def test_a_picture_does_not_depend_on_its_batch(plan):
    model, prompt = Blur(OPEN), prompts(3)
    together = by_rows(model, prompt, plan, distributions(OPEN), seeds=[5, 6, 5])
    for picture, seed in enumerate([5, 6, 5]):
        own = type(prompt)(prompt.embeds[picture : picture + 1], prompt.mask[picture : picture + 1])
        alone = by_rows(model, own, plan, distributions(OPEN), seeds=[seed])
        assert torch.equal(alone.sequences[0], together.sequences[picture])


def test_greedy_with_whole_rows_is_plain_decoding():
    for raster in (OPEN, CLOSED):
        model, prompt, processors = Blur(raster), prompts(3), steps_of(raster, temperature=0)
        got = by_rows(model, prompt, PJD(4, 1.0, maximal), processors)
        assert torch.equal(got.sequences, plainly(model, prompt, processors, Noise.from_seed(0, 3)).sequences)


# --- distributions -------------------------------------------------------------------------------------------------------------

TINY = Raster.grid(2, 2, 3)


def joint(model: Blur, prompt) -> torch.Tensor:
    """[81] the distribution of plain decoding."""
    pictures = torch.tensor(list(itertools.product(range(3), repeat=4)))
    mass = torch.ones(81)
    noise = Noise.from_seed(0, 1)

    def forced(values, chances):
        def way(scribe, row, position, most, before):
            chances.append(float(scribe.distribution(position, before).prob(torch.tensor([[values[position]]]))))
            return [values[position]], 0

        return way

    for number, picture in enumerate(pictures.tolist()):
        chances: list[float] = []
        scribes(model, prompt, steps_of(TINY), noise, lambda scribe, p=picture, c=chances: scribe.run(2, 1, 9, forced(p, c)))
        mass[number] = torch.tensor(chances).prod()
    return mass


def sample(model: Blur, prompt, plan: PJD, many: int = 3000) -> torch.Tensor:
    wide = type(prompt)(prompt.embeds.expand(many, -1, -1), prompt.mask.expand(many, -1))
    return encode(by_rows(model, wide, plan, steps_of(TINY)).sequences, 3)


def test_with_whole_rows_above_the_distribution_is_the_targets():
    model, prompt = Blur(TINY, sharp=1.5), prompts(1)
    distribution = joint(model, prompt)
    assert float(distribution.sum()) == pytest.approx(1, abs=1e-5)
    assert chi_square(sample(model, prompt, PJD(2, 1.0)), distribution) > PASS
    assert chi_square(sample(model, prompt, PJD(2, 0.5)), distribution) < FAIL  # half a row above is not the whole


@pytest.mark.parametrize("whole", [True, False])
def test_the_rule_for_rows_that_miss_something(whole):
    """A draft token that fails is replaced where nothing is missing, else nothing is committed in its place; passing is the same."""
    rows, size = 4000, 5
    draw = torch.Generator().manual_seed(0)
    p, q = (Categorical(torch.randn(1, size, generator=draw).expand(rows, 1, size) * 2) for _ in range(2))
    noise = Noise.from_seed(0, rows)
    draft_token = q.sample(noise.draft_token(torch.zeros(rows, 1, dtype=torch.long), torch.zeros(rows, dtype=torch.long)))
    front = Front(*(torch.zeros(rows, dtype=torch.long),) * 2, torch.full((rows,), whole), torch.full((rows,), False), 0)
    parents = torch.tensor([[CONTEXT, 0]]).expand(rows, -1)
    draft = Draft(torch.cat([torch.zeros_like(draft_token), draft_token], 1), parents, torch.zeros(rows, dtype=torch.long), q=q, aux=front)
    verdict = Deferring()(draft, Scored(p.cat(p)), noise)
    passed = verdict.accepted == 1
    assert (verdict.count[passed] == 2).all()
    assert (verdict.count[~passed] == whole).all()
    shared = torch.minimum(p.probs()[0, 0], q.probs()[0, 0])
    assert float(passed.float().mean()) == pytest.approx(float(shared.sum()), abs=0.03)
    assert chi_square(verdict.values[passed, 0], shared) > PASS
    assert (
        chi_square(verdict.values[~passed, 0] if whole else draft_token[passed, 0], (p.probs()[0, 0] - shared) if whole else shared) > PASS
    )
    output = Deferring().output_distribution(Categorical(p.scores[0, 0]), Categorical(q.scores[0, 0])).probs()
    assert torch.allclose(output, shared / shared.sum())


def test_errors_say_what_to_do():
    for words, make in {
        "window is 1": lambda: PJD(1),
        "coverage is 0": lambda: PJD(coverage=0.0),
        "rows is 1": lambda: PJD(rows=1),
        "carried": lambda: PJD(init=carried),
    }.items():
        with pytest.raises(ValueError, match=words):
            make()
