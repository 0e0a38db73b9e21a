"""Semantic ids: close items share codes, the last code keeps the rest apart, and the same call gives the same codes."""

from dataclasses import asdict
from functools import partial

import pytest
import torch

from mmspec.recsys.semantic_ids import RqVae, collisions, make, residual_kmeans


def blobs(groups: int = 5, each: int = 20, width: int = 8, spread: float = 0.05) -> torch.Tensor:
    chance = torch.Generator().manual_seed(0)
    centres = torch.randn(groups, width, generator=chance) * 4
    return (centres[:, None] + spread * torch.randn(groups, each, width, generator=chance)).flatten(0, 1)


def test_every_level_leaves_less():
    points = torch.randn(500, 16, generator=torch.Generator().manual_seed(0))
    lost = [residual_kmeans(points, levels, 16)[1].min(1).values.mean().item() for levels in (1, 2, 3)]
    assert lost[0] > lost[1] > lost[2]
    assert lost[2] < 0.7 * points.square().sum(1).mean()


@pytest.mark.parametrize("method", ["kmeans", "rqvae"])
def test_ids_are_distinct_repeat_and_keep_the_close_together(method, monkeypatch):
    monkeypatch.setattr(RqVae, "trained", partial(RqVae.trained, steps=300))
    points, before = blobs(groups=6, each=30), torch.random.get_rng_state()
    ids = {last: make(points, method, levels=3, size=32, last=last, seed=1) for last in ("count", "nearest")}
    assert torch.equal(before, torch.random.get_rng_state())  # the global generator is left alone
    assert torch.equal(ids["count"], make(points, method, levels=3, size=32, last="count", seed=1))
    for codes in ids.values():
        assert codes.shape == (180, 3)
        assert int(codes.min()) >= 0
        assert int(codes.max()) < 32
        told = collisions(codes)
        assert (told.items, told.paths, told.largest) == (180, 180, 1)
    coarse = make(points, method, levels=2, size=6, last="plain")[:, 0]
    assert sum(len(part.unique()) for part in coarse.split(30)) <= 8  # six blobs, six codes


def test_counting_numbers_the_items_of_a_path():
    points = torch.tensor([[0.0], [0.0], [9.0], [0.0], [9.0]])
    codes = make(points, levels=2, size=4, last="count")
    assert codes[:, 1].tolist() == [0, 1, 0, 2, 1]


def test_the_nearest_free_code_is_taken():
    codes = make(torch.tensor([[0.0], [0.0], [9.0]]), levels=2, size=2, last="nearest")
    assert codes[0, 0] == codes[1, 0] != codes[2, 0]
    assert sorted(codes[:2, 1].tolist()) == [0, 1]


def test_more_alike_items_than_codes_share_paths_and_the_report_says_so():
    codes = make(torch.zeros(5, 3), levels=2, size=2, last="count")
    assert asdict(collisions(codes)) == {"items": 5, "paths": 2, "largest": 3, "used": (1, 2), "prefixes": (1, 2)}
    assert collisions(make(torch.zeros(5, 3), levels=2, size=2, last="nearest")).paths == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"embeddings": torch.zeros(3)}, "one vector an item"),
        ({"embeddings": torch.tensor([[0.0], [float("nan")]])}, "item 1 .* not finite"),
        ({"method": "magic"}, "unknown method 'magic'; valid: kmeans, rqvae"),
        ({"last": "most"}, "unknown last 'most'; valid: count, nearest, plain"),
        ({"levels": 1}, "levels is 1"),
        ({"size": 1}, "size is 1"),
    ],
)
def test_errors_name_the_value(options, said):
    with pytest.raises(ValueError, match=said):
        make(**{"embeddings": torch.zeros(4, 2), **options})
