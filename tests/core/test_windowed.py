"""The windowed penalty is CTRL's on the last ids of each node's own path: transformers' own processor, given those ids alone."""

import pytest
import torch
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from mmspec.core.processors.history import History
from mmspec.core.processors.pipeline import RepetitionPenalty
from mmspec.speech.sampling.windowed_penalty import WindowedPenalty

B, N, V, S = 3, 6, 17, 20


def scores(seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(B, N, V, generator=torch.Generator().manual_seed(seed))


def history(seed: int = 0, size: int = V) -> History:
    g = torch.Generator().manual_seed(seed)
    visible = torch.rand(B, N, S, generator=g) < 0.6
    position = torch.minimum(torch.randint(0, 9, (B, N), generator=g), visible.sum(-1))
    return History(torch.randint(0, size, (B, S), generator=g), visible, position)


@pytest.mark.parametrize("window", [1, 4, 64])
@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("seed", [0, 1])
def test_it_is_transformers_own_on_the_last_ids(window, prompt, seed):
    raw, context = scores(seed), history(seed)
    out, theirs = WindowedPenalty(1.3, window, prompt)(raw, context), RepetitionPenaltyLogitsProcessor(1.3)
    for row, node, path in context.paths():
        most = window if prompt else min(window, int(context.position[row, node]))
        recent = path[max(0, len(path) - most) :]
        expected = theirs(recent[None], raw[row, node][None].clone())[0]
        assert torch.equal(out[row, node], expected)


def test_a_window_of_everything_is_the_penalty_of_the_whole_path():
    raw, context = scores(), history()
    assert torch.equal(WindowedPenalty(1.3, S)(raw, context), RepetitionPenalty(1.3)(raw, context))


def test_a_penalty_of_1_changes_nothing():
    raw, context = scores(), history()
    assert torch.equal(WindowedPenalty(1.0)(raw, context), raw)


def test_penalties_per_row():
    raw, context = scores(), history()
    together = WindowedPenalty((1.1, 1.0, 2.0), 5)(raw, context)
    for row, penalty in enumerate((1.1, 1.0, 2.0)):
        assert torch.allclose(together[row], WindowedPenalty(penalty, 5)(raw, context)[row], rtol=1e-6)


def test_ids_without_a_logit_are_not_taken_for_another():
    context = History(torch.tensor([[2, V + 3]]), torch.ones(1, 1, 2, dtype=torch.bool), torch.zeros(1, 1))
    raw = torch.ones(1, 1, V)
    assert torch.equal(WindowedPenalty(2.0, 1)(raw, context), raw)
    assert WindowedPenalty(2.0, 2)(raw, context)[0, 0].eq(0.5).nonzero().flatten().tolist() == [2]


def test_no_history_no_penalty():
    nothing = History(torch.zeros(2, 0, dtype=torch.long), torch.zeros(2, 3, 0, dtype=torch.bool), torch.zeros(2, 3, dtype=torch.long))
    raw = torch.randn(2, 3, V)
    assert torch.equal(WindowedPenalty(2.0)(raw, nothing), raw)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: WindowedPenalty(0), "penalty is 0"),
        (lambda: WindowedPenalty((1.1, float("nan"))), "penalty is"),
        (lambda: WindowedPenalty(1.1, 0), "window is 0"),
    ],
)
def test_bad_knobs_are_refused_in_one_line(make, words):
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
