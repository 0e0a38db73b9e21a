"""`mmspec serve`: pictures, speech, recordings and recommendations equal those of the library's calls."""

import base64
import io
import json
import logging
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event

import httpx
import numpy as np
import openai
import pytest
import soundfile
import torch
from PIL import Image

import mmspec
from mmspec.models.session import HFSession
from mmspec.serving.http.endpoints import speech
from mmspec.serving.http.endpoints.speech import longest_sound
from mmspec.serving.http.loading import ModelNames, load_served
from mmspec.serving.http.options import ServerLimits
from mmspec.serving.scheduler import Scheduler
from mmspec.speech.sound.files import sound_bytes
from tests.serving.web import WAIT, post, running, until
from tests.speech.small_whisper import RATE, processor, sounds, whisper

LIMITS = ServerLimits(max_inputs=3, max_seconds=20, max_queue=2, max_rows=2)
PLACES = LIMITS.max_rows + LIMITS.max_queue


@pytest.fixture(scope="module")
def recogniser(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "whisper-random"
    whisper().save_pretrained(folder)
    processor().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def site(recogniser):
    names = {"image": "mini", "speech": "mini", "recognizer": str(recogniser), "recommender": "mini"}
    with running(load_served(ModelNames(names=names, drafters={"recognizer": "lookup"}, device="cpu"), LIMITS), LIMITS) as found:
        yield found


def test_all_models_are_listed(client):
    found = {each.id: each.kind for each in client.models.list()}
    assert found == {"mini-image": "image", "mini-speech": "speech", "whisper-random": "recognizer", "mini-recommender": "recommender"}


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_pictures_are_those_of_the_call(site, client):
    loaded = site.models.image.loaded
    prompt = loaded.examples[0]
    out = client.images.generate(model="mini-image", prompt=prompt, n=2, response_format="b64_json", extra_body={"seed": 5})
    expected = [mmspec.vision.generate(loaded.model, [prompt], seed=seed, guidance=loaded.guidance).images[0] for seed in (5, 6)]
    for got, wanted in zip(out.data, expected, strict=True):
        picture = Image.open(io.BytesIO(base64.b64decode(got.b64_json)))
        assert picture.format == "PNG"
        assert np.array_equal(np.asarray(picture), np.asarray(wanted.convert("RGB")))
    assert out.mmspec["seed"] == 5
    assert out.mmspec["tokens_per_call"] > 1
    alone = client.images.generate(model="mini-image", prompt=prompt, extra_body={"seed": 6}, output_format="png")
    assert alone.data[0].b64_json == out.data[1].b64_json


def test_pictures_are_refused_by_name(client):
    for words, options in {
        "response_format is not supported": {"response_format": "url"},
        "quality is not supported by this server: leave it out or send 'auto' or send 'standard'": {"quality": "hd"},
        "size": {"size": "512x512"},
        "give WIDTHxHEIGHT": {"size": "large"},
        "asks for 4 outputs": {"n": 4},
        "no prompt": {"prompt": " "},
        "guidance is 'much': give a number": {"extra_body": {"guidance": "much"}},
        "output_format is 'gif': give 'png', 'jpeg' or 'webp'": {"output_format": "gif"},
    }.items():
        with pytest.raises(openai.BadRequestError) as refused:
            client.images.generate(**({"model": "mini-image", "prompt": "a large red star top left"} | options))
        assert words in refused.value.body["message"]


def test_pictures_of_several_clients_share_a_generation(site, monkeypatch):
    """Requests come while a picture is drawn; those that wait begin together, and each gets its own picture."""
    served, opened, joined = site.models.image, Event(), []
    own = Scheduler._begin

    def held(self):
        assert opened.wait(WAIT)
        own(self)
        joined.append(self.rows)

    monkeypatch.setattr(Scheduler, "_begin", held)
    prompts = served.loaded.examples[: PLACES + 1]
    with ThreadPoolExecutor() as pool:
        bodies = [{"prompt": prompt, "seed": 4 + row, "guidance": 1.0 + row} for row, prompt in enumerate(prompts[:PLACES])]
        answers = [pool.submit(httpx.post, f"{site.url}/v1/images/generations", json=body, timeout=WAIT) for body in bodies]
        until(lambda: served.queued == PLACES)
        full = httpx.post(f"{site.url}/v1/images/generations", json={"prompt": prompts[PLACES]}, timeout=WAIT)
        assert (full.status_code, full.json()["error"]["code"]) == (429, "queue_full")
        opened.set()
        found = [answer.result(WAIT).json()["data"][0]["b64_json"] for answer in answers]
    for row, (prompt, data) in enumerate(zip(prompts, found, strict=False)):
        out = mmspec.vision.generate(served.loaded.model, [prompt], seed=4 + row, guidance=1.0 + row)
        picture = Image.open(io.BytesIO(base64.b64decode(data)))
        assert np.array_equal(np.asarray(picture), np.asarray(out.images[0].convert("RGB")))
    assert max(joined) == 2


# --- speech -----------------------------------------------------------------------------------------------------------

TEXT = "three five seven"


def said(site, **options):
    speaker = site.models.speech.loaded
    return mmspec.speech.synthesize(speaker.model, [TEXT], speaker.drafter, **options)


def test_speech_is_that_of_the_call(site, client):
    expected = said(site, voice="jackson", seed=3)
    wave, rate = expected.waveforms[0], expected.sample_rate
    for form in ("wav", "flac"):
        out = client.audio.speech.create(model="mini-speech", input=TEXT, voice="jackson", response_format=form, extra_body={"seed": 3})
        assert out.content == sound_bytes(wave, rate, form)
    assert out.response.headers["x-seed"] == "3"
    assert out.response.headers["x-finish-reason"] == expected.finish_reasons[0] == "stop"
    assert out.response.headers["content-type"] == "audio/flac"


def test_pcm_is_streamed_as_it_is_made(site, client):
    expected = said(site, voice="jackson", seed=3)
    options = {"model": "mini-speech", "input": TEXT, "voice": "jackson", "response_format": "pcm", "extra_body": {"seed": 3}}
    with client.audio.speech.with_streaming_response.create(**options) as response:
        assert response.headers["x-sample-rate"] == str(expected.sample_rate)
        data = b"".join(response.iter_bytes())
    samples = np.frombuffer(data, "<i2") / 32768
    wave = expected.waveforms[0].clamp(-1, 1 - 1 / 32768).numpy()
    assert len(samples) == len(wave)
    assert np.abs(samples - wave).max() <= 1 / 32768


def test_the_servers_limit_holds_for_sound_without_a_length(site):
    model = site.models.speech.loaded.model
    assert longest_sound(model, 0.2) == 0.2
    assert longest_sound(model, 3600.0) is None
    assert longest_sound("of several networks", 0.2) is None


def test_speech_is_refused_by_name(client):
    for words, options in {
        "voice": {"voice": "nobody"},
        "response_format is 'mp3': give 'wav', 'flac' or 'pcm'": {"response_format": "mp3"},
        "speed is not supported": {"speed": 2.0},
        "stream_format is not supported": {"stream_format": "sse"},
        "instructions is not supported": {"instructions": "whisper"},
        "input has 4097 characters: give at most 4096": {"input": "a" * 4097},
        "max_seconds is 30": {"extra_body": {"max_seconds": 30}},
    }.items():
        for form in ("wav", "pcm"):
            with pytest.raises(openai.BadRequestError) as refused:
                client.audio.speech.create(
                    **({"model": "mini-speech", "input": TEXT, "voice": "jackson", "response_format": form} | options)
                )
            assert words in refused.value.body["message"]


# --- recordings -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recording():
    """A flac of one recording, and its samples."""
    buffer = io.BytesIO()
    soundfile.write(buffer, sounds(1.7)[0].numpy(), RATE, format="FLAC", subtype="PCM_16")
    wave, _ = soundfile.read(io.BytesIO(buffer.getvalue()), dtype="float32")
    return buffer.getvalue(), torch.from_numpy(wave)


def test_transcriptions_are_those_of_the_call(site, client, recording):
    content, wave = recording
    for form, times in (("json", None), ("verbose_json", "segment"), ("srt", "segment"), ("vtt", "segment"), ("text", None)):
        expected = mmspec.speech.transcribe(whisper(), processor(), [wave], timestamps=times, language="en").transcripts[0]
        out = client.audio.transcriptions.create(
            model="whisper-random", file=("talk.flac", content), language="en", response_format=form, temperature=0
        )
        if form in ("json", "verbose_json"):
            assert out.text == expected.text
        else:
            assert out == expected.formatted(form)
        if form == "verbose_json":
            assert [(part.start, part.end, part.text) for part in out.segments] == [
                (part.start, part.end, part.text) for part in expected.segments
            ]
            assert out.language == "en"


def test_times_of_words(client, recording):
    content, wave = recording
    expected = mmspec.speech.transcribe(whisper(), processor(), [wave], timestamps="word").transcripts[0]
    options = {"response_format": "verbose_json", "timestamp_granularities": ["word"]}
    out = client.audio.transcriptions.create(model="whisper-random", file=("talk.flac", content), **options)
    words = [(word.text, word.start, word.end) for part in expected.segments for word in part.words]
    assert [(each.word, each.start, each.end) for each in out.words] == words


def test_recordings_are_refused_by_name(site, client, recording):
    silence = io.BytesIO()
    soundfile.write(silence, np.zeros(21 * RATE), RATE, format="FLAC")
    empty = io.BytesIO()
    soundfile.write(empty, np.zeros(0), RATE, format="WAV")
    for words, options in {
        "cannot be read": {"file": ("talk.wav", b"no sound at all")},
        "holds no sound": {"file": ("talk.wav", empty.getvalue())},
        "temperature is not supported": {"temperature": 0.5},
        "known_speaker_names is not supported": {"extra_body": {"known_speaker_names": "a"}},
        "timestamp_granularities is for": {"timestamp_granularities": ["word"]},
        "language": {"language": "klingon"},
        "stream is not supported": {"stream": True},
    }.items():
        with pytest.raises(openai.BadRequestError) as refused:
            client.audio.transcriptions.create(**({"model": "whisper-random", "file": ("talk.flac", recording[0])} | options))
        assert words in refused.value.body["message"]
    with pytest.raises(openai.APIStatusError) as refused:
        client.audio.transcriptions.create(model="whisper-random", file=("talk.flac", silence.getvalue()))
    assert (refused.value.status_code, refused.value.body["code"]) == (413, "too_large")
    missing = httpx.post(f"{site.url}/v1/audio/transcriptions", files={"other": b"a"}, timeout=WAIT)
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "file")


