"""Mini speech: it is understood, its drafters bring what they promise, and no drafter changes a sample. Counts, not seconds."""

import pytest
import torch

import mmspec
from mmspec.bench.compare.speech import in_codec_space
from mmspec.core.rules.lossy.pcg import PCG
from mmspec.core.rules.lossy.tolerance import Tolerance
from mmspec.drafters.trees.static import Template
from mmspec.minis import HOME
from mmspec.minis import speech_data as spoken
from mmspec.minis.speech_model import load_recogniser
from mmspec.speech import synthesize
from mmspec.speech.sampling.ras import repetition_aware
from mmspec.speech.sound.recogniser import word_errors

TEXTS = ["three five seven", "nine zero", "the red bird sings by the river", "please open the old door now", "one two eight", "six"]
VOICES = ["jackson", "theo", "espeak", "espeak-high", "lucas", "yweweler"]
SHORT = (1, 4, 5)
"""Rows whose sound ends soon."""


@pytest.fixture(scope="module")
def mini():
    return mmspec.load("speech")


@pytest.fixture(scope="module")
def tree():
    return Template.read(HOME / "speech" / "tree.json")


@pytest.fixture(scope="module")
def plain(mini):
    return synthesize(mini.target, TEXTS, voice=VOICES, seed=11)


def short() -> dict:
    return {"texts": [TEXTS[row] for row in SHORT], "voice": [VOICES[row] for row in SHORT]}


def same(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.waveforms, other.waveforms, strict=True))


def test_it_says_what_is_asked(mini):
    """The recogniser errs on one digit in fifty of true sound through the codec."""
    texts, voices = zip(*spoken.requests(48, seed=9)[:24], strict=True)
    out = synthesize(mini.target, texts, voice=voices, seed=3)
    hearer = load_recogniser(HOME / "speech")
    errors = sum(word_errors(texts, [hearer.hear(wave) for wave in out.waveforms]))
    assert errors / sum(len(text.split()) for text in texts) < 0.15
    assert out.sample_rate == 8000
    assert mini.target.pace >= 50


def test_the_card_names_the_data_and_its_licence(mini):
    assert "CC BY-SA 4.0" in mini.card
    assert "Free Spoken Digit Dataset" in mini.card
    assert "espeak-ng" in mini.card


@pytest.mark.parametrize("way", ["model", "chain", "tree", "suffix", "match"])
def test_no_drafter_changes_a_sample(mini, plain, tree, way):
    heads = mini.drafters["vadusa"]
    options = {
        "model": {"drafter": mini.drafters["model"], "draft_length": 4},
        "chain": {"drafter": heads},
        "tree": {"drafter": heads, "tree": tree, "draft_length": tree.depth},
        "suffix": {"drafter": "suffix", "draft_length": 3},
        "match": {"drafter": heads, "tree": tree, "draft_length": tree.depth, "accept": "match"},
    }[way]
    out = synthesize(mini.target, **short(), seed=[11 + row for row in SHORT], **options)
    assert out.stats.drafted > 0
    assert all(torch.equal(sound, plain.waveforms[row]) for sound, row in zip(out.waveforms, SHORT, strict=True))
    assert out.stats.exactness == "token-exact"


def test_one_sound_a_seed_in_any_batch(mini, plain):
    model = mini.drafters["model"]
    alone = [synthesize(mini.target, [TEXTS[row]], model, voice=VOICES[row], seed=11 + row).waveforms[0] for row in range(3)]
    pair = synthesize(mini.target, TEXTS[:2], model, voice=VOICES[:2], seed=11).waveforms
    eight = synthesize(mini.target, [*TEXTS, "one", "two"], model, voice=[*VOICES, "theo", "theo"], seed=11).waveforms
    for row in range(3):
        assert torch.equal(alone[row], plain.waveforms[row])
        assert torch.equal(eight[row], plain.waveforms[row])
    assert all(torch.equal(pair[row], plain.waveforms[row]) for row in range(2))


def test_exact_drafting_brings_more_than_two_and_a_half_codes_a_call(mini):
    out = synthesize(mini.target, TEXTS, mini.drafters["model"], voice=VOICES, seed=5, draft_length=5)
    assert out.stats.tokens_per_call >= 2.5


def test_vadusas_tolerance_trades_drift_for_codes_a_call(mini, tree):
    found = {}
    for tau in (1, 3):
        out = synthesize(
            mini.target, TEXTS, mini.drafters["vadusa"], accept=Tolerance(tau), seed=5, voice=VOICES, tree=tree, draft_length=tree.depth
        )
        found[tau] = out.stats
    assert found[1].drift == 0
    assert found[3].drift > 0
    assert found[3].tokens_per_call >= max(3.3, found[1].tokens_per_call + 0.5)


def test_groups_of_the_codec_accept_more_than_tokens(mini):
    target = mini.target
    rate = {}
    for rule in ("token", PCG(in_codec_space(mini))):
        stats = synthesize(target, **short(), drafter=mini.drafters["model"], accept=rule, seed=5, draft_length=4).stats
        rate[stats.exactness] = stats.accepted / stats.judged
    assert rate["group-exact"] > rate["distribution-exact"]


def test_repetition_aware_sampling_is_the_same_sound_drafted_or_not(mini):
    sampler = repetition_aware(window=10, limit=5, exclude=(mini.target.end,))
    runs = [
        synthesize(mini.target, TEXTS[:3], drafter, voice=VOICES[:3], seed=2, samplers=[sampler], top_p=1.0, draft_length=4)
        for drafter in (None, mini.drafters["model"])
    ]
    assert same(*runs)
    assert runs[1].stats.tokens_per_call > 1.5


@pytest.mark.parametrize(
    ("text", "voice", "words"),
    [("", "theo", "empty"), ("seven 8", "theo", "'8'"), ("one", "nobody", "unknown voice 'nobody'"), ("one " * 60, "theo", "too long")],
)
def test_what_it_cannot_say_is_refused_in_one_line(mini, text, voice, words):
    with pytest.raises(ValueError, match=words) as refusal:
        synthesize(mini.target, [text], voice=voice)
    assert "\n" not in str(refusal.value)
