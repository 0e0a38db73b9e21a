"""Samplers that look back: their distributions are what the samplers draw, and stay so under chains and trees of draft tokens."""

import copy
import math
from dataclasses import dataclass, replace

import pytest
import torch

from mmspec.core.control import Fixed
from mmspec.core.decode import generate
from mmspec.core.noise import Noise
from mmspec.core.processors.history import History
from mmspec.core.processors.pipeline import Pipeline, SuppressAt, min_length, pipeline
from mmspec.core.rules.base import commit
from mmspec.core.rules.block import Block
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.match import Match
from mmspec.core.rules.sibling_rules import without_replacement_rule
from mmspec.core.rules.token import Token, judge_chain
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.none import NoDraft
from mmspec.drafters.shapes import Chain, drawn, sampled, top
from mmspec.drafters.trees.static import StaticTree, Template
from mmspec.models.families.base import DecoderOnly
from mmspec.models.target import HFSession, HFTarget
from mmspec.speech.sampling.ras import NUCLEUS, RepetitionAware, fish, higgs, repetition_aware
from mmspec.speech.sampling.windowed_penalty import WindowedPenalty
from tests.names import named
from tests.oracles.statistics import FAIL, PASS, chi_square
from tests.oracles.stream import END, World, encode, engine_distribution, log, run, softmax, tables, target

TINY, SEEN = 1e-9, 1e-3
V = 6


# --- one distribution ----------------------------------------------------------------------------------------------------------


def one(outputs: list[int], prompt: list[int] = (), scores: torch.Tensor | None = None) -> tuple[torch.Tensor, History]:
    """Scores [1, 1, V] after one path."""
    scores = torch.randn(1, 1, V, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) if scores is None else scores
    ids = torch.tensor([[*prompt, *outputs, 5]])  # a slot that is not on the path stands last
    visible = torch.ones_like(ids, dtype=torch.bool)[:, None]
    visible[..., -1] = False
    return scores, History(ids, visible, torch.tensor([[len(outputs)]]))


def in_turn(rule: RepetitionAware, scores: torch.Tensor, history: History, repeated: list[int]) -> torch.Tensor:
    """The procedure: draw, look, draw again."""
    usual, again = (draw(scores, history).softmax(-1)[0, 0] for draw in (rule.usual, rule.again))
    distribution = torch.zeros(V, dtype=torch.float64)
    for y in range(V):
        if y not in repeated:
            distribution[y] += usual[y]
            continue
        second = again.clone()
        if rule.strike and second[y] < 1:
            second[y] = 0
        distribution += usual[y] * second / second.sum()
    return distribution


CASES = [  # rule, outputs, what is repeated
    (RepetitionAware(), [1, 2, 3], [1, 2, 3]),
    (RepetitionAware(window=2), [1, 2, 3], [2, 3]),
    (RepetitionAware(window=4, limit=2), [1, 1, 2, 3], [1]),
    (RepetitionAware(window=3, limit=2), [1, 1, 2, 3], []),
    (RepetitionAware(window=9, limit=2), [1, 2, 1, 2, 1], [1, 2]),
    (RepetitionAware(window=9, limit=2, exclude=(1, 99)), [1, 2, 1, 2, 1], [2]),
    (RepetitionAware(window=9, limit=2, count="runs"), [1, 1, 1, 2, 2], []),
    (RepetitionAware(window=9, limit=2, count="runs"), [1, 1, 2, 1, 2, 2], [1, 2]),
    (RepetitionAware(window=3, limit=2, count="runs"), [1, 1, 2, 1], [1]),
    (RepetitionAware(window=2, limit=1, count="runs"), [1, 1], [1]),
    (RepetitionAware(window=5), [], []),
    (RepetitionAware(pipeline(temperature=0.5, top_k=3), pipeline(temperature=1.5, top_p=0.9), 4), [0, 4, 4, 2], [0, 2, 4]),
    (RepetitionAware(strike=True), [0, 1, 2], [0, 1, 2]),
    (RepetitionAware(window=9, limit=2, strike=True), [4, 4], [4]),
]