# --- recommendations --------------------------------------------------------------------------------------------------


def recommended(site, **body):
    return httpx.post(f"{site.url}/v1/recommendations", json=body, timeout=WAIT)


def test_recommendations_are_those_of_the_call(site):
    loaded = site.models.recommender.loaded
    histories = [list(history) for history in mmspec.load("recsys").examples[:2]]
    out = recommended(site, model="mini-recommender", histories=histories, k=5).json()
    expected = mmspec.recsys.recommend(loaded.model, histories, loaded.drafter, k=5, catalogue=loaded.catalogue)
    assert [row["items"] for row in out["data"]] == expected.items
    assert np.allclose([row["scores"] for row in out["data"]], expected.scores, atol=1e-6)
    assert out["data"][0]["names"][0] == loaded.catalogue.name(expected.items[0][0])
    alone = recommended(site, history=histories[1], k=5).json()
    assert alone["data"][0]["items"] == expected.items[1]
    best = expected.items[0]
    denied = recommended(site, history=histories[0], k=4, deny=best[:1]).json()["data"][0]["items"]
    assert best[0] not in denied
    allowed = recommended(site, history=histories[0], k=5, allow=best[1:3], unseen=True).json()["data"][0]["items"]
    assert set(allowed) <= set(best[1:3])


