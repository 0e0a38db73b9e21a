"""Equality distributions of the whole loop over transformers models: token for token, whatever drafts."""

import copy
from functools import cache

import pytest
import torch

from mmspec.core.control import Fixed
from mmspec.core.decode import Generation, generate
from mmspec.core.distributions.categorical import Categorical
from mmspec.core.draft_length.throughput import Throughput
from mmspec.core.noise import Noise
from mmspec.core.processors.pipeline import pipeline
from mmspec.core.rules.block import Block
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.match import Match
from mmspec.core.rules.sibling_rules import KSeq, TopKSiblings, WithoutReplacement
from mmspec.core.rules.siblings import Walk
from mmspec.core.rules.token import Token
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.none import NoDraft
from mmspec.drafters.shapes import (
    Chain,
    draw_with_replacement,
    draw_without_replacement,
    drawn,
    most_likely,
    sampled,
    top,
    top_and_one,
)
from mmspec.drafters.stops import Confidence
from mmspec.drafters.trees.search import ExpandRerank
from mmspec.drafters.trees.static import StaticTree, Template
from mmspec.models.families.base import DecoderOnly
from mmspec.models.target import HFTarget
from tests.conftest import llama
from tests.oracles.statistics import chi_square
from tests.oracles.tables import encode, pair, run_loop

NEW = 12


@pytest.fixture(scope="module")
def near(big):
    """A drafter that is often right: `big` with every weight off by two per cent."""
    model = copy.deepcopy(big)
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        parameter.data.mul_(1 + 0.02 * torch.randn(parameter.shape, generator=generator))
    return model


