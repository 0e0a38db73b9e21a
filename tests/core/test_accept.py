"""Exact rules emit the target's distribution, whatever the draft: enumerated, no sampling error."""

import pytest
import torch

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.rules.block import Block
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.match import Match
from mmspec.core.rules.sibling_rules import Hybrid, KSeq, TopKSiblings, WithoutReplacement, WithReplacement
from mmspec.core.rules.siblings import Walk
from mmspec.core.rules.token import Token
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.none import NoDraft
from mmspec.drafters.shapes import Chain, draw_with_replacement, drawn, most_likely, sampled, top, top_and_one
from mmspec.drafters.stops import Confidence
from mmspec.drafters.trees.search import ExpandRerank
from mmspec.drafters.trees.static import StaticTree, Template
from tests.oracles.tables import (
    Table,
    TableTarget,
    exact_error,
    first_value_distribution,
    loop_distribution,
    pair,
    round_distribution,
    round_outcomes,
)

TINY = 1e-9

CHAINS = {
    "sampled": Chain(sampled),
    "unrecorded": Chain(drawn),
    "best": Chain(most_likely),
    "stops": Chain(sampled, Confidence(0.6)),
}
TREES = {
    "distinct": StaticTree(Template.branching((2, 1))),
    "wide": StaticTree(Template.branching((3,))),
    "bushy": StaticTree(Template.branching((2, 2))),
    "repeated": StaticTree(Template.branching((2, 1)), draw_with_replacement),
    "top": StaticTree(Template.branching((2, 1)), top),
    "top-and-one": StaticTree(Template.branching((2, 1)), top_and_one),
    "three": StaticTree(Template.branching((3, 1)), top_and_one),
    "search": ExpandRerank(2, 2, 4),
}
SIZES = [(2, 3, 2), (3, 3, 2), (2, 4, 3)]  # values, outputs, draft tokens a round


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    ("rule", "shape"),
    [(rule, shape) for rule in (Token(), Block()) for shape in ("sampled", "best", "stops")],
)
def test_chain_rules_are_exact(rule, shape, sizes, seed):
    size, most, length = sizes
    target, drafter = pair(size, most + length, seed)
    assert exact_error(target, ModelDrafter(drafter, CHAINS[shape]), rule, most=most, length=length) < TINY


@pytest.mark.parametrize("length", [1, 3, 5])
@pytest.mark.parametrize("rule", [Token(), Block()])
def test_drafts_longer_than_the_room_are_cut(rule, length):
    """Rows cut by room hold PAD draft tokens, and the last draft token that fits ends the block."""
    target, drafter = pair(2, 7, 3)
    assert exact_error(target, ModelDrafter(drafter), rule, most=2, length=length) < TINY
    assert exact_error(target, ModelDrafter(drafter), rule, most=3, length=length) < TINY


@pytest.mark.parametrize("sizes", SIZES[:2])
@pytest.mark.parametrize(
    ("siblings", "shape"),
    [
        (TopKSiblings(), "top"),
        (TopKSiblings(), "search"),
        (TopKSiblings(), "distinct"),  # candidates of any origin will do
        (TopKSiblings(), "repeated"),
        (WithReplacement(), "repeated"),
        (WithoutReplacement(), "distinct"),
        (WithoutReplacement(), "wide"),
        (WithoutReplacement(), "bushy"),
        (Hybrid(), "top-and-one"),
        (Hybrid(), "three"),
        (KSeq(), "repeated"),
    ],
)
def test_tree_rules_are_exact(siblings, shape, sizes):
    size, most, _ = sizes
    for seed in (0, 1) if size == 2 else (1,):
        target, drafter = pair(size, most + 2, seed)
        whole = (size, shape) not in ((3, "bushy"), (3, "search"))
        assert exact_error(target, ModelDrafter(drafter, TREES[shape]), Walk(siblings), most=most, length=2, whole=whole) < TINY


@pytest.mark.parametrize(
    "siblings", [TopKSiblings(), WithReplacement(), WithoutReplacement(), Hybrid(), KSeq()], ids=lambda siblings: type(siblings).__name__
)
def test_tree_rules_judge_chains(siblings):
    shape = CHAINS["best" if isinstance(siblings, TopKSiblings) else "sampled"]
    for seed in (0, 1):
        target, drafter = pair(3, 5, seed)
        assert exact_error(target, ModelDrafter(drafter, shape), Walk(siblings), most=3, length=2) < TINY


