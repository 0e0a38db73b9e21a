"""What every model-free drafter owes, whatever it drafts: the target's own output, and nothing carried from call to call."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from mmspec.core.control import Fixed
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.match import Match
from mmspec.drafters.jacobi.decoding import Jacobi, uniform
from mmspec.drafters.jacobi.lookahead import Lookahead
from mmspec.drafters.none import NoDraft
from mmspec.drafters.retrieval.copy import Copy
from mmspec.drafters.retrieval.datastore import Datastore, Retrieval
from mmspec.drafters.retrieval.lookup import Lookup
from mmspec.drafters.retrieval.ngram import NGram, bigram_table
from mmspec.drafters.retrieval.pools import Pools
from mmspec.drafters.retrieval.recycling import Recycling
from mmspec.drafters.retrieval.suffix import Suffix
from mmspec.drafters.shapes import drawn
from tests.drafters.runs import NEW, greedy, plain, random_prompt, run

ONE, RAGGED = random_prompt(9), random_prompt(5, 9, 7, seed=1)
BATCHES = pytest.mark.parametrize("inputs", [ONE, RAGGED], ids=["one", "ragged"])
NAMES = (
    "lookup",
    "references",
    "suffix",
    "corpus",
    "retrieval",
    "pools",
    "ngram",
    "ngram-table",
    "ngram-tree",
    "copy",
    "copy-shared",
    "recycling",
    "jacobi",
    "jacobi-uniform",
    "jacobi-drawn",
    "lookahead",
    "lookahead-drawn",
)


@pytest.fixture(scope="module")
def drafters(big, tmp_path_factory):
    """Every drafter; those with a corpus know the target's own greedy output and some noise."""
    texts = greedy(big, RAGGED) + random_prompt(40, 40, seed=2)["input_ids"].tolist()
    store = Datastore.build(texts, tmp_path_factory.mktemp("store") / "texts.npy")
    table = bigram_table(big, 3)
    pools = Pools(branch=6, limit=64)
    pools.learn("group", texts)
    made = (
        Lookup(),
        Lookup(max_ngram=4, references=texts),
        Suffix(),
        Suffix(texts, factor=2),
        Retrieval(store),
        pools.drafter("group", nodes=16),
        NGram(),
        NGram(table=table),
        NGram(table=table, drafts=3),
        Copy(),
        Copy(texts[1]),
        Recycling(),
        Jacobi(),
        Jacobi(fill=uniform),
        Jacobi(draw=drawn),
        Lookahead(window=3, ngram=3),
        Lookahead(window=4, draft_tokens=2, pool=6, seeded=False, draw=drawn),
    )
    return dict(zip(NAMES, made, strict=True))


@pytest.fixture(params=NAMES)
def drafter(request, drafters):
    return drafters[request.param]


@dataclass(frozen=True)
class Trace:
    """A greedy generation over `RAGGED`: its output, and of every round the draft and the values each row committed."""

    sequences: list[list[int]]
    drafts: list[tuple[list[list[int]], list[list[int]]]]
    committed: list[Sequence[list[int]]]


TRACES: dict[int, tuple[Any, Trace]] = {}  # by the drafter's id, with the drafter itself so that no other is given its id


def traced(drafter, big) -> Trace:
    """The drafter's first such generation: several tests look at it."""
    if id(drafter) not in TRACES:
        TRACES[id(drafter)] = (drafter, trace(drafter, big))
    return TRACES[id(drafter)][1]


def trace(drafter, big) -> Trace:
    drafts, committed = [], []

    def note(step):
        drafts.append((step.draft.nodes.tolist(), step.draft.parents.tolist()))
        committed.append([list(values) for values in step.committed.values])

    return Trace(run(big, drafter, RAGGED, on_step=note).sequences.tolist(), drafts, committed)


