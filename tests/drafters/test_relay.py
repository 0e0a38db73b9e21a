"""Two drafters one after the other in one draft: exact, and each of them where it belongs."""

import pytest
import torch

from mmspec.core.control import Fixed
from mmspec.core.noise import Noise
from mmspec.core.records import Budget, Draft
from mmspec.core.rules.block import Block
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.match import Match
from mmspec.core.rules.token import Token
from mmspec.drafters.model import horizontal_cascade as relay
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.model.horizontal_cascade import HorizontalCascade
from mmspec.drafters.model.vertical_cascade import VerticalCascade
from mmspec.drafters.none import NoDraft
from mmspec.drafters.retrieval.lookup import Lookup
from mmspec.drafters.retrieval.ngram import NGram
from mmspec.drafters.shapes import Chain, drawn, most_likely, sampled
from mmspec.drafters.stops import Confidence
from mmspec.drafters.trees.static import StaticTree, Template
from tests.drafters.cascades import drafting, hf, perturbed, three
from tests.drafters.runs import NEW, greedy, plain, prompt_of, random_prompt, run
from tests.drafters.test_contract import Varied
from tests.oracles.statistics import PASS, chi_square
from tests.oracles.tables import encode, exact_error, run_loop

TINY = 1e-9
ONE, RAGGED = random_prompt(9), random_prompt(5, 9, 7, seed=1)
BATCHES = pytest.mark.parametrize("inputs", [ONE, RAGGED], ids=["one", "ragged"])


@pytest.mark.parametrize("draft_tokens", [1, 2, 5])
@pytest.mark.parametrize("rule", [Token(), Block()], ids=["token", "block"])
def test_whole_runs_have_the_targets_distribution(rule, draft_tokens):
    target, middle, inner = three(2, 6, 1)
    stopping = ModelDrafter(middle, Chain(sampled, Confidence(0.6)))
    for first in (ModelDrafter(middle), stopping):
        assert exact_error(target, HorizontalCascade(first, draft_tokens, ModelDrafter(inner)), rule, most=4, length=3) < TINY


def test_numbers_shared_with_the_next_round_show(monkeypatch):
    """The mutant: draft tokens keyed by where the second drafter begins, which is where the next round may begin too."""
    monkeypatch.setattr(relay, "LaterNoise", lambda outer, start: outer)
    target, middle, inner = three(2, 6, 1)
    assert exact_error(target, HorizontalCascade(ModelDrafter(middle), 1, ModelDrafter(inner)), Block(), most=4, length=3) > 1e-4


@pytest.mark.parametrize("rule", [Token(), Block()], ids=["token", "block"])
def test_outputs_follow_the_targets_distribution_with_the_real_noise(rule):
    """Enumeration takes distinct keys to be independent; here they are what they are."""
    target, middle, inner = three(2, 6, 1)
    distribution, rows = target.table.joint(4), 20_000
    for plan in (
        HorizontalCascade(ModelDrafter(middle), 1, ModelDrafter(middle)),
        VerticalCascade(middle, ModelDrafter(inner), Block(), 2, 1),
    ):
        outputs = torch.tensor(run_loop(target, plan, rule, Noise.from_seed(1, rows), rows, 4, 3).outputs)
        assert chi_square(encode(outputs, 2), distribution) > PASS
        assert chi_square(encode(outputs, 2), 0.9 * distribution + 0.1 * middle.table.joint(4)) < PASS


def test_relays_of_cascades_keep_the_distribution():
    target, middle, inner = three(2, 6, 1)
    plan = HorizontalCascade(VerticalCascade(middle, ModelDrafter(inner), Token(), 1, 1), 2, ModelDrafter(inner))
    assert exact_error(target, plan, Token(), most=3, length=3) < TINY
    plan = VerticalCascade(middle, HorizontalCascade(ModelDrafter(inner), 1, ModelDrafter(middle)), Token(), 2, 2)
    assert exact_error(target, plan, Token(), most=3, length=3) < TINY


def relays(first, then, temperature):
    draw = most_likely if temperature is None else drawn
    one, other = drafting(first, Chain(draw), temperature), drafting(then, Chain(draw), temperature)
    rule = Greedy() if temperature is None else Coupled()
    return {
        "models": HorizontalCascade(one, 2, other),
        "model, then lookup": HorizontalCascade(one, 2, Lookup()),
        "n-grams, then model": HorizontalCascade(NGram(), 2, other),
        "three": HorizontalCascade(one, 1, HorizontalCascade(other, 1, NGram())),
        "cascade, then model": HorizontalCascade(VerticalCascade(hf(first, temperature), other, rule, 2, 1), 3, other),
    }


