"""CTC drafting: distributions of collapsed paths against the enumeration of all paths and torch's own loss, and in generations."""

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn.functional import ctc_loss

from mmspec.core.control import Fixed
from mmspec.core.rules.sibling_rules import without_replacement_rule
from mmspec.core.rules.token import Token
from mmspec.drafters.checkpoints.load import load_drafter, save_drafter
from mmspec.drafters.checkpoints.nets import new_net
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.heads.ctc import CTC, CtcFrames
from mmspec.drafters.shapes import Chain, Comb, draw_without_replacement, most_likely, sampled
from mmspec.train.distillation import Aim, DistillationLoss, RecordedWindow
from tests.conftest import llama
from tests.drafters.runs import fives, greedy, markov, prompt_of, random_prompt, run
from tests.drafters.test_guided import gap_to_training, lively
from tests.oracles.statistics import FAIL, PASS, chi_square


@pytest.fixture(scope="module")
def net():
    return lively(CTC(32, 4))


# --- the collapse -----------------------------------------------------------------------------------------------------

VALUES, FRAMES = 3, 5


def collapsed(path: tuple[int, ...]) -> tuple[int, ...]:
    merged = [v for i, v in enumerate(path) if i == 0 or v != path[i - 1]]
    return tuple(v for v in merged if v != VALUES)


def some_frames() -> CtcFrames:
    torch.manual_seed(0)
    return CtcFrames((2 * torch.randn(2, FRAMES, VALUES + 1, dtype=torch.double)).log_softmax(-1), torch.zeros(2, FRAMES, 1))


def chances(frames: CtcFrames) -> list[dict[tuple[int, ...], float]]:
    """For each row, the chance of every draft, by enumerating all paths."""
    found = []
    for distribution in frames.log_probs:
        sums: dict[tuple[int, ...], float] = {}
        for path in product(range(VALUES + 1), repeat=FRAMES):
            chance = distribution[range(FRAMES), list(path)].sum().exp().item()
            sums[collapsed(path)] = sums.get(collapsed(path), 0.0) + chance
        found.append(sums)
    return found


