"""Static trees of any form: every rule stays exact, the drafter runs only what has children, and templates are strict."""

import json
from dataclasses import dataclass, replace

import pytest
import torch

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.records import PAD, Budget, validate
from mmspec.core.rules.block import Block
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.match import Match
from mmspec.core.rules.sibling_rules import Hybrid, KSeq, TopKSiblings, WithoutReplacement, WithReplacement
from mmspec.core.rules.siblings import Walk
from mmspec.core.rules.token import Token
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.none import NoDraft
from mmspec.drafters.shapes import Chain, draw_with_replacement, draw_without_replacement, drawn, most_likely, top, top_and_one
from mmspec.drafters.trees.planners import sparse_tree
from mmspec.drafters.trees.static import Level, StaticTree, Template
from tests.drafters.runs import greedy, plain, random_prompt, run
from tests.drafters.worlds import cooled
from tests.oracles.statistics import PASS, chi_square
from tests.oracles.tables import TableSession, TableTarget, encode, exact_error, pair, run_loop

TINY, SEEN = 1e-9, 1e-3
PICKS = {
    "topk": (TopKSiblings(), top),
    "with": (WithReplacement(), draw_with_replacement),
    "without": (WithoutReplacement(), draw_without_replacement),
    "hybrid": (Hybrid(), top_and_one),
    "kseq": (KSeq(), draw_with_replacement),
}
LEFT, RIGHT = Template(((0,), (1,), (0, 0), (0, 1))), Template(((0,), (1,), (1, 0)))
UNEVEN = Template(((0,), (1,), (0, 0), (0, 1), (1, 0)))
DEEP = Template(((0,), (1,), (0, 0), (1, 0), (1, 0, 0)))
WIDE = Template(((0,), (1,), (2,), (2, 0)))
FORMS = {"left": LEFT, "right": RIGHT, "uneven": UNEVEN, "deep": DEEP, "wide": WIDE}

# --- exactness, enumerated --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rule", PICKS)
def test_sibling_rules_are_exact_on_any_form(rule, form):
    """Two values; three siblings of two values are one too many, and left out."""
    siblings, pick = PICKS[rule]
    for seed in (0, 1):
        target, drafter = pair(2, 6, seed)
        shape = StaticTree(FORMS[form], pick)
        assert exact_error(target, ModelDrafter(drafter, shape), Walk(siblings), most=3, length=FORMS[form].depth) < TINY


@pytest.mark.parametrize("form", ["left", "right", "wide"])
@pytest.mark.parametrize("rule", PICKS)
def test_and_with_three_values(rule, form):
    siblings, pick = PICKS[rule]
    target, drafter = pair(3, 5, 1)
    assert exact_error(target, ModelDrafter(drafter, StaticTree(FORMS[form], pick)), Walk(siblings), most=3, length=2, whole=False) < TINY


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pick", [top, draw_without_replacement])
def test_match_is_exact_on_any_form(form, pick):
    target, drafter = pair(2, 6, 1)
    shape = StaticTree(FORMS[form], pick)
    assert exact_error(target, ModelDrafter(drafter, shape), Match(), most=3, length=FORMS[form].depth, once=False) < TINY


@pytest.mark.parametrize("form", FORMS)
def test_coupled_trees_give_the_tokens_of_plain_sampling(form):
    """Coupled draws use the target's own noise, so a drafter that is the target is never wrong."""
    target, drafter = pair(3, 8, 1)
    expected = run_loop(target, NoDraft(), Match(), Noise.from_seed(5, 500), 500, 6, 0).outputs
    shape = StaticTree(FORMS[form])
    assert run_loop(target, ModelDrafter(drafter, shape), Coupled(), Noise.from_seed(5, 500), 500, 6, shape.depth).outputs == expected
    session, pending = target.begin(500)
    noise = Noise.from_seed(5, 500, coupled=True)
    draft, _ = shape.grow(session.score, pending, Budget(torch.full((500,), 9), shape.depth), noise)
    first = draft.draft_tokens[:, 0]
    assert torch.equal(first, torch.tensor(expected)[:, 0])


