"""Drawing along the path that is still alive gives the verdict of drawing everywhere, for any draft."""

from unittest.mock import patch

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Keys, Noise
from mmspec.core.records import Scored
from mmspec.core.rules.match import Match
from tests.core.test_records import drafts


def by_path(draft, seed, scale):
    """Scores [B, N, 4] that depend on the tokens of a node's path, as a model's do."""
    scores = torch.zeros(*draft.nodes.shape, 4)
    for row, (values, parents) in enumerate(zip(draft.nodes.tolist(), draft.parents.tolist(), strict=True)):
        paths: list[tuple[int, ...]] = []
        for column, (value, parent) in enumerate(zip(values, parents, strict=True)):
            paths.append((*paths[parent], value) if parent >= 0 else (value,))
            generator = torch.Generator().manual_seed(hash((seed, row, paths[column])) % 2**62)
            scores[row, column] = scale * torch.randn(4, generator=generator)
    return scores


def verdict(draft, scores, seed, searched):
    drawn, real = [], Keys.choose

    def choose(keys, table, ids=None):
        drawn.append(table[..., 0].numel())
        return real(keys, table, ids)

    with patch.object(Categorical, "searched", searched), patch.object(Keys, "choose", choose):
        return Match()(draft, Scored(Categorical(scores)), Noise.from_seed(seed, len(draft.start))), sum(drawn)


@given(drafts(), st.integers(0, 10**6), st.booleans())
@settings(max_examples=300, deadline=None)
def test_walking_equals_drawing_everywhere(draft, seed, peaked):
    scores = by_path(draft, seed, 9.0 if peaked else 0.3)
    walked, few = verdict(draft, scores, seed, True)
    everywhere, all_of_them = verdict(draft, scores, seed, False)
    for name in ("keep", "values", "count", "accepted", "judged"):
        assert torch.equal(getattr(walked, name), getattr(everywhere, name)), name
    assert torch.equal(walked.pending.nodes, everywhere.pending.nodes)
    assert few == len(draft.start) + int(walked.accepted.sum())  # one draw a row, and one for every accepted draft token
    assert few <= all_of_them


@given(drafts(linear=True), st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_walking_chains(draft, seed):
    scores = by_path(draft, seed, 1.0)
    walked, _ = verdict(draft, scores, seed, True)
    everywhere, _ = verdict(draft, scores, seed, False)
    for name in ("keep", "values", "count", "accepted", "judged"):
        assert torch.equal(getattr(walked, name), getattr(everywhere, name)), name
