"""Trees planned for speech: calibrated under any sampler, wide where distributions are flat, exact with heads, and true to the cache."""

from collections import Counter
from functools import partial

import pytest
import torch

from mmspec import text
from mmspec.core.control import Fixed
from mmspec.core.decode import decode
from mmspec.core.noise import Noise
from mmspec.core.processors.pipeline import Pipeline, pipeline
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.lossy.tolerance import Tolerance
from mmspec.core.rules.match import Match
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.heads.latent import Latent
from mmspec.drafters.heads.medusa import Medusa
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.shapes import top
from mmspec.drafters.trees.calibration import broad, calibrate, playing
from mmspec.drafters.trees.planners import sparse_tree
from mmspec.drafters.trees.static import StaticTree, Template
from mmspec.models.compat.cache_name import cache_of
from mmspec.models.families.base import DecoderOnly
from mmspec.models.target import HFSession, HFTarget
from mmspec.run.drafters import drafter_of
from mmspec.speech.sampling.ras import repetition_aware
from tests.drafters.runs import plain, random_prompt, run
from tests.drafters.test_guided import lively
from tests.drafters.worlds import ranked, world

SPEECH = Template(((0,), (1,), (2,), (3,), (0, 0), (0, 1), (1, 0), (2, 0), (0, 0, 0), (1, 0, 0), (1, 0, 1)))


class Rows:
    """A target of tables, whose prompt is a number of rows, with prompts as transformers' models have them."""

    def __init__(self, target):
        self.target = target

    def begin(self, prompt):
        return self.target.begin(len(prompt["input_ids"]))


def planned(rates, nodes=16, decay=0.8):
    """The sparse tree that a calibration in a world of such rates leads to, and the rates that were measured."""
    target, drafter = (Rows(table) for table in world(*ranked(rates, 12)))
    play = playing(target, lambda tree: ModelDrafter(drafter, StaticTree(tree, top)), Match(), most=40)
    batch = {"input_ids": torch.ones(128, 1, dtype=torch.long)}
    _, found = calibrate(play, [batch, batch], broad(nodes, 4, decay))
    return sparse_tree(found.accuracy(50), nodes), found.accuracy(50)


def test_flat_distributions_make_trees_wide_near_the_root():
    """Flat: six ranks right in 0.15 of cases each. Peaked: the first in 0.8. Both trees have 16 nodes."""
    flat, measured = planned([0.15] * 6)
    peaked, _ = planned([0.8, 0.05, 0.02])
    assert measured[0][:6] == pytest.approx([0.15] * 6, abs=0.02)
    assert (flat.size, peaked.size) == (16, 16)
    widths = [[len(level.rank) for level in tree.levels] for tree in (flat, peaked)]
    assert widths[0][0] >= 6
    assert flat.depth == 2
    assert widths[1][0] <= 4
    assert peaked.depth >= 3


@pytest.mark.parametrize("decay", [0.2, 0.4, 0.8])
def test_a_broad_tree_is_as_wide_as_the_ranks_are_flat(decay):
    tree = broad(24, 4, decay)
    ranks = sum(1 for rank in range(99) if (1 - decay) * decay**rank > 0.02)
    assert tree.depth >= 4
    assert all((*[0] * level, ranks - 1) in tree.paths for level in range(4))
    assert sum(len(path) == 1 for path in tree.paths) >= ranks
    with pytest.raises(ValueError, match="decay is 1: a drafter's ranks decay by a factor between 0 and 1"):
        broad(24, 4, 1)


SAMPLERS = {
    "greedy": {"temperature": 0.0},
    "nucleus": {"temperature": 1.0, "top_p": 0.9},
    "repetition-aware": {"processors": (repetition_aware(window=6, limit=2, top_k=8),)},
}


@pytest.fixture(scope="module")
def heads():
    return lively(Medusa(32, 3))


@pytest.mark.parametrize("name", SAMPLERS)
def test_any_target_calibrates_under_any_sampler(big, heads, name):
    """By the loop itself, by the public call, and however the prompts are cut into batches: the same counts."""
    sampler = dict(SAMPLERS[name])
    rule = Greedy() if name == "greedy" else Match()
    distributions = (
        Pipeline() if name == "greedy" else pipeline(first=sampler.pop("processors", ()), **sampler)
    )  # greedy ranks the raw distributions
    target, prompts = HFTarget(big, DecoderOnly.of(big), distributions), random_prompt(4, 4, 4, seed=3)
    play = playing(target, lambda tree: drafter_of(heads, target, rule, tree), rule, most=40, ends=[2])
    cuts = [{key: x[rows] for key, x in prompts.items()} for rows in (slice(0, 2), slice(2, 3))]
    stats, whole = calibrate(play, [prompts], SPEECH, seed=5)
    pieces = [calibrate(play, cuts, SPEECH, seed=5)[1]]
    settings = {"temperature": 1.0} | SAMPLERS[name]
    call = partial(text.generate, big, drafter=heads, accept=rule, max_new_tokens=40, draft_length=SPEECH.depth, **settings)
    pieces.append(calibrate(call, [prompts], SPEECH, seed=5)[1])
    assert all(piece == whole for piece in pieces)
    assert sum(map(sum, whole.hits)) == stats.accepted
    assert whole.tries[0][0] > 20
    assert [len(row) for row in whole.tries[:2]] == [4, 2]