def walk(frames: CtcFrames, prefix: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The forward variables and the last value of `prefix` in every row."""
    state, last = frames.empty(), torch.full((2, 1), -1)
    for value in prefix:
        now = torch.full((2, 1), value)
        state, last = frames.advance(state, last, now), now
    return state, last


def gap_to_enumeration(frames: CtcFrames) -> float:
    """The largest difference between a distribution after a prefix and the share of the paths that begin with it."""
    worst = 0.0
    for row, sums in enumerate(chances(frames)):
        for prefix in [p for p in sums if len(p) < 4]:
            found = (sum(c for d, c in sums.items() if d[: len(prefix) + 1] == (*prefix, v)) for v in range(VALUES))
            wanted = torch.tensor(list(found), dtype=torch.double)
            if wanted.sum() < 1e-12:
                continue  # no room for another value: any distribution will do
            distribution = frames.next_logits(*walk(frames, prefix))[row, 0].softmax(-1)
            worst = max(worst, (distribution - wanted / wanted.sum()).abs().max().item())
    return worst


def test_distributions_are_those_of_all_paths():
    assert gap_to_enumeration(some_frames()) < 1e-9


@pytest.mark.parametrize("mutant", ["repeats-need-no-blank", "last-value-forgotten", "blanks-lost"])
def test_a_wrong_collapse_is_caught(mutant, monkeypatch):
    advance, logits = CtcFrames.advance, CtcFrames.next_logits
    if mutant == "repeats-need-no-blank":
        monkeypatch.setattr(CtcFrames, "advance", lambda self, state, last, value: advance(self, state, torch.full_like(last, -1), value))
    elif mutant == "last-value-forgotten":
        monkeypatch.setattr(CtcFrames, "next_logits", lambda self, state, last: logits(self, state, torch.full_like(last, -1)))
    else:
        monkeypatch.setattr(CtcFrames, "advance", lambda *args: advance(*args) + torch.tensor([0.0, -1e6])[:, None])
    assert gap_to_enumeration(some_frames()) > 1e-2


def test_the_forward_variables_are_those_of_torchs_loss():
    """The chance of a whole draft, by enumeration, by ctc_loss and from the last frame's variables."""
    frames = some_frames()
    for draft in [(0,), (1, 2), (2, 2), (0, 1, 0), (1, 1, 1)]:
        sizes = ((FRAMES,) * 2, (len(draft),) * 2)
        loss = ctc_loss(frames.log_probs.transpose(0, 1), torch.tensor([draft] * 2), *sizes, blank=VALUES, reduction="none")
        own = walk(frames, draft)[0][:, 0, :, -1].logsumexp(-1)
        for row, sums in enumerate(chances(frames)):
            assert own[row].exp().item() == pytest.approx(sums[draft], abs=1e-12)
            assert own[row].item() == pytest.approx(-loss[row].item(), abs=1e-9)


def test_prefixes_the_frames_have_no_room_for_still_get_a_distribution():
    frames = some_frames()
    state, last = walk(frames, (0, 0, 0, 0, 0, 0))  # needs 11 frames
    distribution = frames.next_logits(state, last)
    assert distribution.isfinite().all()
    assert (distribution.softmax(-1).sum(-1) - 1).abs().max() < 1e-6


def test_frames_that_are_sure_of_themselves_are_no_trouble():
    sure = torch.full((1, 4, 4), -1e4)
    for frame, value in enumerate((1, 1, 3, 1)):
        sure[0, frame, value] = 1e4
    frames = CtcFrames(sure.log_softmax(-1), torch.zeros(1, 4, 1))
    state, last = frames.empty(), torch.full((1, 1), -1)
    for _ in range(2):
        distribution = frames.next_logits(state, last).softmax(-1)
        assert distribution[0, 0, 1] > 0.999  # a repeat with a blank between is two values
        state, last = frames.advance(state, last, torch.ones(1, 1, dtype=torch.long)), torch.ones(1, 1, dtype=torch.long)


# --- in a generation --------------------------------------------------------------------------------------------------


def test_a_net_drafts_with_the_distributions_it_was_trained_on(big, net):
    assert gap_to_training(big, net) < 1e-5


def test_a_prefix_that_ends_in_the_wrong_value_is_caught(big, net, monkeypatch):
    advance = CtcFrames.advance
    monkeypatch.setattr(CtcFrames, "advance", lambda self, s, last, v: advance(self, s, last, v if v.shape[0] != 3 else (v + 1) % 50))
    assert gap_to_training(big, net) > 1e-2


@pytest.mark.parametrize(
    ("shape", "rule"), [(Chain(sampled), Token()), (Comb(pick=draw_without_replacement), without_replacement_rule())], ids=["token", "tree"]
)
def test_sampled_text_follows_the_targets_distribution(net, shape, rule):
    """Values 2 and 3 of 3,000 sampled texts, both drafted, against the target's exact joint distribution, and against one that must be
    refused."""
    target, prompt, rows = llama(3, seed=5), [4, 8, 15], 3000
    inputs = {"input_ids": torch.tensor([prompt] * rows), "attention_mask": torch.ones(rows, len(prompt), dtype=torch.long)}
    out = run(target, GuidedDrafter(net, shape), inputs, rule, new=4, length=3, temperature=1.0)
    with torch.no_grad():
        three = torch.cartesian_prod(torch.arange(50), torch.arange(50), torch.tensor([0]))
        distributions = target(torch.cat([torch.tensor([prompt] * len(three)), three[:, :2]], 1)).logits[:, -3:].softmax(-1).double()
    first, second, third = (
        distributions[:, 0].gather(1, three[:, :1])[:, 0],
        distributions[:, 1].gather(1, three[:, 1:2])[:, 0],
        distributions[:, 2],
    )
    joint = ((first * second)[:, None] * third).view(50, 50, 50).sum(0).flatten()
    values = out.sequences[:, 1] * 50 + out.sequences[:, 2]
    assert out.stats.judged > rows
    assert chi_square(values, joint) > PASS
    assert chi_square(values, 0.8 * joint + 0.2 * joint.roll(1)) < FAIL


def test_nothing_is_drafted_deeper_than_there_are_draft_tokens(big, net):
    depths = []
    run(big, GuidedDrafter(net), random_prompt(5, 7), control=Fixed(6), on_step=lambda s: depths.append(s.draft.height))
    assert set(depths) == {0, 4}


@pytest.mark.parametrize("distributions", [{"kl": 1.0}, {"ce": 1.0}], ids=["distributions", "text"])
def test_training_leads_to_acceptance(distributions, tmp_path):
    target = markov(fives)
    torch.manual_seed(0)
    net = new_net("ctc", target, {"heads": 3})
    starts = torch.randint(0, 50, (64, 1))
    ids = starts // 5 * 5 + (starts + torch.arange(12)) % 5
    with torch.no_grad():
        hidden = target(ids, output_hidden_states=True).hidden_states[-1]
    window = RecordedWindow(ids, hidden, hidden, torch.ones_like(ids, dtype=torch.bool))
    example = DistillationLoss(net, target, Aim(depth=3, distributions=distributions))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(30):
        loss = example(window)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert all(agree > 0.9 for _, agree in example.acceptance(window))
    save_drafter(net, tmp_path / "net")
    inputs = prompt_of([5, 6, 7], [20, 21, 22, 23], [41])
    out = run(target, GuidedDrafter(load_drafter(tmp_path / "net"), Chain(most_likely)), inputs, length=3)
    assert out.sequences.tolist() == greedy(target, inputs)
    assert out.stats.accepted >= 0.9 * out.stats.drafted


def test_refusals(big):
    with pytest.raises(ValueError, match="heads is 4 and frames 3"):
        CTC(32, 4, frames=3)
    with pytest.raises(ValueError, match="16 wide, but the target's are 32"):
        run(big, GuidedDrafter(CTC(16)), random_prompt(4))
