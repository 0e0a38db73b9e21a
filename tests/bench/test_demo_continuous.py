"""The demo's continuous pictures: every way on every prompt, counts that fit, and a batch that changes a picture makes it fail."""

import contextlib
import io
import json

import pytest
import torch

from mmspec.bench.demo import continuous as demo_continuous
from mmspec.bench.demo import run as demo
from mmspec.cli import app
from mmspec.loading.vision import load_image_model
from mmspec.vision.generation import generate
from tests.bench.test_demo_vision import pictures
from tests.bench.test_report import Page
from tests.vision import small_latents


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """Random models in the mini's place, and no other section."""
    loaded = load_image_model(str(small_latents.folder(tmp_path_factory.mktemp("latents"), heads=("diffusion", "mixture"))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "SECTIONS", {"continuous": demo.SECTIONS["continuous"]})
        patch.setattr(demo_continuous, "there", lambda: True)
        patch.setattr(demo_continuous, "load_image_model", lambda *args, **extra: loaded)
        patch.setattr(demo_continuous, "_BUDGET", float("inf"))  # what is shown does not depend on a busy machine
        yield loaded


@pytest.fixture(scope="module")
def found(stand_in, tmp_path_factory):
    """(page, section of the JSON) of one quick demo."""
    path, out = tmp_path_factory.mktemp("demo") / "report.html", io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as stopped:
        app(["demo", "--quick", "--out", str(path), "--json", "--device", "cpu"])
    assert stopped.value.code == 0
    return path.read_text(encoding="utf-8"), json.loads(out.getvalue())["sections"]["continuous"]


def test_the_page_shows_every_way_and_needs_nothing_else(found, stand_in):
    page, section = Page(found[0]), found[1]
    assert page.open == []
    assert page.problems == []
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert [row["way"] for row in section["ways"]] == list(demo_continuous.METHODS)
    drawn = pictures(found[0], ", drawn from vectors by ")
    assert len(drawn) == 2 * len(demo_continuous.METHODS)
    plain = generate(stand_in.model, [stand_in.examples[0]], method="plain", seed=0)
    assert drawn[0].tobytes() == plain.images[0].tobytes()


def test_it_says_what_is_compared_and_what_is_not(found):
    page, section = " ".join(found[0].split()), found[1]
    assert "draws another picture than plain decoding does, of the same distribution" in page
    assert "12 of 12</span> pictures the same alone and in a batch of four" in page
    assert "identical to plain decoding" not in page
    assert section["promise"] == "pictures the same alone and in a batch of four"
    assert section["same"] == {"same": 12, "of": 12}


def test_figures_are_counts_that_fit_together(found):
    rows = {row["way"]: row for row in found[1]["ways"]}
    for name, row in rows.items():
        assert row["exactness"] == "distribution-exact"
        assert row["tokens"] == 2 * small_latents.CELLS
        assert row["tokens_per_call"] == pytest.approx(row["tokens"] / row["target_calls"])
        assert row["head"] == ("mixture" if name in ("plain, mixture", "density") else "diffusion")
    for name in ("plain", "plain, mixture"):
        assert (rows[name]["forwards"], rows[name]["acceptance"], rows[name]["times_plain"]) == (small_latents.CELLS, None, 1)
    assert rows["path"]["forwards"] < small_latents.CELLS


def test_a_picture_that_hangs_on_its_batch_fails(stand_in, tmp_path, capsys, monkeypatch):
    once = demo_continuous._once

    def wrong(loaded, way, prompt, seed):
        run = once(loaded, way, prompt, seed)
        if way.method == "path":
            run.tokens = run.tokens + torch.tensor([0.0, 0.0, 0.0, 0.01])
        return run

    monkeypatch.setattr(demo_continuous, "_once", wrong)
    monkeypatch.setattr(demo_continuous, "_examples", lambda request: 1)
    path = tmp_path / "report.html"
    with pytest.raises(SystemExit) as stopped:
        app(["demo", "--quick", "--out", str(path), "--device", "cpu"])
    out, err = capsys.readouterr()
    assert stopped.value.code == 1
    assert "some outputs differ" in err
    assert "5 of 6" in out
    assert 'class="badge no">0 of 1' in path.read_text(encoding="utf-8")


def test_a_slow_machine_shows_fewer_prompts_and_a_head_without_a_draft_only_plain(stand_in, monkeypatch):
    monkeypatch.setattr(demo_continuous, "_BUDGET", 0.0)
    monkeypatch.setattr(stand_in.model.others[0], "drafter", None)
    section = demo_continuous.section(demo.DemoRequest(False, 0, "cpu"))
    assert [row["way"] for row in section.rows] == ["plain", "path", "block", "aligned", "plain, mixture"]
    assert section.of == 5
