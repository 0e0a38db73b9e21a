"""Models with recurrent or convolution states: the tokens of their own `generate`, whatever is drafted and accepted."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

import mmspec
from mmspec.core.records import PAD, Draft
from mmspec.drafters.self_drafting.early_exit import EarlyExit
from mmspec.drafters.self_drafting.layer_skip import SimilarLayers, SkipLayers
from mmspec.drafters.self_drafting.swift import Swift
from mmspec.drafters.self_drafting.windowed import Windowed
from mmspec.models.families import base
from mmspec.models.families.hybrid import HybridDecoder
from mmspec.models.families.registry import family_of
from mmspec.models.module_copy import own_copy
from mmspec.models.recurrent import states as recurrent
from mmspec.models.recurrent.states import RecurrentStates
from mmspec.models.target import HFTarget
from tests.hybrids import HYBRIDS, another, prompts, row_of, small, uncached_states
from tests.remembered import Remembered
from tests.sizes import VOCAB

TOKENS = 14
LENGTHS = (7, 12, 2)
CLOSE = 1e-5
WRONG = 1e-2
"""What a state that is not the right one differs by at least."""


@cache
def model_of(name: str) -> Any:
    return small(name)


@cache
def drafter_of(name: str) -> Any:
    return another(name)


@cache
def greedy(name: str) -> list[list[int]]:
    """The new tokens of the class's own `generate` on every prompt alone."""
    model, inputs, found = model_of(name), prompts(LENGTHS), []
    for row in range(len(LENGTHS)):
        own = row_of(inputs, row)
        out = model.generate(**own, do_sample=False, max_new_tokens=TOKENS)
        found.append(out[0, own["input_ids"].shape[1] :].tolist())
    return found


@cache
def drawn(name: str) -> list[list[int]]:
    """The new tokens of plain sampling on every prompt alone."""
    inputs = prompts(LENGTHS)
    rows = range(len(LENGTHS))
    return [
        mmspec.text.generate(model_of(name), row_of(inputs, row), max_new_tokens=TOKENS, temperature=1.0, seed=3 + row).tokens[0].tolist()
        for row in rows
    ]


def generated(name: str, inputs: Any, drafter: Any, **options: Any) -> Any:
    return mmspec.text.generate(model_of(name), inputs, drafter=drafter, max_new_tokens=TOKENS, **options)


# --- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HYBRIDS)
def test_greedy_equals_generate(name):
    assert isinstance(family_of(model_of(name)), HybridDecoder)
    inputs, expected = prompts(LENGTHS), greedy(name)
    assert len({token for row in expected for token in row}) > 4
    assert generated(name, inputs, None).tokens.tolist() == expected, "plain"
    for length in (1, 3, 8):
        out = generated(name, inputs, Remembered(expected), draft_length=length)
        assert out.tokens.tolist() == expected, f"drafts of {length}"
        assert out.stats.accepted > 4 < out.stats.rejected, "rows keep too little or too much to test a commit"
    for row, length in ((0, 3), (1, 8), (2, 1)):
        out = generated(name, row_of(inputs, row), Remembered(expected[row : row + 1]), draft_length=length)
        assert out.tokens.tolist() == [expected[row]]


@pytest.mark.parametrize("name", HYBRIDS)
def test_coupled_sampling_equals_plain_sampling(name):
    out = generated(name, prompts(LENGTHS), drafter_of(name), draft_length=4, temperature=1.0, seed=3)
    assert out.tokens.tolist() == drawn(name)
    assert out.stats.accepted > 0 < out.stats.rejected


@pytest.mark.parametrize("name", HYBRIDS)
def test_the_target_as_its_own_drafter_accepts_everything(name):
    for sampling in ({}, {"temperature": 1.0}):
        out = mmspec.text.generate(model_of(name), prompts(LENGTHS), drafter=model_of(name), draft_length=4, max_new_tokens=10, **sampling)
        assert out.stats.tokens_per_call == 5.0, sampling


