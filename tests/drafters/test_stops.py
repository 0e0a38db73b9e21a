"""Chains that end within a round: exact for any stop that decides about later draft tokens only, and not for one that does not."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.processors.pipeline import pipeline
from mmspec.core.records import Budget, Draft, Scored
from mmspec.core.rules.block import Block
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.match import Match
from mmspec.core.rules.token import Token
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.shapes import Chain, _ended, _in_order, drawn, most_likely, sampled
from mmspec.drafters.stops import AcceptanceHead, Confidence, Learned, Survival, acceptance_loss
from mmspec.models.families.base import DecoderOnly
from mmspec.models.target import HFTarget
from tests.drafters.runs import greedy, plain, random_prompt, run
from tests.oracles.tables import TableTarget, exact_error, pair, run_loop

TINY, SEEN = 1e-9, 1e-3
ONE, RAGGED = random_prompt(9), random_prompt(5, 9, 7, seed=1)


class Telling(TableTarget):
    """A table that hands out hidden states, its own distributions, and estimates of acceptance, which depend on the path."""

    def begin(self, prompt):
        session, pending = super().begin(prompt)
        score = session.score
        session.score = lambda draft: (lambda scored: Scored(scored.p, probs := scored.p.probs(), confidence=probs[..., 0]))(score(draft))
        session.watch = lambda states: None
        return session, pending


def head(width: int, seed: int = 0, scale: float = 3.0) -> AcceptanceHead:
    """A random head that says something different for every draft token."""
    torch.manual_seed(seed)
    made = AcceptanceHead(width, 8, 1)
    for parameter in made.parameters():
        parameter.data.mul_(scale)
    return made.eval()


def told(seed: int, most: int, size: int = 3) -> tuple[TableTarget, TableTarget]:
    target, drafter = pair(size, most, seed, zeros=0.0)
    return target, Telling(drafter.table)


STOPS = {
    "confidence": Confidence(0.6),
    "learned": Learned(head(3), 0.6),
    "cautious": Learned(head(3, 1), 0.3),
    "survival": Survival(0.15),
}


@pytest.mark.parametrize("rule", [Token(), Block()], ids=["token", "block"])
@pytest.mark.parametrize("stop", STOPS)
def test_stops_keep_the_distribution(stop, rule):
    target, drafter = told(1, 6)
    assert exact_error(target, ModelDrafter(drafter, Chain(sampled, STOPS[stop])), rule, most=3, length=3) < TINY


@pytest.mark.parametrize("rule", [Token(), Block()], ids=["token", "block"])
@pytest.mark.parametrize("stop", STOPS)
def test_breaking_off_early_changes_nothing(stop, rule):
    target, drafter = told(1, 9)
    noise = Noise.from_seed(2, 4)  # few rows, so that all of them have often ended
    whole, early = (
        run_loop(target, ModelDrafter(drafter, Chain(sampled, STOPS[stop], early)), rule, noise, 4, 8, 4).outputs for early in (False, True)
    )
    assert whole == early


def test_the_learned_stop_looks_at_the_draft_token():
    """Or the distribution would hold for trivial reasons: the same history, two draft tokens, one of which ends the chain."""
    drafter = told(1, 6)[1]
    session, pending = drafter.begin(60)
    draft, _ = Chain(sampled, STOPS["learned"]).grow(session.score, pending, Budget(torch.full((60,), 9), 2), Noise.from_seed(0, 60))
    goes_on = {value: set(draft.valid[draft.nodes[:, 1] == value, 2].tolist()) for value in range(3)}
    assert {frozenset(found) for found in goes_on.values() if found} == {frozenset([True]), frozenset([False])}


class Dropping(Chain):
    """The mutant: a draft token that looks bad is dropped itself."""

    def grow(self, score, draft, budget, noise):
        allowed, reach = budget.draft_tokens, torch.ones(len(draft.start))
        keys = noise.draft_token(draft.start[:, None] + torch.arange(budget.length), draft.start)
        for step in range(budget.length):
            scored = score(draft)
            value, q = self.draw(scored.p.last(1), keys[:, step : step + 1])
            ends, reach = self.stop.after(scored, value, reach)
            allowed = _ended(allowed, ends, step)
            draft = draft.extend_chain(value, allowed, q)
        return draft, _in_order(draft)


@pytest.mark.parametrize("rule", [Token(), Block()], ids=["token", "block"])
def test_a_draft_token_dropped_for_its_value_shows(rule):
    target, drafter = told(1, 6)
    assert exact_error(target, ModelDrafter(drafter, Dropping(sampled, STOPS["learned"])), rule, most=3, length=3) > SEEN


# --- what a stop does -------------------------------------------------------------------------------------------------


class Script:
    """A drafter's session with a distribution and a hidden state a step, the same for every row but for `rows`."""

    def __init__(self, probs: torch.Tensor):
        self.probs, self.calls = probs, 0  # [B, steps, V]

    def __call__(self, draft: Draft) -> Scored:
        distribution = Categorical.of(self.probs[:, self.calls : self.calls + 1])
        self.calls += 1
        return Scored(distribution, distribution.probs(), confidence=distribution.probs()[..., 0])


