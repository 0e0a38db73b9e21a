"""ZipAR equals its description, written down a second time; it leaves out what it says, and says what that costs."""

import itertools
from dataclasses import replace

import pytest
import torch

from mmspec.core.noise import Noise
from mmspec.core.processors.raster import Raster
from mmspec.core.records import PAD
from mmspec.core.rules.base import UNMETERED
from mmspec.models.target import HFTarget
from mmspec.vision.codes import rows
from mmspec.vision.codes.row_streams import RasterRows, RowStreamStopping
from mmspec.vision.codes.row_target import RowSession
from mmspec.vision.codes.rows import drift
from mmspec.vision.codes.zipar import ZipAR
from tests.vision.rows_world import Blur, by_rows, fixed, plainly, prompts, scribes, steps_of, widening
from tests.vision.small_models import CASES

OPEN = Raster.grid(4, 5, 7)
CLOSED = Raster.grid(3, 4, 7, row_end=7, tail=(8, 9))
PREVIEWED = Raster.grid(3, 4, 7).behind(Raster.grid(1, 2, 7, tail=(7,)))
RASTERS = {"open": OPEN, "closed": CLOSED, "previewed": PREVIEWED}
SEEDS = 3


def distributions(raster):
    return steps_of(raster, temperature=0.9, top_k=5)


def both(raster: Raster, plan: ZipAR, way, guidance=None, pictures: int = 2):
    """The output by rows, and by the description."""
    model, prompt = Blur(raster), prompts(pictures if guidance is None else 2 * pictures)
    got = by_rows(model, prompt, plan, distributions(raster), seeds=SEEDS, guidance=guidance)
    noise, lanes = Noise.from_seed(SEEDS, pictures), raster.height
    want, forwards = scribes(model, prompt, distributions(raster), noise, lambda scribe: scribe.run(plan.window, 1, lanes, way()), guidance)
    return got, want, forwards


def differs(raster: Raster = OPEN) -> bool:
    """The check of the tests below, on what a planted mistake leaves of the code."""
    got, want, _ = both(raster, ZipAR(2, meter=False), lambda: fixed)
    return not torch.equal(got.sequences, want)


# --- what is decoded --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guidance", [None, 2.0])
@pytest.mark.parametrize("name", RASTERS)
def test_a_fixed_window_is_what_the_paper_describes(name, guidance):
    for window in (1, 3):
        got, want, forwards = both(RASTERS[name], ZipAR(window, meter=False), lambda: fixed, guidance)
        assert torch.equal(got.sequences, want)
        assert forwards == [got.stats.target_calls] * 2


@pytest.mark.parametrize("guidance", [None, 2.0])
@pytest.mark.parametrize("name", RASTERS)
def test_an_adaptive_window_is_what_the_paper_describes(name, guidance):
    got, want, forwards = both(RASTERS[name], ZipAR(1, adaptive=True), widening, guidance)
    assert torch.equal(got.sequences, want)
    assert max(forwards) == got.stats.target_calls
    assert sum(forwards) == got.stats.row_calls


@pytest.mark.parametrize("name", RASTERS)
def test_forwards_are_counted_exactly(name):
    """W + (H - 1) s and what stands before the picture: row ends and tails are known, so no forward is spent on them."""
    raster = RASTERS[name]
    for window in (1, 2, raster.width, raster.width + 3):
        model = Blur(raster)
        stats = by_rows(model, prompts(2), ZipAR(window, meter=False), distributions(raster)).stats
        want = raster.cells[0] + raster.width + (raster.height - 1) * min(window, raster.width)
        assert len(model.seen) == stats.target_calls == want
        assert (stats.row_calls, stats.tokens) == (2 * want, 2 * raster.length)
        assert stats.tokens_per_call == raster.length / want


def test_the_papers_own_count():
    """Emu3's 90 x 90 with windows of 7: 713 forwards. Rows are known to be under way without running any."""
    raster = Raster.grid(90, 90, 4, row_end=4, tail=(5, 6, 7))
    lines = RasterRows(raster)
    stopping = RowStreamStopping(lines, 1, ZipAR(7).way(lines).lanes, 7, 1, torch.device("cpu"))
    rounds = 0
    while (stopping.done < stopping.lengths).any():
        stopping.done.scatter_add_(1, stopping.line, (stopping.left > 0).long()[None])
        stopping.pending = stopping._schedule()
        rounds += 1
    assert rounds == 713
    assert stopping.lanes == 13