@pytest.mark.parametrize(("rule", "outputs", "repeated"), CASES, ids=str)
@pytest.mark.parametrize("prompt", [[], [0, 1, 1, 3, 4, 4, 5]])
def test_the_distribution_is_what_the_procedure_draws(rule, outputs, repeated, prompt):
    for seed in range(4):
        scores = 2 * torch.randn(1, 1, V, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        scores[..., seed] = -torch.inf
        scores, history = one(outputs, prompt, scores)
        assert rule.repeated(history, V)[0, 0].nonzero().flatten().tolist() == repeated
        distribution = rule(scores, history)[0, 0].exp()
        assert distribution.sum().item() == pytest.approx(1, abs=TINY)
        assert (distribution - in_turn(rule, scores, history, repeated)).abs().max() < TINY


def test_a_million_draws_of_the_procedure():
    """Draw by the nucleus, count in the window, draw again: as implementations do, against the distribution."""
    scores, history = one([1, 0, 3, 2])
    rule, g, rows = RepetitionAware(pipeline(temperature=0.8, top_k=4), window=3, limit=1), torch.Generator().manual_seed(0), 1_000_000
    usual, again = (draw(scores, history).softmax(-1)[0, 0] for draw in (rule.usual, rule.again))
    first = torch.multinomial(usual, rows, True, generator=g)
    counts = torch.bincount(torch.tensor([0, 3, 2]), minlength=V)[first]
    values = torch.where(counts >= 1, torch.multinomial(again, rows, True, generator=g), first)
    assert chi_square(values, rule(scores, history)[0, 0].exp()) > PASS
    assert chi_square(values, replace(rule, limit=2)(scores, history)[0, 0].exp()) < FAIL
    assert chi_square(values, usual) < FAIL


def test_nothing_repeated_nothing_done():
    """To the last bit: the nucleus as it is, where no output has been repeated or nothing is counted."""
    scores, history = one([1, 2, 3])
    for rule in (RepetitionAware(limit=2), RepetitionAware(exclude=(1, 2, 3)), RepetitionAware(limit=99)):
        assert torch.equal(rule(scores, history), NUCLEUS(scores, history).log_softmax(-1))


def test_struck_out_where_nothing_else_is_possible():
    scores = torch.full((1, 1, V), -torch.inf, dtype=torch.float64)
    scores[..., 2] = 0
    distribution = RepetitionAware(strike=True)(*one([2], scores=scores))[0, 0].exp()
    assert distribution.tolist() == [0, 0, 1, 0, 0, 0]
    near = torch.tensor([[[0.0, 30, -torch.inf, 0, 0, 0]]])  # a fallback that all but always says 1, in single precision
    struck = RepetitionAware(strike=True)(*one([1], scores=near))[0, 0].exp()
    assert struck[1] == 0
    assert struck[[0, 3, 4, 5]].tolist() == pytest.approx([0.25] * 4)


def test_at_temperature_0_the_best_value_or_a_draw():
    scores, history = one([])
    greedy = RepetitionAware(pipeline(temperature=0.0), pipeline(temperature=0.0))
    best = scores.argmax().item()
    for outputs in ([], [best]):
        assert greedy(*one(outputs, scores=scores)).exp()[0, 0].tolist() == [float(v == best) for v in range(V)]
    flat = RepetitionAware(pipeline(temperature=0.0))(*one([best], scores=scores))
    assert torch.allclose(flat, scores.log_softmax(-1))
    assert history.position.item() == 0


# --- published settings -----------------------------------------------------------------------------------------------


def cosyvoice(scores: list[float], outputs: list[int]) -> list[float]:
    """Its published sampler as a distribution: values from the best on until their mass reaches 0.8, at most 25; one occurrence in ten."""
    distribution, nucleus, mass = softmax(scores), [], 0.0
    for value in sorted(range(len(distribution)), key=lambda v: -distribution[v]):
        if mass < 0.8 and len(nucleus) < 25:
            nucleus.append(value)
            mass += distribution[value]
    usual = [distribution[v] / mass if v in nucleus else 0.0 for v in range(len(distribution))]
    again = sum(usual[v] for v in range(len(distribution)) if outputs[-10:].count(v) >= 10 * 0.1)
    return [(usual[v] if outputs[-10:].count(v) < 10 * 0.1 else 0.0) + again * distribution[v] for v in range(len(distribution))]


def test_the_defaults_are_cosyvoices():
    g = torch.Generator().manual_seed(0)
    for temperature in (0.1, 1.0, 3.0):  # peaked, broad, and so broad that 25 values hold less than the nucleus
        scores = temperature * torch.randn(1, 1, 60, dtype=torch.float64, generator=g) / 3
        outputs = torch.randint(0, 60, (15,), generator=g).tolist()
        history = History(torch.tensor([outputs]), torch.ones(1, 1, 15, dtype=torch.bool), torch.tensor([[15]]))
        expected = torch.tensor(cosyvoice(scores[0, 0].tolist(), outputs), dtype=torch.float64)
        for rule in (RepetitionAware(), repetition_aware()):
            assert (rule(scores, history)[0, 0].exp() - expected).abs().max() < TINY


def test_ratios_are_compared_as_published():
    """Repeated if count >= ratio * window, in floating point and all."""
    for window in range(1, 60):
        for ratio in (0.1, 0.2, 0.3, 0.5, 0.7, 1.0):
            limit = repetition_aware(window, ratio).limit
            assert limit >= window * ratio > limit - 1
    assert repetition_aware(10, None, limit=3).limit == 3


def test_higgs_and_fish():
    scores, history = one([1, 2, 1])
    usual = pipeline(temperature=0.7, top_k=4, top_p=0.95)
    distribution = higgs(7, 2, (0,), usual)(scores, history)[0, 0].exp()
    assert (distribution - in_turn(RepetitionAware(usual), scores, history, [1])).abs().max() < TINY
    distribution = fish(usual, (1,))(scores, history)[0, 0].exp()
    warm = RepetitionAware(usual, pipeline(temperature=1.0, top_p=0.9))
    assert (distribution - in_turn(warm, scores, history, [2])).abs().max() < TINY


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RepetitionAware(window=0), "window is 0"),
        (lambda: RepetitionAware(limit=0), "limit is 0"),
        (lambda: RepetitionAware(count="words"), "count is 'words'"),
        (lambda: repetition_aware(ratio=0), "ratio is 0"),
        (lambda: repetition_aware(ratio=None), "ratio is None"),
        (lambda: repetition_aware(top_p=0), "top_p is 0"),
        (lambda: min_length((0,), -1), "the minimum length is -1"),
    ],
)
def test_bad_knobs_are_refused_in_one_line(make, words):
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


