"""`mmspec.speech.transcribe` gives what Whisper's own `generate` gives on each recording alone: text, segments, times of words."""

import copy
import json
from pathlib import Path

import pytest
import torch
from transformers.generation import GenerateEncoderDecoderOutput

import mmspec
from mmspec.models import compat
from mmspec.models.compat import attention_of
from mmspec.models.families.whisper import corresponding_ids
from mmspec.run.request import Request
from mmspec.speech.recognition import whisper as loop
from mmspec.speech.recognition.decoding import RecognitionDecoding
from mmspec.speech.recognition.transcript import Segment, Transcript, Word, joined_transcript
from mmspec.speech.recognition.voice_activity import joined
from mmspec.speech.recognition.whisper import FALLBACK, attention_restored, features_of
from mmspec.speech.recognition.word_times import token_times
from mmspec.speech.sound.audio import save
from tests.companions import perturbed
from tests.speech.small_whisper import IDS, RATE, SIZE, STAMPS, processor, sounds, whisper

SECONDS = (0.8, 2.3, 0.5, 1.7)  # the window is one second
DRAFTED = {
    "plain": {},
    "a chain": {"draft_length": 4},
    "a long chain": {"draft_length": 9},
    "auto": {},
    "a tree": {"tree": (3, 2)},
    "lookup": {"draft_length": 3},
}


@pytest.fixture(scope="module")
def model():
    return whisper()


@pytest.fixture(scope="module")
def drafter(model):
    return perturbed(copy.deepcopy(model))


@pytest.fixture(scope="module")
def kit():
    return processor()


@pytest.fixture(scope="module")
def waves():
    return sounds(*SECONDS)


def named(name, drafter):
    return {"plain": None, "lookup": "lookup"}.get(name, drafter)


def by_generate(model, kit, wave, **options):
    """Segments of one recording, by transformers' own loop and decoding."""
    features, mask = features_of(kit.feature_extractor, [wave])
    with attention_restored(model):
        return model.generate(features, attention_mask=mask, return_segments=True, **({"temperature": 0.0} | options))["segments"][0]


def ids_of(segments):
    return tuple(number for part in segments for number in part["tokens"].tolist())


@pytest.mark.parametrize("times", ["segment", "word"])
@pytest.mark.parametrize("way", DRAFTED)
def test_short_and_long_recordings_of_one_batch_are_those_of_generate_alone(model, drafter, kit, waves, way, times):
    out = mmspec.speech.transcribe(model, kit, waves, named(way, drafter), timestamps=times, **DRAFTED[way])
    assert len({each.tokens for each in out.transcripts}) == len(waves)
    for wave, heard in zip(waves, out.transcripts, strict=True):
        expected = by_generate(model, kit, wave, return_timestamps=True, return_token_timestamps=times == "word")
        assert heard.tokens == ids_of(expected)
        assert [(part.start, part.end) for part in heard.segments] == [(float(part["start"]), float(part["end"])) for part in expected]
        if times == "word":
            ends = [time for part in expected for time in part["token_timestamps"].tolist()]
            said = {word.end for part in heard.segments for word in part.words}
            assert said <= {round(end, 2) for end in ends}
            assert any(part.words for part in heard.segments)
    if way == "plain":
        assert out.stats.tokens_per_call == 1
    assert out.stats.exactness == "token-exact"


def test_times_of_tokens_do_not_depend_on_longer_rows_of_the_batch(model):
    prompt, new, pad, frames, layers = 3, 6, 5, 50, model.config.decoder_layers
    draws = torch.Generator().manual_seed(0)
    attentions = torch.rand(layers, 1, model.config.decoder_attention_heads, prompt + new + pad - 1, frames, generator=draws)
    ids = torch.tensor([1, 2, 3, STAMPS, 5, 6, 7, 8, *[model.generation_config.eos_token_id] * (1 + pad)])
    whole = compat.whisper_token_times(model, ids, tuple(attentions), prompt, 60)  # as `generate` computes them for the batch
    alone = compat.whisper_token_times(model, ids[:-pad], tuple(attentions[..., : prompt + new - 1, :]), prompt, 60)
    assert not torch.equal(whole[: prompt + new - 1], alone[:-1])
    window = {"sequences": ids, "cross_attentions": (tuple(attentions),), "token_timestamps": whole}
    pieces = ((prompt, prompt + 2), (prompt + 2, prompt + new - 1))
    parts = [{"idxs": (first, last), "result": window, "token_timestamps": whole[first:last] + 1.2} for first, last in pieces]
    found = token_times(model, parts, 60 + 120)  # the window begins 1.2 seconds after the recording
    expected = alone[prompt : prompt + new - 1] + 1.2
    assert torch.tensor([time for each in found for time in each]).allclose(expected)