def test_outputs_follow_the_targets_distribution_with_the_real_noise():
    target, drafter = pair(3, 6, 1, zeros=0.0)
    for siblings, pick in PICKS.values():
        proposer = ModelDrafter(drafter, StaticTree(UNEVEN, pick))
        outputs = torch.tensor(run_loop(target, proposer, Walk(siblings), Noise.from_seed(0, 20_000), 20_000, 3, 2).outputs)
        assert chi_square(encode(outputs, 3), target.table.joint(3)) > PASS


# --- mutants ----------------------------------------------------------------------------------------------------------


def widest_first(distribution, keys, count):
    """Draw for the widest node and let the others have the beginning: their last one is then not the drawn one."""
    values, real, recorded = top_and_one(distribution, keys, min(2, distribution.scores.shape[-1]))
    return values[..., :count], real[..., :count], recorded


@dataclass(frozen=True)
class Spoilt:
    """A static tree whose finished draft passes through `spoil(draft)`."""

    tree: StaticTree
    spoil: object

    def grow(self, score, draft, budget, noise):
        grown, origin = self.tree.grow(score, draft, budget, noise)
        return self.spoil(grown), origin


def pruned(draft):
    """Draft tokens left out because of their own value: the form depends on what was drawn."""
    unlikely = draft.q.prob(draft.draft_tokens) < 0.35
    parents = draft.parents.clone()
    parents[:, draft.roots :][unlikely] = PAD
    orphan = torch.gather(parents == PAD, 1, parents.clamp(min=0)) & (parents >= 0)
    return replace(draft, parents=torch.where(orphan, PAD, parents))


def own_distribution(draft):
    """q of the node before."""
    return replace(draft, q=Categorical(draft.q.scores.roll(1, 1)))


def last_first(distribution, keys, count):
    """Siblings in another order than they were drawn in."""
    values, real, recorded = top_and_one(distribution, keys, count)
    return values.flip(-1), real.flip(-1), recorded


@pytest.mark.parametrize(
    ("siblings", "real", "mutant"),
    [
        (Hybrid(), StaticTree(UNEVEN, top_and_one), StaticTree(UNEVEN, widest_first)),
        (WithoutReplacement(), StaticTree(RIGHT), Spoilt(StaticTree(RIGHT), pruned)),
        (WithoutReplacement(), StaticTree(RIGHT), Spoilt(StaticTree(RIGHT), own_distribution)),
        (Hybrid(), StaticTree(LEFT, top_and_one), StaticTree(LEFT, last_first)),
    ],
    ids=["count", "pruned", "law", "order"],
)
def test_mutants_are_seen(siblings, real, mutant):
    target, drafter = pair(3, 5, 1, zeros=0.0)
    errors = [exact_error(target, ModelDrafter(drafter, shape), Walk(siblings), most=3, length=2, whole=False) for shape in (real, mutant)]
    assert errors[0] < TINY
    assert errors[1] > SEEN


# --- the draft --------------------------------------------------------------------------------------------------------


class Counted(TableSession):
    """Notes how many columns each call scores."""

    def score(self, draft):
        self.calls = [*getattr(self, "calls", []), draft.size - self.scored]
        return super().score(draft)


def grown(template, pick=draw_without_replacement, *, size=4, rows=3, left=9, length=None, coupled=False, seed=0):
    _, drafter = pair(size, 6, 1, zeros=0.0)
    session, (_, pending) = Counted(drafter, rows), drafter.begin(rows)
    budget = Budget(
        torch.full((rows,), left) if isinstance(left, int) else torch.tensor(left), template.depth if length is None else length
    )
    draft, origin = StaticTree(template, pick).grow(session.score, pending, budget, Noise.from_seed(seed, rows, coupled=coupled))
    validate(draft)
    return draft, origin, session


@pytest.mark.parametrize("pick", [top, top_and_one, draw_with_replacement, draw_without_replacement])
def test_the_draft_has_the_templates_form(pick):
    template = sparse_tree([[0.5, 0.3, 0.2], [0.6, 0.2]], 9)
    draft, _, _ = grown(template, pick)
    column = {(): 0} | {path: index for index, path in enumerate(template.paths, 1)}
    assert draft.parents.tolist() == [[-1, *(column[path[:-1]] for path in template.paths)]] * 3
    assert (draft.width, draft.height, draft.linear) == (template.width, template.depth, False)
    assert (draft.q is None) == (pick is top)