# --- whole outputs: a Markov model with everything at once ------------------------------------------------------------

SIZE, MOST, LEAST, WINDOW, BACK = 4, 4, 2, 2, 3
PENALTY, TEMPERATURE, BEST = 1.7, 0.8, 3
OWN, OTHER = tables(SIZE, 3)
PROMPTS = [[1], [3, 1, 2], [2, 2, 3, 1, 1]]

RAS = RepetitionAware(pipeline(temperature=TEMPERATURE, top_k=BEST), Pipeline(), WINDOW, 1, (END,))
STEPS = (WindowedPenalty(PENALTY, BACK), min_length((END,), LEAST), RAS)


def penalty(scores, path, outputs):
    recent = set(path[-BACK:])
    return [(s * PENALTY if s < 0 else s / PENALTY) if v in recent else s for v, s in enumerate(scores)]


def no_end(scores, path, outputs):
    return [-math.inf if v == END and outputs < LEAST else s for v, s in enumerate(scores)]


def ras(scores, path, outputs):
    hot = [s / TEMPERATURE for s in scores]
    floor = sorted(hot)[-BEST]
    usual, again = softmax([s if s >= floor else -math.inf for s in hot]), softmax(scores)
    recent = path[len(path) - min(outputs, WINDOW) :]
    repeated = [v != END and v in recent for v in range(SIZE)]
    mass = sum(u for u, r in zip(usual, repeated, strict=True) if r)
    return log([(0 if r else u) + mass * b for u, r, b in zip(usual, repeated, again, strict=True)])


WORLD = World(OWN, (penalty, no_end, ras))
WIDE = StaticTree(Template.branching((2, 1)))
RANKED = StaticTree(Template.branching((2, 1)), top)