def test_without_times_short_recordings_have_none(model, drafter, kit, waves):
    out = mmspec.speech.transcribe(model, kit, [waves[0], waves[2]], drafter, draft_length=3)
    for wave, heard in zip((waves[0], waves[2]), out.transcripts, strict=True):
        assert heard.tokens == ids_of(by_generate(model, kit, wave, return_timestamps=False))
        assert heard.segments == ()


def test_times_of_tokens_are_those_of_generate(model, drafter, kit, waves):
    features, mask = features_of(kit.feature_extractor, [waves[1], waves[3]])
    options = {
        "attention_mask": mask,
        "return_segments": True,
        "return_token_timestamps": True,
        "temperature": 0.0,
        "return_timestamps": True,
    }
    with attention_restored(model):
        expected = model.generate(features, **options)
        decoding = RecognitionDecoding(Request.of(drafter=drafter, draft_length=3))
        found = model.generate(features, custom_generate=decoding, **options)
    assert torch.equal(found["token_timestamps"], expected["token_timestamps"])
    assert decoding.stats.tokens_per_call > 1
    assert attention_of(model.config) == "sdpa"


@pytest.mark.parametrize("language", [None, "de", "french"])
@pytest.mark.parametrize("task", ["transcribe", "translate"])
def test_languages_and_tasks(model, drafter, kit, waves, language, task):
    out = mmspec.speech.transcribe(model, kit, waves[:2], drafter, language=language, task=task, draft_length=3)
    for wave, heard in zip(waves[:2], out.transcripts, strict=True):
        long = len(wave) > RATE
        expected = by_generate(model, kit, wave, return_timestamps=long, task=task, **({} if language is None else {"language": language}))
        assert heard.tokens == ids_of(expected)
    if language is not None:
        assert {heard.language for heard in out.transcripts} == {language[:2]}


@pytest.mark.parametrize("rows", [[1], [1, 3], [3, 1, 1]])
def test_windows_that_read_the_text_before_them(model, drafter, kit, waves, rows):
    """Decoder prompts of a batch then differ in length."""
    given = [waves[row] for row in rows]
    out = mmspec.speech.transcribe(model, kit, given, drafter, condition=True, prompt="ab", draft_length=3)
    prompt = kit.tokenizer.get_prompt_ids("ab", return_tensors="pt")
    for wave, heard in zip(given, out.transcripts, strict=True):
        expected = by_generate(model, kit, wave, return_timestamps=True, condition_on_prev_tokens=True, prompt_ids=prompt)
        assert heard.tokens == ids_of(expected)
    assert out.stats.tokens_per_call > 1


# --- fallback -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [{"temperature": (0.0,)}, {"temperature": (0.0,), "no_speech_threshold": 1e-9}, {"temperature": (0.0,), "logprob_threshold": -1e9}],
)
def test_silence_and_likelihood_are_judged_as_by_generate(model, drafter, kit, waves, monkeypatch, changes):
    monkeypatch.setattr(loop, "FALLBACK", FALLBACK | changes)
    out = mmspec.speech.transcribe(model, kit, waves, drafter, fallback=True, timestamps="segment", draft_length=3)
    for wave, heard in zip(waves, out.transcripts, strict=True):
        expected = by_generate(model, kit, wave, return_timestamps=True, **(FALLBACK | changes))
        assert heard.tokens == ids_of(expected)
    assert ("no_speech_threshold" in changes) == any(not heard.tokens for heard in out.transcripts)


