"""Qwen3-TTS in its published layout, loaded by one call: the frames of the published recipe whatever drafts them, voices, and sound."""

import json

import pytest
import torch

from mmspec.core.distributions.depth_frame import JacobiWriter
from mmspec.speech import VoiceSample, load, synthesize
from mmspec.speech.families.base import SpeechSampling
from tests.speech.small_qwen3_tts import BOOKS, END, HOP, Reference, published, tensors

TEXTS = ["hello there", "say a longer thing .", "three"]
NONE, ENGLISH, BEIJING = (37, 38, 39), (36, 38, 40, 39), (36, 38, 42, 39)
STEPS = 9
GREEDY = {"temperature": 0.0, "repetition_penalty": 1.05, "max_seconds": (STEPS + 0.5) / 3000}


@pytest.fixture(scope="module")
def speaker(tmp_path_factory):
    return greedy(load(published(tmp_path_factory.mktemp("qwen"))))


@pytest.fixture(scope="module")
def cloner(tmp_path_factory):
    return greedy(load(published(tmp_path_factory.mktemp("base"), "base")))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return greedy(load(published(tmp_path_factory.mktemp("other"), seed=1)))


@pytest.fixture(scope="module")
def reference():
    return Reference(tensors())


def greedy(model):
    from mmspec.core.processors.pipeline import pipeline
    from mmspec.speech.language_models.qwen3_tts import CodePredictor

    model.depth = CodePredictor(model.model, pipeline(temperature=0.0))
    return model


def frames(out):
    """Frames without the one that ends a row."""
    rows = [row[:size] for row, size in zip(out.tokens.tolist(), out.lengths.tolist(), strict=True)]
    return [[frame for frame in row if frame[0] != END] for row in rows]


def wanted(reference, texts=TEXTS, voice=48, controls=NONE, streaming=False, **told):
    embedded = None if voice is None else reference.code(voice)[0]
    return [reference.greedy(reference.prompt(text, controls, embedded, streaming, **told), STEPS, 1.05) for text in texts]


@pytest.mark.parametrize("streaming", [False, True])
def test_greedy_is_the_published_recipe(speaker, other, reference, streaming):
    """Alone and in a ragged batch, plain and drafted, with text before the frames or beside them."""
    speaker.streaming = streaming
    expected = wanted(reference, streaming=streaming)
    assert len({len(row) for row in expected}) > 1, "the rows must end at different steps"
    for texts in (TEXTS[1:2], TEXTS):
        for drafter in (None, other, speaker):
            out = synthesize(speaker, texts, drafter, draft_length="auto" if drafter is None else 3, **GREEDY)
            assert frames(out) == (expected if len(texts) > 1 else expected[1:2])
    speaker.streaming = False


def test_its_own_drafts_are_accepted(speaker):
    out = synthesize(speaker, ["hello there"], speaker, draft_length=3, **GREEDY | {"max_seconds": 5.5 / 3000})
    assert out.stats.accepted == out.stats.drafted > 0
    assert out.stats.target_calls == 2


def test_text_beside_the_frames_changes_them(reference):
    assert wanted(reference, streaming=True) != wanted(reference)


def test_voices_languages_and_instructions(speaker, reference):
    assert frames(synthesize(speaker, TEXTS, voice="dylan", **GREEDY)) == wanted(reference, voice=49, controls=BEIJING)
    speaker.language, speaker.instruct = "English", "speak slowly"
    expected = wanted(reference, voice=49, controls=ENGLISH, instruct="speak slowly")
    assert frames(synthesize(speaker, TEXTS, voice="dylan", **GREEDY)) == expected != wanted(reference, voice=49, controls=ENGLISH)
    speaker.language, speaker.instruct = "auto", None


def test_sampled_frames_are_plain_samplings(speaker, other):
    """Drawn as published: coupled drafts, and frames that the code predictor writes in one run or code by code, give the same frames."""
    given = {"seed": 4, "max_seconds": GREEDY["max_seconds"], "temperature": 0.9, "top_k": 20}
    plain = synthesize(speaker, TEXTS, **given)
    assert len({tuple(map(tuple, row)) for row in frames(plain)}) == 3
    for drafter in (other, speaker):
        out = synthesize(speaker, TEXTS, drafter, draft_length=2, **given)
        assert frames(out) == frames(plain)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(out.waveforms, plain.waveforms, strict=True))
    speaker.writer = JacobiWriter()
    assert frames(synthesize(speaker, TEXTS, **given)) == frames(plain)
    speaker.writer = other.writer


def test_published_settings(tmp_path):
    model = load(published(tmp_path / "qwen"))
    assert model.sampling == SpeechSampling(temperature=0.9, top_k=20, top_p=1.0, repetition_penalty=1.05)
    assert [type(each).__name__ for each in model.depth.distributions.steps] == ["Temperature", "TopK"]
    assert (model.voices, model.books, model.clones, model.streaming) == (("vivian", "dylan"), BOOKS, False, False)
    assert (model.rate, model.pace) == (24000, 24000 / HOP)
    base = load(published(tmp_path / "base", "base"))
    assert (base.voices, base.clones, base.streaming) == ((), True, True)


