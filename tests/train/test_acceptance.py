"""Judgements are what the target said, and a head trained on them ends drafts where draft tokens would be rejected."""

from dataclasses import replace

import torch

from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.shapes import Chain, most_likely
from mmspec.drafters.stops import AcceptanceHead, Learned
from mmspec.models.families.base import DecoderOnly
from mmspec.models.target import HFTarget
from mmspec.train import Fit, fit
from mmspec.train.acceptance import Judgements, head_loss, separation
from tests.drafters.runs import fives, greedy, markov, prompt_of, run


def half_blind():
    """A drafter that follows `fives` for values below 25 only."""
    return markov(lambda token: fives(token) if token < 25 else (token + 7) % 50)


def test_judgements_are_what_the_target_said():
    target, judged = markov(fives), Judgements()
    drafter = ModelDrafter(HFTarget(half_blind(), DecoderOnly.of(target)), Chain(most_likely, stop=judged))
    inputs = prompt_of([30, 31], [7, 8, 9], [45], [12, 13])
    out = run(target, drafter, inputs, on_step=judged)
    assert out.sequences.tolist() == greedy(target, inputs)
    assert len(judged) == out.stats.judged
    assert sum(judged.accepted) == out.stats.accepted
    assert 0 < out.stats.accepted < out.stats.judged
    assert max(judged.log_q) <= 0


def test_a_trained_head_ends_drafts_that_would_be_rejected(tmp_path):
    target, judged = markov(fives), Judgements()
    drafter = ModelDrafter(HFTarget(half_blind(), DecoderOnly.of(target)), Chain(most_likely, stop=judged))
    inputs = prompt_of(*([3, value] for value in range(3, 50, 3)))
    before = run(target, drafter, inputs, on_step=judged).stats
    torch.manual_seed(0)
    head = AcceptanceHead(64, 16, 1)
    fit(head, lambda m, turn: head_loss(m, judged.draw(turn, 64)), Fit(steps=150, lr=1e-2, warmup=5), tmp_path / "head.pt")
    assert separation(head, judged.at(list(range(len(judged))))) > 0.95
    learned = replace(drafter, shape=Chain(most_likely, stop=Learned(head, risk=0.5)))
    fresh = prompt_of(*([6, value] for value in range(4, 50, 3)))
    found = run(target, learned, fresh)
    assert found.sequences.tolist() == greedy(target, fresh)
    plain = run(target, replace(drafter, shape=Chain(most_likely)), fresh).stats
    assert found.stats.drafted < 0.8 * plain.drafted
    assert found.stats.accepted > 0.9 * plain.accepted
    assert before.drafted > 0
