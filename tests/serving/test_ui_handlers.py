"""The page of `mmspec ui` without a browser: comparisons, frames, cancelling, refusals, the command."""

import asyncio
import re
import sys
import threading
from types import SimpleNamespace

import pytest

import mmspec
from mmspec.cli import app
from mmspec.run.config import Config, DrafterSection
from mmspec.serving.http.loading import ModelNames
from mmspec.serving.http.worker import ModelWorker, WorkerJob
from mmspec.serving.ui import turns as turns_module
from mmspec.serving.ui.comparison import LiveComparison, LiveGeneration
from mmspec.serving.ui.images import ImageSide
from mmspec.serving.ui.models import UiModel, load_ui_models
from mmspec.serving.ui.recommendations import RecommendationSide
from mmspec.serving.ui.runs import Runs
from mmspec.serving.ui.speech import SpeechSide
from mmspec.serving.ui.text import TextSide
from mmspec.serving.ui.turns import Turns
from tests.serving.web import WAIT, until

STORY = "Story: The bird"


@pytest.fixture(scope="module")
def sides():
    names = dict.fromkeys(("image", "speech", "recommender"), "mini")
    models = load_ui_models(ModelNames(Config(drafter=DrafterSection(kind="model")), names, device="cpu"))
    kinds = {"text": TextSide, "image": ImageSide, "speech": SpeechSide, "recommender": RecommendationSide}
    yield {kind: kinds[kind](model) for kind, model in models.items()}
    for model in models.values():
        model.served.close()


def form(sides, kind, **changes):
    """The prompt and the settings that a form begins with, shortened, with changes."""
    rule, sampled = {"drafter": "model", "accept": "exact", "length": "4"}, {"temperature": 1, "top_p": 0.8}
    picture = {"prompt": sides["image"].examples[0], "method": "jacobi", "window": "default", "guidance": 1}
    forms = {
        "text": {"prompt": STORY, **rule, "temperature": 0.8, "top_p": 0.9, "most": 24},
        "image": picture | sampled,
        "speech": {"text": "three", "voice": "jackson", **rule, "temperature": 1, "most": 0.6},
        "recommender": {"history": "1146, 999, 1045", "method": "strict", "drafter": "model", "length": "auto", "k": 5, "temperature": 1},
    }
    return [*(forms[kind] | {"seed": 3} | changes).values()]


def frames(sides, kind, values, runs=None):
    """All (status, panes) of a run."""

    async def collect():
        return [frame async for frame in (runs or Runs()).play("session", kind, sides[kind], *values)]

    return asyncio.run(collect())


def figure(panes, name):
    """The values of a figure, plain decoding's first."""
    return re.findall(rf'data-figure="{name}">([^<]*)<', panes)


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_text_is_that_of_the_call_and_accepted_draft_tokens_are_marked(sides):
    status, panes = frames(sides, "text", form(sides, "text"))[-1]
    pair = sides["text"].pair
    options = {"max_new_tokens": 24, "temperature": 0.8, "top_p": 0.9, "seed": 3}
    plain = mmspec.text.generate(pair.target, pair.inputs([STORY]), **options)
    fast = mmspec.text.generate(pair.target, pair.inputs([STORY]), pair.drafter, draft_length=4, **options)
    assert status == ""
    assert "Equal output: yes" in panes
    assert figure(panes, "target forwards") == [str(out.stats.row_calls) for out in (plain, fast)]
    assert figure(panes, "drafts rejected")[1] == str(fast.stats.rejected)
    assert figure(panes, "drafts accepted")[1] == f"{fast.stats.accepted / fast.stats.drafted:.0%} of {fast.stats.drafted}"
    assert f"{fast.stats.accepted} accepted" in panes
    assert figure(panes, "exactness") == ["token-exact"] * 2
    shown = [re.sub(r"<[^>]+>", "", part) for part in re.findall(r'<div class="mm-text">(.*?)</div>', panes, re.S)]
    text = pair.decode(plain.tokens[0, : plain.lengths[0]].tolist())
    assert [part.replace("&#39;", "'").replace("&#34;", '"') for part in shown] == [STORY + text] * 2
    drafted = "".join(re.findall(r'<span class="mm-h">(.*?)</span>', panes, re.S))
    assert fast.stats.accepted > 3
    assert 0 < len(drafted) < len(text)