@BATCHES
def test_greedy_output_is_that_of_transformers(drafter, big, inputs):
    found = traced(drafter, big).sequences if inputs is RAGGED else run(big, drafter, inputs).sequences.tolist()
    assert found == greedy(big, inputs)


@pytest.mark.parametrize(("inputs", "rule"), [(ONE, Match()), (RAGGED, Coupled())], ids=["one-match", "ragged-coupled"])
def test_sampled_output_is_that_of_plain_sampling(drafter, big, inputs, rule):
    assert run(big, drafter, inputs, rule, seed=3, temperature=1.0).sequences.tolist() == plain(big, inputs, seed=3)


def test_no_residue_between_calls(drafter, big):
    assert trace(drafter, big).drafts == traced(drafter, big).drafts


def test_a_row_drafts_the_same_alone_and_in_a_batch(drafter, big):
    committed = traced(drafter, big).committed
    for row in (0, 1):  # the most padded row, and the one that is not padded
        alone = []
        inputs = {key: value[row : row + 1] for key, value in RAGGED.items()}
        run(big, drafter, inputs, seed=row, on_step=lambda step, alone=alone: alone.append(step.committed.values[0]))
        assert alone == [values[row] for values in committed if values[row]]


class Varied:
    """Draft lengths that change every round, zero among them."""

    def __init__(self):
        self.lengths = [3, 0, 7, 1, 0, 0, 5, 2] * 10

    def begin(self):
        return self

    def length(self):
        return self.lengths.pop(0)

    def observe(self, length, committed, seconds):
        pass


def test_draft_length_may_change_every_round(drafter, big):
    assert run(big, drafter, RAGGED, control=Varied()).sequences.tolist() == greedy(big, RAGGED)


def test_no_draft_tokens_when_none_are_asked_for(drafter, big):
    sizes = []
    run(big, drafter, RAGGED, control=Fixed(0), on_step=lambda step: sizes.append(step.draft.size))
    assert sizes == [1] * NEW


@cache
def ended(big, end: int):
    """Plain decoding of `RAGGED` that stops at a token."""
    return run(big, NoDraft(), RAGGED, ends=[end])


def test_rows_that_end_early(drafter, big):
    ends = [greedy(big, RAGGED)[0][6]]
    expected = ended(big, ends[0])
    found = run(big, drafter, RAGGED, ends=ends)
    assert found.sequences.tolist() == expected.sequences.tolist()
    assert len(set(expected.lengths.tolist())) > 1


def test_shapes_are_fixed_from_the_second_round_on(drafter, big):
    sizes = [len(nodes[0]) for nodes, _ in traced(drafter, big).drafts]
    assert len(set(sizes[1:]) - {1}) <= 1  # a round in which no row has a draft token is a plain step


class NoReadback(TorchFunctionMode):
    """Refuses what makes the host wait for the device, and counts copies to it."""

    READS = ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__")

    def __init__(self):
        super().__init__()
        self.copies = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in self.READS:
            raise AssertionError(f"{name} reads from the device")
        self.copies += func is torch.tensor
        return func(*args, **(kwargs or {}))


class Watched:
    """A drafter whose rounds run under `NoReadback`."""

    def __init__(self, drafter):
        self.drafter, self.copies = drafter, []

    def begin(self, prompt, session):
        self.session = self.drafter.begin(prompt, session)
        return self

    def propose(self, pending, budget, noise):
        with NoReadback() as watch:
            draft = self.session.propose(pending, budget, noise)
        self.copies.append(watch.copies)
        return draft

    def observe(self, draft, scored, verdict, committed):
        with NoReadback():
            self.session.observe(draft, scored, verdict, committed)


def test_rounds_never_read_from_the_device(drafter, big):
    watched = Watched(drafter)
    run(big, watched, RAGGED)
    host = not isinstance(drafter, (Jacobi, Lookahead, Recycling))
    steady = watched.copies[2:]
    assert set(steady) <= ({0, 1} if host else {0})  # none at all in a round in which no row has a draft token
