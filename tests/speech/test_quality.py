"""Word errors, likeness of voices and opinion scores: what they count, their intervals, and what is refused."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import mmspec
from mmspec.speech.quality import assess, opinion
from mmspec.speech.quality.assess import BootstrapMean, assess_quality, normalised_words
from mmspec.speech.quality.voice_encoder import VoiceEncoder
from mmspec.speech.recognition.transcript import Transcript
from tests.speech import small_whisper


@pytest.fixture(scope="module")
def encoder():
    torch.manual_seed(0)
    return VoiceEncoder().eval()


@pytest.fixture(scope="module")
def waves():
    torch.manual_seed(1)
    return [0.1 * torch.randn(size) for size in (4000, 8000, 30_000)]


def test_a_digit_is_a_word_however_it_is_written():
    assert normalised_words("Three, five seven.") == normalised_words("357") == normalised_words("3-5-7!") == "3 5 7"
    assert normalised_words("Nine, zero two one") == normalised_words("9021") == normalised_words("9 0 2 1") == "9 0 2 1"
    assert normalised_words("There are four OLD birds") == "there are 4 old birds"


def test_an_interval_holds_the_mean_as_often_as_it_says():
    truth, held, draw = 0.3, 0, np.random.default_rng(0)
    for trial in range(200):
        words = draw.integers(1, 5, size=60)
        found = BootstrapMean.of(draw.binomial(words, truth), words, seed=trial)
        assert found.low <= found.value <= found.high
        held += found.low <= truth <= found.high
    assert 180 <= held <= 199  # 95 % of 200, with three standard deviations
    assert BootstrapMean.of([2.0, 2.0]) == BootstrapMean(2.0, 2.0, 2.0)
    assert BootstrapMean.of([1, 0], [3, 1]).value == 0.25  # of all words, not the mean of rates


def test_word_errors_are_of_what_the_recogniser_wrote(waves, monkeypatch):
    heard = ["Three five.", "9 0 2 1", "the bird the bird the bird"]
    given = {}

    def listen(model, processor, sounds, **options):
        given.update(options, lengths=[len(sound) for sound in sounds])
        return mmspec.speech.Transcription([Transcript(text, None, 1.0) for text in heard], None, 0.0)

    monkeypatch.setattr(assess, "transcribe", listen)
    model = small_whisper.whisper()
    texts = ["three five seven", "nine zero two one", "the bird"]
    found = assess_quality(waves, 8000, texts, (model, small_whisper.processor()), opinions=False, prompt="Numbers.")
    assert found.errors == [1, 0, 4]
    assert found.words == [3, 4, 2]
    assert found.word_error_rate.value == pytest.approx(5 / 9)
    assert given["lengths"] == [2 * len(wave) for wave in waves]  # at the recogniser's rate
    assert given["max_new_tokens"] == 8 + 4 * 4
    assert given["prompt"] == "Numbers."
    assert found.similarity is None
    assert found.opinion is None


def test_a_recogniser_is_run(waves):
    found = assess_quality(
        [waves[0], torch.zeros(0)], 8000, ["one", "two"], (small_whisper.whisper(english=True), small_whisper.processor()), opinions=False
    )
    assert len(found.heard) == 2


def test_a_voice_is_like_itself(encoder, waves):
    own = [encoder.embed(wave, 8000) for wave in waves]
    assert all(float(each.norm()) == pytest.approx(1.0, abs=1e-5) for each in own)
    found = assess_quality(waves, 8000, voices=own, encoder=encoder, opinions=False)
    assert found.similarities == pytest.approx([1.0] * 3, abs=1e-5)
    assert found.similarity.value == pytest.approx(1.0, abs=1e-5)
    assert encoder.embed_voice(waves[:1], 8000) == pytest.approx(own[0], abs=1e-6)
    louder = encoder.embed(3 * waves[0] / 100, 8000)  # quiet sound is brought to one level
    assert louder == pytest.approx(encoder.embed(waves[0] / 100, 8000), abs=1e-4)


def test_parts_overlap_and_the_last_is_mostly_sound(encoder):
    """How many parts a wave has: one up to 1.6 s, another every 0.77 s, and none that is less than three quarters sound."""
    parts = []
    handle = encoder.register_forward_hook(lambda module, args, out: parts.append(len(args[0])))
    for samples in (4000, 25_600, 30_000, 48_000, 77_777):
        encoder.embed(torch.zeros(samples).normal_(), 16_000)
    handle.remove()
    assert parts == [1, 1, 1, 3, 5]


def test_a_kept_encoder_is_the_same(encoder, waves, tmp_path, monkeypatch):
    save_file(encoder.state_dict(), tmp_path / "model.safetensors")
    assert torch.equal(VoiceEncoder.load(tmp_path).embed(waves[0], 8000), encoder.embed(waves[0], 8000))
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path / "empty"))
    with pytest.raises(ValueError, match=r"holds no voice encoder: fetch it with mmspec recipe speech/fetch_voice_encoder\.py"):
        assess_quality(waves, 8000, voices=[torch.ones(256)] * 3, opinions=False)


def test_the_extra_is_named_where_it_is_missing(waves, monkeypatch):
    opinion.opinion_network.cache_clear()
    monkeypatch.setattr(opinion, "find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"need speechmos and onnxruntime: pip install 'mmspec\[quality\]', or pass opinions=False"
    ) as told:
        assess_quality(waves, 8000)
    assert "\n" not in str(told.value)


REFUSED = {
    "nothing": (([], 8000), {}, "waveforms is empty"),
    "one text": (("waves", 8000, "one", (1, 2)), {}, "texts is 'one': give a list with one entry per row"),
    "too few texts": (("waves", 8000, ["one"], (1, 2)), {}, "texts has 1 entries for 3 waveforms"),
    "nobody who listens": (("waves", 8000, ["one"] * 3), {}, "texts and recogniser belong together"),
    "a prompt that nobody reads": (("waves", 8000), {"prompt": "Numbers."}, "prompt is read by the recogniser"),
    "an encoder that nothing reads": (("waves", 8000), {"encoder": 1}, "encoder is 1: give a VoiceEncoder or None"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_request_is_told_in_one_line(waves, name):
    args, options, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        assess_quality(*(waves if arg == "waves" else arg for arg in args), opinions=False, **options)


@pytest.mark.skipif(find_spec("speechmos") is None or find_spec("onnxruntime") is None, reason="they come with mmspec[quality]")
def test_noise_lowers_the_opinion_of_speech():
    mini = mmspec.load("speech")
    out = mmspec.speech.synthesize(mini.target, ["three five seven"], voice="jackson", seed=1)
    wave = out.waveforms[0]
    noisy = wave + 0.1 * torch.randn(len(wave), generator=torch.Generator().manual_seed(0))
    clean, worse = assess_quality([wave, noisy], out.sample_rate).opinions
    assert 1 <= worse < clean - 0.2 <= 5
    long = opinion.opinion_score(wave.repeat(-(-11 * out.sample_rate // len(wave))), out.sample_rate)  # three windows or four
    assert long == pytest.approx(clean, abs=0.5)