@pytest.mark.parametrize(
    ("rule", "shape"),
    [
        (Token(), "sampled"),
        (Block(), "sampled"),
        (Block(), "stops"),
        (Walk(TopKSiblings()), "search"),
        (Walk(WithReplacement()), "repeated"),
        (Walk(WithoutReplacement()), "wide"),
        (Walk(Hybrid()), "three"),
        (Walk(KSeq()), "repeated"),
    ],
)
def test_float32_is_as_exact_as_float32_can_be(rule, shape):
    """Half of all values impossible, distributions that hardly differ: errors stay at rounding, and what the target rules out never comes
    out."""
    for seed in range(4):
        target, drafter = pair(3, 5, seed, zeros=0.5)
        drafting = drafter.table if seed else target.table.blend(drafter.table, 1 - 1e-6)
        distribution = round_distribution(
            TableTarget(target.table, torch.float32),
            ModelDrafter(TableTarget(drafting, torch.float32), (CHAINS | TREES)[shape]),
            rule,
            most=3,
            length=2,
        )
        goal = target.table.joint(3)
        assert (distribution - goal).abs().max() < 1e-6
        assert distribution[goal == 0].max() == 0


@pytest.mark.parametrize("shape", [*CHAINS, *TREES])
def test_match_is_exact_for_any_draft(shape):
    size = 2 if shape in TREES else 3
    for seed in (0, 1) if size == 2 else (1,):
        target, drafter = pair(size, 5, seed)
        assert exact_error(target, ModelDrafter(drafter, (CHAINS | TREES)[shape]), Match(), most=3, length=2, once=False) < TINY


@pytest.mark.parametrize("shape", [*CHAINS, *TREES])
def test_greedy_is_the_targets_greedy_path(shape):
    target, drafter = pair(3, 5, 4)
    distribution = loop_distribution(target, ModelDrafter(drafter, (CHAINS | TREES)[shape]), Greedy(), most=3, length=2)
    assert (distribution - target.table.greedy().joint(3)).abs().max() < TINY


@pytest.mark.parametrize("rule", [Match(), Token(), Block(), Walk(WithoutReplacement()), Walk(KSeq())])
def test_no_draft_is_plain_sampling(rule):
    target, _ = pair(3, 4, 5)
    assert exact_error(target, NoDraft(), rule, most=3, length=0) < TINY


@pytest.mark.parametrize(
    ("rule", "shape"), [(Token(), "sampled"), (Block(), "sampled"), (Walk(WithoutReplacement()), "distinct"), (Walk(KSeq()), "repeated")]
)
def test_draws_left_out_of_the_enumeration_do_not_matter(rule, shape):
    """The oracle fixes draws that no output depends on; fixing them otherwise leaves the distribution as it is."""
    target, drafter = pair(2, 5, 1)
    assert exact_error(target, ModelDrafter(drafter, (CHAINS | TREES)[shape]), rule, most=3, length=2, salt=1) < TINY


@pytest.mark.parametrize(
    ("rule", "shape"),
    [
        (Greedy(), "sampled"),
        (Match(), "sampled"),
        (Coupled(), None),
        (Token(), "sampled"),
        (Block(), "sampled"),
        (Walk(WithoutReplacement()), "distinct"),
        (Walk(WithReplacement()), "repeated"),
        (Walk(TopKSiblings()), "top"),
        (Walk(KSeq()), "repeated"),
    ],
)
def test_output_distribution_is_the_enumerated_distribution(rule, shape):
    target, drafter = pair(3, 4, 2)
    p, q = target.table.distribution(torch.tensor(1)), drafter.table.distribution(torch.tensor(1))
    said = rule.output_distribution(p, q).probs()
    if shape is None:  # coupled noise cannot be enumerated; its distribution is that of the target's own draws
        assert (said - p.probs()).abs().max() < TINY
        return
    distribution = first_value_distribution(target, ModelDrafter(drafter, (CHAINS | TREES)[shape]), rule, once=not isinstance(rule, Match))
    assert (said - distribution).abs().max() < TINY


@pytest.mark.parametrize("seed", range(6))
def test_block_never_accepts_less_than_token(seed):
    target, drafter = pair(3, 6, seed)
    means = []
    for rule in (Block(), Token()):
        outcomes = round_outcomes(target, ModelDrafter(drafter), rule, most=4, length=3)
        means.append((outcomes.weights * outcomes.extra["accepted"]).sum().item())
    assert means[0] >= means[1] - TINY
    assert means[1] > 0.3  # there is something to compare


