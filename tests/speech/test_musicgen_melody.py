"""MusicGen Melody and stereo MusicGen: the class's own frames and channels, whatever drafts, and by one call from a folder."""

from functools import cache
from unittest.mock import patch

import pytest
import torch
from transformers import EncodecFeatureExtractor, MusicgenMelodyFeatureExtractor, MusicgenMelodyProcessor, MusicgenProcessor

from mmspec.minis.char_tokenizer import letter_tokenizer
from mmspec.speech import stream
from mmspec.speech.checkpoints.load import load_checkpoint
from mmspec.speech.families import speech_model
from mmspec.speech.sampling.delay import undelayed
from mmspec.speech.sound.audio import at_rate
from tests.speech.small_delay import RATE, STEPS, music_prompts, musicgen_network, say

KINDS = ["stereo", "melody", "stereo melody"]
SCALES = [None, 3.0]


@cache
def pair(kind):
    """A target and a smaller drafter."""
    told = {"books": 4 if "stereo" in kind else 3, "channels": 1 + ("stereo" in kind), "melody": "melody" in kind}
    return [speech_model(musicgen_network(**told, **sizes)) for sizes in ({}, {"layers": 1, "hidden": 16, "seed": 5})]


@cache
def prompts(kind):
    """Texts of 5, 3 and 7 ids; of the melody models the first has a melody longer than is read, the last a short one."""
    found = music_prompts(3)
    if "melody" in kind:
        generator = torch.Generator().manual_seed(4)
        found[0]["input_features"], found[2]["input_features"] = (torch.rand(1, count, 12, generator=generator) for count in (9, 3))
    return found


@cache
def expected(kind, scale):
    """Codes [F, K] and sound of every prompt, by the class's own generation, each alone."""
    model, codes, waves = pair(kind)[0].model, [], []
    codec = model.audio_encoder
    for prompt in prompts(kind):
        seen = []
        with patch.object(
            codec, "decode", side_effect=lambda ids, seen=seen, **rest: seen.append(ids) or type(codec).decode(codec, ids, **rest)
        ):
            mask = torch.ones_like(prompt["input_ids"])
            sound = model.generate(**prompt, attention_mask=mask, max_new_tokens=STEPS, do_sample=False, guidance_scale=scale)
        sides = [ids[0, 0].T for ids in seen]  # [F, K] of each channel
        codes.append((torch.stack(sides, -1).flatten(1) if len(sides) == 2 else sides[0]).tolist())
        waves.append(sound[0].T if len(sides) == 2 else sound[0, 0])
    return codes, waves


def is_the_classes(made, kind, scale, rows=slice(None)):
    codes, waves = expected(kind, scale)
    assert [undelayed(row, pair(kind)[0].delays) for row in made.tokens.tolist()] == codes[rows]
    for mine, theirs in zip(made.waveforms, waves[rows], strict=True):
        assert mine.shape == theirs.shape
        assert (mine - theirs).abs().max() < 1e-5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", SCALES)
def test_greedy_frames_and_their_sound_are_the_classes_own(kind, scale):
    target, small = pair(kind)
    assert len({code for row in expected(kind, scale)[0] for frame in row for code in frame}) > 4
    for drafter, length in ((None, 1), (target, 4), (small, 2), (small, 3)):
        is_the_classes(say(target, prompts(kind), drafter, temperature=0, guidance=scale, draft_length=length), kind, scale)
    is_the_classes(say(target, prompts(kind)[2:], small, temperature=0, guidance=scale, draft_length=3), kind, scale, slice(2, 3))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", SCALES)
