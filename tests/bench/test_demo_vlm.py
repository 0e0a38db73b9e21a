"""The demo's pictures and questions: one file that needs no other, whose figures and badges come from runs that were made."""

import base64
import contextlib
import io
import json
import re

import pytest
from PIL import Image

from mmspec.bench.demo import run as demo
from mmspec.bench.demo import vlm as demo_vlm
from mmspec.cli import app
from mmspec.loading.text import Pair
from mmspec.minis import Mini
from mmspec.minis.drawn import scenes
from mmspec.text.inputs.vision_inputs import VisionPrompt
from tests import small_seers
from tests.bench.test_report import Page


@pytest.fixture(scope="module")
def stand_in():
    """A random target in the mini's place, drafted by its own language model and by itself; and no other section."""
    own = small_seers.processor()
    own.chat_template = small_seers.TEMPLATE
    target = small_seers.seer(own)
    mini = Mini(target, {"text": small_seers.reader(own, target), "vlm": target}, own, None, "")
    drawn = [scenes.draw_scene(scene) for scene in scenes.scenes(3, 3)]
    examples = (VisionPrompt("describe the picture", (drawn[0],)), VisionPrompt("how many circles", tuple(drawn[1:])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "SECTIONS", {"vlm": demo.SECTIONS["vlm"]})
        patch.setattr(demo_vlm, "there", lambda: True)
        patch.setattr(demo_vlm, "load", lambda name: mini)
        pair = {"name": "vlm", "target": target, "processor": own, "drafter": None, "drafter_name": "none", "accept": "exact"}
        patch.setattr(demo_vlm, "load_pair", lambda config: Pair(**pair, config=config, examples=examples, chat=True))
        patch.setattr(demo_vlm, "_most", lambda request: 12)
        patch.setattr(demo_vlm, "_BUDGET", float("inf"))  # what is shown does not depend on a busy machine
        yield mini


@pytest.fixture(scope="module")
def found(stand_in, tmp_path_factory):
    """(page, section of the JSON) of one quick demo."""
    path, out = tmp_path_factory.mktemp("demo") / "report.html", io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as stopped:
        app(["demo", "--quick", "--out", str(path), "--json", "--device", "cpu"])
    assert stopped.value.code == 0
    return path.read_text(encoding="utf-8"), json.loads(out.getvalue())["sections"]["vlm"]


def test_the_page_needs_nothing_else_and_shows_every_picture_as_it_is(found):
    page = Page(found[0])
    assert page.open == []
    assert page.problems == []
    assert all(each.startswith("data:image/png;base64,") for each in page.fetched)
    shown = re.findall(r'src="data:image/png;base64,([^"]+)"', found[0])
    pictures = [Image.open(io.BytesIO(base64.b64decode(each))) for each in shown]
    assert [picture.tobytes() for picture in pictures] == [scenes.draw_scene(scene).tobytes() for scene in scenes.scenes(3, 3)]
    assert "image-rendering: pixelated" in found[0]
    assert 'alt="picture 1 of 1 for &#34;describe the picture&#34;; the target' in found[0].replace("&quot;", "&#34;")
    assert 'alt="picture 2 of 2 for &#34;how many circles&#34;; the target' in found[0].replace("&quot;", "&#34;")


def test_every_way_gives_plain_decodings_answers(found):
    rows = {row["way"]: row for row in found[1]["ways"]}
    assert {"generate", "plain", "lookup", "text, newline", "assisted", "vlm, own", "vlm, own + newline", "coupled sampling"} < set(rows)
    drafted = [row for row in rows.values() if row["acceptance"] is not None]
    assert all(row["same_text"] == {"same": 2, "of": 2} for row in drafted)
    assert found[1]["same"]["same"] == found[1]["same"]["of"] == 2 * (len(drafted) + 1)  # and plain decoding as transformers'
    for row in rows.values():
        assert row["tokens_per_call"] == pytest.approx(row["tokens"] / row["target_calls"])
        assert f"{row['tokens_per_call']:.2f}" in found[0]


def test_the_target_drafting_for_itself_is_kept_whole_and_the_wrong_picture_costs(found):
    rows = {row["way"]: row for row in found[1]["ways"]}
    assert rows["vlm, own"]["tokens_per_call"] == 6  # 12 tokens by 6
    assert rows["vlm, own"]["acceptance"] == 1
    assert rows["vlm, wrong picture"]["tokens_per_call"] < 6
    assert rows["plain"]["tokens_per_call"] == 1


def test_a_difference_where_none_may_be_fails(stand_in, tmp_path, capsys, monkeypatch):
    once = demo_vlm._once

    def wrong(pair, mini, way, example, total):
        run = once(pair, mini, way, example, total)
        if way.name == "vlm, own":
            run.tokens = [*run.tokens[:-1], run.tokens[-1] + 1]
        return run

    monkeypatch.setattr(demo_vlm, "_once", wrong)
    monkeypatch.setattr(demo_vlm, "_examples", lambda request: 1)
    monkeypatch.setattr(
        demo_vlm, "installed_methods", lambda mini: tuple(w for w in small(mini) if w.name in ("generate", "plain", "vlm, own"))
    )
    path = tmp_path / "report.html"
    with pytest.raises(SystemExit) as stopped:
        app(["demo", "--quick", "--out", str(path), "--device", "cpu"])
    assert stopped.value.code == 1
    assert "some outputs differ" in capsys.readouterr().err
    assert 'class="badge no">0 of 1' in path.read_text(encoding="utf-8")


small = demo_vlm.installed_methods


def test_ways_without_their_drafter_are_left_out(stand_in):
    bare = Mini(stand_in.target, {}, stand_in.processor, None, "")
    assert [way.name for way in demo_vlm.installed_methods(bare)] == ["generate", "plain", "lookup"]
    headed = Mini(stand_in.target, {"vispec": object()}, stand_in.processor, None, "")
    assert demo_vlm.installed_methods(headed)[-1].name == "vispec"


def test_a_slow_machine_shows_fewer_pictures(stand_in, monkeypatch):
    monkeypatch.setattr(demo_vlm, "_BUDGET", 0.0)
    monkeypatch.setattr(
        demo_vlm, "installed_methods", lambda mini: tuple(w for w in small(mini) if w.name in ("generate", "plain", "lookup"))
    )
    section = demo_vlm.section(demo.DemoRequest(True, 0, "cpu"))
    assert (section.same, section.of) == (2, 2)