def test_recommendations_are_refused_by_name(site):
    history = [int(item) for item in mmspec.load("recsys").examples[0]]
    for words, body in {
        "not in the catalogue": {"history": [10**9]},
        "allow has the item": {"history": history, "allow": ["star"]},
        "history is empty": {"history": []},
        "histories is empty": {"histories": []},
        "give history for one user": {},
        "asks for 4 outputs": {"histories": [history] * 4},
        "k is 0: give a number of at least 1": {"history": history, "k": 0},
        "unknown field 'top'": {"history": history, "top": 3},
    }.items():
        out = recommended(site, **body)
        assert (out.status_code, words in out.json()["error"]["message"]) == (400, True), out.text


# --- the workers' limits ----------------------------------------------------------------------------------------------


@pytest.fixture
def busy(site):
    """The engine of speech is busy, until the test ends or sets the event."""
    opened = Event()

    def held(scores, history):
        assert opened.wait(WAIT)
        return scores

    handle = site.models.speech.engine.submit(TEXT, max_seconds=0.1, samplers=[held])
    until(lambda: site.models.speech.running)
    yield opened
    opened.set()
    handle.result(WAIT)


@pytest.mark.parametrize(
    ("kind", "path", "body"),
    [
        ("speech", "/v1/audio/speech", {"input": TEXT}),
        ("speech", "/v1/audio/speech", {"input": TEXT, "response_format": "pcm"}),
    ],
)
def test_a_full_queue_and_clients_that_leave(site, busy, kind, path, body):
    served = getattr(site.models, kind)
    with ExitStack() as stack:
        for count in range(1, PLACES):  # one runs
            post(stack.enter_context(site.connect()), path, body)
            until(lambda count=count: served.queued == count)
        full = httpx.post(f"{site.url}{path}", json=body, timeout=WAIT)
        assert (full.status_code, full.json()["error"]["code"]) == (429, "queue_full")
    until(lambda: served.queued == 0)  # the clients have left
    busy.set()
    assert httpx.post(f"{site.url}{path}", json=body, timeout=WAIT).status_code == 200


