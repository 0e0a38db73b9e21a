"""Published bugs, planted: the very checks the real code passes must fail on each of them.

Every test runs one check twice, on the real thing and on the mutant. A check that a mutant passes proves nothing.
"""

import copy
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor

from mmspec.core.control import Fixed
from mmspec.core.decode import generate
from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.processors.history import History
from mmspec.core.processors.pipeline import pipeline
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rules.base import commit, deepest, parents_distribution
from mmspec.core.rules.block import Block, _Weighted
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.match import Match
from mmspec.core.rules.paths import equals_parent
from mmspec.core.rules.sibling_rules import Hybrid, KSeq, WithoutReplacement, WithReplacement
from mmspec.core.rules.siblings import Walk
from mmspec.core.rules.token import Token, _chain_extra, judge_chain
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.none import NoDraft
from mmspec.drafters.shapes import Chain, draw_with_replacement, drawn, sampled, top_and_one
from mmspec.drafters.trees.static import StaticTree, Template
from mmspec.models.families.base import DecoderOnly
from mmspec.models.target import HFSession, HFTarget
from tests.oracles.statistics import FAIL, PASS, chi_square
from tests.oracles.tables import Table, TableSession, TableTarget, encode, exact_error, loop_distribution, pair, run_loop

TINY, SEEN = 1e-9, 1e-3
"""An exact rule's error, and the least a mutant's must be."""


SAMPLED = Chain(sampled)


def name(value) -> str:
    return getattr(value, "__name__", type(value).__name__)


def error(rule, shape=SAMPLED, *, most: int = 3, length: int = 2, size: int = 3, wrap=lambda drafter: drafter, target=None) -> float:
    """The check of test_accept.py, over whole runs."""
    real, drafter = pair(size, most + length + 1, 1, zeros=0.0)
    proposer = wrap(ModelDrafter(drafter, shape))
    return exact_error(target(real.table) if target else real, proposer, rule, most=most, length=length)


# --- q is not the distribution the draft token was drawn from ------------------------------------------------------------------------


@dataclass(frozen=True)
class Tampered:
    """A drafter whose drafts pass through `tamper(draft, previous draft)`."""

    drafter: ModelDrafter
    tamper: object

    def begin(self, prompt, session):
        inner, last = self.drafter.begin(prompt, session), []
        tamper = self.tamper

        class Session:
            def propose(self, pending, budget, noise):
                draft = inner.propose(pending, budget, noise)
                last.append(draft)
                return tamper(draft, last[-2] if len(last) > 1 else draft)

            def observe(self, *outcome):
                inner.observe(*outcome)

        return Session()


def stale(draft: Draft, previous: Draft) -> Draft:
    """q of the previous round (kept window tokens of Jacobi decoders)."""
    return replace(draft, q=previous.q)


def shifted(draft: Draft, previous: Draft) -> Draft:
    """q of the position before."""
    return replace(draft, q=Categorical(draft.q.scores.roll(1, 1)))


@pytest.mark.parametrize("rule", [Token(), Block(), Walk(WithoutReplacement())], ids=repr)
@pytest.mark.parametrize("tamper", [stale, shifted])
def test_q_of_another_round_or_position(tamper, rule):
    assert error(rule, wrap=lambda drafter: Tampered(drafter, lambda draft, previous: draft)) < TINY
    assert error(rule, wrap=lambda drafter: Tampered(drafter, tamper)) > SEEN


def truncated(distribution: Categorical) -> Categorical:
    """Top-2."""
    return Categorical(distribution.scores.masked_fill(distribution.scores < distribution.scores.topk(2).values[..., -1:], -torch.inf))


def drawn_from_top(distribution: Categorical, keys) -> tuple[Tensor, Categorical]:
    return truncated(distribution).sample(keys), truncated(distribution)


def recorded_before_processors(distribution: Categorical, keys) -> tuple[Tensor, Categorical]:
    """The drafter's raw softmax on record, while the draft token came from its top-2."""
    return truncated(distribution).sample(keys), distribution