# --- where nothing is left out ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [ZipAR(4), ZipAR(99), ZipAR(4, adaptive=True)])
def test_whole_rows_are_plain_decoding(plan):
    for raster, guidance in ((CLOSED, None), (PREVIEWED, 2.0)):
        model, prompt = Blur(raster), prompts(3 if guidance is None else 6)
        got = by_rows(model, prompt, plan, distributions(raster), seeds=SEEDS, guidance=guidance)
        want = plainly(model, prompt, distributions(raster), Noise.from_seed(SEEDS, 3), guidance)
        assert torch.equal(got.sequences, want.sequences)
        assert (got.stats.exactness, got.stats.drift) == ("token-exact", None)


def test_a_distribution_that_does_not_look_further_is_not_changed():
    raster = Raster.grid(4, 6, 7, row_end=7)
    prompt, noise = prompts(2), Noise.from_seed(SEEDS, 2)
    for reach, plan, same in ((2, ZipAR(2), True), (2, ZipAR(1), False), (3, ZipAR(3), True)):
        model = Blur(raster, reach)
        got = by_rows(model, prompt, plan, distributions(raster), seeds=SEEDS)
        want = plainly(model, prompt, distributions(raster), noise)
        assert torch.equal(got.sequences, want.sequences) is same
        assert (got.stats.drift < 1e-3) is same


@pytest.mark.parametrize("name", CASES)
def test_every_class(name):
    """Ragged prompts, guided where the class can be: whole rows are plain decoding's, and so is the first row of any window."""
    case = CASES[name]
    model, guidance = case.make(), 2.0 if case.guided else None
    raster, processors = model.raster, steps_of(model.raster, temperature=1.0, top_k=20)
    with torch.no_grad():
        prompt = model.encode(case.prompts(2), case.guided)
        plain = plainly(model, prompt, processors, Noise.from_seed(SEEDS, 2), guidance)
    whole, fast = (by_rows(model, prompt, ZipAR(window), processors, seeds=SEEDS, guidance=guidance) for window in (raster.width, 2))
    assert torch.equal(whole.sequences, plain.sequences)
    first = raster.cells[0] + raster.width
    assert torch.equal(fast.sequences[:, :first], plain.sequences[:, :first])
    assert fast.stats.target_calls == first + (raster.height - 1) * min(2, raster.width)
    assert fast.stats.exactness == "lossy"
    assert fast.stats.drift > 0.1


@pytest.mark.parametrize("plan", [ZipAR(1), ZipAR(1, adaptive=True)])
def test_a_picture_does_not_depend_on_its_batch(plan):
    model, prompt = Blur(OPEN), prompts(3)
    together = by_rows(model, prompt, plan, distributions(OPEN), seeds=[5, 6, 5])
    for picture, seed in enumerate([5, 6, 5]):
        own = type(prompt)(prompt.embeds[picture : picture + 1], prompt.mask[picture : picture + 1])
        alone = by_rows(model, own, plan, distributions(OPEN), seeds=[seed])
        assert torch.equal(alone.sequences[0], together.sequences[picture])


# --- what it costs ----------------------------------------------------------------------------------------------------


def forced(values, found):
    """A way that takes given values and notes the distributions they would have been drawn from."""

    def way(scribe, row, position, most, before):
        found[position] = scribe.distribution(position, before)
        return [values[position]], 0

    return way


def test_the_meter_is_the_total_variation_in_the_mean():
    """Over all 81 pictures of a tiny raster: the mean drift is the mean of TV(q, p) summed over the cells, and bounds the whole's."""
    raster = Raster.grid(2, 2, 3)
    model, prompt, processors = Blur(raster, sharp=2.0), prompts(1), steps_of(raster)
    pictures = list(itertools.product(range(3), repeat=4))
    log_q, log_p, distance = [], [], []
    for values in pictures:
        distributions_q, distributions_p = {}, {}
        scribes(
            model, prompt, processors, Noise.from_seed(0, 1), lambda scribe, v=values, f=distributions_q: scribe.run(1, 1, 9, forced(v, f))
        )
        scribes(
            model, prompt, processors, Noise.from_seed(0, 1), lambda scribe, v=values, f=distributions_p: scribe.run(2, 1, 9, forced(v, f))
        )
        log_q.append([distributions_q[n].log_probs()[0, 0, values[n]] for n in range(4)])
        log_p.append([distributions_p[n].log_probs()[0, 0, values[n]] for n in range(4)])
        distance.append(sum(float(distributions_q[n].tv(distributions_p[n], torch.tensor([[0]]))) for n in range(4)))
    q, p, many = torch.tensor(log_q), torch.tensor(log_p), len(pictures)
    weight, wide = q.sum(1).exp(), type(prompt)(prompt.embeds.expand(many, -1, -1), prompt.mask.expand(many, -1))
    spent = drift(HFTarget(model.model, model, processors), wide, torch.tensor(pictures), q)
    assert float(weight.sum()) == pytest.approx(1, abs=1e-5)
    assert float(weight @ spent) == pytest.approx(float(weight @ torch.tensor(distance)), abs=1e-5)
    assert float(weight @ spent) > 0.5 * float((weight - p.sum(1).exp()).abs().sum()) > 0.01