METHODS = {
    "token": (Token(), Chain(sampled), 2),
    "block": (Block(), Chain(sampled), 2),
    "match": (Match(), Chain(drawn), 1),  # draws after every node: many outcomes
    "without replacement": (without_replacement_rule(), WIDE, 2),
    "match, tree": (Match(), RANKED, 1),
}


def distribution_error(way: str, steps=STEPS, prompt=PROMPTS[1], most: int = 3, drafts=None, rule=None) -> float:
    """The largest error in any probability of the outputs."""
    judge, shape, length = METHODS[way]
    drafter = ModelDrafter(target(OTHER, *(STEPS if drafts is None else drafts)), shape)
    distribution = engine_distribution(
        target(OWN, *steps), drafter, rule or judge, prompt, most=most, length=length, once=not isinstance(judge, Match)
    )
    return (distribution - WORLD.joint(prompt, most)).abs().max().item()


def test_the_world_is_one_where_everything_matters():
    """Leaving out any step changes the distribution: what follows can see each of them."""
    whole = WORLD.joint(PROMPTS[1], 3)
    for gone in range(3):
        less = World(OWN, [say for i, say in enumerate(WORLD.says) if i != gone]).joint(PROMPTS[1], 3)
        assert (whole - less).abs().max() > 0.01


@pytest.mark.parametrize("way", METHODS)
@pytest.mark.parametrize("prompt", PROMPTS[:2], ids=str)
def test_whole_outputs_have_the_joint_distribution(way, prompt):
    assert distribution_error(way, prompt=prompt) < TINY


def test_longer_outputs_too():
    assert distribution_error("token", most=MOST) < TINY


def test_and_plain_decoding():
    distribution = engine_distribution(target(OWN, *STEPS), NoDraft(), Match(), PROMPTS[2], most=MOST, length=0)
    assert (distribution - WORLD.joint(PROMPTS[2], MOST)).abs().max() < TINY


def test_a_drafter_with_a_distribution_of_its_own_changes_speed_only():
    """Samplers left out of q leave the output's distribution alone, and cost acceptance."""
    assert distribution_error("token", drafts=()) < TINY
    accepted = []
    for steps in (STEPS, ()):
        drafter, noise = ModelDrafter(target(OTHER, *steps)), Noise.from_seed(0, 900)
        _, taken, judged = run(target(OWN, *STEPS), drafter, Token(), [PROMPTS[1]] * 900, noise, most=12, length=3)
        accepted.append(taken / judged)
    assert accepted[0] > accepted[1] + 0.1


@pytest.mark.parametrize(
    ("rule", "shape"), [(Token(), Chain(sampled)), (Coupled(), Chain(drawn)), (Coupled(), WIDE), (Block(), Chain(sampled))], ids=named
)
def test_a_target_that_drafts_for_itself_is_always_right(rule, shape):
    """Equality cannot see a drafter whose history lacks what it has drafted; this can."""
    own = target(OWN, *STEPS)
    _, accepted, judged = run(own, ModelDrafter(own, shape), rule, PROMPTS * 40, Noise.from_seed(0, 120), most=14, length=3)
    assert accepted == judged > 300


# --- mutants ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """A step that is shown a false history."""

    step: object
    told: object

    def __call__(self, scores, history):
        return self.step(scores, self.told(history))


@dataclass(frozen=True)
class RootOnly:
    """Repetition is looked for where plain decoding stands, after the last committed value; drafted values get the plain nucleus."""

    def __call__(self, scores, history):
        distribution = RAS(scores, history)
        return torch.cat([distribution[:, :1], RAS.usual(scores, history)[:, 1:].log_softmax(-1)], 1)


def committed_only(history: History) -> History:
    return replace(history, visible=history.visible[:, :1].expand_as(history.visible))


def all_branches(history: History) -> History:
    """Every node sees the draft's columns before it, siblings and all."""
    return replace(history, visible=history.visible.cumsum(1) > 0)


def prompt_too(history: History) -> History:
    return replace(history, position=history.position + 99)


def one_late(history: History) -> History:
    """The last output is not counted yet."""
    return replace(history, visible=history.visible & (history.visible.flip(-1).cumsum(-1).flip(-1) > 1), position=history.position - 1)


