"""Forwards on a synthetic picture model: what a coupling gains over fresh draws, and how it grows with the window."""

import pytest
import torch

from mmspec.bench.synthetic.raster import METHODS, SyntheticRaster, SyntheticSession, compression
from mmspec.core.control import Fixed
from mmspec.core.decode import generate
from mmspec.core.noise import Noise
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.jacobi.couplers import target_noise
from mmspec.drafters.jacobi.initialisers import uniform
from mmspec.drafters.jacobi.windows import Window

ROWS = 4
COUPLED = pytest.mark.parametrize(("method", "least"), [("scd", 1.8), ("scd-gumbel", 1.8), ("coupled", 1.7)])


@pytest.fixture(scope="module")
def fresh_draws() -> dict[int, float]:
    return {window: compression("sjd", window, rows=ROWS) for window in (16, 32)}


@COUPLED
def test_couplings_need_far_fewer_forwards_than_fresh_draws(fresh_draws, method, least):
    found = {window: compression(method, window, rows=ROWS) for window in (16, 32, 64)}
    assert found[16] >= least * fresh_draws[16]
    assert found[32] >= 2.4 * fresh_draws[32]
    assert found[64] > 1.05 * found[32]


def test_fresh_draws_gain_nothing_from_a_longer_window(fresh_draws):
    assert 2.0 < fresh_draws[32] < 1.1 * fresh_draws[16]


def pictures(method: str, window: int, side: int = 6) -> tuple[torch.Tensor, list[float]]:
    target, entropy = SyntheticRaster.make(side=side), []

    class Watching(SyntheticSession):
        def score(self, draft):
            scored = super().score(draft)
            probs = scored.p.probs()[:, 0]
            entropy.append(-(probs * probs.log()).sum(-1).mean().item())
            return scored

    class Watched(SyntheticRaster):
        def begin(self, prompt):
            return Watching(self, prompt), super().begin(prompt)[1]

    make, rule = METHODS[method]
    drafter = make(target.raster, uniform, window)
    stopping, noise = DefaultStopping(8, side * side), Noise.from_seed(0, 8)
    out = generate(Watched(target.tables, target.raster), drafter, rule, 8, stopping=stopping, noise=noise, control=Fixed(window - 1))
    return out.sequences, entropy


def test_a_cell_has_about_four_nats():
    _, entropy = pictures("plain", 1, side=16)
    assert 3.9 < sum(entropy) / len(entropy) < 4.1


def test_the_model_is_the_same_whatever_drafts():
    """Its session reads the draft's own path: pictures drafted by shared noise, in chains and in trees, are plain sampling's."""
    plain, _ = pictures("plain", 1)
    assert torch.equal(pictures("coupled", 9)[0], plain)
    assert isinstance(METHODS["coupled"][0](SyntheticRaster.make().raster, uniform, 4), Window)
    assert METHODS["coupled"][0](SyntheticRaster.make().raster, uniform, 4).couple is target_noise


def test_frames_depend_on_the_frame_before_and_windows_leave_them_as_they_are():
    target = SyntheticRaster.make(side=3, frames=3)
    assert target.raster.length == 27
    assert target.tables.shape[0] == 4
    near = SyntheticSession(target, 1).near
    assert near[:, :9][3].tolist() == [-1] * 9
    assert near[3, 9:27].tolist() == list(range(18))
    assert near[:3, 9].tolist() == [-1, -1, -1]  # a frame's first cell has no neighbour of its own frame
    runs = []
    for method in ("plain", "coupled"):
        make, rule = METHODS[method]
        stopping, noise = DefaultStopping(2, 27), Noise.from_seed(1, 2)
        out = generate(target, make(target.raster, uniform, 8), rule, 2, stopping=stopping, noise=noise, control=Fixed(7))
        runs.append(out)
    assert torch.equal(runs[0].tokens, runs[1].tokens)
    assert runs[1].stats.target_calls < 27
    assert compression("coupled", 8, rows=2, side=3, frames=3) > 1