def test_scores_of_a_window_are_those_of_generate(model, drafter, kit, waves):
    features, mask = features_of(kit.feature_extractor, [waves[0], waves[2]])
    asked = {"output_scores": True, "return_dict_in_generate": True, "return_timestamps": True, "force_unique_generate_call": True}
    expected = model.generate(features, attention_mask=mask, **asked)
    found = model.generate(
        features, attention_mask=mask, custom_generate=RecognitionDecoding(Request.of(drafter=drafter, draft_length=3)), **asked
    )
    assert isinstance(found, GenerateEncoderDecoderOutput)
    assert torch.equal(found.sequences, expected.sequences)
    for row, line in enumerate(expected.sequences):
        length = int((line != IDS["<|endoftext|>"]).sum()) - 3  # behind the prompt
        for place in range(length):
            torch.testing.assert_close(found.scores[place][row], expected.scores[place][row], atol=1e-4, rtol=1e-4)


def test_repeated_windows_are_drawn_alike_with_any_drafter_and_in_any_batch(model, drafter, kit, monkeypatch):
    """Every window is drawn at every temperature."""
    monkeypatch.setattr(loop, "FALLBACK", FALLBACK | {"temperature": (0.0, 0.6, 1.0), "logprob_threshold": 0.0, "no_speech_threshold": 1.0})
    waves = sounds(0.8, 1.6, 0.5)
    options = {"fallback": True, "timestamps": "segment", "seed": 4}
    plain = mmspec.speech.transcribe(model, kit, waves, None, **options)
    drafted = mmspec.speech.transcribe(model, kit, waves, drafter, draft_length=4, batch_size=2, **options)
    alone = [mmspec.speech.transcribe(model, kit, wave, drafter, draft_length=4, **options).transcripts[0] for wave in waves]
    assert [each.tokens for each in drafted.transcripts] == [each.tokens for each in plain.transcripts]
    assert [each.tokens for each in alone] == [each.tokens for each in plain.transcripts]
    other = mmspec.speech.transcribe(model, kit, waves[0], drafter, draft_length=4, **(options | {"seed": 5}))
    assert other.transcripts[0].tokens != plain.transcripts[0].tokens


# --- drafters -------------------------------------------------------------------------------------------------------------


def test_the_target_as_its_own_drafter_is_never_refused(model, kit, waves):
    out = mmspec.speech.transcribe(model, kit, waves, model, timestamps="segment", draft_length=3)
    assert out.stats.accepted == out.stats.judged > 0


def test_a_drafter_of_another_width_runs_its_own_encoder(model, kit, waves):
    out = mmspec.speech.transcribe(model, kit, waves, whisper(1, width=16), timestamps="segment", draft_length=3)
    plain = mmspec.speech.transcribe(model, kit, waves, timestamps="segment")
    assert [each.tokens for each in out.transcripts] == [each.tokens for each in plain.transcripts]
    assert out.stats.drafted > 0


@pytest.mark.parametrize("times", [None, "segment"])
def test_a_drafter_of_english_alone_reads_the_prompt_without_language_and_task(model, kit, waves, times):
    """As tiny.en for base does: whether timestamps are written, and the text before, are in its decoder's prompt."""
    english, read = whisper(1, english=True), []
    made = mmspec.text.aligned_drafter(model, kit, english, kit)
    with english.model.decoder.embed_tokens.register_forward_pre_hook(lambda module, given: read.append(given[0])):
        out = mmspec.speech.transcribe(model, kit, waves[:1], made, language="de", timestamps=times, prompt="ab", draft_length=3)
    seen = [number for ids in read for number in ids.flatten().tolist()]
    before = kit.tokenizer.get_prompt_ids("ab").tolist()
    assert seen[: len(before)] == before
    assert IDS["<|startoftranscript|>"] in seen
    assert (IDS["<|notimestamps|>"] in seen) == (times is None)
    assert not {IDS[f"<|{name}|>"] for name in ("de", "transcribe")} & set(seen)  # the task, where it is last, is read as the start
    plain = mmspec.speech.transcribe(model, kit, waves[:1], language="de", timestamps=times, prompt="ab")
    assert out.transcripts[0].tokens == plain.transcripts[0].tokens


def test_timestamps_and_tasks_correspond_across_vocabularies_though_tokenizers_do_not_tell(model):
    same = {(number, number) for number in range(STAMPS, SIZE)}
    tasks = {(IDS[f"<|{name}|>"], IDS["<|startoftranscript|>"]) for name in ("transcribe", "translate")}
    assert set(corresponding_ids(model, whisper(1))) == same
    assert set(corresponding_ids(model, whisper(1, english=True))) == same | tasks
    assert corresponding_ids(model, mmspec.load("text").target) == ()


# --- arguments ------------------------------------------------------------------------------------------------------------