# --- static trees with heads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: Medusa(32, 3), lambda: Latent(32, 3)])
@pytest.mark.parametrize("rule", [Match(), Coupled(), Tolerance(1)], ids=["match", "coupled", "tau-1"])
def test_planned_trees_of_heads_say_what_plain_sampling_says(big, rule, make):
    """Deterministic top ranks for match and tolerance, Gumbel top-k siblings in the target's own noise for coupled."""
    inputs, net = random_prompt(5, 9, 2, seed=1), lively(make())
    drafter = drafter_of(net, HFTarget(big, DecoderOnly.of(big)), rule, SPEECH)
    assert (drafter.shape.pick is top) == (not rule.coupled)
    out = run(big, drafter, inputs, rule, seed=4, temperature=1.0, length=3)
    assert out.sequences.tolist() == plain(big, inputs, seed=4)
    assert out.stats.accepted > 0


def test_a_higher_tolerance_accepts_more_and_spends_more(big, heads):
    inputs, drafter = random_prompt(*[5] * 8, seed=1), GuidedDrafter(heads, StaticTree(SPEECH, top))
    stats = [run(big, drafter, inputs, Tolerance(tau), seed=4, temperature=1.0, length=3, new=24).stats for tau in (1, 2, 3, 5)]
    assert stats[0].drift < 1e-4  # rounding of 1 - (1 - p) - p
    rates = [one.tokens_per_call for one in stats]
    assert rates == sorted(rates)
    assert rates[-1] > rates[0]
    spent = [one.drift / one.tokens for one in stats]
    assert spent == sorted(spent)


class Kept(HFTarget):
    """A target that remembers the session it opened."""

    def begin(self, prompt):
        session, pending = super().begin(prompt)
        self.sessions.append(session)
        return session, pending


def worst_gap(model, drafter, rule, seen):
    """After every round: the largest difference between a row's cached keys or values and those of a fresh forward over its text."""
    target = Kept(model, DecoderOnly.of(model))
    object.__setattr__(target, "sessions", [])
    inputs, worst, stopping = random_prompt(5, 9, seed=1), 0.0, DefaultStopping(2, 40)
    prompts = [ids[mask.bool()].tolist() for ids, mask in zip(*inputs.values(), strict=True)]
    for step in decode(target, drafter, rule, inputs, stopping=stopping, noise=Noise.from_seed(4, 2), control=Fixed(drafter.shape.depth)):
        seen[max(step.committed.accepted)] += 1
        branch = step.verdict.keep[:, 1:]  # columns kept behind the root: a branch other than the first leaves a gap
        seen["skipped"] += int(((branch > 1) & (branch >= 0)).any())
        (session,) = target.sessions
        for row, length in enumerate(session.lengths.tolist()):
            with torch.no_grad():
                fresh = cache_of(model(torch.tensor([(prompts[row] + stopping.outputs[row])[:length]]), use_cache=True))
            for mine, own in zip(session.cache.layers, fresh.layers, strict=True):
                for stored, wanted in ((mine.keys, own.keys), (mine.values, own.values)):
                    worst = max(worst, (stored[row, :, :length] - wanted[0]).abs().max().item())
    return worst


@pytest.mark.parametrize("rule", [Match(), Coupled(), Tolerance(5)], ids=["match", "coupled", "tau-5"])
def test_the_cache_keeps_the_walked_path_alone(gentle, rule, monkeypatch):
    """Survivors are gathered, not cropped: a session that keeps the first columns in their place is found out."""
    net, seen = lively(Medusa(32, 3)), Counter()
    drafter = drafter_of(net, HFTarget(gentle, DecoderOnly.of(gentle)), rule, SPEECH)
    assert worst_gap(gentle, drafter, rule, seen) < 1e-5
    assert seen["skipped"] > 0
    commit = HFSession.commit

    def cropped(session, keep, most):
        session.linear = True
        commit(session, keep, most)

    monkeypatch.setattr(HFSession, "commit", cropped)
    assert worst_gap(gentle, drafter, rule, Counter()) > 1e-3


@pytest.fixture(scope="module")
def gentle():
    """Weights of ordinary size, so that 1e-5 means something in fp32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=50, num_hidden_layers=2, max_position_embeddings=256, **sizes)).eval()
