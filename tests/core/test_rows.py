"""Rows that join and leave: tensors, noise, pipelines, stopping, caches, and draft lengths by the number of rows."""

import pytest
import torch

from mmspec.core.control import Fixed
from mmspec.core.draft_length.by_match import ByMatch
from mmspec.core.draft_length.by_rows import ByRows
from mmspec.core.draft_length.throughput import Throughput
from mmspec.core.processors.by_row import RowPipelines
from mmspec.core.processors.history import History
from mmspec.core.processors.pipeline import Temperature, TopK, pipeline
from mmspec.core.processors.truncation import distribution_of
from mmspec.core.records import Committed
from mmspec.core.rows.changes import join_tensors, refuse_fixed_rows, rows_of
from mmspec.core.stopping import DefaultStopping
from mmspec.models.slot_cache import SlotCache


def test_selecting_and_joining_tensors():
    one, other = torch.arange(6).view(2, 3), torch.arange(10, 14).view(2, 2)
    assert rows_of(one, [0, 1]) is one
    assert rows_of(one, [1]).tolist() == [[3, 4, 5]]
    assert join_tensors(one, other).tolist() == [[0, 1, 2], [3, 4, 5], [0, 10, 11], [0, 12, 13]]
    assert join_tensors(other, one, pad=-1, left=False).tolist() == [[10, 11, -1], [12, 13, -1], [0, 1, 2], [3, 4, 5]]
    assert join_tensors(one[..., None], other[..., None]).shape == (4, 3, 1)


def test_what_cannot_change_its_rows_is_refused_by_name():
    refuse_fixed_rows(DefaultStopping(1, 1), "stopping")
    with pytest.raises(ValueError, match=r"^the drafter \(object\) keeps states of the whole batch"):
        refuse_fixed_rows(object(), "the drafter")


def test_a_row_is_processed_as_alone_bit_for_bit():
    scores = torch.randn(4, 3, 9000, generator=torch.Generator().manual_seed(0))
    history = History(torch.randint(0, 9000, (4, 5)), torch.ones(4, 3, 5, dtype=torch.bool), torch.zeros(4, 3, dtype=torch.long))
    settings = [
        pipeline(temperature=0.7, top_k=9),
        pipeline(),
        pipeline(temperature=0.7, top_k=9),
        pipeline(temperature=1.2, top_p=0.8, repetition_penalty=1.3),
    ]
    both = RowPipelines(tuple(settings))
    assert both.shared is None
    assert [rows for _, rows in both.groups] == [[0, 2], [1], [3]]
    assert both.reads_paths
    assert not both.idle
    found = both(scores, history)
    for row, own in enumerate(settings):
        assert torch.equal(found[row : row + 1], own(scores[row : row + 1], history.of_rows(torch.tensor([row]))))
    some = both.take_rows([2, 0]).join_rows(RowPipelines((settings[0],)))
    assert some.shared == settings[0]
    sparse = distribution_of(some, scores[:3], history.of_rows(torch.arange(3)))
    assert torch.equal(sparse.probs(), distribution_of(settings[0], scores[:3], history.of_rows(torch.arange(3))).probs())
    assert both.keep((Temperature,)).rows[0].steps == (Temperature(0.7),)
    assert both.keep((TopK,)).rows[1].idle


def test_stops_get_the_number_that_their_row_had():
    seen = []
    one, other = (DefaultStopping(1, 9, stops=[lambda row, values, name=name: seen.append((name, row)) is not None]) for name in "ab")
    one.join_rows(other)
    one.take_rows([1, 0])
    for _, stops in one.stops:
        stops[0](0, [1])
    assert seen == [("b", 0), ("a", 0)]
    assert one.left.tolist() == one.remaining == [9, 9]


def cache_of(*rows: int) -> SlotCache:
    """A cache of one layer and 8 slots, whose slot 0 holds the rows' numbers."""
    cache = SlotCache(1, 8)
    cache.point(torch.zeros(len(rows), 1, dtype=torch.long), 8)
    numbers = torch.tensor(rows, dtype=torch.float).view(-1, 1, 1, 1)
    cache.update(numbers, -numbers, 0)
    return cache


def held(cache: SlotCache) -> list[float]:
    keys, values = cache.slot_layers[0].keys, cache.slot_layers[0].values
    assert torch.equal(keys, -values)
    return keys[:, 0, 0, 0].tolist()


def test_rows_of_a_cache_move_in_place():
    cache = cache_of(1, 2, 3, 4)
    place = cache.slot_layers[0].keys.data_ptr()
    cache.take_rows([0, 3, 2])
    assert held(cache) == [1, 4, 3]
    cache.join_rows(cache_of(7))
    assert held(cache) == [1, 4, 3, 7]
    assert cache.slot_layers[0].keys.data_ptr() == place
    cache.take_rows([3, 2, 1, 0])
    assert held(cache) == [7, 3, 4, 1]
    cache.join_rows(cache_of(8, 9))  # more than there is memory for
    assert held(cache) == [7, 3, 4, 1, 8, 9]
    cache.join_rows(cache_of(5))
    assert held(cache) == [7, 3, 4, 1, 8, 9, 5]


def test_caches_of_unequal_capacity_join():
    one, other = cache_of(1), cache_of(2)
    other.reserve(24)
    one.join_rows(other)
    assert (one.capacity, held(one)) == (24, [1, 2])
    other = cache_of(3)
    one.join_rows(other)
    assert (one.capacity, held(one)) == (24, [1, 2, 3])


def outcome(accepted: int, rows: int) -> Committed:
    values, many = [[0] * (accepted + 1)] * rows, [accepted] * rows
    return Committed(values, many, many, many, [False] * rows, [True] * rows, [0.0] * rows, [0.0] * rows)


def test_draft_lengths_shrink_where_rows_make_columns_dear():
    """Seconds of a round grow with rows x columns beyond 8: a lone row drafts, a full batch does not."""
    session = ByRows(Throughput()).begin()
    lengths: dict[int, list[int]] = {1: [], 16: []}
    for turn in range(400):
        rows = (1, 16)[turn % 2]
        session.read_rows(rows)
        length = session.length()
        lengths[rows].append(length)
        session.observe(length, outcome(min(length, 2), rows), max(8, rows * (1 + length)) / 8)
    assert min(lengths[1][-20:]) >= 2
    assert lengths[16][-20:].count(0) >= 15


def test_controllers_by_class_of_rows():
    session = ByRows(Fixed(3)).begin()
    for rows in (1, 2, 3, 4, 5, 8, 9):
        session.read_rows(rows)
        assert session.length() == 3
    assert sorted(session.sessions) == [0, 1, 2, 3, 4]
    matching = ByRows(ByMatch()).begin()
    matching.read_matches([4])  # pyright: ignore[reportAttributeAccessIssue]
    assert matching.length() >= 0
    assert not hasattr(session, "read_matches")