def test_a_generation_meters_what_it_drew(monkeypatch):
    """The distributions on record are those the values were drawn from; a long picture is metered piece by piece."""
    model, prompt = Blur(CLOSED), prompts(2)
    got = by_rows(model, prompt, ZipAR(1), distributions(CLOSED), seeds=SEEDS)
    logs = []
    for picture in range(2):
        found, values = {}, got.sequences[picture].tolist()
        own = type(prompt)(prompt.embeds[picture : picture + 1], prompt.mask[picture : picture + 1])
        noise = Noise.from_seed(0, 1)
        scribes(model, own, distributions(CLOSED), noise, lambda scribe, v=values, f=found: scribe.run(1, 1, 9, forced(v, f)))
        logs.append([float(found[n].log_probs()[0, 0, v]) if n in found else 0.0 for n, v in enumerate(values)])
    target = HFTarget(model.model, model, distributions(CLOSED))
    assert got.stats.drift == pytest.approx(float(drift(target, prompt, got.sequences, torch.tensor(logs)).sum()), abs=1e-3)
    assert got.stats.drift > 0.5
    monkeypatch.setattr(rows, "_PIECE", 4)
    assert by_rows(model, prompt, ZipAR(1), distributions(CLOSED), seeds=SEEDS).stats.drift == pytest.approx(got.stats.drift, abs=1e-4)


def test_what_is_not_measured_is_called_so():
    model, prompt = Blur(OPEN), prompts(1)
    for plan in (ZipAR(1, meter=False), ZipAR(1, adaptive=True)):
        stats = by_rows(model, prompt, plan).stats
        assert (stats.exactness, stats.drift) == (UNMETERED, None)


# --- planted mistakes -------------------------------------------------------------------------------------------------


def test_unwritten_slots_are_not_attended(monkeypatch):
    assert not differs()
    monkeypatch.setattr(RowSession, "sees", staticmethod(lambda committed, chain, earlier: earlier.expand(-1, -1, committed.shape[-1])))
    assert differs()


def test_rows_do_not_start_early(monkeypatch):
    way = ZipAR.way
    monkeypatch.setattr(ZipAR, "way", lambda self, lines: replace(way(self, lines), start=self.window - 1, lanes=lines.raster.height))
    assert differs()


def test_stand_ins_are_written_over(monkeypatch):
    schedule = RowStreamStopping._schedule

    def forgetful(self):
        pending = schedule(self)
        pending.parents[self.left == 0] = PAD
        return pending

    monkeypatch.setattr(RowStreamStopping, "_schedule", forgetful)
    assert differs()
    assert differs(raster=CLOSED)  # no stand-in there, but then nobody sees a row's last cell


def test_noise_is_the_cells(monkeypatch):
    monkeypatch.setattr(rows, "replace", lambda noise, seeds: Noise(seeds + torch.arange(len(seeds))))
    assert differs()


# --- what is refused --------------------------------------------------------------------------------------------------


def test_errors_say_what_to_do():
    model = Blur(OPEN)
    with pytest.raises(ValueError, match="window is 0"):
        ZipAR(0)
    with pytest.raises(ValueError, match="2 controls between"):
        RasterRows(Raster(3, (-1, 3, 3, -1), (-1,) * 4, (-1,) * 4, (0, 3), 2, 1))
    with pytest.raises(ValueError, match="3 rows for 2 seeds"):
        rows.generate_rows(model, prompts(3), plan=ZipAR(), processors=distributions(OPEN), noise=Noise.from_seed(0, 2))
    with pytest.raises(ValueError, match="2 guidance scales for 1 pictures"):
        by_rows(model, prompts(2), ZipAR(), distributions(OPEN), guidance=[1.0, 2.0])
    model.head[:] = torch.nan
    with pytest.raises(FloatingPointError, match="picture 0 at output position 0"):
        by_rows(model, prompts(1), ZipAR(2), distributions(OPEN))