DRAFTERS = {
    "lookup": "lookup",
    "suffix": "suffix",
    "early exit": EarlyExit(1),
    "layer skip": SkipLayers(layers=(1,)),
    "windowed": Windowed(2, 4),
}


@pytest.mark.parametrize(("name", "turn"), [("Qwen3-Next", 0), ("Falcon-H1", 1), ("Jamba", 1), ("LFM2", 0)])
def test_self_drafting_and_lookup_equal_generate(name, turn):
    """Every kind at both temperatures, by two models each."""
    for number, (kind, drafter) in enumerate(DRAFTERS.items()):
        greedily = (number + turn) % 2 == 0
        options = {} if greedily else {"temperature": 1.0, "seed": 3}
        out = generated(name, prompts(LENGTHS), drafter, draft_length=3, **options)
        assert out.tokens.tolist() == (greedy(name) if greedily else drawn(name)), kind
        assert kind in ("lookup", "suffix") or out.stats.drafted > 0, kind


@pytest.mark.parametrize("name", ["Qwen3-Next", "Mamba"])
def test_a_draft_of_all_layers_is_accepted_as_a_whole(name):
    """An early exit after the last layer drafts what the target says: its states are those of the target, and leave them as they are."""
    layers = model_of(name).config.num_hidden_layers
    out = generated(name, prompts(LENGTHS), EarlyExit(layers), draft_length=4)
    assert out.tokens.tolist() == greedy(name)
    assert out.stats.accepted == out.stats.drafted > 0


@pytest.mark.parametrize("name", ["Qwen3-Next", "Mamba-2", "Mamba"])
def test_checkpoints_equal_generate(name, monkeypatch):
    monkeypatch.setattr(
        HybridDecoder,
        "begin",
        lambda self, model, inputs, capacity, begin=HybridDecoder.begin: begin(_checkpoints(self), model, inputs, capacity),
    )
    for length in (1, 4):
        out = generated(name, prompts(LENGTHS), drafter_of(name), draft_length=length)
        assert out.tokens.tolist() == greedy(name)


def _checkpoints(family: HybridDecoder) -> HybridDecoder:
    return replace(family, checkpoints=True)


@pytest.mark.parametrize("name", ["Qwen3-Next", "Falcon-H1", "Mamba", "LFM2"])
def test_a_long_prompt_runs_in_pieces(name, monkeypatch):
    monkeypatch.setattr(base, "PIECE", 4)
    monkeypatch.setattr(base, "UNMASKED_PIECE", 5)
    out = generated(name, prompts(LENGTHS), drafter_of(name), draft_length=3)
    assert out.tokens.tolist() == greedy(name)


def test_the_padding_side_does_not_matter():
    inputs = prompts(LENGTHS)
    right = {
        key: torch.stack([torch.cat([row[12 - n :], row[: 12 - n]]) for row, n in zip(value, LENGTHS, strict=True)])
        for key, value in inputs.items()
    }
    assert generated("Qwen3-Next", right, drafter_of("Qwen3-Next"), draft_length=3).tokens.tolist() == greedy("Qwen3-Next")


@pytest.mark.parametrize("name", ["Nemotron-H", "Zamba2"])
def test_limits_of_time_steps_are_those_of_single_tokens(name, monkeypatch):
    """`generate` limits the time steps of the prompt, and not those of single tokens."""
    model, drafter, inputs = small(name), another(name), prompts(LENGTHS)
    for each in (model, drafter):
        for module in each.modules():
            if hasattr(module, "time_step_limit"):
                module.time_step_limit = (1.2, float("inf"))
    expected = []
    for row in range(3):
        own = row_of(inputs, row)
        expected.append(model.generate(**own, do_sample=False, max_new_tokens=TOKENS)[0, own["input_ids"].shape[1] :].tolist())
    assert expected != greedy(name)
    out = mmspec.text.generate(model, inputs, drafter=drafter, draft_length=4, max_new_tokens=TOKENS)
    assert out.tokens.tolist() == expected
    monkeypatch.setattr("mmspec.models.recurrent.mixer_run.limit_changes", lambda module: [])
    out = mmspec.text.generate(model, inputs, drafter=drafter, draft_length=4, max_new_tokens=TOKENS)
    assert out.tokens.tolist() != expected, "the limit does not matter here"


