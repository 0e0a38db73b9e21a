"""Frames written by a depth net: told and written agree, and a fixed point is the same frame in fewer runs."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from mmspec.core.distributions.depth_frame import DepthFrame, JacobiWriter, one_by_one
from mmspec.core.noise import Keys, Noise
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.match import Match
from mmspec.drafters.heads.code_heads import CodeHeads
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.none import NoDraft
from mmspec.drafters.shapes import Chain, drawn
from mmspec.train.code_heads import train_code_heads
from mmspec.train.loop import Fit
from tests.oracles.frames import FrameTable, FrameTarget, TableDepth, frame_pair, frames_run

BOOKS, SIZE, WIDE = 5, 7, 16


class SmallDepth(nn.Module):
    """A causal transformer over a state and the codes behind it, in double precision. Counts its runs."""

    def __init__(self, seed: int = 0, sharp: float = 2.0):
        super().__init__()
        torch.manual_seed(seed)
        self.books, self.runs, self.sharp = BOOKS, 0, sharp
        self.code = nn.Embedding(BOOKS * SIZE, WIDE)
        self.place = nn.Parameter(torch.randn(BOOKS, WIDE))
        self.layer = nn.TransformerEncoderLayer(WIDE, 2, 2 * WIDE, dropout=0.0, batch_first=True)
        self.head = nn.Parameter(torch.randn(BOOKS, SIZE, WIDE))
        self.double().eval()

    @torch.no_grad()
    def scores(self, hidden: Tensor, codes: Tensor) -> Tensor:
        self.runs += 1
        told = self.code(codes[:, : self.books - 1] + SIZE * torch.arange(codes[:, : self.books - 1].shape[1]))
        x = torch.cat([hidden[:, None], told], 1)
        mask = torch.full((x.shape[1], x.shape[1]), -torch.inf, dtype=x.dtype).triu(1)
        x = self.layer(x + self.place[: x.shape[1]], mask)
        return torch.einsum("mkd,kvd->mkv", x, self.head[: x.shape[1]]) * self.sharp / WIDE**0.5

    def write(self, hidden, codes, first, choose):
        codes = codes.clone()
        for book in range(first, self.books):
            codes[:, book] = choose(self.scores(hidden, codes[:, :book])[:, book], book)
        return codes


def states(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, WIDE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def keys(rows: int, seed: int = 0) -> Keys:
    return Noise.from_seed(seed, rows).value(torch.zeros(rows, 1, dtype=torch.long))


def distribution(depth, hidden: Tensor, writer=one_by_one) -> DepthFrame:
    return DepthFrame(hidden[:, None], depth, writer)


def test_told_is_what_writing_sees():
    depth, hidden = SmallDepth(), states(9)
    p = distribution(depth, hidden)
    frames = p.sample(keys(9))
    again = keys(9).branch(BOOKS).choose(p.codes(frames).scores)
    assert torch.equal(again, frames)
    assert p.draws(keys(9), torch.zeros(9, 1, dtype=torch.long), frames).all()
    for book in range(BOOKS):  # every code is checked
        other = frames.clone()
        other[..., book] = (other[..., book] + 1) % SIZE
        assert not p.draws(keys(9), torch.zeros(9, 1, dtype=torch.long), other).any()
        assert not p.tops(torch.zeros(9, 1, dtype=torch.long), other)[(p.mode() == frames).all(-1)].any()
    assert p.tops(torch.zeros(9, 1, dtype=torch.long), p.mode()).all()


@pytest.mark.parametrize("rows", [1, 6])
def test_the_fixed_point_is_the_frame_written_one_by_one(rows):
    """Under the same noise, from any draft token, in no more runs than codes; drawn, greedy, and from the middle on."""
    depth, hidden = SmallDepth(), states(rows)
    for seed in range(12):
        k = keys(rows, seed)
        right = distribution(depth, hidden).sample(k)
        for draft_token in (None, lambda hidden, choose: torch.full((len(hidden), BOOKS), SIZE - 1)):
            before = depth.runs
            assert torch.equal(distribution(depth, hidden, JacobiWriter(draft_token)).sample(k), right)
            assert 1 <= depth.runs - before <= BOOKS
    assert torch.equal(distribution(depth, hidden, JacobiWriter()).mode(), distribution(depth, hidden).mode())
    first = torch.arange(rows)[:, None] % BOOKS + (rows > 1)
    start = torch.randint(SIZE, right.shape, generator=torch.Generator().manual_seed(1))
    before = depth.runs
    one = distribution(depth, hidden).redrawn(start, first, k)
    assert depth.runs - before == BOOKS - int(first.min())
    assert torch.equal(distribution(depth, hidden, JacobiWriter()).redrawn(start, first, k), one)
    inside = torch.arange(BOOKS) < first[..., None]
    assert torch.equal(one[inside], start[inside])


def test_runs_are_counted_by_the_draft_token():
    """The right frame takes 1 run, so does one whose last code is wrong; one with its first code wrong takes 2 or more."""
    depth, hidden = SmallDepth(), states(1)
    right = distribution(depth, hidden).sample(keys(1))[:, 0]

    def runs(draft_token: Tensor) -> int:
        before = depth.runs
        assert torch.equal(distribution(depth, hidden, JacobiWriter(lambda hidden, choose: draft_token)).sample(keys(1))[:, 0], right)
        return depth.runs - before

    for book, least, most in ((None, 1, 1), (BOOKS - 1, 1, 1), (BOOKS - 2, 2, 2), (0, 2, BOOKS)):
        draft_token = right.clone()
        if book is not None:
            draft_token[:, book] = (draft_token[:, book] + 1) % SIZE
        assert least <= runs(draft_token) <= most


class TooEarly(JacobiWriter):
    """Stops after a single run, whatever changed."""

    def __call__(self, depth, hidden, codes, first, choose):
        scores = depth.scores(hidden, codes)
        return torch.stack([choose(scores[:, book], book) for book in range(depth.books)], 1)


def test_a_fixed_point_left_too_early_shows():
    depth, hidden = SmallDepth(), states(40)
    right = distribution(depth, hidden).sample(keys(40))
    assert not torch.equal(distribution(depth, hidden, TooEarly()).sample(keys(40)), right)


def test_tables_and_whole_runs_are_the_same_by_either_writer():
    target, drafter = frame_pair(4, 2, 2, 1, hangs=True)
    noise = Noise.from_seed(0, 4)
    plain, _ = frames_run(FrameTarget(target.frames), NoDraft(), Match(), noise, 4, most=8, length=0)
    own, other = (FrameTarget(each.frames, JacobiWriter()) for each in (target, drafter))
    got, stats = frames_run(own, ModelDrafter(other, Chain(drawn)), Coupled(), noise, 4, most=8, length=2)
    assert got == plain
    assert own.depth.runs <= stats.target_calls * 5


# --- what was said of the same frames ---------------------------------------------------------------------------------


def test_the_same_frames_are_asked_about_once_and_others_anew():
    depth = SmallDepth()
    p, x = distribution(depth, states(3)), torch.zeros(3, 1, BOOKS, dtype=torch.long)
    first = p.log_prob(x)
    assert torch.equal(p.log_prob(x), first)
    assert depth.runs == 1
    p.log_prob(x.clone())
    assert depth.runs == 2
    x[:, 0, 0] = 3  # written into
    assert torch.equal(p.log_prob(x), distribution(depth, states(3)).log_prob(x))
    assert not torch.equal(p.log_prob(x), first)
    other = replace(p, hidden=states(3, 1)[:, None])
    assert torch.equal(other.log_prob(x), distribution(depth, states(3, 1)).log_prob(x))
    with torch.inference_mode():
        y = torch.zeros(3, 1, BOOKS, dtype=torch.long)
        assert torch.equal(p.log_prob(y), first)
        y += 1
        assert not torch.equal(p.log_prob(y), first)


def test_distributions_select_and_join():
    depth = SmallDepth()
    both = DepthFrame(states(4).view(2, 2, WIDE), depth)
    x = torch.randint(SIZE, (2, 2, BOOKS), generator=torch.Generator().manual_seed(0))
    whole = both.log_prob(x)
    assert torch.allclose(both.last(1).log_prob(x[:, 1:]), whole[:, 1:])
    assert torch.allclose(
        both.at(torch.tensor([[1, 0], [0, 0]])).log_prob(x[[[0], [1]], [[1, 0], [0, 0]]]), whole[[[0], [1]], [[1, 0], [0, 0]]]
    )
    assert torch.allclose(both.last(1).cat(both).log_prob(x[:, [1, 0, 1]]), whole[:, [1, 0, 1]])
    mask = torch.tensor([[True, False], [False, True]])
    swapped = both.where(mask, DepthFrame(both.hidden.flip(1), depth))
    assert torch.allclose(swapped.log_prob(x)[mask], whole[mask])


# --- heads that draft -------------------------------------------------------------------------------------------------


def mean_runs(heads: CodeHeads, depth: SmallDepth, frames: int = 60) -> float:
    """Runs of the depth net a frame, one frame at a time, on states no heads were trained on."""
    hidden, runs = states(frames, seed=99), 0
    for row in range(frames):
        before = depth.runs
        frame = distribution(depth, hidden[row : row + 1], JacobiWriter(heads.draft_token)).sample(keys(1, row))
        runs += depth.runs - before
        assert torch.equal(frame, distribution(depth, hidden[row : row + 1]).sample(keys(1, row)))
    return runs / frames


def test_trained_heads_need_fewer_runs(tmp_path):
    depth = SmallDepth(sharp=3.0)
    hidden = states(3000, seed=1)
    codes = distribution(depth, hidden).sample(keys(3000, 7))[:, 0]
    torch.manual_seed(0)
    heads = CodeHeads(WIDE, BOOKS, SIZE)
    fresh = mean_runs(heads, depth)
    losses = train_code_heads(heads, hidden, codes, Fit(steps=250, lr=1e-2), tmp_path / "heads.pt")
    assert losses[-1] < losses[0] - 0.5
    assert mean_runs(heads, depth) < fresh - 0.3


def test_heads_take_the_first_code_from_a_state_that_carries_its_scores():
    heads = CodeHeads(WIDE, 3, SIZE, opening=True)
    scores = torch.randn(4, SIZE)
    hidden = torch.cat([states(4).float(), scores], 1)
    got = heads.draft_token(hidden, lambda scores, book: scores.argmax(-1))
    assert torch.equal(got[:, 0], scores.argmax(-1))
    assert got.shape == (4, 3)


def test_what_does_not_fit_is_refused(tmp_path):
    heads, plan = CodeHeads(WIDE, 3, SIZE), Fit(steps=1, lr=1e-3)
    with pytest.raises(ValueError, match="books is 1"):
        CodeHeads(WIDE, 1, SIZE)
    with pytest.raises(ValueError, match="2 states and 3 frames"):
        train_code_heads(heads, states(2), torch.zeros(3, 3, dtype=torch.long), plan, tmp_path / "x.pt")
    with pytest.raises(ValueError, match="frames have 4 codes"):
        train_code_heads(heads, states(3), torch.zeros(3, 4, dtype=torch.long), plan, tmp_path / "x.pt")


def test_the_oracle_tells_the_tables_conditionals():
    table = FrameTable.depth(3, 2, 0, 1)
    depth, frames = TableDepth(table), table.all()
    told = depth.scores(torch.ones(8, 1, dtype=torch.long), frames).exp()
    whole = told.gather(2, frames[..., None])[..., 0].prod(-1)
    assert torch.allclose(whole, table.table.probs[1])