def test_rank_is_the_place_among_what_the_pick_delivers():
    _, drafter = pair(4, 6, 1, zeros=0.0)
    draft, _, _ = grown(UNEVEN, top, rows=1)
    distribution = drafter.table.probs
    first = distribution[1].argsort(descending=True)
    assert draft.draft_tokens[0, :2].tolist() == first[:2].tolist()
    for parent, children in ((0, [2, 3]), (1, [4])):
        ranked = distribution[4 + first[parent]].argsort(descending=True)
        assert draft.draft_tokens[0, children].tolist() == ranked[: len(children)].tolist()


def test_fewer_children_are_the_beginning_of_more():
    """Draws are keyed by place, so a tree drafts what any tree around it drafts there."""
    for pick in (top, draw_with_replacement, draw_without_replacement):
        small, large = (grown(template, pick)[0] for template in (Template(((0,), (1,))), Template(((0,), (1,), (2,), (0, 0), (2, 0)))))
        assert torch.equal(small.draft_tokens[:, :2], large.draft_tokens[:, :2])


def test_recorded_distributions_are_the_parents():
    draft, _, session = grown(UNEVEN)
    for node, parent in enumerate(draft.parents[0, 1:].tolist()):
        code = 1 if parent == 0 else 4 + draft.nodes[:, parent]  # the code of a table's history: 1, then its values
        assert torch.allclose(draft.q.probs()[:, node], session.table.probs[code])


def test_only_nodes_with_children_are_run():
    template = Template(((0,), (1,), (2,), (1, 0), (1, 1), (1, 1, 0)))
    _, origin, session = grown(template)
    assert session.calls == [1, 1, 1]  # the root, (1,), (1, 1)
    assert session.scored == 3
    assert (origin < session.scored).tolist() == [[False, True, False, False, True, False]] * 3
    assert origin[0, [1, 4]].tolist() == [1, 2]


def test_room_and_length_cut_the_levels():
    draft, _, session = grown(DEEP, length=2)
    assert (draft.size, draft.height, session.calls) == (1 + 4, 2, [1, 2])
    draft, _, _ = grown(DEEP, left=[1, 2, 9])
    assert draft.valid[:, 1:].sum(1).tolist() == [0, 2, 5]
    draft, origin, session = grown(DEEP, length=0)
    assert (draft.size, origin.shape, hasattr(session, "calls")) == (1, (3, 0), False)


def test_more_siblings_than_values_are_left_out():
    draft, _, _ = grown(Template(((0,), (1,), (2,), (2, 0))), size=2)
    assert draft.valid[0].tolist() == [True, True, True, False, False]


def test_a_template_of_one_path_is_a_chain():
    draft, _, _ = grown(Template.branching((1, 1, 1)))
    assert draft.linear
    _, drafter = pair(4, 6, 1, zeros=0.0)
    session, pending = drafter.begin(3)
    chain, _ = Chain(most_likely).grow(session.score, pending, Budget(torch.full((3,), 9), 3), Noise.from_seed(0, 3))
    assert torch.equal(grown(Template.branching((1, 1, 1)), top)[0].nodes, chain.nodes)
    session, pending = drafter.begin(3)
    chain, _ = Chain(drawn).grow(session.score, pending, Budget(torch.full((3,), 9), 3), Noise.from_seed(0, 3, coupled=True))
    assert torch.equal(grown(Template.branching((1, 1, 1)), coupled=True)[0].nodes, chain.nodes)


def test_branches_draw_independently():
    """Two nodes of one level with one distribution: without replacement within a node, independent between them."""
    draft, _, _ = grown(Template(((0,), (1,), (0, 0), (1, 0))), draw_with_replacement, size=2, rows=4000)
    same = draft.draft_tokens[:, 0] == draft.draft_tokens[:, 1]
    distribution = draft.q.probs()[same][:, 2]
    agree = (draft.draft_tokens[:, 2] == draft.draft_tokens[:, 3])[same].double()
    chance = (distribution**2).sum(-1)
    assert abs(agree.mean() - chance.mean()) < 4 * (chance.mean() * (1 - chance.mean()) / len(agree)) ** 0.5


