"""Training of block drafters: where blocks begin, what counts, what is learned."""

from dataclasses import replace

import pytest
import torch

from mmspec.drafters.block.dflash import DFlash
from mmspec.drafters.block.parallel_eagle import ParallelEagle
from mmspec.drafters.checkpoints.load import load_drafter, save_drafter
from mmspec.drafters.checkpoints.nets import begin_training, net_to_train, new_net
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.shapes import Chain, most_likely
from mmspec.train import Fit, fit
from mmspec.train.distillation import Aim, DistillationLoss, RecordedWindow, aim_for, unroll
from mmspec.train.record import record
from tests.conftest import llama
from tests.drafters.runs import fives, greedy, markov, prompt_of, random_prompt, run
from tests.drafters.test_guided import BLOCK, SIZES, lively

RAGGED = random_prompt(5, 9, 1, seed=1)


def dflash(**options):
    return lively(DFlash((1, 3), BLOCK, 50, **{"layers": 2, "block": 6, **options}))


def p_eagle(**options):
    return lively(ParallelEagle((1, 3), SIZES, 50, **options))


@pytest.fixture(scope="module")
def counting():
    """A target that counts in fives, and windows of its text."""
    target = markov(fives).requires_grad_(False)
    starts = torch.randint(0, 50, (32, 1), generator=torch.Generator().manual_seed(1))
    ids = starts // 5 * 5 + (starts + torch.arange(30)) % 5
    with torch.no_grad():
        hidden = target(ids, output_hidden_states=True).hidden_states
    return target, ids, hidden


def window_of(counting, net):
    _, ids, hidden = counting
    return RecordedWindow(ids, torch.cat([hidden[state] for state in net.reads], -1), hidden[-1], torch.ones_like(ids, dtype=torch.bool))


@pytest.mark.parametrize(
    ("kind", "options"),
    [("dflash", {"block": 4}), ("dflash2", {"block": 4}), ("dspark", {"block": 3, "markov_kind": "rnn"}), ("p-eagle", {"tokens": 3})],
)
def test_training_leads_to_acceptance(counting, kind, options, tmp_path):
    target, _, _ = counting
    torch.manual_seed(0)
    net = begin_training(new_net(kind, target, {"reads": (0, 1), **options}), target, counting[1].flatten())
    window, example = window_of(counting, net), DistillationLoss(net, target, aim_for(net))
    fit(example, lambda m, turn: m(replace(window, seeds=range(turn, turn + 32))), Fit(steps=60, lr=1e-2, warmup=5), tmp_path / "run.pt")
    assert all(agree > 0.9 for _, agree in example.acceptance(window))
    save_drafter(net, tmp_path / "net")
    inputs = prompt_of([5, 6, 7], [20, 21, 22, 23], [41])
    out = run(target, GuidedDrafter(load_drafter(tmp_path / "net"), Chain(most_likely)), inputs, length=3, new=24)
    assert out.sequences.tolist() == greedy(target, inputs, new=24)
    assert out.stats.accepted >= 0.9 * out.stats.drafted


def test_estimates_of_acceptance_are_learned(big, tmp_path):
    """After training, the estimates are nearer to 1 - TV than the best constant is."""
    inputs = random_prompt(*[8] * 32, seed=7)
    ids = torch.cat([inputs["input_ids"], torch.tensor(greedy(big, inputs, new=16))], 1)
    own = torch.zeros_like(ids, dtype=torch.bool)
    own[:, 8:] = True
    torch.manual_seed(0)
    target = llama(3, 0).requires_grad_(False)
    net = new_net("dspark", target, {"block": 4})
    data = record(target, ids, own, net.reads, tmp_path / "states")
    example = DistillationLoss(net, target, aim_for(net))
    assert example.aim.confidence == 1.0
    fit(example, lambda m, turn: m(data.draw(turn, 8)), Fit(steps=120, lr=5e-3, warmup=5), tmp_path / "run.pt")
    window = data.window(range(32))
    with torch.no_grad():
        log_p, gaps, spreads = target.lm_head(window.last).log_softmax(-1), [], []
        for level in unroll(net, window, target.get_input_embeddings(), target.lm_head, 4):
            row, place = level.counted(own).nonzero(as_tuple=True)
            hidden = level.at(row, place)
            taken = torch.minimum(log_p[row, place], level.head(hidden).log_softmax(-1)).exp().sum(-1)
            gaps.append((net.confidence(hidden).sigmoid() - taken).square().mean())
            spreads.append(taken.var())
    assert sum(gaps) < 0.8 * sum(spreads)


