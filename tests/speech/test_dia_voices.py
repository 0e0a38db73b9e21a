"""Dia continues recordings as its class does: the decoder's prompt, and the codes that books behind the first still have."""

from functools import cache

import numpy as np
import pytest
import torch
import transformers as hf

from mmspec.speech import VoiceSample, stream
from mmspec.speech.checkpoints.load import load_checkpoint
from mmspec.speech.families.dia import Dia
from mmspec.speech.sampling.recorded import StillToCome, delayed
from tests.speech.small_delay import RATE, STEPS, dac, dia, dia_folder, dia_network, say
from tests.speech.small_delay import dia_drafter as small
from tests.speech.small_delay import dia_target as target

TEXT, WORDS, HOP = "[S1] three five seven", "[S1] red bird", 4
FRAMES = (9, 2, 5)  # of the recordings; one is shorter than the longest delay
METHODS = {"plain": {}, "guided": {"guidance": 3.0, "top_k": 5}}


def reader():
    return hf.DiaProcessor(hf.DiaFeatureExtractor(sampling_rate=RATE, hop_length=HOP), hf.DiaTokenizer(), target().codec.model)


def voice(frames, seed=2):
    """A recording whose last frame is not whole."""
    noise = torch.randn(frames * HOP - 1, generator=torch.Generator().manual_seed(seed))
    return VoiceSample(noise, RATE, WORDS)


def inputs(frames, text=TEXT):
    """What the class's processor returns for one recording and text, or for a text alone."""
    model = target()
    special = {"eos_token_id": model.end, "pad_token_id": model.pad, "bos_token_id": model.start, "delay_pattern": list(model.delays)}
    sound = {} if frames is None else {"audio": [np.asarray(voice(frames).samples)]}
    told = text if frames is None else f"{WORDS} {text}"
    return reader()(text=[told], **sound, **special, sampling_rate=RATE)


@cache
def expected(way, frames, steps=STEPS, **total):
    """The class's own frames [S, K] behind a recording, up to the one that ends them."""
    model, given, options = target(), inputs(frames), METHODS[way]
    how = {"do_sample": False, "guidance_scale": options.get("guidance"), "top_k": options.get("top_k", 50)}
    how |= total or {"max_new_tokens": steps}
    told = given.pop("input_ids")
    found = model.model.generate(told, **given, **how)[0, (0 if frames is None else frames) + 1 :]
    return _ended(found.tolist())


def _ended(frames):
    last = next((step for step, frame in enumerate(frames) if frame[-1] == target().end), len(frames))
    return frames[: last + 1]


def rows_of(made):
    return [row[:length] for row, length in zip(made.tokens.tolist(), made.lengths.tolist(), strict=True)]


@pytest.mark.parametrize("way", METHODS)
def test_greedy_frames_are_the_classes_own(way):
    alone = [rows_of(say(target(), [TEXT], voice=voice(frames), temperature=0, **METHODS[way]))[0] for frames in FRAMES]
    assert alone == [expected(way, frames) for frames in FRAMES]
    assert len({str(row) for row in alone}) == 3
    voices = [voice(9), None, voice(2), voice(5)]
    together = [expected(way, frames) for frames in (9, None, 2, 5)]
    for drafter, length in ((None, "auto"), (small(), 1), (small(), 4)):
        made = say(target(), [TEXT] * 4, drafter, voice=voices, temperature=0, draft_length=length, **METHODS[way])
        assert rows_of(made) == together


def test_the_processors_prompts_are_taken():
    prompts = [inputs(9), inputs(None), {**inputs(2)}, {"input_ids": inputs(None)["input_ids"]}]
    made = say(target(), prompts, small(), temperature=0, draft_length=3)
    assert rows_of(made) == [expected("plain", frames) for frames in (9, None, 2, None)]
    padded = dict(inputs(5))
    padded["decoder_input_ids"] = torch.nn.functional.pad(padded["decoder_input_ids"], (0, 0, 3, 0), value=target().start)
    padded["decoder_attention_mask"] = torch.nn.functional.pad(padded["decoder_attention_mask"], (3, 0))
    assert rows_of(say(target(), [padded], temperature=0)) == [expected("plain", 5)]


def test_a_recording_is_laid_out_as_the_processor_does():
    for frames in FRAMES:
        steps = delayed(target()._codes(voice(frames)), target().delays, target().start)
        theirs = inputs(frames)["decoder_input_ids"][0].long()
        assert torch.equal(steps, theirs.masked_fill(theirs == target().pad, -1))