# --- the loop ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_models_decode_as_they_would_without(big, form):
    inputs = random_prompt(5, 9, 7, seed=1)
    shape = StaticTree(FORMS[form], top)
    assert run(big, cooled(big, shape), inputs, length=shape.depth).sequences.tolist() == greedy(big, inputs)
    out = run(big, cooled(big, StaticTree(FORMS[form]), 1.6), inputs, Coupled(), length=shape.depth, seed=3, temperature=1.0)
    assert out.sequences.tolist() == plain(big, inputs, seed=3)
    assert out.stats.accepted > 0


@pytest.mark.parametrize("rule", PICKS)
def test_a_row_drafts_the_same_alone_and_in_a_batch(big, rule):
    siblings, pick = PICKS[rule]
    inputs, drafter = random_prompt(5, 9, 7, seed=1), cooled(big, StaticTree(DEEP, pick), 1.6)
    batch = run(big, drafter, inputs, Walk(siblings), length=3, seed=20, temperature=1.0)
    for row in range(3):
        alone = {name: value[row : row + 1] for name, value in inputs.items()}
        out = run(big, drafter, alone, Walk(siblings), length=3, seed=20 + row, temperature=1.0)
        assert torch.equal(out.sequences[0], batch.sequences[row])


def test_a_target_drafting_for_itself_accepts_the_longest_path(big):
    shape = StaticTree(Template(((0,), (1,), (0, 0), (0, 0, 0), (1, 0))), top)
    out = run(big, cooled(big, shape), random_prompt(9), Greedy(), length=3, new=24)
    assert out.stats.target_calls == 24 // 4


# --- templates --------------------------------------------------------------------------------------------------------


def test_templates_know_their_form(tmp_path):
    template = Template([[1], [0, 0], [0], [1, 0], [1, 0, 0], [1, 1]])
    assert template.paths == ((0,), (1,), (0, 0), (1, 0), (1, 1), (1, 0, 0))
    assert (template.size, template.depth, template.width) == (6, 3, 2)
    assert template.levels == (Level((0, 0), (0, 1)), Level((0, 1, 1), (0, 0, 1)), Level((1,), (0,)))
    assert template.cut(1).paths == ((0,), (1,))
    assert template.cut(9) == template
    assert Template.branching([2, 2, 1]).size == 2 + 4 + 4
    assert hash(template) == hash(Template(template.to_json()))
    path = tmp_path / "tree.json"
    path.write_text(json.dumps(template.to_json()))
    assert Template.read(path) == template


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        ([], "give a list of paths"),
        ("0,1", "give a list of paths"),
        ({"paths": [[0]]}, "give a list of paths"),
        ([0, 1], r"holds 0: a path is a list of ranks"),
        ([[0], []], r"holds \[\]"),
        ([[0], [0, -1]], r"holds \[0, -1\]"),
        ([[True]], r"holds \[True\]"),
        ([[0], [0.0]], r"holds \[0.0\]"),
        ([[0], [1], [0]], r"holds \[0\] twice"),
        ([[0], [1, 0]], r"holds \[1, 0\] without its parent \[1\]"),
        ([[0], [2]], r"holds \[2\] without \[1\]: siblings are drawn in order"),
    ],
)
def test_what_is_no_tree_is_told_in_one_line(paths, words):
    with pytest.raises(ValueError, match=words) as caught:
        Template(paths)
    assert "\n" not in str(caught.value)


def test_files_that_hold_no_template_are_told_in_one_line(tmp_path):
    for counts in ((), (0,), (2, "3")):
        with pytest.raises(ValueError, match="give at least one level"):
            Template.branching(counts)
    with pytest.raises(ValueError, match="does not exist: write one with mmspec recipe text/plan_tree"):
        Template.read(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("[[0], ")
    with pytest.raises(ValueError, match="cannot be read as JSON"):
        Template.read(tmp_path / "bad.json")


def test_rules_that_read_q_need_recorded_draft_tokens():
    target, drafter = pair(3, 6, 1)
    with pytest.raises(ValueError, match="needs the distribution its candidates were drawn from"):
        run_loop(TableTarget(target.table), ModelDrafter(drafter, StaticTree(LEFT, top)), Walk(KSeq()), Noise.from_seed(0, 1), 1, 3, 2)


def test_chain_templates_serve_rules_for_chains():
    target, drafter = pair(3, 5, 1)
    for rule in (Token(), Block()):
        assert exact_error(target, ModelDrafter(drafter, StaticTree(Template.branching((1, 1)))), rule, most=3, length=2) < TINY