def test_confidence_without_a_head_is_refused(big):
    with pytest.raises(ValueError, match=r"Aim.confidence is 1.0, but this dflash drafter has no confidence head"):
        DistillationLoss(dflash(), big, Aim(confidence=1.0))
    net = new_net("dspark", big, {"confidence": False})
    assert aim_for(net).confidence == 0


@pytest.fixture(scope="module")
def recorded(big, tmp_path_factory):
    inputs = random_prompt(*[8] * 16, seed=7)
    ids = torch.cat([inputs["input_ids"], torch.tensor(greedy(big, inputs, new=24))], 1)
    own = torch.zeros_like(ids, dtype=torch.bool)
    own[:, 8:] = True
    return record(big, ids, own, (1, 3), tmp_path_factory.mktemp("states") / "s")


def counted_places(net, big, window):
    """The counted window positions of every level, by row."""
    with torch.no_grad():
        levels = list(unroll(net, window, big.get_input_embeddings(), big.lm_head, net.most))
    return [[set(row.nonzero()[:, 0].tolist()) for row in level.counted(window.own)] for level in levels]


@pytest.mark.parametrize("make", [lambda: dflash(anchors=4), lambda: p_eagle(kept=0.5)], ids=["dflash", "p-eagle"])
def test_positions_are_drawn_anew_for_every_step_and_the_same_when_resumed(big, recorded, make):
    net = make()
    steps = [counted_places(net, big, recorded.draw(turn, 4)) for turn in (5, 6, 5)]
    assert steps[0] == steps[2]
    assert steps[0] != steps[1]
    assert counted_places(net, big, recorded.window([0, 1])) == counted_places(net, big, recorded.window([0, 1]))
    parts = [counted_places(net, big, recorded.draw(2 * 5 + part, 4, processes=2)) for part in range(2)]
    assert [sorted(map(sorted, rows)) for rows in steps[0]] == [
        sorted(map(sorted, one + other)) for one, other in zip(*parts, strict=True)
    ]  # two processes draw what one draws


def test_blocks_begin_where_the_target_wrote_the_next_value(big, recorded):
    """At every level the positions of the same blocks, each one further; blocks in a prompt are not counted, not even their ends."""
    levels = counted_places(dflash(anchors=4), big, recorded.draw(3, 4))
    for row in range(4):
        first = levels[0][row]
        assert len(first) == 4
        assert min(first) >= 7
        for level, found in enumerate(levels):
            assert found[row] == {place + level for place in first if place + level < 31}


def test_few_blocks_give_the_loss_of_these_blocks(big, recorded):
    """By hand: the mean over a level's counted positions, weighed 0.78^k."""
    net = dflash(anchors=3)
    window = recorded.draw(1, 4)
    with torch.no_grad():
        log_p, total, weight = big.lm_head(window.last).log_softmax(-1), 0.0, 0.0
        for k, level in enumerate(unroll(net, window, big.get_input_embeddings(), big.lm_head, 5)):
            row, place = level.counted(window.own).nonzero(as_tuple=True)
            p, log_q = log_p[row, place], level.head(level.at(row, place)).log_softmax(-1)
            total, weight = total + 0.78**k * (p.exp() * (p - log_q)).sum(-1).mean(), weight + 0.78**k
        assert torch.allclose(DistillationLoss(net, big, aim_for(net))(window), total / weight, rtol=1e-4)


def test_a_part_of_the_vocabulary_by_the_targets_rows(big, recorded, tmp_path):
    net = net_to_train("dflash", big, {"reads": (1, 3)}, vocabulary=20)
    begin_training(net, big, recorded.window(range(16)).ids.flatten())
    assert len(net.vocabulary) == 20
    assert torch.equal(net.lm_head.rows(), big.lm_head.weight[net.vocabulary])
    save_drafter(net, tmp_path / "net")
    again = load_drafter(tmp_path / "net", big)
    out = run(big, GuidedDrafter(again, Chain(most_likely)), RAGGED)
    assert out.sequences.tolist() == greedy(big, RAGGED)
    whole = net_to_train("dflash", big, {"reads": (1, 3)})
    assert (whole.config["values"], whole.lm_head, whole.vocabulary) == (0, None, None)
