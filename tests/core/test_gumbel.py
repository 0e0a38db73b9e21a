"""Draws over large vocabularies are those of all sums of score and noise, bit for bit, with few of the sums computed."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mmspec.core import gumbel
from mmspec.core.gumbel import LARGE, gumbel_top
from mmspec.core.gumbel_triton import gumbel_argmax
from mmspec.core.noise import Keys

SIZES = (LARGE, 9_001, 50_257)
SCALES = (0.0, 0.01, 1.0, 5.0, 3_000.0)


def all_sums(words: torch.Tensor, scores: torch.Tensor, count: int) -> torch.Tensor:
    sums = scores + Keys(words).gumbel(scores.shape[-1])
    return sums.argmax(-1, keepdim=True) if count == 1 else sums.topk(count, -1).indices


def table(size: int, scale: float, seed: int = 0, shape: tuple[int, ...] = (2, 3)) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(-(2**62), 2**62, shape, generator=generator)
    return words, scale * torch.randn(*shape, size, generator=generator)


@pytest.mark.parametrize(("size", "scale"), itertools.product(SIZES, SCALES))
def test_draws_are_those_of_all_sums(size, scale):
    for count, rare in itertools.product((1, 3, 20), (False, True)):
        words, scores = table(size, scale, count)
        if rare:
            scores[torch.rand(scores.shape, generator=torch.Generator().manual_seed(size)) < 0.95] = -torch.inf
        assert torch.equal(gumbel_top(words, scores, count), all_sums(words, scores, count))


def test_few_sums_are_computed(monkeypatch):
    widths, real = [], gumbel.true_columns
    monkeypatch.setattr(gumbel, "true_columns", lambda mask: widths.append(int(mask.sum())) or real(mask))
    for seed in range(20):
        words, scores = table(50_257, 3.0, seed, (4,))
        gumbel_top(words, scores)
    assert sum(widths) / (20 * 4) < 0.002 * 50_257


@pytest.mark.parametrize("fault", ["margin", "bits", "bound"])
def test_a_bound_that_leaves_out_winners_is_found(fault, monkeypatch):
    if fault == "margin":
        monkeypatch.setattr(gumbel, "_MARGIN", -0.5)
    elif fault == "bits":
        monkeypatch.setattr(gumbel, "_steps", lambda size, device: gumbel.GAMMA * torch.arange(2, size + 2))
    else:
        real = gumbel._bound
        monkeypatch.setattr(gumbel, "_bound", lambda *given: real(*given) + 1)
    monkeypatch.setattr(gumbel, "_kept", gumbel._Kept(1 << 20))
    words, scores = table(LARGE, 1.0, 1, (64,))
    assert not torch.equal(gumbel_top(words, scores), all_sums(words, scores, 1))


def test_the_noise_of_a_stream_is_hashed_once(monkeypatch):
    hashed, real = [], gumbel.mix_in_place
    monkeypatch.setattr(gumbel, "mix_in_place", lambda bits, spare: hashed.append(bits.shape) or real(bits, spare))
    monkeypatch.setattr(gumbel, "_kept", gumbel._Kept(4 * LARGE))
    words, scores = table(LARGE, 1.0, shape=(3,))
    for seed in range(3):
        assert torch.equal(gumbel_top(words, scores + seed), all_sums(words, scores + seed, 1))
    assert len(hashed) == 3
    more = words + 1
    for drawn in (more, words):  # no more than four streams are kept
        assert torch.equal(gumbel_top(drawn, scores), all_sums(drawn, scores, 1))
    assert len(gumbel._kept.found) == 4
    assert len(hashed) > 6


def test_impossible_and_undefined_tables():
    words, scores = table(LARGE, 1.0, shape=(3,))
    scores[0] = -torch.inf
    scores[1, :-2] = -torch.inf
    scores[2, 77] = torch.nan
    assert gumbel_top(words, scores)[:, 0].tolist() == all_sums(words, scores, 1)[:, 0].tolist()
    assert set(gumbel_top(words, scores, 2)[1].tolist()) == {LARGE - 2, LARGE - 1}


def test_names_of_values_give_the_draw_of_the_whole_table():
    words, scores = table(LARGE, 2.0)
    ids = torch.stack([torch.randperm(LARGE, generator=torch.Generator().manual_seed(k))[:500] for k in range(6)]).view(2, 3, 500)
    left_out = torch.full_like(scores, -torch.inf).scatter(-1, ids, scores.gather(-1, ids))
    found = ids.gather(-1, gumbel_top(words, scores.gather(-1, ids), 4, ids))
    assert torch.equal(found, gumbel_top(words, left_out, 4))


def test_other_types_and_threads_give_the_same_draws():
    words, scores = table(LARGE, 2.0)
    expected = all_sums(words, scores, 1)
    assert torch.equal(gumbel_top(words, scores.double()), expected)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1 if before > 1 else 2)
        assert torch.equal(gumbel_top(words, scores), expected)
    finally:
        torch.set_num_threads(before)


# --- the kernel for GPUs ----------------------------------------------------------------------------------------------

INTERPRETED = """
import torch
from mmspec.core.distributions.categorical import Categorical
from mmspec.core.gumbel_triton import accept_draw, launch
from mmspec.core.hashing import gumbel, stream_bits

def dense(words, scores):
    return (scores + gumbel(stream_bits(words[:, None], torch.arange(scores.shape[1])))).argmax(-1)

torch.manual_seed(0)
words = torch.randint(-2**62, 2**62, (5,))
for size in (7, 4096, 5000):
    for scale in (0.1, 3.0):
        scores = scale * torch.randn(5, size)
        scores[1, : size // 2] = -torch.inf
        assert torch.equal(launch(words, scores), dense(words, scores))
        other, rejected = scale * torch.randn(5, size), torch.tensor([1, 0, 1, 1, 0]) > 0
        expected = accept_draw(words, scores, other, rejected)
        rest = Categorical(scores[:, None]).residual(Categorical(other[:, None]), expected[:, None])
        rest = rest.where(rejected[:, None], Categorical(scores[:, None])).scores[:, 0]
        assert torch.equal(expected, dense(words, rest))
        assert torch.equal(launch(words, scores, other, rejected), expected)
        assert torch.equal(launch(words, scores, scores, rejected), dense(words, scores))  # rounding leaves nothing of p - p
print("same")
"""


def test_the_triton_kernel_draws_the_same_under_its_interpreter():
    pytest.importorskip("triton", reason="Triton is not installed: it comes with PyTorch for Linux")
    environment = {"TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"}
    run = subprocess.run([sys.executable, "-c", INTERPRETED], capture_output=True, text=True, env=environment, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "same"


def test_operators_run_on_any_device_and_on_fake_tensors():
    words, scores = table(LARGE, 2.0)
    assert torch.equal(gumbel_argmax(words, scores), all_sums(words, scores, 1)[..., 0])
    with FakeTensorMode():
        fake = gumbel_top(torch.zeros(2, 3, dtype=torch.long, device="cuda"), torch.zeros(2, 3, LARGE, device="cuda"))
    assert fake.shape == (2, 3, 1)
    assert fake.device.type == "cuda"