def test_what_is_typed_is_escaped(sides):
    _, panes = frames(sides, "text", form(sides, "text", prompt="<script>alert(1)</script>", most=2))[-1]
    assert "<script>" not in panes
    assert "&lt;script&gt;" in panes


def test_a_picture_fills_in_and_is_that_of_the_call(sides):
    found = frames(sides, "image", form(sides, "image"))
    panes, side = found[-1][1], sides["image"]
    out = mmspec.vision.generate(side.loaded.model, [side.examples[0]], method="jacobi", top_p=0.8, seed=3)
    assert "Equal output: yes" in panes
    assert figure(panes, "target forwards") == ["256", str(out.stats.row_calls)]
    pictures = re.findall(r'class="mm-image" src="([^"]+)"', panes)
    assert len(pictures) == 2
    assert pictures[0] == pictures[1]
    assert len({each for _, frame in found for each in re.findall(r'class="mm-image" src="([^"]+)"', frame)}) > 1
    assert len(set(re.findall(r'class="mm-map" src="([^"]+)"', panes))) == 2


def test_speech_is_that_of_the_call(sides):
    _, panes = frames(sides, "speech", form(sides, "speech"))[-1]
    speaker = sides["speech"].speaker
    out = mmspec.speech.synthesize(speaker.model, ["three"], voice="jackson", seed=3, max_seconds=0.6)
    assert "Equal output: yes" in panes
    assert figure(panes, "target forwards")[0] == str(out.stats.row_calls)
    assert f"{len(out.waveforms[0]) / out.sample_rate:.2f} s of sound" in panes
    sounds = re.findall(r'<audio[^>]+src="data:audio/wav;base64,([^"]+)"', panes)
    assert len(sounds) == 2
    assert sounds[0] == sounds[1]
    assert 'class="mm-drafted"' in panes


def test_recommendations_are_those_of_the_call(sides):
    _, panes = frames(sides, "recommender", form(sides, "recommender"))[-1]
    recommender = sides["recommender"].recommender
    out = mmspec.recsys.recommend(recommender.model, [[1146, 999, 1045]], k=5, catalogue=recommender.catalogue, method="plain")
    assert "Equal output: yes" in panes
    assert re.findall(r'data-item="(\d+)"', panes) == [str(item) for item in out.items[0]] * 2
    assert recommender.catalogue.name(out.items[0][0]) in panes
    assert "mm-moved" not in panes


def test_a_lossy_rule_shows_its_drift(sides):
    _, panes = frames(sides, "text", form(sides, "text", accept="lenience", most=48))[-1]
    assert figure(panes, "exactness") == ["token-exact", "lossy"]
    assert float(figure(panes, "drift")[1]) > 0
    assert "mm-no" not in panes


def test_other_drafters_and_methods_run(sides):
    for drafter in ("eagle3", "lookup"):
        assert "Equal output: yes" in frames(sides, "text", form(sides, "text", drafter=drafter, length="auto", most=8))[-1][1]
    assert "distribution-exact" in frames(sides, "image", form(sides, "image", method="scd", window="16"))[-1][1]
    assert "Equal output: yes" in frames(sides, "speech", form(sides, "speech", drafter="vadusa"))[-1][1]
    assert "Equal output: yes" in frames(sides, "recommender", form(sides, "recommender", method="coupled", drafter="retriever"))[-1][1]