def test_what_is_refused(model, kit, waves, tmp_path):
    def told(match, sounds=waves, **options):
        with pytest.raises((ValueError, FileNotFoundError), match=match):
            mmspec.speech.transcribe(options.pop("model", model), kit, sounds, **options)

    told("unknown task 'sing'", task="sing")
    told("unknown timestamps 'token'", timestamps="token")
    told("batch_size is 0", batch_size=0)
    told("sounds is empty", sounds=[])
    told("does not exist", sounds=[tmp_path / "no.wav"])
    told(r"sound of shape \[2, 3\]", sounds=[torch.zeros(2, 3)])
    told(r"sound of shape \[0\]", sounds=[torch.zeros(0)])
    told("knows English only", model=whisper(english=True), language="de")
    told("knows English only", model=whisper(english=True), task="translate")
    told("is no recogniser", model=mmspec.load("text").target)


def test_an_english_checkpoint(kit, waves):
    model = whisper(english=True)
    out = mmspec.speech.transcribe(model, kit, waves[:2], model, draft_length=3)
    assert [each.language for each in out.transcripts] == ["en", "en"]
    assert out.transcripts[1].tokens == ids_of(by_generate(model, kit, waves[1], return_timestamps=True))


# --- transcripts ----------------------------------------------------------------------------------------------------------

PART = Segment(" Hallo,", 0.5, 1.25, (Word(" Hallo,", 0.5, 1.25),))


def test_formats():
    heard = Transcript("Hallo, du.", "de", 3700.0, (PART, Segment(" du.", 3661.0, 3662.5)))
    assert heard.formatted() == "Hallo, du.\n"
    assert heard.formatted("srt") == ("1\n00:00:00,500 --> 00:00:01,250\nHallo,\n\n2\n01:01:01,000 --> 01:01:02,500\ndu.\n")
    assert heard.formatted("vtt") == ("WEBVTT\n\n00:00:00.500 --> 00:00:01.250\nHallo,\n\n01:01:01.000 --> 01:01:02.500\ndu.\n")
    read = json.loads(heard.formatted("json"))
    assert read["segments"][0]["words"] == [{"text": " Hallo,", "start": 0.5, "end": 1.25}]
    with pytest.raises(ValueError, match="needs times"):
        Transcript("Hallo", "de", 1.0).formatted("srt")
    with pytest.raises(ValueError, match="unknown format 'doc'"):
        heard.formatted("doc")


def test_parts_of_a_recording_are_joined_in_order_with_their_times_moved():
    first, second = Transcript("eins", "de", 1.0, (PART,), (1, 2)), Transcript("zwei", "de", 1.0, (PART,), (3,))
    whole = joined_transcript([(10.0, second), (4.0, first)], 30.0)
    assert (whole.text, whole.language, whole.seconds, whole.tokens) == ("eins zwei", "de", 30.0, (1, 2, 3))
    assert [(part.start, part.words[0].start) for part in whole.segments] == [(4.5, 4.5), (10.5, 10.5)]
    assert joined_transcript([], 2.0) == Transcript("", None, 2.0)


def test_parts_with_speech_are_joined_up_to_the_window():
    spoken = [(0.0, 4.0), (5.0, 9.0), (9.5, 12.0), (30.0, 38.0)]
    assert joined(spoken, 10.0) == [(0.0, 9.0), (9.5, 12.0), (30.0, 38.0)]
    assert joined([(0.0, 6.0), (5.8, 11.0)], 10.0) == [(0.0, 6.0), (6.0, 11.0)]  # margins do not overlap
    assert joined([], 10.0) == []


def test_files_and_callbacks(model, kit, waves, tmp_path: Path):
    for number, wave in enumerate(waves[:2]):
        save(tmp_path / f"{number}.wav", wave, RATE)
    told = []
    out = mmspec.speech.transcribe(model, kit, [tmp_path / "0.wav", str(tmp_path / "1.wav")], on_transcript=lambda *each: told.append(each))
    assert [each.tokens for each in out.transcripts] == [t.tokens for t in mmspec.speech.transcribe(model, kit, waves[:2]).transcripts]
    assert sorted(told, key=lambda each: each[0]) == list(enumerate(out.transcripts))
    assert out.texts == [each.text for each in out.transcripts]
    assert out.real_time_factor > 0