# --- states -----------------------------------------------------------------------------------------------------------


Round = tuple[int, tuple[int, ...], Sequence[int]]
"""Draft tokens, the columns that each row keeps, and the sizes of the parts in which the draft is scored."""
ROUNDS: tuple[Round, ...] = (
    (3, (4, 1, 2), (4,)),
    (5, (3, 6, 1), (6,)),
    (4, (2, 5, 4), (2, 1, 2)),
    (0, (1, 1, 1), (1,)),
    (5, (1, 4, 6), (1, 5)),
    (2, (3, 3, 3), (3,)),
)


def error(name: str, rows: int = 3, family: Any = None) -> float:
    """The largest difference of a state from an uncached run's, over all rows and rounds, relative to the largest entry."""
    model = model_of(name)
    inputs = prompts(LENGTHS[:rows])
    session, pending = HFTarget(model, family or family_of(model)).begin(inputs)
    text = [row_of(inputs, row)["input_ids"][0].tolist()[:-1] for row in range(rows)]
    generator, worst = torch.Generator().manual_seed(2), 0.0
    for count, kept, parts in ROUNDS:
        draft = pending
        if count:
            nodes = torch.randint(3, VOCAB, (3, count), generator=generator)[:rows]
            draft = pending.extend(nodes, torch.arange(count).repeat(rows, 1), linear=True)
            draft = _without_last(draft, row=1, kept=kept)
        _score_in_parts(session, draft, parts)
        columns = torch.arange(draft.size).repeat(rows, 1)
        keep = torch.where(columns < torch.tensor(kept[:rows])[:, None], columns, -1)
        session.commit(keep, max(kept[:rows]))
        for row in range(rows):
            text[row] += draft.nodes[row, : kept[row]].tolist()
        worst = max(worst, _difference(name, session.recurrent, text))
        pending = Draft.root(torch.randint(3, VOCAB, (3,), generator=generator)[:rows], draft.start + torch.tensor(kept[:rows]))
    return worst


def _without_last(draft: Draft, row: int, kept: tuple[int, ...]) -> Draft:
    """A draft whose last column is PAD in one row, where that keeps less."""
    if row >= len(draft.nodes) or kept[row] == draft.size:
        return draft
    parents = draft.parents.clone()
    parents[row, -1] = PAD
    return replace(draft, parents=parents)


def _score_in_parts(session: Any, draft: Draft, parts: Sequence[int]) -> None:
    """Score a draft that grows."""
    size = 0
    for part in parts:
        size += part
        session.score(replace(draft, nodes=draft.nodes[:, :size], parents=draft.parents[:, :size]))


@cache
def _uncached(name: str, ids: tuple[int, ...], prompt: int) -> list[tuple[torch.Tensor | None, torch.Tensor | None]]:
    """States of an uncached run. Runs of one row and of three, with and without checkpoints, read the same texts."""
    model = model_of(name)
    states = HFTarget(model, family_of(model)).begin(prompts((2,)))[0].recurrent
    found = uncached_states(model, states, list(ids), prompt)
    return [tuple(state if state is None else state.clone() for state in each) for each in found]  # type: ignore[misc]


def _difference(name: str, states: RecurrentStates, text: list[list[int]]) -> float:
    worst = 0.0
    for row, ids in enumerate(text):
        for layer, expected in zip(states.layers, _uncached(name, tuple(ids), LENGTHS[row]), strict=True):
            for found, right in zip((layer.current.conv, layer.current.recurrent), expected, strict=True):
                assert (found is None) == (right is None)
                if found is not None:
                    worst = max(worst, float((found[row : row + 1] - right).abs().max() / right.abs().max().clamp_min(1)))
    return worst