def test_the_deep_recommender_offers_the_drafters_it_has(sides):
    models = load_ui_models(ModelNames(names={"recommender": "recsys-deep"}, device="cpu"))
    side = RecommendationSide(models["recommender"])
    try:
        assert set(side.drafters) == set(mmspec.load("recsys-deep").drafters)
        for drafter in side.drafters:
            panes = frames({"recommender": side}, "recommender", form(sides, "recommender", drafter=drafter))[-1][1]
            assert "Equal output: yes" in panes
    finally:
        models["recommender"].served.close()


def test_a_model_of_continuous_tokens_is_shown():
    models = load_ui_models(ModelNames(names={"image": "continuous"}, device="cpu"))
    side = ImageSide(models["image"])
    try:
        assert side.methods[0] == "path"
        values = [side.examples[0], "chain", "default", 1, 1, 1, 0]
        status, panes = frames({"image": side}, "image", values)[-1]
        assert (status, len(re.findall('class="mm-image" src=', panes))) == ("", 2)
    finally:
        models["image"].served.close()


# --- refusals ---------------------------------------------------------------------------------------------------------

WRONG = [
    ("text", {"prompt": " "}, "prompt is empty: write the beginning of a text"),
    ("text", {"seed": None}, "seed is empty: give a number"),
    ("text", {"most": 0}, "new tokens is 0: give at least 1"),
    ("text", {"length": "four"}, "draft length is 'four': give a number from 0 to 256, or auto"),
    ("text", {"temperature": -1}, "temperature is -1"),
    ("text", {"accept": "bloc"}, "unknown accept rule 'bloc' (did you mean 'block'?)"),
    ("image", {"prompt": ""}, "no prompt: say what to draw"),
    ("image", {"seed": 1.5}, "seed is 1.5: give a whole number"),
    ("speech", {"text": ""}, "text is empty: write what to say"),
    ("speech", {"voice": "nobody"}, "nobody"),
    ("recommender", {"history": "12, x"}, "history has 'x': this catalogue's items are whole numbers"),
    ("recommender", {"history": "99999"}, "item 99999 is not in the catalogue"),
    ("recommender", {"k": 101}, "items is 101: the page shows at most 100"),
]


@pytest.mark.parametrize(("kind", "changes", "words"), WRONG)
def test_what_is_wrong_is_one_line(sides, kind, changes, words):
    status, panes = frames(sides, kind, form(sides, kind, **changes))[-1]
    assert panes == ""
    assert 'role="alert"' in status
    assert words.replace("'", "&#x27;") in status
    assert "\n" not in status


# --- one at a time, and the end ---------------------------------------------------------------------------------------