def argmax_with_soft_q(distribution: Categorical, keys) -> tuple[Tensor, Categorical]:
    """A greedy drafter's draft token judged as if it had been sampled."""
    return distribution.mode(), distribution


def argmax_as_itself(distribution: Categorical, keys) -> tuple[Tensor, Categorical]:
    return distribution.mode(), Categorical.point(distribution.mode(), distribution.scores.shape[-1], distribution.scores.dtype)


@pytest.mark.parametrize("rule", [Token(), Block(), Walk(WithReplacement())], ids=repr)
@pytest.mark.parametrize(
    ("real", "mutant"), [(drawn_from_top, recorded_before_processors), (argmax_as_itself, argmax_with_soft_q)], ids=name
)
def test_q_that_is_not_the_distribution_of_the_draw(real, mutant, rule):
    assert error(rule, Chain(real)) < TINY
    assert error(rule, Chain(mutant)) > SEEN


# --- judging ----------------------------------------------------------------------------------------------------------


class ResidualIsP(Token):
    """After a rejection, draw from p."""

    def replacement(self, p, q, x):
        return p


class ResidualIsNextQ(Token):
    """After a rejection, leave out the wrong draft token's distribution."""

    def __call__(self, draft, scored, noise):
        return judge_chain(self, replace(draft, q=Categorical(draft.q.scores.roll(1, 1))), scored, noise)

    def accept_prob(self, p, q, x):
        return super().accept_prob(p, Categorical(q.scores.roll(-1, 1)), x)


class JudgedByTheNextDistribution(Token):
    """p one position late: the distribution after a draft token judges it."""

    def __call__(self, draft, scored, noise):
        late = scored.p.scores.clone()
        late[:, :-1] = scored.p.scores[:, 1:]
        return judge_chain(self, draft, Scored(Categorical(late)), noise)


class Threshold(Token):
    """Keep a draft token when p / q is high enough."""

    def accept_prob(self, p, q, x):
        return (super().accept_prob(p, q, x) > 0.5).double()


@pytest.mark.parametrize("mutant", [ResidualIsP, ResidualIsNextQ, JudgedByTheNextDistribution, Threshold])
def test_token_rule_judged_wrong(mutant):
    assert error(Token()) < TINY
    assert error(mutant()) > SEEN


class BlockStopsAtTheFirstFailure(Block):
    """Block verification that takes the run of successes instead of the last success."""

    def __call__(self, draft, scored, noise):
        p, q, x, valid = parents_distribution(draft, scored), draft.q, draft.draft_tokens, draft.valid[:, draft.roots :]
        reach = self.reach(p, q, x)
        hit = noise.accept(draft.position()[:, draft.roots - 1 : -1], draft.start).below(self.keep_prob(p, q, x, reach, valid)) & valid
        accepted = hit.long().cumprod(-1).sum(-1)
        return finish(draft, scored, noise, accepted, reach)


class BlockIgnoresTheRoom(Block):
    """Block verification that takes the last draft token of the widest row for every row's last."""

    @staticmethod
    def keep_prob(p, q, x, reach, valid):
        return Block.keep_prob(p, q, x, reach, torch.ones_like(valid))


def finish(draft: Draft, scored: Scored, noise, accepted: Tensor, reach: Tensor) -> Verdict:
    """Block verification's last step."""
    weighted = _Weighted(reach.gather(1, accepted[:, None]))
    return commit(draft, draft.roots - 1 + accepted, _chain_extra(weighted, draft, scored, noise, accepted))


@pytest.mark.parametrize("mutant", [BlockStopsAtTheFirstFailure, BlockIgnoresTheRoom])
def test_block_judged_wrong(mutant):
    assert error(Block(), most=4, length=3, size=2) < TINY
    assert error(mutant(), most=4, length=3, size=2) > SEEN


class NoRest(WithReplacement):
    """A refused sibling leaves p as it was."""

    def refuse(self, p, q, x, index, count):
        return p, q