def test_the_metrics_count_all_models(site):
    found = httpx.get(f"{site.url}/metrics", timeout=WAIT).text
    for name in ("mini-image", "mini-speech", "whisper-random", "mini-recommender"):
        line = next(line for line in found.splitlines() if line.startswith(f'mmspec_tokens_total{{model="{name}"}}'))
        assert float(line.split()[-1]) > 0
    assert json.loads(httpx.get(f"{site.url}/health", timeout=WAIT).text) == {"status": "ok"}


def test_a_stream_that_cannot_go_on_ends_without_a_traceback(site, monkeypatch):
    """As at the end of the server: its connection is closed, so that clients see that it is not whole."""

    def cancelled(handle):
        raise CancelledError("the request was cancelled")

    handler, told = logging.Handler(), []
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    monkeypatch.setattr(speech, "raise_failure", cancelled)
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "mmspec.serving")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(f"{site.url}/v1/audio/speech", json={"input": TEXT, "response_format": "pcm"}, timeout=WAIT)
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    assert told == ["an answer of /v1/audio/speech was cut off: the server is being stopped"]


def test_an_error_of_the_decoding_is_not_the_clients(site, client, caplog, monkeypatch):
    """A ValueError of a forward is 500, one of an argument 400."""

    def broken(*_):
        raise ValueError("the inside of a model")

    body = {"history": list(site.models.recommender.loaded.catalogue.items[:3]), "k": 2}
    monkeypatch.setattr(HFSession, "score", broken)
    out = httpx.post(f"{site.url}/v1/recommendations", json=body, timeout=WAIT)
    monkeypatch.undo()
    assert (out.status_code, out.json()["error"]["message"]) == (500, "the request failed (DecodeError)")
    assert "the inside of a model" in caplog.text
    with pytest.raises(openai.BadRequestError):
        client.audio.speech.create(model="mini-speech", input="one", voice="nobody")