@pytest.mark.parametrize("name", HYBRIDS)
def test_states_after_a_commit_are_those_of_an_uncached_run(name):
    assert error(name) < CLOSE
    assert error(name, rows=1) < CLOSE
    assert error(name, family=_checkpoints(family_of(model_of(name)))) < CLOSE


BRANCHES: tuple[tuple[tuple[int, ...], tuple[tuple[int, ...], ...], Sequence[int]], ...] = (
    ((0, 0, 1, 2, 2), ((0, 2, 4), (0, 1, 3), (0,)), (6,)),
    ((0, 0, 1, 1, 3), ((0,), (0, 2), (0, 1, 3, 5)), (1, 2, 3)),
    ((0, 1, 0, 3, 2), ((0, 1, 2, 5), (0, 3, 4), (0, 1)), (3, 2, 1)),
    ((0, 1), ((0, 1), (0, 1, 2), (0,)), (3,)),
)
"""Parents of a round's draft tokens, the columns that each row keeps, and the sizes of the parts in which the draft is scored."""


def branching_error(name: str, rows: int = 3) -> float:
    """As `error`, with drafts that branch; the third begins as a chain."""
    model, inputs = model_of(name), prompts(LENGTHS[:rows])
    session, pending = HFTarget(model, family_of(model)).begin(inputs)
    text = [row_of(inputs, row)["input_ids"][0].tolist()[:-1] for row in range(rows)]
    generator, worst = torch.Generator().manual_seed(3), 0.0
    for above, kept, parts in BRANCHES:
        nodes = torch.randint(3, VOCAB, (3, len(above)), generator=generator)[:rows]
        linear = above == tuple(range(len(above)))
        draft = pending.extend(nodes, torch.tensor(above).repeat(rows, 1), linear=linear, width=2, levels=None if linear else len(above))
        size = 0
        for part in parts:
            size += part
            chain = tuple(above[: size - 1]) == tuple(range(size - 1))
            session.score(replace(draft, nodes=draft.nodes[:, :size], parents=draft.parents[:, :size], linear=chain))
        longest = max(map(len, kept[:rows]))
        keep = torch.tensor([[*columns, *[-1] * (longest - len(columns))] for columns in kept[:rows]])
        session.commit(keep, longest)
        for row in range(rows):
            text[row] += draft.nodes[row, list(kept[row])].tolist()
        worst = max(worst, _difference(name, session.recurrent, text))
        pending = Draft.root(
            torch.randint(3, VOCAB, (3,), generator=generator)[:rows], draft.start + torch.tensor([len(each) for each in kept[:rows]])
        )
    return worst


@pytest.mark.parametrize("name", HYBRIDS)
def test_states_after_a_branching_draft_are_those_of_an_uncached_run(name):
    assert branching_error(name) < CLOSE
    assert branching_error(name, rows=1) < CLOSE


TREES = {"comb": {"tree": "comb", "draft_length": 3}, "tree": {"tree": (3, 2, 1)}, "search": {"tree": "expand"}}


@pytest.mark.parametrize("name", HYBRIDS)
def test_trees_equal_generate(name):
    most: dict[str, Any] = {"inputs": prompts(LENGTHS), "drafter": drafter_of(name), "max_new_tokens": 8}
    for kind, options in TREES.items():
        found = mmspec.text.generate(model_of(name), **most, **options)
        assert found.tokens.tolist() == [row[:8] for row in greedy(name)], kind
    found = mmspec.text.generate(model_of(name), **most, tree="comb", draft_length=3, temperature=1.0, seed=3)
    assert found.tokens.tolist() == [row[:8] for row in drawn(name)]