@pytest.mark.parametrize("way", METHODS)
def test_drawn_frames_depend_on_the_seed_alone(way):
    options = {"voice": [voice(9), None, voice(2)], "seed": 7, "temperature": 1.0, **METHODS[way]}
    plain = say(target(), [TEXT] * 3, **options)
    own = say(target(), [TEXT] * 3, target(), draft_length=3, **options)
    assert own.tokens.tolist() == plain.tokens.tolist()
    assert own.stats.rejected == 0
    alone = say(target(), [TEXT], small(), draft_length=2, **{**options, "voice": voice(9)})
    assert rows_of(alone) == rows_of(plain)[:1]


def test_sound_begins_behind_the_recording():
    made = say(target(), [TEXT], voice=voice(9), seed=3, temperature=1.0)
    frames = made.tokens[0, : made.lengths[0]]
    count = frames[:, 0].tolist().index(target().end)
    codes = [[int(frames[step + lag, book]) for book, lag in enumerate(target().delays)] for step in range(count)]
    theirs = reader().decode(
        torch.cat([inputs(9)["decoder_input_ids"][:, :10].long(), frames[None]], 1),
        audio_prompt_len=reader().get_audio_prompt_len(inputs(9)["decoder_attention_mask"], delay_pattern=list(target().delays)),
        **{"delay_pattern": list(target().delays), "bos_token_id": target().start, "pad_token_id": target().pad},
    )
    assert torch.allclose(target().codec.decode(codes), made.waveforms[0], atol=1e-5)
    assert torch.allclose(theirs, made.waveforms[0], atol=1e-5)
    room = (STEPS - target().lead) / target().pace
    pieces = stream(target(), TEXT, small(), voice=voice(9), seed=3, temperature=1.0, draft_length=3, max_seconds=room)
    assert torch.equal(torch.cat(list(pieces)), made.waveforms[0])


def test_rows_end_while_the_model_has_positions():
    """As the class does with that `max_length`, which counts the recording and leaves out the longest delay."""
    network = dia_network()
    network.config.decoder_config.max_position_embeddings = 40
    model = Dia(network, hf.DiaTokenizer(), dac(3, 16))
    made = say(model, [TEXT] * 2, small(), voice=[voice(9), voice(2)], temperature=0, steps=39, draft_length=3)
    most = 40 - max(target().delays)
    assert rows_of(made) == [expected("plain", frames, max_length=most) for frames in (9, 2)]
    assert len(rows_of(made)[0]) < len(rows_of(made)[1])


@pytest.mark.parametrize("change", ["nothing", "late"])
def test_codes_to_come_that_are_lost_are_seen(change, monkeypatch):
    changed = {"nothing": lambda codes: torch.full_like(codes, -1), "late": lambda codes: codes.roll(1, 1)}[change]
    honest = StillToCome.__call__
    monkeypatch.setattr(StillToCome, "__call__", lambda self, *given: honest(StillToCome(changed(self.codes)), *given))
    assert rows_of(say(target(), [TEXT], voice=voice(9), temperature=0))[0] != expected("plain", 9)


def test_a_folder_speaks_in_the_voice_of_a_recording(tmp_path):
    found = load_checkpoint(dia_folder(tmp_path, hop_length=HOP))
    assert rows_of(say(found, [TEXT] * 2, voice=[voice(9), None], temperature=0)) == [expected("plain", frames) for frames in (9, None)]


def spoilt(**changes):
    return {**inputs(5), **changes}


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        (TEXT, lambda: VoiceSample(torch.ones(8), RATE), "the voice has no text"),
        (" ", lambda: voice(2), "is empty"),
        (TEXT, lambda: "ann", "unknown voice 'ann'; give a VoiceSample, or leave voice out"),
        (TEXT, lambda: voice(200), "the recording of prompt 0 has 200 frames, the model room for 114"),
        (lambda: inputs(5), lambda: voice(2), "give it the recording as audio, and leave voice out"),
        (lambda: spoilt(decoder_input_ids=torch.zeros(1, 5, 2)), None, r"decoder_input_ids \[1, 5, 2\], but the model takes \[1, L, 3\]"),
        (lambda: spoilt(decoder_attention_mask=torch.ones(1, 2)), None, r"decoder_attention_mask \[1, 2\] beside 9 steps"),
        (lambda: spoilt(decoder_input_ids=torch.full((1, 9, 3), 17)), None, "cannot be continued"),
        (lambda: spoilt(decoder_input_ids=torch.full((1, 9, 3), 16)), None, "cannot be continued"),
    ],
)
def test_bad_requests_are_told_in_one_line(text, given, message):
    with pytest.raises(ValueError, match=message) as told:
        say(target(), [text() if callable(text) else text], voice=given() if callable(given) else given)
    assert "\n" not in str(told.value)


def test_a_codec_without_an_encoder_takes_no_recordings():
    with pytest.raises(ValueError, match="takes no recordings as voices"):
        say(dia(True), [TEXT], voice=voice(2))