MUTANTS = {
    "penalty twice": ((STEPS[0], *STEPS), ("token", "without replacement")),
    "penalty in place of the window": ((WindowedPenalty(PENALTY, 99), *STEPS[1:]), ("token",)),
    "penalty without the prompt": ((WindowedPenalty(PENALTY, BACK, prompt=False), *STEPS[1:]), ("token",)),
    "penalty blind to drafted values": ((Seen(STEPS[0], committed_only), *STEPS[1:]), ("token", "without replacement")),
    "no RAS in the draft": ((*STEPS[:2], RootOnly()), ("token", "block", "without replacement")),
    "RAS blind to drafted values": ((*STEPS[:2], Seen(RAS, committed_only)), ("token", "match", "without replacement")),
    "RAS of the wrong branch": ((*STEPS[:2], Seen(RAS, all_branches)), ("without replacement", "match, tree")),
    "penalty of the wrong branch": ((Seen(STEPS[0], all_branches), *STEPS[1:]), ("without replacement",)),
    "window counted with the prompt": ((*STEPS[:2], Seen(RAS, prompt_too)), ("token", "without replacement")),
    "window one late": ((*STEPS[:2], Seen(RAS, one_late)), ("token",)),
    "end allowed too soon": ((STEPS[0], SuppressAt((END,), 0, LEAST - 1), RAS), ("token", "without replacement")),
    "end judged where the round began": ((STEPS[0], Seen(STEPS[1], lambda h: replace(h, position=h.position[:, :1])), RAS), ("token",)),
}


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, (_, ways) in MUTANTS.items() for way in ways])
def test_planted_faults_are_seen(name, way):
    assert distribution_error(way, MUTANTS[name][0], drafts=STEPS) > SEEN


@dataclass(frozen=True)
class Leaks(Token):
    """A rejected draft token is what is committed."""

    def __call__(self, draft, scored, noise):
        verdict = judge_chain(self, draft, scored, noise)
        if draft.size == draft.roots:
            return verdict
        child = verdict.accepted.clamp(max=draft.size - draft.roots - 1)
        refused = draft.draft_tokens.gather(1, child[:, None])[:, 0]
        extra = torch.where(verdict.judged > verdict.accepted, refused, verdict.pending.nodes[:, 0])
        return replace(commit(draft, draft.roots - 1 + verdict.accepted, extra), judged=verdict.judged)


def test_rejected_draft_tokens_in_the_output_are_seen():
    assert distribution_error("token", rule=Leaks()) > SEEN


@pytest.mark.parametrize("way", ["token", "without replacement"])
def test_rejected_draft_tokens_in_the_history_are_seen(way, monkeypatch):
    """They never reach the output themselves: but what is committed has seen them."""
    commit = HFSession.commit

    def slipping(self, keep, most):
        end = (keep >= 0).sum(1, keepdim=True)
        columns = torch.arange(keep.shape[1])
        commit(self, torch.where((columns == end) & (end > 0), columns, keep), most)

    monkeypatch.setattr(HFSession, "commit", slipping)
    assert distribution_error(way) > SEEN


# --- real noise, ragged batches ---------------------------------------------------------------------------------------


def token_by_token(prompt: list[int], seed: int, most: int) -> list[int]:
    """Plain sampling without the engine: one distribution, one draw, value after value."""
    outputs: list[int] = []
    noise = Noise.from_seed([seed], 1)
    while len(outputs) < most and END not in outputs:
        scores = torch.tensor([[log(WORLD.distribution(prompt, outputs))]], dtype=torch.float64)
        outputs.append(int(noise.value(torch.tensor([[len(outputs)]])).choose(scores)))
    return outputs


SHAPES = [Chain(drawn), WIDE, StaticTree(Template.branching((3, 2, 1))), RANKED]


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
@pytest.mark.parametrize("shape", SHAPES, ids=["chain", "tree", "large tree", "ranked tree"])
def test_coupled_is_plain_sampling_value_by_value(shape, left):
    prompts = PROMPTS * 8
    expected = [token_by_token(prompt, row, 12) for row, prompt in enumerate(prompts)]
    drafter, noise = ModelDrafter(target(OTHER, *STEPS), shape), Noise.from_seed(0, len(prompts))
    outputs, accepted, _ = run(target(OWN, *STEPS), drafter, Coupled(), prompts, noise, most=12, length=3, left=left)
    assert outputs == expected
    assert accepted > 0
    assert len({len(values) for values in expected}) > 2  # some end sooner than others