class QKeepsTheRefused(WithoutReplacement):
    """Drawn without replacement, judged as with."""

    def refuse(self, p, q, x, index, count):
        return p.residual(q, x), q


class AllSampled(Hybrid):
    """The deterministic candidates judged as if sampled."""

    def take_prob(self, p, q, x, index, count):
        return WithoutReplacement().take_prob(p, q, x, index, count)

    def refuse(self, p, q, x, index, count):
        return WithoutReplacement().refuse(p, q, x, index, count)


class KSeqOfOne(KSeq):
    """K-SEQ with the rest of a single candidate."""

    def refuse(self, p, q, x, index, count):
        return p.residual(q, x).where(index == count - 1, p), q


@cache
def right_error(siblings, shape) -> float:
    return error(Walk(siblings), shape)


@pytest.mark.parametrize(
    ("real", "mutant", "pick"),
    [
        (WithReplacement(), NoRest(), draw_with_replacement),
        (WithReplacement(), WithoutReplacement(), draw_with_replacement),
        (WithoutReplacement(), QKeepsTheRefused(), None),
        (WithoutReplacement(), WithReplacement(), None),
        (Hybrid(), AllSampled(), top_and_one),
        (KSeq(), KSeqOfOne(), draw_with_replacement),
        (KSeq(), WithoutReplacement(), draw_with_replacement),
    ],
    ids=name,
)
def test_siblings_judged_as_what_they_are_not(real, mutant, pick):
    shape = StaticTree(Template.branching((2, 1))) if pick is None else StaticTree(Template.branching((2, 1)), pick)
    assert right_error(real, shape) < TINY
    assert error(Walk(mutant), shape) > SEEN


# --- rollback ---------------------------------------------------------------------------------------------------------


def one_too_few(keep: Tensor) -> Tensor:
    """The last kept column forgotten."""
    last = (keep >= 0).sum(1, keepdim=True) - 1
    return torch.where(torch.arange(keep.shape[1]) == last, -1, keep)


def one_too_many(keep: Tensor) -> Tensor:
    """One rejected column kept."""
    end = (keep >= 0).sum(1, keepdim=True)
    columns = torch.arange(keep.shape[1])
    return torch.where((columns == end) & (end > 0), columns, keep)


@dataclass(frozen=True)
class Slipping(TableTarget):
    """A target whose sessions commit `slip(keep)`."""

    slip: object = None

    def begin(self, prompt):
        slip = self.slip

        class Session(TableSession):
            def commit(self, keep, most):
                super().commit(slip(keep), most)

        return Session(self, prompt), super().begin(prompt)[1]


@pytest.mark.parametrize("rule", [Match(), Token(), Block()], ids=repr)
@pytest.mark.parametrize("slip", [one_too_few, one_too_many])
def test_rollback_off_by_one(slip, rule):
    def loop_error(target) -> float:
        real, drafter = pair(2, 6, 1, zeros=0.0)
        distribution = loop_distribution(
            target(real.table), ModelDrafter(drafter), rule, most=3, length=2, once=not isinstance(rule, Match)
        )
        return (distribution - real.table.joint(3)).abs().max().item()

    assert loop_error(TableTarget) < TINY
    assert loop_error(lambda table: Slipping(table, slip=slip)) > SEEN


def hf_run(model, rule, shape, small, **numbers):
    inputs = {"input_ids": torch.randint(3, 50, (3, 9), generator=torch.Generator().manual_seed(0))}
    processors = pipeline(**numbers)
    drafter = NoDraft() if shape is None else ModelDrafter(HFTarget(small, DecoderOnly.of(small), processors), shape)
    stopping, noise, control = DefaultStopping(3, 16), Noise.from_seed(0, 3), Fixed(3)
    return generate(
        HFTarget(model, DecoderOnly.of(model), processors), drafter, rule, inputs, stopping=stopping, noise=noise, control=control
    )


