"""Codebooks in one stream: each output position allows its own book, under chains and trees of draft tokens alike."""

import pytest
import torch
from transformers.generation.logits_process import AlternatingCodebooksLogitsProcessor

from mmspec.core.noise import Noise
from mmspec.core.processors.history import History
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.match import Match
from mmspec.core.rules.sibling_rules import without_replacement_rule
from mmspec.core.rules.token import Token
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.none import NoDraft
from mmspec.drafters.shapes import Chain, drawn
from mmspec.drafters.trees.static import StaticTree, Template
from mmspec.speech.sampling.codebook_order import InterleavedCodebooks
from tests.oracles.stream import END, World, engine_distribution, run, tables, target

V = 20


def at(positions: list[int]) -> tuple[torch.Tensor, History]:
    position = torch.tensor([positions])
    nothing = torch.zeros(1, len(positions), 0, dtype=torch.bool)
    return torch.randn(1, len(positions), V), History(torch.zeros(1, 0, dtype=torch.long), nothing, position)


def allowed(books: InterleavedCodebooks, positions: list[int]) -> list[list[int]]:
    out = books(*at(positions))[0]
    return [row.isfinite().nonzero().flatten().tolist() for row in out]


def test_each_position_has_its_book():
    books = InterleavedCodebooks(((3, 6), (10, 12)), ends=(1,))
    assert allowed(books, [0, 1, 2, 5]) == [[1, 3, 4, 5], [10, 11], [1, 3, 4, 5], [10, 11]]
    assert allowed(InterleavedCodebooks(((3, 6), (10, 12)), ends=(1,), first=1), [0, 1]) == [[10, 11], [1, 3, 4, 5]]
    assert allowed(InterleavedCodebooks(((3, 6), (10, 12)), (1, 99), (0, 1)), [0, 1]) == [[1, 3, 4, 5], [1, 10, 11]]
    assert allowed(InterleavedCodebooks(((3, 6),)), [0, 4]) == [[3, 4, 5], [3, 4, 5]]


def test_books_one_behind_the_other():
    assert InterleavedCodebooks.of_sizes(2, [3, 4, 5], [0]) == InterleavedCodebooks(((2, 5), (5, 9), (9, 14)), (0,))


def test_what_is_allowed_keeps_its_score():
    raw, history = at([0, 1])
    out = InterleavedCodebooks(((0, 5), (5, V)))(raw, history)
    assert torch.equal(out[0, 0, :5], raw[0, 0, :5])
    assert torch.equal(out[0, 1, 5:], raw[0, 1, 5:])


def test_barks_coarse_stage_is_transformers_own():
    semantic, codes, start = 4, 8, 5
    own, theirs = InterleavedCodebooks.of_sizes(semantic, [codes, codes]), AlternatingCodebooksLogitsProcessor(start, semantic, codes)
    raw, history = at(list(range(6)))
    out = own(raw, history)
    for position in range(6):
        ids = torch.zeros(1, start + position, dtype=torch.long)
        assert torch.equal(out[0, position], theirs(ids, raw[0, position][None])[0])


# --- under speculation ------------------------------------------------------------------------------------------------

SIZE = 5  # the end and two books of two
OWN, OTHER = tables(SIZE, 1)
BOOKS = InterleavedCodebooks(((1, 3), (3, 5)), (END,))


def book_of_two(scores, path, outputs):
    kept = {0: (END, 1, 2), 1: (3, 4)}[outputs % 2]
    return [s if v in kept else -torch.inf for v, s in enumerate(scores)]


class OneLate(InterleavedCodebooks):
    """The book of the position before."""

    def __call__(self, scores, history):
        return super().__call__(scores, History(history.ids, history.visible, history.position + 1))


class OfTheRound(InterleavedCodebooks):
    """The book of where the round began, for all that is drafted."""

    def __call__(self, scores, history):
        return super().__call__(scores, History(history.ids, history.visible, history.position[:, :1].expand_as(history.position)))


WORLD = World(OWN, (book_of_two,))
TREE = StaticTree(Template.branching((2, 1)))


def error(books: InterleavedCodebooks, rule, shape) -> float:
    distribution = engine_distribution(
        target(OWN, books), ModelDrafter(target(OTHER, BOOKS), shape), rule, [2], most=3, length=2, ends=False
    )
    return (distribution - WORLD.joint([2], 3)).abs().max().item()


@pytest.mark.parametrize(("rule", "shape"), [(Token(), Chain()), (without_replacement_rule(), TREE)], ids=["chain", "tree"])
def test_outputs_have_the_joint_distribution(rule, shape):
    assert error(BOOKS, rule, shape) < 1e-9
    for mutant in (OneLate, OfTheRound):
        assert error(mutant(BOOKS.ranges, BOOKS.ends), rule, shape) > 1e-3


@pytest.mark.parametrize("shape", [Chain(drawn), TREE], ids=["chain", "tree"])
def test_coupled_is_plain_decoding_and_frames_are_whole(shape):
    prompts, own = [[1], [2, 3, 4], [4, 4]] * 20, target(OWN, BOOKS)
    plain, _, _ = run(own, NoDraft(), Match(), prompts, Noise.from_seed(0, 60), most=9, length=0)
    drafted, accepted, _ = run(own, ModelDrafter(target(OTHER, BOOKS), shape), Coupled(), prompts, Noise.from_seed(0, 60), most=9, length=3)
    assert drafted == plain
    assert accepted > 0
    for values in plain:
        spoken = values[:-1] if END in values else values
        assert all((value in (1, 2)) == (place % 2 == 0) for place, value in enumerate(spoken))
        assert END not in values or len(spoken) % 2 == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: InterleavedCodebooks(()), "ranges is"),
        (lambda: InterleavedCodebooks(((3, 3),)), "ranges is"),
        (lambda: InterleavedCodebooks(((0, 3),), first=1), "books are numbered 0 to 0"),
        (lambda: InterleavedCodebooks(((0, 3),), ends_before=(2,)), "books are numbered 0 to 0"),
        (lambda: InterleavedCodebooks(((0, V + 1),))(*at([0])), f"the distributions have {V} values"),
    ],
)
def test_bad_books_are_refused_in_one_line(make, words):
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