def test_generations_take_turns_and_the_one_behind_goes_on(monkeypatch):
    clock, order, running = SimpleNamespace(now=0.0), [], []
    monkeypatch.setattr(turns_module, "perf_counter", lambda: clock.now)
    turns = Turns(2)

    def generate(number, cost, rounds):
        turns.enter(number)
        for _ in range(rounds):
            running.append(number)
            assert running == [number]
            clock.now += cost
            order.append(number)
            running.remove(number)
            turns.pause(number)
            turns.resume(number)
        turns.leave(number)

    threads = [threading.Thread(target=generate, args=args) for args in ((0, 1.0, 6), (1, 2.0, 3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert order == [0, 1, 0, 0, 1, 0, 0, 1, 0]
    assert turns.seconds == [6.0, 6.0]


def test_an_error_ends_both_generations():
    rounds = []

    def broken(view, on_step):
        raise ValueError("it is broken")

    def endless(view, on_step):
        while True:
            rounds.append(1)
            on_step(STEP)

    view = SimpleNamespace(add=lambda step: None, finish=lambda out: None)
    comparison = LiveComparison([LiveGeneration(name, run, lambda: view, name) for name, run in (("plain", endless), ("other", broken))])
    with pytest.raises(ValueError, match="it is broken"):
        comparison.run(WorkerJob(print), {"plain", "other"})
    assert len(rounds) <= 2
    assert not comparison.done


STEP = SimpleNamespace(
    committed=SimpleNamespace(values=[[1]], accepted=[0], drafted=[0], judged=[0]),
    draft=SimpleNamespace(height=0),
    verdict=SimpleNamespace(expected=None, drift=None),
    seconds={"total": 0.0},
)


def test_a_run_whose_page_is_closed_stops_decoding(sides):
    side = sides["text"]
    worker = side.model.served.worker
    values = [*form(sides, "text", most=64), 50]

    async def close_early():
        playing = Runs().play("session", "text", side, *values)
        async for status, panes in playing:
            if "running" in status and '<span class="mm-o">' in panes:
                break
        assert worker.busy
        await playing.aclose()

    asyncio.run(close_early())
    until(lambda: not worker.busy)


def test_stop_ends_the_session_s_own_run(sides):
    runs, values = Runs(), [*form(sides, "text", most=64), 50]

    async def stopped():
        found = []
        async for frame in runs.play("mine", "text", sides["text"], *values):
            found.append(frame)
            if '<span class="mm-o">' in frame[1]:
                runs.stop("another", "text")
                runs.stop("mine", "image")
                runs.stop("mine", "text")
        return found

    status, panes = asyncio.run(stopped())[-1]
    assert "stopped" in status
    assert panes.count('data-state="stopped"') == 2
    assert "Equal output" not in panes


def test_a_model_is_not_used_by_two_runs_at_once(sides, monkeypatch):
    at_once, most, run = [], [], LiveComparison.run

    def counted(self, job, warm):
        at_once.append(1)
        most.append(len(at_once))
        run(self, job, warm)
        at_once.pop()

    monkeypatch.setattr(LiveComparison, "run", counted)
    values, runs = form(sides, "text", most=12), Runs()

    async def play(session):
        return [frame async for frame in runs.play(session, "text", sides["text"], *values)][-1]

    async def all_of_them():
        return await asyncio.gather(*(play(str(number)) for number in range(3)))

    found = asyncio.run(all_of_them())
    assert most == [1, 1, 1]
    assert all("Equal output: yes" in panes for _, panes in found)


def test_a_failure_that_nobody_expected_is_one_line():
    worker = ModelWorker("broken", 1)
    model = UiModel(SimpleNamespace(worker=worker, loaded=None), {"plain"})

    def broken(view, on_step):
        raise RuntimeError("out of\nmemory")

    comparison = LiveComparison([LiveGeneration("plain", broken, lambda: SimpleNamespace(), "plain")])
    side = SimpleNamespace(model=model, compare=lambda prompt: comparison, board=lambda comparison, prompt: "panes")
    try:
        status, panes = frames({"text": side}, "text", ["hello"])[-1]
        assert panes == ""
        assert "the run failed (RuntimeError): out of memory" in status
    finally:
        worker.close()
    assert "the worker is closed" in frames({"text": side}, "text", ["hello"])[-1][0]


# --- the command ------------------------------------------------------------------------------------------------------


def refused(capsys, *words, code=2):
    """The line on stderr."""
    with pytest.raises(SystemExit) as end:
        app(["ui", *words])
    said = capsys.readouterr()
    assert (end.value.code, said.out) == (code, "")
    assert len(said.err.splitlines()) == 1
    return said.err


def test_wrong_command_lines(capsys, monkeypatch):
    assert "port is 70000" in refused(capsys, "--port", "70000")
    assert "give KIND=NAME, such as text=lookup" in refused(capsys, "--drafter", "lookup")
    assert "none is shown" in refused(capsys, "--speech", "mini", "--drafter", "text=lookup")
    assert "--draft-length is 'x'" in refused(capsys, "--draft-length", "x")
    assert "reads more than one text" in refused(capsys, "--text", "vlm", "--port", "0", "--device", "cpu")
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert "pip install mmspec[ui]" in refused(capsys, code=1)
