"""Reuse of draft tokens by a threshold: SJD without any, biased with some, and exact under rules that read no q."""

import pytest
import torch

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.rules.base import UNMETERED
from mmspec.core.rules.block import Block
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.lossy.cool_sd import CoolSD
from mmspec.core.rules.match import Match
from mmspec.core.rules.token import Token
from mmspec.drafters.jacobi.couplers import Before, check_pairing, fresh
from mmspec.drafters.jacobi.initialisers import uniform
from mmspec.drafters.jacobi.reuse import Reuse, ReusedToken
from mmspec.drafters.jacobi.windows import Window
from mmspec.drafters.none import NoDraft
from mmspec.vision import generate
from tests.drafters.rasters import PICTURE, WORLDS, outputs
from tests.oracles.relaxed import SEEN
from tests.oracles.tables import Table, TableTarget, loop_distribution
from tests.vision.small_nets import guided_model


def window(raster, couple, size: int) -> Window:
    return Window(raster, couple, uniform, size, torch.float64)


def test_an_infinite_threshold_is_sjd():
    for target, raster, end in WORLDS.values():
        ends = () if end is None else (end,)
        runs = [
            outputs(target, window(raster, couple, 4), rule, 30, 4, ends=ends)
            for couple, rule in ((fresh, Token()), (Reuse(torch.inf), ReusedToken()))
        ]
        assert torch.equal(*runs)


@pytest.mark.parametrize("threshold", [0.3, 0.9])
def test_reuse_moves_the_distribution(threshold):
    """By enumeration: the reason for its label. Without reuse the same runs are exact."""
    target = TableTarget(Table.random(2, 4, seed=5))

    def error(couple, rule) -> float:
        found = loop_distribution(target, window(PICTURE, couple, 3), rule, most=4, length=2)
        return (found - target.table.joint(4)).abs().max().item()

    assert error(Reuse(torch.inf), ReusedToken()) < 1e-9
    assert error(Reuse(threshold), ReusedToken()) > SEEN


@pytest.mark.parametrize("rule", [Match(), Coupled()])
def test_rules_that_read_no_q_stay_exact(rule):
    for target, raster, end in WORLDS.values():
        ends = () if end is None else (end,)
        plain = outputs(target, NoDraft(), Match(), 20, 1, ends=ends)
        assert torch.equal(outputs(target, window(raster, Reuse(0.3), 4), rule, 20, 4, ends=ends), plain)


def test_a_draft_token_is_kept_above_the_threshold_only():
    g = torch.Generator().manual_seed(0)
    new, old = (Categorical(torch.randn(3, 40, 5, generator=g)) for _ in range(2))
    noise, start = Noise.from_seed(0, 3), torch.zeros(3, dtype=torch.long)
    position = torch.arange(40).repeat(3, 1)
    values = old.sample(noise.shared(position))
    before = Before(values, old, position, position % 4 > 0)
    drawn, q = Reuse(0.8)(new, before, noise, position, start)
    ratio = new.prob(values) / old.prob(values)
    keep = (ratio > 0.8) & before.there
    assert torch.equal(drawn, torch.where(keep, values, new.sample(noise.draft_token(position, start))))
    assert q is new
    assert 0.2 < keep.double().mean() < 0.8


def test_what_would_be_called_exact_or_metered_is_refused():
    for rule in (Token(), CoolSD()):
        with pytest.raises(ValueError, match="keeps draft tokens by a threshold"):
            check_pairing(Reuse(), rule)
    with pytest.raises(ValueError, match="keeps draft tokens"):
        check_pairing(Reuse(), Block())
    for rule in (ReusedToken(), Coupled(), Match()):
        check_pairing(Reuse(), rule)
    for threshold in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="threshold is"):
            Reuse(threshold)


def test_it_is_a_method_of_images_and_labelled():
    model = guided_model()
    out = generate(model, [0, 1], method="sjd++", window=9, guidance=2.0, seed=3)
    assert out.stats.exactness == UNMETERED
    assert out.stats.drift is None
    exact = generate(model, [0, 1], method="sjd++", accept=Coupled(), window=9, guidance=2.0, seed=3)
    assert torch.equal(exact.tokens, generate(model, [0, 1], method="plain", guidance=2.0, seed=3).tokens)