@pytest.mark.parametrize("slip", [one_too_few, one_too_many])
@pytest.mark.parametrize("rule", [Greedy(), Coupled()], ids=repr)
def test_cache_rollback_off_by_one(big, monkeypatch, rule, slip):
    """On the real cache; the check is equality with plain decoding."""
    near = copy.deepcopy(big)
    torch.nn.init.normal_(near.model.layers[-1].mlp.down_proj.weight)  # right now and then
    temperature = {} if isinstance(rule, Greedy) else {"temperature": 1.0}
    plain = hf_run(big, Match() if temperature else Greedy(), None, near, **temperature).sequences
    assert torch.equal(hf_run(big, rule, Chain(drawn), near, **temperature).sequences, plain)
    commit = HFSession.commit

    def slipping(self, keep, most):
        commit(self, slip(keep) if self.target.model is big else keep, most)

    monkeypatch.setattr(HFSession, "commit", slipping)
    assert not torch.equal(hf_run(big, rule, Chain(drawn), near, **temperature).sequences, plain)


@pytest.mark.parametrize("slip", [one_too_few, one_too_many])
def test_drafter_rollback_off_by_one(big, monkeypatch, slip):
    """Equality cannot see a drafter that lost its place; a target that drafts for itself can."""
    twin, temperature = copy.deepcopy(big), {"temperature": 1.0}
    plain = hf_run(big, Match(), None, twin, **temperature).sequences
    assert hf_run(big, Coupled(), Chain(drawn), twin, **temperature).stats.rejected == 0
    commit = HFSession.commit

    def slipping(self, keep, most):
        commit(self, slip(keep) if self.target.model is twin else keep, most)

    monkeypatch.setattr(HFSession, "commit", slipping)
    out = hf_run(big, Coupled(), Chain(drawn), twin, **temperature)
    assert torch.equal(out.sequences, plain)
    assert out.stats.rejected > 0


def test_processors_that_see_committed_values_only(big, monkeypatch):
    """A history that leaves out the draft; the check is equality with plain sampling."""
    numbers = {"temperature": 1.0, "repetition_penalty": 2.0}
    plain = hf_run(big, Match(), None, big, **numbers).sequences
    assert torch.equal(hf_run(big, Coupled(), Chain(drawn), big, **numbers).sequences, plain)
    seen = History.seen
    monkeypatch.setattr(History, "seen", lambda self, size: seen(self, size)[:, :1].expand(-1, self.visible.shape[1], -1))
    assert not torch.equal(hf_run(big, Coupled(), Chain(drawn), big, **numbers).sequences, plain)


# --- batches ----------------------------------------------------------------------------------------------------------


class MinCommit(Token):
    """Four rows at a time commit what the slowest of them accepted; where another accepted more, its next draft token ends the round."""

    def __call__(self, draft, scored, noise):
        verdict = judge_chain(Token(), draft, scored, noise)
        least = verdict.accepted.view(-1, 4).amin(1).repeat_interleave(4)
        if draft.size == draft.roots:
            return verdict
        cut = draft.draft_tokens.gather(1, least.clamp(max=draft.size - draft.roots - 1)[:, None])[:, 0]
        extra = torch.where(verdict.accepted > least, cut, verdict.pending.nodes[:, 0])
        return replace(commit(draft, draft.roots - 1 + least, extra), judged=verdict.accepted)


@dataclass(frozen=True)
class Chained:
    """A chain drafter which, if it `retests`, proposes again what a round accepted but did not commit, with the q of old."""

    table: Table
    retests: bool

    def begin(self, prompt, session):
        return ChainedSession(self, prompt)


