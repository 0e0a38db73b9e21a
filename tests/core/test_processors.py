"""Every native processor is transformers' own, row by row, node by node, along each node's own path."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as known

from mmspec.core.processors.history import History, per_row
from mmspec.core.processors.pipeline import (
    ForceAt,
    MinP,
    Pipeline,
    RepetitionPenalty,
    Suppress,
    SuppressAt,
    Temperature,
    TopK,
    TopP,
    pipeline,
)
from mmspec.core.records import CONTEXT, PAD, Draft

B, N, V, S = 3, 5, 17, 12


def scores(seed: int = 0, rows: int = B, nodes: int = N) -> torch.Tensor:
    return 3 * torch.randn(rows, nodes, V, generator=torch.Generator().manual_seed(seed))


def history(seed: int = 0, size: int = V) -> History:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, size, (B, S), generator=generator)
    visible = torch.rand(B, N, S, generator=generator) < 0.5
    return History(ids, visible, torch.arange(B)[:, None] + torch.arange(N))


def theirs(processor, raw: torch.Tensor, context: History) -> torch.Tensor:
    """transformers' processor called alone on every node's own path."""
    out = torch.empty_like(raw)
    for row, node, ids in context.paths():
        out[row, node] = processor(ids[None], raw[row, node][None].clone())[0]
    return out


PAIRS = {
    "temperature": (Temperature(0.7), known.TemperatureLogitsWarper(0.7)),
    "hot": (Temperature(1.9), known.TemperatureLogitsWarper(1.9)),
    "top-k": (TopK(4), known.TopKLogitsWarper(4)),
    "top-1": (TopK(1), known.TopKLogitsWarper(1)),
    "top-all": (TopK(99), known.TopKLogitsWarper(99)),
    "top-p": (TopP(0.8), known.TopPLogitsWarper(0.8)),
    "top-p small": (TopP(0.01), known.TopPLogitsWarper(0.01)),
    "top-p tiny": (TopP(1e-9), known.TopPLogitsWarper(1e-9)),
    "top-p large": (TopP(0.99), known.TopPLogitsWarper(0.99)),
    "min-p": (MinP(0.1), known.MinPLogitsWarper(0.1)),
    "min-p one": (MinP(1.0), known.MinPLogitsWarper(1.0)),
    "repetition": (RepetitionPenalty(1.3), known.RepetitionPenaltyLogitsProcessor(1.3)),
    "repetition below": (RepetitionPenalty(0.8), known.RepetitionPenaltyLogitsProcessor(0.8)),
    "suppress": (Suppress((2, 5)), known.SuppressTokensLogitsProcessor([2, 5])),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_each_is_transformers_own(name, seed):
    own, other = PAIRS[name]
    raw, context = scores(seed), history(seed)
    assert torch.equal(own(raw.clone(), context), theirs(other, raw, context))


def test_ties_are_transformers_own():
    raw, context = scores(3).round(), history()
    for name in ("top-k", "top-1", "min-p"):
        own, other = PAIRS[name]
        assert torch.equal(own(raw.clone(), context), theirs(other, raw, context))


@given(
    temperature=st.floats(0.1, 3),
    k=st.integers(1, 20),
    mass=st.floats(0.05, 1),
    share=st.floats(0, 0.9),
    penalty=st.floats(0.5, 2),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_the_pipeline_is_transformers_sequence(temperature, k, mass, share, penalty, seed):
    """Order and all: penalties and bans, temperature, then truncation."""
    raw, context = scores(seed), history(seed)
    own = pipeline(temperature=temperature, top_k=k, top_p=mass, min_p=share, repetition_penalty=penalty, suppress=[1])
    chain = [
        known.RepetitionPenaltyLogitsProcessor(penalty),
        known.SuppressTokensLogitsProcessor([1]),
        known.TemperatureLogitsWarper(temperature),
    ]
    chain += [known.TopKLogitsWarper(k)]
    chain += [known.TopPLogitsWarper(mass)] if mass < 1 else []
    chain += [known.MinPLogitsWarper(share)] if share > 0 else []
    expected = raw
    for processor in chain:
        expected = theirs(processor, expected, context)
    assert torch.equal(own(raw.clone(), context), expected)


PER_ROW = {
    "temperature": (Temperature, [0.5, 1.0, 2.0]),
    "top-k": (TopK, [1, 3, 40]),
    "top-p": (TopP, [0.3, 0.9, 0.99]),
    "min-p": (MinP, [0.01, 0.2, 0.7]),
    "repetition": (RepetitionPenalty, [0.7, 1.0, 1.6]),
}


@pytest.mark.parametrize("name", PER_ROW)
def test_numbers_per_row(name):
    make, values = PER_ROW[name]
    raw, context = scores(), history()
    together = make(tuple(values))(raw, context)
    for row, value in enumerate(values):
        alone = make(value)(raw, context)
        assert torch.allclose(together[row], alone[row], rtol=1e-6)
        assert torch.equal(together[row].isfinite(), alone[row].isfinite())


def test_settings_that_change_nothing_for_a_row():
    """Per row: temperature 1, top-k 0, top-p 1, min-p 0 and penalty 1 leave the row's distribution as it is."""
    raw, context = scores(), history()
    out = pipeline(temperature=[1, 0.5, 0], top_k=[0, 2, 0], top_p=[1, 0.5, 1], min_p=[0, 0.1, 0], repetition_penalty=[1, 2, 1])(
        raw, context
    )
    assert torch.equal(out[0], raw[0])
    assert (out[1].isfinite().sum(-1) <= 2).all()
    assert torch.equal(out[2].isfinite().sum(-1), torch.ones(N, dtype=torch.long))
    assert torch.equal(out[2].argmax(-1), raw[2].argmax(-1))