def test_drawn_sound_depends_on_the_seed_alone(kind, scale):
    target, small = pair(kind)
    drawn = {"seed": 7, "temperature": 1.0, "guidance": scale}
    plain = say(target, prompts(kind), **drawn)
    assert len({tuple(wave.flatten().tolist()) for wave in plain.waveforms}) == 3
    for rows, drafter, length in ((1, small, 2), (3, target, 4), (3, small, 3)):
        made = say(target, prompts(kind)[:rows], drafter, draft_length=length, **drawn)
        assert made.tokens.tolist() == plain.tokens[:rows].tolist()
        assert all(torch.equal(one, other) for one, other in zip(made.waveforms, plain.waveforms[:rows], strict=True))
    assert say(target, prompts(kind), target, draft_length=3, **drawn).stats.rejected == 0


@pytest.mark.parametrize("kind", KINDS)
def test_streams_give_the_whole_sound(kind):
    target, small = pair(kind)
    whole = say(target, prompts(kind)[:1], temperature=0).waveforms[0]
    most = (STEPS - target.lead) / target.pace
    pieces = list(stream(target, prompts(kind)[0], small, temperature=0, draft_length=3, max_seconds=most))
    assert len(pieces) > 1
    assert torch.equal(torch.cat(pieces), whole)


def test_a_melody_changes_what_is_played():
    deaf = [{"input_ids": prompts("melody")[0]["input_ids"]}]
    assert (
        say(pair("melody")[0], deaf, temperature=0).tokens[0].tolist()
        != say(pair("melody")[0], prompts("melody")[:1], temperature=0).tokens[0].tolist()
    )


def test_stereo_is_written_and_resampled(tmp_path):
    import soundfile

    made = say(pair("stereo")[0], prompts("stereo")[:1], temperature=0)
    for ending in ("wav", "flac", "ogg"):
        made.save(tmp_path / f"out.{ending}")
        samples, rate = soundfile.read(tmp_path / f"out.{ending}", dtype="float32")
        assert (rate, samples.shape) == (RATE, tuple(made.waveforms[0].shape))
    samples, _ = soundfile.read(tmp_path / "out.wav", dtype="float32")
    assert torch.equal(torch.from_numpy(samples), made.waveforms[0])
    assert at_rate(made.waveforms[0], RATE, 2 * RATE).shape == (2 * len(made.waveforms[0]), 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_published_folder_loads_with_one_call(kind, tmp_path):
    pair(kind)[0].model.save_pretrained(tmp_path)
    if "melody" in kind:
        reader = MusicgenMelodyProcessor(MusicgenMelodyFeatureExtractor(), letter_tokenizer())
    else:
        reader = MusicgenProcessor(EncodecFeatureExtractor(feature_size=1, sampling_rate=RATE), letter_tokenizer())
    reader.save_pretrained(tmp_path)
    found = load_checkpoint(str(tmp_path))
    is_the_classes(say(found, prompts(kind), pair(kind)[1], temperature=0, draft_length=3, guidance=3.0), kind, 3.0)
    ids = [dict(letter_tokenizer()([text], return_tensors="pt")) for text in ("three", "five seven")]
    wanted = say(found, [{"input_ids": each["input_ids"]} for each in ids], temperature=0)
    assert say(found, ["three", "five seven"], temperature=0).tokens.tolist() == wanted.tokens.tolist()


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (["a song"], {}, "needs a tokenizer"),
        ([{"attention_mask": torch.ones(1, 2)}], {}, "prompt 0 must hold input_ids"),
        ([{"input_ids": torch.tensor([[60]])}], {}, "prompt 0 holds id 60, but the text encoder knows 60"),
        ([{"input_ids": torch.tensor([[6]]), "input_features": torch.ones(1, 3, 5)}], {}, "but the model takes"),
        (music_prompts(1), {"drafter": "lookup"}, "copies single ids, but steps here are frames"),
        (music_prompts(1), {"drafter": pair("stereo melody")[0]}, "draft with a model of the same codec"),
    ],
)
def test_bad_requests_are_told_in_one_line(texts, options, message):
    with pytest.raises(ValueError, match=message) as told:
        say(pair("melody")[0], texts, **options)
    assert "\n" not in str(told.value)
