"""The peer of item beams, what it keeps in its cache, and the demo's section: figures that come from runs that were made."""

import contextlib
import io
import json

import pytest
import torch
from markupsafe import escape

import mmspec
from mmspec.bench.compare.recommendations import Prefixes, beam_search_baseline, overlap, shared_bytes
from mmspec.bench.demo import recsys as demo_recsys
from mmspec.bench.demo import run as demo
from mmspec.cli import app
from mmspec.recsys import recommend
from tests.bench.test_report import Page


@pytest.fixture(scope="module")
def mini():
    return mmspec.load("recsys")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """(page, section of the JSON) of one quick demo with this section alone."""
    path, out = tmp_path_factory.mktemp("demo") / "report.html", io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "SECTIONS", {"recsys": demo.SECTIONS["recsys"]})
        with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as stopped:
            app(["demo", "--quick", "--out", str(path), "--json", "--device", "cpu"])
    assert stopped.value.code == 0
    return path.read_text(encoding="utf-8"), json.loads(out.getvalue())["sections"]["recsys"]


@pytest.mark.parametrize("k", [1, 10])
def test_the_peer_finds_what_plain_search_finds(mini, k):
    users = mini.examples[:4]
    theirs = beam_search_baseline(mini.target, mini.catalogue.inputs(users), Prefixes(mini.catalogue), k)
    ours = recommend(mini.target, users, k=k, catalogue=mini.catalogue, method="plain")
    assert torch.equal(theirs.paths, ours.paths)
    assert theirs.scores is None or torch.allclose(theirs.scores, torch.tensor(ours.scores), atol=1e-4)


def test_a_prompt_is_kept_once_and_not_once_a_beam(mini):
    users, k = [mini.examples[0]], 20
    inputs, levels = mini.catalogue.inputs(users), mini.catalogue.levels
    config, prompt = mini.target.config, inputs["input_ids"].shape[1]
    slot = 2 * 4 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim  # keys and values in float32
    assert shared_bytes(mini.target, inputs, mini.catalogue, k) == slot * (prompt + k * (levels - 1))
    assert beam_search_baseline(mini.target, inputs, Prefixes(mini.catalogue), k).cache_bytes == slot * k * (prompt + levels - 1)


def test_overlap_is_the_share_of_what_was_wanted():
    assert overlap([[1, 2, 3], [4]], [[3, 2, 9], [5]]) == 0.5


def test_the_page_needs_nothing_else_and_names_what_is_found(found, mini):
    html, section = found
    page = Page(html)
    assert page.open == []
    assert page.problems == []
    assert not page.fetched
    assert not {"script", "link", "iframe"} & set(page.tags)
    best = recommend(mini.target, [mini.examples[0]], k=demo_recsys.K, catalogue=mini.catalogue).items[0]
    assert all(str(escape(mini.catalogue.name(item))) in html for item in best)
    assert [row["way"] for row in section["ways"]] == [way.name for way in demo_recsys.METHODS if way.drafter in (None, *mini.drafters)]


def test_figures_are_counts_that_fit_together(found, mini):
    rows = {row["way"]: row for row in found[1]["ways"]}
    for row in rows.values():
        assert row["tokens"] == 4 * mini.catalogue.levels  # four users, every level committed once
        assert row["tokens_per_call"] == pytest.approx(row["tokens"] / row["target_calls"])
        assert row["same_items"] in (None, {"same": 4, "of": 4})
    assert rows["plain"]["forwards"] == mini.catalogue.levels
    assert rows["model"]["forwards"] <= 2.2
    assert found[1]["same"] == {"same": 4 * (len(rows) - 1), "of": 4 * (len(rows) - 1)}
