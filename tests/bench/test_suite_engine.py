"""`mmspec bench --suite engine`: its figures, and its refusal of other tokens."""

from types import SimpleNamespace

import pytest
import torch

from mmspec.bench.suites import engine


def test_a_small_run():
    found = engine.measure(limit=3, batch_size=2)
    assert [(row["load"], row["drafter"], row["run"]) for row in found["rows"]] == [
        (load, drafter, run)
        for load in ("all at once", "Poisson")
        for drafter in ("plain", "model drafter")
        for run in ("static batches", "engine")
    ]
    for row in found["rows"]:
        assert row["tokens"] == found["rows"][0]["tokens"]
        assert 0 < row["latency_p50"] <= row["latency_p99"] <= row["seconds"] + 1
        assert row["columns"] >= row["forwards"] > 0
    table = engine.render(found)
    assert table.startswith("3 requests, 2 rows.\n")
    assert table.count("\n| Poisson |") == 4


def test_too_few_requests():
    with pytest.raises(ValueError, match="limit is 1: percentiles need at least 2 requests"):
        engine.measure(limit=1)


def test_other_tokens_are_not_compared(monkeypatch):
    monkeypatch.setattr(engine, "serve_engine", lambda *given: engine.Served([[1], [1]], [0.1, 0.1]))
    with pytest.raises(RuntimeError, match="all at once, plain, engine: other tokens than in the first run"):
        engine.measure(limit=2, batch_size=2)


@pytest.mark.parametrize(("gap", "tie"), [(1e-5, True), (1e-2, False)])
def test_a_near_tie_is_told_from_another_token(gap, tie):
    def model(ids):
        assert ids.tolist() == [[7, 8, 3]]
        return SimpleNamespace(logits=torch.tensor([[[0.0] * 6] * 2 + [[0, 0, 0, 0, 1, 1 + gap]]]))

    model.device = torch.device("cpu")
    assert engine.near_tie(model, [7, 8], [3, 5, 1], [3, 4]) is tie
    assert not engine.near_tie(model, [7, 8], [3, 5, 1], [3, 5])