def prompts(rows: int, seed: int = 0, length: int = 9) -> dict[str, torch.Tensor]:
    """Left-padded prompts; batches of more than one row are ragged."""
    ids = torch.randint(3, 50, (rows, length), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    for row in range(1, rows):
        mask[row, : (3 * row) % 7] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def only(inputs: dict[str, torch.Tensor], row: int) -> dict[str, torch.Tensor]:
    """One row of a batch, its padding left behind."""
    first = int((inputs["attention_mask"][row] == 0).sum())
    return {name: value[row : row + 1, first:] for name, value in inputs.items()}


def run(model, inputs, rule, shape=None, small=None, *, length=4, seed=0, new=NEW, control=None, **numbers) -> Generation:
    """`model` decoded with a drafter of `shape` over `small`, both with the same processors; no shape: plain decoding."""
    processors = pipeline(**numbers)
    drafter = NoDraft() if shape is None else ModelDrafter(HFTarget(small, DecoderOnly.of(small), processors), shape)
    rows = len(inputs["input_ids"])
    target = HFTarget(model, DecoderOnly.of(model), processors)
    stopping, noise = DefaultStopping(rows, new), Noise.from_seed(seed, rows)
    return generate(target, drafter, rule, inputs, stopping=stopping, noise=noise, control=control or Fixed(length))


@cache
def sampled_plainly(model, rows: int) -> tuple[torch.Tensor, int]:
    """Plain sampling of `prompts(rows)` at temperature 1, seed 3: tokens and target calls."""
    out = run(model, prompts(rows), Match(), temperature=1.0, seed=3)
    return out.sequences, out.stats.target_calls


@cache
def greedy(model, rows: int) -> torch.Tensor:
    """What transformers' own greedy decoding adds to `prompts(rows, seed=2)`."""
    inputs = prompts(rows, seed=2)
    return model.generate(**inputs, do_sample=False, max_new_tokens=NEW, pad_token_id=0, eos_token_id=None)[:, 9:]


SHAPES = {
    "chain 1": (Chain(drawn), 1),
    "chain 2": (Chain(drawn), 2),
    "chain 5": (Chain(drawn), 5),
    "greedy chain": (Chain(most_likely), 3),
    "recorded chain": (Chain(sampled), 3),
    "cautious chain": (Chain(drawn, Confidence(0.5)), 5),
    "distinct tree": (StaticTree(Template.branching((3, 2, 1)), draw_without_replacement), 3),
    "repeated tree": (StaticTree(Template.branching((2, 2)), draw_with_replacement), 2),
    "top tree": (StaticTree(Template.branching((3, 2, 1)), top), 3),
    "top-and-one tree": (StaticTree(Template.branching((3, 2)), top_and_one), 2),
    "short tree": (StaticTree(Template.branching((3, 2, 1)), top), 2),
    "search": (ExpandRerank(3, 4, 10), 4),
}


@pytest.mark.parametrize(("rows", "rule"), [(1, Match()), (3, Coupled()), (8, Match()), (8, Coupled())], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_sampling_gives_the_tokens_of_plain_sampling(big, near, shape, rows, rule):
    """Coupled and match at temperature 1: the very tokens plain sampling gives for the seed."""
    inputs, (shaped, length) = prompts(rows), SHAPES[shape]
    plain, calls = sampled_plainly(big, rows)
    out = run(big, inputs, rule, shaped, near, length=length, temperature=1.0, seed=3)
    assert torch.equal(out.sequences, plain)
    assert out.stats.accepted > 0
    assert out.stats.target_calls < calls or rows == 8


def test_the_seed_matters(big):
    inputs = prompts(3)
    one, other = (run(big, inputs, Match(), temperature=1.0, seed=seed).sequences for seed in (3, 4))
    assert not torch.equal(one, other)
    assert not torch.equal(one[1:], other[:-1])  # rows r + 1 and r share a seed, but not a prompt
    same = {name: value[:1].expand(3, -1) for name, value in inputs.items()}
    one, other = (run(big, same, Match(), temperature=1.0, seed=seed).sequences for seed in (3, 4))
    assert torch.equal(one[1:], other[:-1])  # and so with one prompt they are the same


@pytest.mark.parametrize("numbers", [{"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.8, "repetition_penalty": 1.3}], ids=str)
def test_processed_sampling_gives_the_tokens_of_plain_sampling(big, near, numbers):
    inputs = prompts(3, seed=1)
    plain = run(big, inputs, Match(), seed=5, **numbers)
    for shape in ("chain 5", "distinct tree", "search"):
        shaped, length = SHAPES[shape]
        assert torch.equal(run(big, inputs, Coupled(), shaped, near, length=length, seed=5, **numbers).sequences, plain.sequences)


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_gives_the_tokens_of_transformers(big, near, shape, rows):
    inputs, (shaped, length) = prompts(rows, seed=2), SHAPES[shape]
    out = run(big, inputs, Greedy(), shaped, near, length=length)
    assert torch.equal(out.sequences, greedy(big, rows))
    assert out.stats.accepted > 0


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(big, near, side):
    inputs = prompts(3, seed=4)
    if side == "right":
        order = torch.argsort(1 - inputs["attention_mask"], dim=1, stable=True)
        inputs = {name: value.gather(1, order) for name, value in inputs.items()}
    out = run(big, inputs, Coupled(), Chain(drawn), near, temperature=1.0)
    reference = run(big, prompts(3, seed=4), Match(), temperature=1.0)
    assert torch.equal(out.sequences, reference.sequences)


ALONE = {
    "greedy chain": (Greedy(), Chain(most_likely), None),
    "greedy tree": (Greedy(), StaticTree(Template.branching((2, 2, 1)), top), None),
    "token at 0": (Token(), Chain(sampled), 0.0),
    "block at 0": (Block(), Chain(sampled), 0.0),
    "walk at 0": (Walk(WithoutReplacement()), StaticTree(Template.branching((2, 1))), 0.0),
    "topk at 0": (Walk(TopKSiblings()), StaticTree(Template.branching((2, 1)), top), 0.0),
    "token": (Token(), Chain(sampled), 1.0),
    "block": (Block(), Chain(sampled), 1.0),
    "walk": (Walk(WithoutReplacement()), StaticTree(Template.branching((2, 2))), 1.0),
    "kseq": (Walk(KSeq()), StaticTree(Template.branching((2, 1)), draw_with_replacement), 1.0),
    "coupled": (Coupled(), Chain(drawn), 1.0),
}


@pytest.mark.parametrize("case", ALONE)
def test_a_request_gives_the_same_alone_and_in_a_batch(big, near, case):
    """With a fixed draft length, for any rule: the other rows of a batch, faster or slower, change nothing."""
    rule, shape, temperature = ALONE[case]
    inputs = prompts(8, seed=3)
    batch = run(big, inputs, rule, shape, near, temperature=temperature, seed=20)
    for row in (0, 2):  # without padding, and with the most
        alone = run(big, only(inputs, row), rule, shape, near, temperature=temperature, seed=20 + row)
        assert torch.equal(alone.sequences[0], batch.sequences[row])


@pytest.mark.parametrize("case", ["token at 0", "block at 0", "walk at 0", "topk at 0"])
def test_temperature_0_is_greedy_under_every_rule(big, near, case):
    rule, shape, temperature = ALONE[case]
    inputs = prompts(3, seed=3)
    assert torch.equal(run(big, inputs, rule, shape, near, temperature=temperature).sequences, run(big, inputs, Greedy()).sequences)


SELF = {
    "token": (Token(), Chain(sampled)),
    "block": (Block(), Chain(sampled)),
    "coupled": (Coupled(), Chain(drawn)),
    "walk": (Walk(WithoutReplacement()), StaticTree(Template.branching((1, 1, 1, 1)))),
    "kseq": (Walk(KSeq()), Chain(sampled)),
}


@pytest.mark.parametrize("temperature", [0.7, 1.5])
@pytest.mark.parametrize("case", SELF)
def test_a_target_drafting_for_itself_accepts_everything(big, case, temperature):
    """Equality cannot see a blind drafter; full acceptance can: position, cache, processors and q must all agree."""
    rule, shape = SELF[case]
    stats = run(big, prompts(3), rule, shape, big, temperature=temperature, top_p=0.9, new=26).stats
    assert stats.rejected == 0
    assert stats.accepted == stats.drafted
    assert stats.tokens_per_call > 4


@pytest.mark.parametrize("shape", ["greedy chain", "top tree", "search"])
def test_a_target_drafting_greedily_for_itself_accepts_everything(big, shape):
    shaped, length = SHAPES[shape]
    out = run(big, prompts(3), Greedy(), shaped, big, length=length)
    assert out.stats.tokens == 3 * NEW
    assert out.stats.rejected == 0
    assert shape == "search" or out.stats.target_calls == -(-NEW // (length + 1))  # a search may leave out the deepest nodes


def test_history_dependent_processors_see_the_draft(big):
    """A penalty that looked at committed values only would reject its own drafter's draft tokens."""
    stats = run(big, prompts(3), Token(), Chain(sampled), big, temperature=0.8, repetition_penalty=1.8, new=26).stats
    assert stats.rejected == 0


def test_draft_lengths_that_change_change_no_token(big, near):
    """Rounds of zero draft tokens, and of any number, in one generation; the drafter catches up."""

    class Waves:
        def __init__(self):
            self.rounds = 0

        def begin(self):
            return self

        def length(self):
            return (0, 3, 0, 0, 1, 5)[self.rounds % 6]

        def observe(self, length, committed, seconds):
            self.rounds += 1

    inputs = prompts(3)
    plain = run(big, inputs, Match(), temperature=1.0)
    for control in (Waves(), Throughput(first=3)):
        out = run(big, inputs, Coupled(), Chain(drawn), near, temperature=1.0, control=control)
        assert torch.equal(out.sequences, plain.sequences)
    blind = run(big, inputs, Token(), Chain(sampled), big, temperature=1.0, control=Waves()).stats
    assert blind.rejected == 0


def test_generations_leave_no_residue():
    big, near, inputs = llama(3, seed=0), llama(2, seed=1), prompts(3)  # of its own: transformers leaves hooks in models asked for states
    weights = [{name: value.clone() for name, value in model.state_dict().items()} for model in (big, near)]
    before = [(repr(m.config), repr(m.generation_config), m.training, sorted(vars(m))) for m in (big, near)]
    given = {name: value.clone() for name, value in inputs.items()}
    state = torch.get_rng_state()
    one = run(big, inputs, Token(), Chain(sampled), near, temperature=1.0)
    run(big, inputs, Greedy(), StaticTree(Template.branching((2, 2)), top), near)
    two = run(big, inputs, Token(), Chain(sampled), near, temperature=1.0)
    assert torch.equal(one.sequences, two.sequences)
    assert one.stats.histogram == two.stats.histogram
    assert torch.equal(torch.get_rng_state(), state)
    assert [(repr(m.config), repr(m.generation_config), m.training, sorted(vars(m))) for m in (big, near)] == before
    for model, old in zip((big, near), weights, strict=True):
        assert all(torch.equal(value, old[name]) for name, value in model.state_dict().items())
        for module in model.modules():
            assert not module._forward_hooks
            assert not module._forward_pre_hooks
        assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(inputs[name], value) for name, value in given.items())


def test_an_abandoned_generation_leaves_no_residue(big, near):
    """A consumer that stops half-way, or a rule that raises, spoils nothing for the next."""
    inputs = prompts(3)
    before = run(big, inputs, Token(), Chain(sampled), near, temperature=1.0).sequences
    with pytest.raises(ValueError, match="judges chains"):
        run(big, inputs, Token(), StaticTree(Template.branching((2, 2))), near, temperature=1.0)
    assert torch.equal(run(big, inputs, Token(), Chain(sampled), near, temperature=1.0).sequences, before)


# --- acceptance of coupled drafts -------------------------------------------------------------------------------------


def correlated(rows: int, size: int, agree: float, temperature: float, seed: int) -> tuple[Categorical, Categorical]:
    """Two families of softmaxed Gaussian logits with correlation `agree`, [rows, 1, size]."""
    generator = torch.Generator().manual_seed(seed)
    one, noise = (torch.randn(rows, 1, size, generator=generator, dtype=torch.float64) for _ in range(2))
    return Categorical(temperature * one), Categorical(temperature * (agree * one + (1 - agree**2) ** 0.5 * noise))


def agreement(p: Categorical, q: Categorical, seed: int = 0) -> torch.Tensor:
    """Which rows' coupled draft token is the target's own draw."""
    position = torch.zeros(len(p.scores), 1, dtype=torch.long)
    noise = Noise.from_seed(seed, len(p.scores), coupled=True)
    return (q.sample(noise.draft_token(position, position[:, 0])) == p.sample(noise.value(position)))[:, 0]


@pytest.mark.parametrize("temperature", [1.0, 2.5, 5.0])
@pytest.mark.parametrize(("agree", "share"), [(0.5, 0.78), (0.8, 0.85), (0.9, 0.9), (0.95, 0.92), (0.99, 0.95)])
def test_coupled_acceptance_is_close_to_the_token_rules(agree, share, temperature):
    """At least nine tenths of it for drafters that are right more often than not; less for worse ones, but never below the bound."""
    rows = 8000
    p, q = correlated(rows, 50, agree, temperature, seed=1)
    token = (1 - p.tv(q, None)).mean().item()
    coupled = agreement(p, q).double().mean().item()
    assert coupled >= share * token
    assert coupled > ((1 - p.tv(q, None)) / (1 + p.tv(q, None))).mean().item()
    apart = Noise.from_seed(10**6, rows).value(torch.zeros(rows, 1, dtype=torch.long))
    independent = (q.sample(apart) == p.sample(Noise.from_seed(0, rows).value(torch.zeros(rows, 1, dtype=torch.long)))).double().mean()
    assert independent < 0.75 * token  # power: noise that is not shared falls short


@pytest.mark.parametrize("seed", range(5))
def test_coupled_acceptance_obeys_its_bound(seed):
    """(1 - TV) / (1 + TV) for every pair of distributions, here within four standard errors of 40 000 draws."""
    rows = 40_000
    p, q = correlated(1, 12, (0.2, 0.5, 0.8, 0.9, 0.99)[seed], (3.0, 1.0, 2.0, 4.0, 1.0)[seed], seed)
    many = [Categorical(distribution.scores.expand(rows, -1, -1)) for distribution in (p, q)]
    tv = p.tv(q, None).item()
    rate = agreement(*many).double().mean().item()
    slack = 4 * (rate * (1 - rate) / rows) ** 0.5
    assert (1 - tv) / (1 + tv) - slack <= rate <= 1 - tv + slack


# --- the real noise in the whole loop ---------------------------------------------------------------------------------

LOOPS = {
    "plain": (Match(), None, 0),
    "match": (Match(), Chain(sampled), 2),
    "coupled": (Coupled(), Chain(drawn), 2),
    "coupled tree": (Coupled(), StaticTree(Template.branching((2, 2))), 2),
    "token": (Token(), Chain(sampled), 2),
    "block": (Block(), Chain(sampled), 2),
    "walk": (Walk(WithoutReplacement()), StaticTree(Template.branching((2, 1))), 2),
    "kseq": (Walk(KSeq()), StaticTree(Template.branching((2, 1)), draw_with_replacement), 2),
}


@pytest.mark.parametrize("case", LOOPS)
def test_outputs_follow_the_targets_distribution_with_the_real_noise(case):
    """Enumeration takes keys to be independent; here they are what they are: 20 000 seeds, three values, 27 cells."""
    rule, shape, length = LOOPS[case]
    rows = 20_000
    target, drafter = pair(3, 5, 1, zeros=0.0)
    proposer = NoDraft() if shape is None else ModelDrafter(drafter, shape)
    outputs = torch.tensor(run_loop(target, proposer, rule, Noise.from_seed(0, rows), rows, 3, length).outputs)
    codes, distribution = encode(outputs, 3), target.table.joint(3)
    assert chi_square(codes, distribution) > 1e-4
    assert chi_square(codes, 0.97 * distribution + 0.03 * drafter.table.joint(3)) < 1e-4