@pytest.mark.parametrize("temperature", [0, 0.0, [0, 0, 0]])
def test_temperature_0_is_greedy(temperature):
    raw = scores()
    distribution = pipeline(temperature=temperature)(raw, history()).softmax(-1)
    assert torch.equal(distribution, torch.nn.functional.one_hot(raw.argmax(-1), V).float())


@pytest.mark.parametrize("temperature", [1e-3, 1e-9, 1e-300])
def test_tiny_temperatures_stay_finite(temperature):
    raw = scores()
    distribution = pipeline(temperature=temperature)(raw, history()).softmax(-1)
    assert torch.equal(distribution.argmax(-1), raw.argmax(-1))
    assert distribution.isfinite().all()


def test_nothing_asked_nothing_done():
    assert pipeline() == Pipeline(())
    assert pipeline(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0) == Pipeline(())
    raw = scores()
    assert pipeline()(raw, history()) is raw


# --- histories --------------------------------------------------------------------------------------------------------


@st.composite
def trees(draw):
    """A random tree behind a random prompt: nodes, parents and the slots each node sees."""
    prompt, nodes = draw(st.integers(0, 5)), draw(st.integers(1, 7))
    parents = [CONTEXT]
    for node in range(1, nodes):
        real = [i for i in range(node) if parents[i] != PAD]
        parents.append(draw(st.sampled_from([*real, PAD])))
    ids = draw(st.lists(st.integers(0, V - 1), min_size=prompt + nodes, max_size=prompt + nodes))
    return prompt, parents, ids


@given(trees(), st.floats(0.6, 1.8))
@settings(max_examples=40, deadline=None)
def test_penalties_follow_each_branch(tree, penalty):
    """A node of a tree is penalised for its own path: what transformers does to that path alone."""
    prompt, parents, ids = tree
    nodes = torch.tensor([ids[prompt:]])
    draft = Draft(nodes, torch.tensor([parents]), torch.zeros(1, dtype=torch.long), linear=False)
    visible = torch.cat([torch.ones(1, len(parents), prompt, dtype=torch.bool), draft.ancestors()], 2)
    context = History(torch.tensor([ids]), visible, draft.position())
    raw = scores(1, 1, len(parents))
    out = RepetitionPenalty(penalty)(raw, context)
    for node, parent in enumerate(parents):
        if parent == PAD:
            continue
        path, step = [], node
        while step != CONTEXT:
            path.append(ids[prompt + step])
            step = parents[step]
        own = torch.tensor([[*ids[:prompt], *reversed(path)]])
        assert torch.equal(out[0, node], known.RepetitionPenaltyLogitsProcessor(penalty)(own, raw[0, node][None].clone())[0])