# --- sound ------------------------------------------------------------------------------------------------------------


def test_sound_comes_in_pieces(speaker):
    pieces = []
    out = synthesize(speaker, ["hello"], seed=1, temperature=1.0, max_seconds=30.5 / 3000, on_sound=lambda row, piece: pieces.append(piece))
    steps = frames(out)[0]
    assert torch.equal(torch.cat(pieces), out.waveforms[0])
    assert len(out.waveforms[0]) == HOP * len(steps)
    assert (speaker.codec.decode(steps) - out.waveforms[0]).abs().max() < 1e-5
    assert speaker.codec.decode(steps).abs().max() > 0.01


def test_codes_without_sound(tmp_path):
    model = load(published(tmp_path / "quiet", sound=False))
    out = synthesize(model, ["hello"], seed=1, max_seconds=0.5)
    assert len(out.waveforms[0]) == 0
    assert out.lengths.tolist() != [0]


# --- recordings -------------------------------------------------------------------------------------------------------


def sample(text=None):
    return VoiceSample(torch.sin(torch.arange(5000) * 0.05) * 0.5, 24000, text)


def test_a_recording_is_heard_by_the_classes_own_encoders(cloner):
    codes, voice = cloner.codec.listener(cloner.model.speaker_encoder)(sample())
    heard = cloner.codec.encoder.encode(sample().samples[None, None], num_quantizers=BOOKS).audio_codes[0].T
    assert torch.equal(codes, heard[: len(codes)])
    assert len(codes) == 625
    assert voice.shape == (32,)
    louder = cloner.codec.listener(cloner.model.speaker_encoder)(VoiceSample(sample().samples * 2, 24000))[1]
    assert not torch.allclose(voice, louder)


def test_a_voice_is_imitated_as_published(cloner):
    """Its voice alone, or its words and frames before the text, which are not heard."""
    listen = cloner.codec.listener(cloner.model.speaker_encoder)
    reference = Reference(tensors())
    short = VoiceSample(sample().samples[:1600], 24000, "words in it")
    for voice in (VoiceSample(short.samples, 24000), short):
        codes, embedding = listen(voice)
        heard = None if voice.text is None else (voice.text, codes.tolist())
        for streaming in (True, False):
            cloner.streaming = streaming
            prompt = reference.prompt("say three", NONE, embedding, streaming, heard=heard)
            out = synthesize(cloner, ["say three"], voice=voice, **GREEDY)
            assert frames(out) == [reference.greedy(prompt, STEPS, 1.05)]
            assert len(out.waveforms[0]) == HOP * len(frames(out)[0])
            before = [] if heard is None else codes.tolist()
            whole = cloner.codec.decode([*before, *frames(out)[0]])[HOP * len(before) :]
            assert (whole - out.waveforms[0]).abs().max() < 1e-5
    cloner.streaming = True


# --- what cannot be loaded --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda told: told["talker_config"].pop("hidden_size"), "no hidden_size in talker_config"),
        (lambda told: told["talker_config"].update(use_sliding_window=True), "has sliding windows"),
        (lambda told: told["talker_config"].update(num_hidden_layers=3), "is missing"),
        (lambda told: told["talker_config"].update(intermediate_size=40), "has shape"),
        (lambda told: told.pop("tts_bos_token_id"), "no tts_bos_token_id"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(tmp_path, change, said):
    place = published(tmp_path / "qwen", sound=False)
    told = json.loads((place / "config.json").read_text(encoding="utf-8"))
    change(told)
    (place / "config.json").write_text(json.dumps(told), encoding="utf-8")
    with pytest.raises(ValueError, match="cannot be loaded") as caught:
        load(place)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_refusals(speaker, cloner, tmp_path):
    with pytest.raises(ValueError, match="takes no recordings"):
        synthesize(speaker, ["hello"], voice=sample())
    with pytest.raises(ValueError, match="unknown voice 'eve'; valid: vivian, dylan"):
        synthesize(speaker, ["hello"], voice="eve")
    with pytest.raises(ValueError, match="is empty"):
        synthesize(speaker, [" "])
    with pytest.raises(ValueError, match="language is 'klingon': valid are auto, english"):
        type(speaker)(speaker.model, speaker.tokenizer, speaker.ids, language="klingon")
    place = published(tmp_path / "qwen")
    told = json.loads((place / "speech_tokenizer" / "config.json").read_text(encoding="utf-8"))
    (place / "speech_tokenizer" / "config.json").write_text(json.dumps(told | {"model_type": "other"}), encoding="utf-8")
    with pytest.raises(ValueError, match="is a other: expected a qwen3_tts_tokenizer_12hz"):
        load(place)