class ChainedSession:
    def __init__(self, drafter: Chained, rows: int):
        self.retests, self.session = drafter.retests, TableTarget(drafter.table).begin(rows)[0]
        self.left = None  # values, distributions and which are there, by step

    def propose(self, pending, budget, noise):
        draft = pending
        for step in range(budget.length):
            p = self.session.score(draft).p
            distribution = Categorical(p.scores[:, -1:])
            value = distribution.sample(noise.draft_token((draft.start + step)[:, None], draft.start))
            if self.left is not None and self.retests:
                values, distributions, there = self.left
                value = torch.where(there[:, step : step + 1], values[:, step : step + 1], value)
                distribution = Categorical(distributions[:, step : step + 1]).where(there[:, step : step + 1], distribution)
            draft = draft.extend_chain(value, budget.draft_tokens, distribution)
        self.session.score(draft)
        return draft

    def observe(self, draft, scored, verdict, committed):
        self.session.commit(verdict.keep, 0)
        draft_tokens = draft.size - draft.roots
        steps = verdict.count[:, None] + torch.arange(draft_tokens)
        index = steps.clamp(max=draft_tokens - 1)
        own = draft.draft_tokens.gather(1, (verdict.count - 1).clamp(0, draft_tokens - 1)[:, None])[:, 0]
        there = (steps < verdict.judged[:, None]) & (own == verdict.pending.nodes[:, 0])[:, None]
        self.left = draft.draft_tokens.gather(1, index), draft.q.at(index).scores, there


def batch_distribution(rule, retests: bool, rows: int = 20_000) -> float:
    """p-value of the outputs of whole runs, with the real noise."""
    target, drafter = pair(3, 7, 2, zeros=0.0)
    outputs = run_loop(target, Chained(drafter.table, retests), rule, Noise.from_seed(0, rows), rows, 4, 3).outputs
    return chi_square(encode(torch.tensor(outputs), 3), target.table.joint(4))


def test_batch_wide_minimum_commit():
    """Committing the least of a batch wastes draft tokens; judging the others again with their old q bends the distribution."""
    assert batch_distribution(Token(), retests=False) > PASS
    assert batch_distribution(MinCommit(), retests=False) > PASS
    assert batch_distribution(MinCommit(), retests=True) < FAIL


# --- noise ------------------------------------------------------------------------------------------------------------


class BlockWithOneNoise(Block):
    """Draft tokens of a position drawn with the same numbers in every round, though the block's later draft tokens had a say in its end."""

    coupled = True


class FreshMatch(Match):
    """The target's draws keyed by the round: another text than plain sampling's, if one of the same distribution."""

    def __call__(self, draft, scored, noise):
        value = scored.p.sample(noise.residual(draft.position(), draft.start))
        return deepest(draft, equals_parent(draft, value), value)


def test_noise_shared_between_rounds_is_no_coupling_for_block():
    target, drafter = pair(3, 8, 2, zeros=0.0)
    rows, values = 20_000, []
    for rule in (Block(), BlockWithOneNoise()):
        outputs = run_loop(target, ModelDrafter(drafter), rule, Noise.from_seed(0, rows), rows, 4, 3).outputs
        values.append(chi_square(encode(torch.tensor(outputs), 3), target.table.joint(4)))
    assert values[0] > PASS
    assert values[1] < FAIL


def test_match_with_noise_of_the_round_is_not_token_exact():
    target, drafter = pair(3, 8, 1)
    plain = run_loop(target, NoDraft(), Match(), Noise.from_seed(0, 64), 64, 6, 0).outputs
    assert run_loop(target, ModelDrafter(drafter), Match(), Noise.from_seed(0, 64), 64, 6, 3).outputs == plain
    assert run_loop(target, ModelDrafter(drafter), FreshMatch(), Noise.from_seed(0, 64), 64, 6, 3).outputs != plain


def test_draft_tokens_not_drawn_with_the_targets_noise_are_seldom_right():
    """Exact all the same, so only the rate of acceptance shows it."""

    class Uncoupled(Coupled):
        coupled = False

    target, drafter = pair(3, 8, 1)
    accepted = []
    for rule in (Coupled(), Uncoupled()):
        stopping = DefaultStopping(2000, 6)
        noise = Noise.from_seed(0, 2000)
        out = generate(target, ModelDrafter(drafter, Chain(drawn)), rule, 2000, stopping=stopping, noise=noise, control=Fixed(3))
        accepted.append(out.stats.accepted / out.stats.judged)
    assert accepted[0] > accepted[1] + 0.1