def grown(stop, probs, *, early=False, length=4):
    rows = len(probs)
    pending = Draft.root(torch.zeros(rows, dtype=torch.long), torch.zeros(rows, dtype=torch.long))
    script = Script(torch.tensor(probs))
    draft, _ = Chain(most_likely, stop, early).grow(script, pending, Budget(torch.full((rows,), 99), length), Noise.from_seed(0, rows))
    return draft.valid[:, 1:].sum(1).tolist(), draft.size - 1, script.calls


SURE, UNSURE = [0.9, 0.1], [0.5, 0.5]


def test_rows_end_each_at_its_own_place():
    probs = [[SURE, SURE, UNSURE, SURE], [UNSURE] * 4, [SURE] * 4]
    assert grown(Confidence(0.6), probs) == ([2, 0, 4], 4, 4)


def test_drafting_ends_when_every_row_has():
    probs = [[SURE, UNSURE, SURE, SURE], [UNSURE] * 4]
    assert grown(Confidence(0.6), probs) == ([1, 0], 4, 4)
    assert grown(Confidence(0.6), probs, early=True) == ([1, 0], 2, 2)


class Certain(AcceptanceHead):
    """A head that takes the drafter's own probability for the chance of acceptance."""

    def __init__(self):
        super().__init__(2, 1, 0)

    def forward(self, hidden, log_q):
        return torch.logit(log_q.exp())


@pytest.mark.parametrize(("risk", "draft_tokens"), [(0.05, 1), (0.15, 2), (0.25, 3), (0.3, 4), (1.0, 4)])
def test_risks_add_up(risk, draft_tokens):
    """Four draft tokens of probability 0.9: 1 - 0.9^n exceeds 0.15 at the second, 0.25 at the third. The one that exceeds is kept."""
    assert grown(Learned(Certain(), risk), [[SURE] * 4])[0] == [draft_tokens]


def test_a_drafters_own_estimates_are_multiplied():
    """Of draft tokens that it takes for 0.9 likely to be accepted, two together are above 0.8 and three are not."""
    assert grown(Survival(0.8), [[SURE] * 4, [SURE, UNSURE, SURE, SURE]]) == ([2, 1], 4, 4)
    assert grown(Survival(0.8), [[SURE] * 4], early=True) == ([2], 3, 3)
    script = Script(torch.tensor([[SURE]]))
    with pytest.raises(ValueError, match="estimates no acceptance: Survival needs one with a confidence head"):
        Survival(0.8).before(replace(script(None), confidence=None), torch.ones(1))


def test_numbers_are_checked():
    with pytest.raises(ValueError, match=r"stop_below is -0\.1"):
        Survival(-0.1)
    with pytest.raises(ValueError, match=r"stop_below is 1\.5"):
        Confidence(1.5)
    with pytest.raises(ValueError, match="risk is -1"):
        Learned(head(3), -1)
    with pytest.raises(ValueError, match="hidden, width and blocks"):
        AcceptanceHead(0)


# --- over transformers models -----------------------------------------------------------------------------------------


def drafter(small, shape, temperature=None) -> ModelDrafter:
    return ModelDrafter(HFTarget(small, DecoderOnly.of(small), pipeline(temperature=temperature)), shape)


@pytest.mark.parametrize("inputs", [ONE, RAGGED], ids=["one", "ragged"])
@pytest.mark.parametrize("stop", [Confidence(0.5), Learned(head(32), 0.4), Learned(head(64), 0.4, (0, -1))], ids=["sure", "learned", "two"])
def test_output_is_that_of_plain_decoding(big, small, inputs, stop):
    assert run(big, drafter(small, Chain(most_likely, stop)), inputs).sequences.tolist() == greedy(big, inputs)
    sampling = drafter(small, Chain(drawn, stop, early=True), 1.0)
    for rule in (Coupled(), Match()):
        assert run(big, sampling, inputs, rule, seed=3, temperature=1.0).sequences.tolist() == plain(big, inputs, seed=3)


