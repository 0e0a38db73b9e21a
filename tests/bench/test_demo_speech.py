"""The demo's speech: one file that needs no other, with a player for every run, whose figures come from runs that were made."""

import base64
import contextlib
import io
import json
import re

import pytest
import soundfile
from PIL import Image

from mmspec.bench.demo import run as demo
from mmspec.bench.demo import speech as demo_speech
from mmspec.cli import app
from tests.bench.test_report import Page


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """(page, section of the JSON) of one quick demo with this section alone."""
    path, out = tmp_path_factory.mktemp("demo") / "report.html", io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "SECTIONS", {"speech": demo.SECTIONS["speech"]})
        patch.setattr(demo_speech, "_BUDGET", float("inf"))  # what is shown does not depend on a busy machine
        with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as stopped:
            app(["demo", "--quick", "--out", str(path), "--json", "--device", "cpu"])
    assert stopped.value.code == 0
    return path.read_text(encoding="utf-8"), json.loads(out.getvalue())["sections"]["speech"]


def test_every_run_has_a_player_that_plays_and_a_spectrogram(found):
    html, _ = found
    page = Page(html)
    assert page.open == []
    assert page.problems == []
    runs = 2 * len(demo_speech.METHODS)
    assert all(html.count(f', by {way}"') == 2 for way in demo_speech.METHODS)  # players say what they play
    assert len(set(re.findall(r'alt="(spectrogram [^"]+)"', html))) == runs
    sounds = re.findall(r"data:audio/wav;base64,([^\"]+)", html)
    pictures = re.findall(r"data:image/png;base64,([^\"]+)", html)
    assert len(sounds) == len(pictures) == runs
    waves = [soundfile.read(io.BytesIO(base64.b64decode(data))) for data in sounds]
    assert all(rate == 8000 and len(samples) > 2000 for samples, rate in waves)
    assert all(Image.open(io.BytesIO(base64.b64decode(data))).height > 100 for data in pictures)


def test_rows_that_promise_the_same_sound_keep_it(found):
    _, section = found
    rows = {row["way"]: row for row in section["ways"]}
    assert list(rows) == list(demo_speech.METHODS)
    for way in ("model", "heads", "tree"):
        assert rows[way]["same_sounds"] == {"same": 2, "of": 2}
        assert rows[way]["tokens_per_call"] > rows["plain"]["tokens_per_call"] == 1
    assert rows["tree tau 3"]["drift"] > 0
    assert section["same"] == {"same": 6, "of": 6}


def test_the_page_shows_the_figures_of_the_rows(found):
    html, section = found
    for row in section["ways"]:
        assert f"{row['tokens_per_call']:.2f}" in html