NAMES = ["models", "model, then lookup", "n-grams, then model", "three", "cascade, then model"]


@pytest.fixture(scope="module")
def near(big):
    return perturbed(big, 0.02)


@BATCHES
@pytest.mark.parametrize("name", NAMES)
def test_output_is_that_of_plain_decoding(big, near, small, name, inputs):
    out = run(big, relays(near, small, None)[name], inputs)
    assert out.sequences.tolist() == greedy(big, inputs)
    for rule in (Coupled(), Match()):
        out = run(big, relays(near, small, 1.0)[name], inputs, rule, seed=3, temperature=1.0)
        assert out.sequences.tolist() == plain(big, inputs, seed=3)


@pytest.mark.parametrize("name", NAMES)
def test_draft_length_may_change_every_round(big, near, small, name):
    assert run(big, relays(near, small, None)[name], RAGGED, control=Varied()).sequences.tolist() == greedy(big, RAGGED)


def test_no_draft_tokens_when_none_are_asked_for(big, near, small):
    sizes = []
    run(big, relays(near, small, None)["models"], RAGGED, control=Fixed(0), on_step=lambda step: sizes.append(step.draft.size))
    assert sizes == [1] * NEW


@pytest.mark.parametrize("control", [Fixed(6), None], ids=["fixed", "varied"])
def test_a_target_relaying_to_itself_accepts_everything(big, control):
    """The second drafter reads the first one's draft tokens, and both what was committed: neither is blind."""
    one = drafting(big, Chain(sampled), 1.0)
    stats = run(big, HorizontalCascade(one, 3, one), RAGGED, Token(), new=26, temperature=1.0, control=control or Varied()).stats
    assert stats.rejected == 0
    assert stats.accepted == stats.drafted > 0


def test_each_draft_tokens_its_part(big, small):
    """The first draft tokens are those of the first drafter alone; the others are what the second would say behind them."""
    first, then = drafting(big, Chain(most_likely)), drafting(small, Chain(most_likely))
    budget, noise = Budget(torch.tensor([99]), 5), Noise.from_seed(0, 1)
    text = ONE["input_ids"][0].tolist()

    def drafted(drafter, text, length):
        inputs = prompt_of(text)
        pending = Draft.root(torch.tensor(text[-1:]), torch.tensor([0]))
        return drafter.begin(inputs, None).propose(pending, Budget(budget.left, length), noise).draft_tokens[0].tolist()

    whole = drafted(HorizontalCascade(first, 2, then), text, 5)
    assert whole[:2] == drafted(first, text, 2)
    assert whole[2:] == drafted(then, text + whole[:2], 3)
    assert drafted(HorizontalCascade(first, 2, then), text, 2) == whole[:2]


def test_rows_whose_first_part_is_short_stay_short():
    """Nobody goes on from a draft token that was not made."""
    prompt = prompt_of([7, 8, 9, 7, 8], [1, 2, 3, 4, 5])
    pending = Draft.root(torch.tensor([8, 5]), torch.tensor([0, 0]))
    plan = HorizontalCascade(Lookup(), 2, NGram(table=torch.arange(50)[:, None]))
    draft = plan.begin(prompt, None).propose(pending, Budget(torch.tensor([99, 99]), 4), Noise.from_seed(0, 2))
    assert draft.valid[:, 1:].tolist() == [[True] * 4, [False] * 4]
    none = HorizontalCascade(NoDraft(), 2, NGram(table=torch.arange(50)[:, None]))
    draft = none.begin(prompt, None).propose(pending, Budget(torch.tensor([99, 99]), 4), Noise.from_seed(0, 2))
    assert draft.valid[1, 1:].tolist() == [True] * 2  # no draft token of the first is missing where it makes none at all


def test_options_are_checked():
    with pytest.raises(ValueError, match="draft tokens is 0"):
        HorizontalCascade(NoDraft(), 0, NoDraft())
    _, middle, inner = three(2, 6, 1)
    session, pending = middle.begin(1)
    tree = HorizontalCascade(ModelDrafter(middle, StaticTree(Template.branching((2,)))), 1, ModelDrafter(inner)).begin(1, session)
    with pytest.raises(ValueError, match="can only continue a chain"):
        tree.propose(pending, Budget(torch.tensor([9]), 3), Noise.from_seed(0, 1))
