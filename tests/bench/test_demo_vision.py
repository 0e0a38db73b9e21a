"""The demo's pictures: one file that needs no other, whose figures and badges come from runs that were made."""

import base64
import io
import json
import re

import pytest
import torch
from PIL import Image

from mmspec.bench.demo import run as demo
from mmspec.bench.demo import vision as demo_vision
from mmspec.cli import app
from mmspec.loading.vision import load_image_model
from mmspec.vision.codes.methods import METHODS
from mmspec.vision.generation import generate
from tests.bench.test_report import Page
from tests.vision import small_minis

GRID = 12  # wider than the window of rows side by side, which would be exact


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """A random target in the mini's place, and no other section."""
    loaded = load_image_model(str(small_minis.scenes(tmp_path_factory.mktemp("scenes"), GRID)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "SECTIONS", {"vision": demo.SECTIONS["vision"]})
        patch.setattr(demo_vision, "there", lambda: True)
        patch.setattr(demo_vision, "load_image_model", lambda *args, **extra: loaded)
        patch.setattr(demo_vision, "_BUDGET", float("inf"))  # what is shown does not depend on a busy machine
        yield loaded


@pytest.fixture(scope="module")
def found(stand_in, tmp_path_factory):
    """(page, section of the JSON) of one quick demo."""
    import contextlib

    path, out = tmp_path_factory.mktemp("demo") / "report.html", io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as stopped:
        app(["demo", "--quick", "--out", str(path), "--json", "--device", "cpu"])
    assert stopped.value.code == 0
    return path.read_text(encoding="utf-8"), json.loads(out.getvalue())["sections"]["vision"]


def pictures(page: str, words: str) -> list[Image.Image]:
    """The pictures whose alternative text has `words`."""
    shown = re.findall(rf'alt="[^"]*{words}[^"]*" src="data:image/png;base64,([^"]+)"', page)
    return [Image.open(io.BytesIO(base64.b64decode(each))) for each in shown]


def test_the_page_needs_nothing_else(found):
    page = Page(found[0])
    assert page.open == []
    assert page.problems == []
    assert all(each.startswith("data:image/png;base64,") for each in page.fetched)
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert "http" not in re.sub(r'src="[^"]*"', "", found[0])


def test_every_method_shows_every_prompt(found, stand_in):
    page, section = found
    assert [row["way"] for row in section["ways"]] == list(demo_vision.METHODS)
    assert set(demo_vision.METHODS) < set(METHODS)
    assert len(pictures(page, ", drawn by ")) == 2 * len(demo_vision.METHODS)
    assert len(pictures(page, "codes in one forward")) == 2 * (len(demo_vision.METHODS) - 1)  # rows side by side have no runs
    for prompt in stand_in.examples[:2]:
        for way in demo_vision.METHODS:
            assert f'alt="{prompt}, drawn by {way}"' in page
    plain = generate(stand_in.model, [stand_in.examples[0]], method="plain", guidance=stand_in.guidance, seed=0)
    assert pictures(page, ", drawn by ")[0].tobytes() == plain.images[0].tobytes()
    maps = pictures(page, "codes in one forward")
    assert len(maps[0].getcolors()) == 1  # plain decoding commits one by one
    assert len(maps[1].getcolors()) > 1


def test_figures_are_counts_that_fit_together(found):
    rows = {row["way"]: row for row in found[1]["ways"]}
    assert rows["plain"]["forwards"] == GRID**2
    for row in rows.values():
        assert row["tokens"] == 2 * GRID**2
        assert row["tokens_per_call"] == pytest.approx(row["tokens"] / row["target_calls"])
        assert (row["drift"] is not None) == (row["exactness"] == "lossy")
    assert rows["jacobi"]["same_pictures"] == {"same": 2, "of": 2}
    assert found[1]["same"] == {"same": 2, "of": 2}


def test_a_difference_where_none_may_be_fails(stand_in, tmp_path, capsys, monkeypatch):
    once = demo_vision._once

    def wrong(loaded, way, prompt, seed):
        run = once(loaded, way, prompt, seed)
        if way == "jacobi":
            run.codes = torch.where(run.codes == run.codes[0, 0], run.codes + 1, run.codes)
        return run

    monkeypatch.setattr(demo_vision, "_once", wrong)
    monkeypatch.setattr(demo_vision, "_examples", lambda request: 1)
    path = tmp_path / "report.html"
    with pytest.raises(SystemExit) as stopped:
        app(["demo", "--quick", "--out", str(path), "--device", "cpu"])
    out, err = capsys.readouterr()
    assert stopped.value.code == 1
    assert "some outputs differ" in err
    assert "0 of 1" in out
    assert 'class="badge no">0 of 1' in path.read_text(encoding="utf-8")


def test_a_slow_machine_shows_fewer_prompts(stand_in, monkeypatch):
    monkeypatch.setattr(demo_vision, "_BUDGET", 0.0)
    monkeypatch.setattr(demo_vision, "METHODS", {"plain": "", "jacobi": ""})
    section = demo_vision.section(demo.DemoRequest(False, 0, "cpu"))
    assert (section.same, section.of) == (1, 1)


def test_sections_without_a_mini_are_left_out(monkeypatch):
    monkeypatch.setattr(demo, "SECTIONS", {"text": "mmspec.bench.demo.text", "vision": "mmspec.bench.demo.vision"})
    monkeypatch.setattr(demo_vision, "there", lambda: False)
    assert list(demo.installed_sections()) == ["text"]