@pytest.mark.parametrize("name", ["Qwen3-Next", "Jamba", "Falcon-H1"])
def test_roots_that_some_rows_do_not_have(name):
    """PAD before values, as in the drafts of models whose rows accepted unequal numbers."""
    model, inputs = model_of(name), prompts(LENGTHS)
    session, pending = HFTarget(model, family_of(model)).begin(inputs)
    text = [row_of(inputs, row)["input_ids"][0].tolist()[:-1] for row in range(3)]
    session.score(pending)
    session.commit(torch.zeros(3, 1, dtype=torch.long), 1)
    for row in range(3):
        text[row].append(int(pending.nodes[row, 0]))
    generator = torch.Generator().manual_seed(4)
    for first, kept in (((0, 1, 2), (5, 2, 1)), ((2, 0, 1), (2, 5, 4))):
        nodes = torch.randint(3, VOCAB, (3, 5), generator=generator)
        parents = torch.arange(-1, 4).repeat(3, 1)
        for row in range(3):
            parents[row, : first[row]] = PAD
            parents[row, first[row]] = -1
        draft = Draft(nodes, parents, pending.start + 1, roots=3)
        _score_in_parts(session, draft, (3, 1, 1))
        columns = torch.arange(5).repeat(3, 1)
        real = (columns >= torch.tensor(first)[:, None]) & (columns < torch.tensor(first)[:, None] + torch.tensor(kept)[:, None])
        session.commit(torch.where(real, columns, -1), 5)
        for row in range(3):
            text[row] += nodes[row][real[row]].tolist()
        assert _difference(name, session.recurrent, text) < CLOSE


AFTER = RecurrentStates._after


def _one_more(self, layer, points):
    return AFTER(self, layer, [(row, count + 1) for row, count in points])


def _of_the_next_row(self, layer, points):
    return AFTER(self, layer, [(row, count) for (row, _), (_, count) in zip(points, points[1:] + points[:1], strict=True)])


def _nothing_undone(self, layer, points):
    return AFTER(self, layer, [(row, 99) for row, _ in points])


def _padding_run(slots, first, stop, scratch):
    return recurrent.ForwardColumns(first, stop, [stop - first] * len(slots))


MUTANTS = {
    "a state is one token ahead": (RecurrentStates, "_after", _one_more),
    "a row keeps what its neighbour keeps": (RecurrentStates, "_after", _of_the_next_row),
    "states stay where the draft ended": (RecurrentStates, "_after", _nothing_undone),
    "padding changes states": (recurrent.ForwardColumns, "of", staticmethod(_padding_run)),
}


@pytest.mark.parametrize("name", ["Qwen3-Next", "Mamba-2", "Mamba", "LFM2", "MiniMax"])
@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_states_are_noticed(name, mutant, monkeypatch):
    monkeypatch.setattr(*MUTANTS[mutant])
    assert error(name) > WRONG


def test_a_partial_forward_leaves_the_states_of_its_session():
    model = model_of("Qwen3-Next")
    session, pending = HFTarget(model, family_of(model)).begin(prompts(LENGTHS))
    session.score(pending)
    session.commit(torch.zeros(3, 1, dtype=torch.long), 1)
    before = [layer.current for layer in session.recurrent.layers]
    kept = [state.copied() for state in before]
    view = EarlyExit(2).guide(session).view
    draft = Draft.root(torch.tensor([5, 6, 7]), pending.start + 1)
    for token in (8, 9):
        view.score(draft)
        draft = draft.extend(torch.full((3, 1), token), torch.full((3, 1), draft.size - 1), linear=True)
    for layer, state, copy in zip(session.recurrent.layers, before, kept, strict=True):
        assert layer.current is state
        assert torch.equal(state.conv, copy.conv)
        assert torch.equal(state.recurrent, copy.recurrent)


def test_the_model_is_left_as_it_is():
    model = model_of("Mamba")
    generated("Mamba", prompts(LENGTHS), drafter_of("Mamba"), draft_length=3)
    assert not any("forward" in vars(module) for each in (model, own_copy(model)) for module in each.modules())


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"drafter": Swift()}, "keeps recurrent states"),
        ({"drafter": SimilarLayers()}, "keeps recurrent states"),
        ({"drafter": "lookup", "capture": True}, "cannot be captured"),
    ],
)
def test_what_states_do_not_allow_is_refused_in_one_line(options, words):
    with pytest.raises(ValueError, match=words) as caught:
        generated("Qwen3-Next", prompts(LENGTHS), **options)
    assert "\n" not in str(caught.value)