@pytest.mark.parametrize("shape", [Chain(drawn), RANKED], ids=["chain", "tree"])
def test_greedy_takes_the_best_of_the_distribution_value_by_value(shape):
    expected = []
    for prompt in PROMPTS:
        outputs: list[int] = []
        while len(outputs) < 12 and END not in outputs:
            distribution = WORLD.distribution(prompt, outputs)
            outputs.append(distribution.index(max(distribution)))
        expected.append(outputs)
    drafter, noise = ModelDrafter(target(OTHER, *STEPS), shape), Noise.from_seed(0, 3)
    outputs, accepted, _ = run(target(OWN, *STEPS), drafter, Greedy(), PROMPTS, noise, most=12, length=3)
    assert outputs == expected
    assert accepted > 0


@pytest.mark.parametrize("way", ["token", "block", "without replacement"])
def test_rows_of_a_ragged_batch_have_their_own_distributions(way):
    """Prompts of three lengths side by side, drawn with the real noise; the distribution of another prompt is refused."""
    rule, shape, _ = METHODS[way]
    rows, drafter = 3000, ModelDrafter(target(OTHER, *STEPS), shape)
    outputs, _, _ = run(target(OWN, *STEPS), drafter, rule, PROMPTS * rows, Noise.from_seed(7, 3 * rows), most=3, length=2)
    codes = encode(outputs, SIZE, 3)
    distributions = [WORLD.joint(prompt, 3) for prompt in PROMPTS]
    for index in range(3):
        assert chi_square(codes[index::3], distributions[index]) > PASS
    assert chi_square(codes[0::3], distributions[1]) < FAIL
    assert chi_square(codes[2::3], World(OWN, WORLD.says[1:]).joint(PROMPTS[2], 3)) < FAIL


# --- real models ------------------------------------------------------------------------------------------------------

SPOKEN = Pipeline((WindowedPenalty(1.2, 8), min_length((7,), 10), repetition_aware(4, None, limit=1, top_p=0.9)))


def speak(model, rule, drafter, seeds, processors=SPOKEN):
    prompt = torch.randint(8, 50, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(9) >= torch.tensor([[0], [3], [6]])).long()
    chosen = {"input_ids": prompt[seeds], "attention_mask": mask[seeds]}
    stopping, noise = DefaultStopping(len(seeds), 24, [7]), Noise.from_seed(seeds, len(seeds))
    own = HFTarget(model, DecoderOnly.of(model), processors)
    generate(own, drafter, rule, chosen, stopping=stopping, noise=noise, control=Fixed(4))
    return stopping.outputs


@pytest.mark.parametrize("shape", [Chain(drawn), WIDE], ids=["chain", "tree"])
def test_on_a_transformer_coupled_is_plain_sampling_alone_and_in_a_batch(big, shape):
    near = copy.deepcopy(big)
    torch.nn.init.normal_(near.model.layers[-1].mlp.down_proj.weight)
    plain = speak(big, Match(), NoDraft(), [0, 1, 2])
    drafter = ModelDrafter(HFTarget(near, DecoderOnly.of(near), SPOKEN), shape)
    assert speak(big, Coupled(), drafter, [0, 1, 2]) == plain
    assert [speak(big, Coupled(), drafter, [row])[0] for row in range(3)] == plain
    assert speak(big, Match(), NoDraft(), [0, 1, 2], pipeline(top_p=0.9)) != plain


def test_every_path_is_counted_in_its_order():
    """`last` gives a path's ids in order, tree or chain, behind prompts of any length: read off by hand."""
    ids = torch.arange(12).expand(2, -1) + 10
    visible = torch.rand(2, 7, 12, generator=torch.Generator().manual_seed(0)) < 0.4
    position = torch.arange(7).expand(2, -1)
    history = History(ids, visible, position)
    for count in (1, 3, 50):
        for outputs in (False, True):
            found, real = history.last(count, outputs)
            for row, node, path in history.paths():
                most = min(count, position[row, node].item()) if outputs else count
                assert found[row, node][real[row, node]].tolist() == path[max(0, len(path) - most) :].tolist()