def test_the_learned_stop_reads_the_state_the_draft_token_comes_from(big, small):
    """The state handed to the head is the last one before the drafter's own head: it gives q back."""
    seen = []

    class Watching(AcceptanceHead):
        def forward(self, hidden, log_q):
            seen.append((hidden, log_q))
            return super().forward(hidden, log_q)

    lengths = []
    plan = drafter(small, Chain(most_likely, Learned(Watching(32), 1.0)))
    run(big, plan, ONE, Greedy(), new=6, length=3, on_step=lambda step: lengths.append(step.draft))
    log_q = torch.stack([small.lm_head(hidden).log_softmax(-1).amax(-1) for hidden, _ in seen])
    assert torch.allclose(log_q, torch.stack([found for _, found in seen]), atol=1e-5)
    assert sum(draft.size - 1 for draft in lengths) == len(seen)


def test_a_row_stops_the_same_alone_and_in_a_batch(big, small):
    plan = drafter(small, Chain(sampled, Learned(head(32), 0.4)), 1.0)
    batch = run(big, plan, RAGGED, Token(), seed=5, temperature=1.0)
    for row in range(3):
        alone = {key: value[row : row + 1] for key, value in RAGGED.items()}
        assert run(big, plan, alone, Token(), seed=5 + row, temperature=1.0).sequences[0].tolist() == batch.sequences[row].tolist()


def test_missing_states_are_said_in_one_line(big, small):
    table = pair(3, 6, 1)[1]
    with pytest.raises(ValueError, match="TableSession returns no hidden states"):
        ModelDrafter(table, Chain(sampled, Learned(head(3)))).begin(1, None)
    with pytest.raises(ValueError, match="reads 7 numbers, but the drafter's states hold 32"):
        run(big, drafter(small, Chain(most_likely, Learned(head(7)))), ONE)


# --- the head ---------------------------------------------------------------------------------------------------------


def test_rejections_weigh_more():
    logits, accepted = torch.tensor([0.3, -1.2, 2.0]), torch.tensor([True, False, False])
    expected = binary_cross_entropy_with_logits(logits, accepted.float(), weight=torch.tensor([1.0, 6.0, 6.0]))
    assert torch.allclose(acceptance_loss(logits, accepted), expected)
    real = torch.tensor([True, True, False])
    assert torch.allclose(acceptance_loss(logits, accepted, real), acceptance_loss(logits[:2], accepted[:2]))


def test_the_loss_is_least_where_it_should_be():
    """Of a draft token accepted with chance a, the best answer is a / (a + w (1 - a)), for hard labels in the mean and for soft ones."""
    logit = torch.zeros((), requires_grad=True)
    chance, best_answer = torch.tensor(0.9), 0.9 / (0.9 + 6 * 0.1)
    labels = torch.arange(10) < 9
    for accepted in (chance, labels):
        optimiser = torch.optim.LBFGS([logit], max_iter=50)

        def closure(accepted=accepted):
            logit.grad = None
            loss = acceptance_loss(logit.expand(accepted.shape), accepted)
            loss.backward()
            return loss

        optimiser.step(closure)
        assert logit.sigmoid().item() == pytest.approx(best_answer, abs=1e-3)


def test_a_head_learns_what_is_accepted():
    generator = torch.Generator().manual_seed(0)
    hidden, log_q = torch.randn(600, 4, generator=generator), -torch.rand(600, generator=generator)
    accepted = hidden[:, 0] + 4 * log_q > -2
    torch.manual_seed(0)
    learner = AcceptanceHead(4, 16)
    optimiser = torch.optim.Adam(learner.parameters(), 1e-2)
    for _ in range(150):
        optimiser.zero_grad()
        acceptance_loss(learner(hidden, log_q), accepted, rejected_weight=1.0).backward()
        optimiser.step()
    assert ((learner(hidden, log_q) > 0) == accepted).float().mean() > 0.97


def test_a_head_is_saved_whole(tmp_path):
    made = head(5)
    made.save(tmp_path / "head")
    again = AcceptanceHead.load(tmp_path / "head")
    hidden, log_q = torch.randn(3, 5), torch.zeros(3)
    assert torch.equal(made(hidden, log_q), again(hidden, log_q))
    assert not again.training
    (tmp_path / "head" / "acceptance.json").write_text('{"hidden": 5, "width": 9, "blocks": 1}')
    with pytest.raises(ValueError, match=r"tensor enter\.weight has shape \(8, 6\), but \(9, 6\) is needed"):
        AcceptanceHead.load(tmp_path / "head")
    with pytest.raises(FileNotFoundError, match=r"holds no acceptance\.json"):
        AcceptanceHead.load(tmp_path)