def test_seen_is_a_set_of_values():
    context = history(4)
    seen = context.seen(V)
    for row, node, ids in context.paths():
        assert set(seen[row, node].nonzero().flatten().tolist()) == set(ids.tolist())


def test_ids_without_a_logit_are_not_taken_for_another():
    """A prompt may hold ids beyond the head (image placeholders): they penalise nothing."""
    context = History(torch.tensor([[V + 3, 2]]), torch.ones(1, 1, 2, dtype=torch.bool), torch.zeros(1, 1))
    assert context.seen(V)[0, 0].nonzero().flatten().tolist() == [2]


# --- positions --------------------------------------------------------------------------------------------------------


def test_suppress_at_positions():
    raw, context = scores(), history()
    out = SuppressAt((3, 4), 2, 5)(raw, context)
    for row in range(B):
        for node in range(N):
            banned = [] if not 2 <= row + node < 5 else [3, 4]
            assert (out[row, node] == -torch.inf).nonzero().flatten().tolist() == banned


def test_minimum_length_is_transformers_own():
    raw, context = scores(), history()
    out = SuppressAt((6,), 0, 3)(raw, context)
    for row in range(B):
        for node in range(N):
            ids = torch.zeros(1, row + node, dtype=torch.long)  # what had been produced by then
            expected = known.MinLengthLogitsProcessor(3, 6)(ids, raw[row, node][None].clone())[0]
            assert torch.equal(out[row, node], expected)


def test_force_at_a_position():
    raw, context = scores(), history()
    out = ForceAt((7, 9), 3)(raw, context)
    for row in range(B):
        for node in range(N):
            allowed = out[row, node].isfinite().nonzero().flatten().tolist()
            assert allowed == ([7, 9] if row + node == 3 else list(range(V)))


def test_ids_beyond_the_vocabulary_are_ignored():
    raw, context = scores(), history()
    assert torch.equal(Suppress((V, V + 5))(raw, context), raw)
    assert (Suppress((V - 1, V))(raw, context) == -torch.inf).sum() == B * N


# --- bad numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", v) for v in (-1, float("nan"), float("inf"), "hot", [0.5, -2, 1], [1, None, 1])]
    + [("top_k", v) for v in (-1, 2.5, float("inf"), float("nan"), "many", [1, -1, 2])]
    + [("top_p", v) for v in (0, -0.1, 1.5, float("nan"), [0.5, 0.5, 2])]
    + [("min_p", v) for v in (-0.1, 1.1, float("nan"), [0, 2, 0])]
    + [("repetition_penalty", v) for v in (0, -1, float("nan"), float("inf"), [1, 0, 1])],
)
def test_bad_numbers_are_refused_in_one_clear_line(name, value):
    with pytest.raises(ValueError, match=f"{name} is .*: it must be ") as caught:
        pipeline(**{name: value})
    assert "\n" not in str(caught.value)


def test_good_numbers_of_any_kind():
    assert pipeline(top_k=5.0) == pipeline(top_k=5)
    assert pipeline(temperature=(0.5, 1.0)).steps[0].temperature == (0.5, 1.0)


@pytest.mark.parametrize("name", PER_ROW)
def test_numbers_must_match_the_rows(name):
    make, values = PER_ROW[name]
    with pytest.raises(ValueError, match="2 numbers for 3 rows"):
        make(tuple(values[:2]))(scores(), history())
    with pytest.raises(ValueError, match="temperature has 3 numbers for 1 rows"):
        per_row(values, scores(rows=1), "temperature")