def test_block_reproduces_the_published_example():
    """Sun et al. 2024: two values, p = (1/3, 2/3), q = (2/3, 1/3), two draft tokens: 10/9 accepted draft tokens become 11/9."""
    target = TableTarget(Table(torch.tensor([1.0, 2.0]).double().div(3).expand(64, 2)))
    drafter = TableTarget(Table(torch.tensor([2.0, 1.0]).double().div(3).expand(64, 2)))
    for rule, mean in ((Token(), 10 / 9), (Block(), 11 / 9)):
        outcomes = round_outcomes(target, ModelDrafter(drafter), rule, most=3, length=2)
        assert (outcomes.weights * outcomes.extra["accepted"]).sum().item() == pytest.approx(mean, abs=TINY)


@pytest.mark.parametrize("seed", range(4))
def test_token_accepts_one_minus_the_distance(seed):
    target, drafter = pair(3, 3, seed)
    outcomes = round_outcomes(target, ModelDrafter(drafter), Token(), most=2, length=1)
    p, q = target.table.probs[1], drafter.table.probs[1]
    rate = (outcomes.weights * outcomes.extra["accepted"]).sum().item()
    assert rate == pytest.approx(1 - 0.5 * (p - q).abs().sum().item(), abs=TINY)


@pytest.mark.parametrize(
    ("rule", "shape"),
    [
        (Token(), "sampled"),
        (Token(), "best"),
        (Token(), "stops"),
        (Walk(TopKSiblings()), "top"),
        (Walk(TopKSiblings()), "distinct"),
        (Walk(WithReplacement()), "repeated"),
        (Walk(WithoutReplacement()), "distinct"),
        (Walk(WithoutReplacement()), "bushy"),
        (Walk(Hybrid()), "top-and-one"),
        (Walk(KSeq()), "repeated"),
    ],
)
def test_expected_is_the_mean_number_of_rejections(rule, shape):
    """The meter that lets a user see a wrong q: rejections counted equal, in the mean, those the distributions call for."""
    for seed in (0, 1):
        target, drafter = pair(3, 5, seed)
        outcomes = round_outcomes(target, ModelDrafter(drafter, (CHAINS | TREES)[shape]), rule, most=3, length=2)
        rejected = (outcomes.weights * (outcomes.extra["judged"] - outcomes.extra["accepted"])).sum().item()
        expected = (outcomes.weights * outcomes.extra["expected"]).sum().item()
        assert rejected == pytest.approx(expected, abs=TINY)


@pytest.mark.parametrize(
    "siblings", [WithoutReplacement(), WithReplacement(), Hybrid(), KSeq()], ids=lambda siblings: type(siblings).__name__
)
def test_chain_is_walk_on_chains(siblings):
    """One candidate at a node is the token rule: the very same distribution of how many draft tokens survive and what is committed after
    them."""
    target, drafter = pair(3, 6, 7)
    distributions = []
    for rule in (Token(), Walk(siblings)):
        outcomes = round_outcomes(target, ModelDrafter(drafter), rule, most=4, length=3)
        digits = torch.cat([outcomes.values + 1, outcomes.extra["accepted"][:, None].long()], 1)
        codes = (digits * 5 ** torch.arange(digits.shape[1])).sum(1)
        distributions.append(outcomes.distribution(codes, 5**5))
    assert (distributions[0] - distributions[1]).abs().max() < TINY
    assert (distributions[0] > TINY).sum() > 50


def test_rules_for_chains_refuse_trees():
    target, drafter = pair(3, 5, 0)
    for rule in (Token(), Block()):
        with pytest.raises(ValueError, match="judges chains, but this draft branches"):
            round_outcomes(target, ModelDrafter(drafter, TREES["distinct"]), rule, most=3, length=2)
    with pytest.raises(ValueError, match="needs the distribution its candidates were drawn from"):
        round_outcomes(target, ModelDrafter(drafter, TREES["top"]), Walk(KSeq()), most=3, length=2)


def test_kseq_finds_the_root():
    p, q = Categorical(torch.randn(50, 1, 8, dtype=torch.float64)), Categorical(torch.randn(50, 1, 8, dtype=torch.float64))
    for k in (1, 2, 5):
        rho = KSeq.rho(p, q, torch.full((50, 1), k))
        b = torch.minimum(q.probs(), p.probs() / rho[..., None]).sum(-1)
        assert (rho >= 1).all()
        assert (rho <= k).all()
        assert (1 - (1 - b) ** k - rho * b).abs().max() < TINY
