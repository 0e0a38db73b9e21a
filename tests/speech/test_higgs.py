"""Higgs Audio v2: frames behind a delay, repetition-aware, ended by any book; the class's own, whatever drafts."""

from functools import cache

import pytest
import torch

from mmspec.core.processors.pipeline import Pipeline, pipeline
from mmspec.core.rules.per_code import PerCode
from mmspec.core.rules.token import Token
from mmspec.models.target import HFTarget
from mmspec.speech import VoiceSample, stream, synthesize
from mmspec.speech.checkpoints.load import load_checkpoint
from mmspec.speech.families.higgs import AnyBookEnds, HiggsAudio
from mmspec.speech.sampling.delay import NotYet
from tests.speech.small_higgs import END, RATE, START, TEXTS, folder, higgs_audio, higgs_network, inputs, own, parts, voice

STEPS = 40


@cache
def target():
    return higgs_audio()


@cache
def small():
    return higgs_audio(layers=1, hidden=16, seed=5)


def say(model, texts, drafter=None, steps=STEPS, **options):
    return synthesize(model, texts, drafter, max_seconds=(steps - model.lead + 0.5) / model.pace, **options)


def rows_of(said):
    return [row[:length] for row, length in zip(said.tokens.tolist(), said.lengths.tolist(), strict=True)]


@cache
def expected(spoken=False):
    """Frames of every text by the class's own generation, each alone."""
    samples = [voice() if spoken and row != 1 else None for row in range(len(TEXTS))]
    frames = [own(target().model, inputs(text, sample), STEPS) for text, sample in zip(TEXTS, samples, strict=True)]
    return samples, [each[0].tolist() for each in frames], [parts().batch_decode(each)[0] for each in frames]


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("spoken", [False, True])
def test_greedy_frames_and_their_sound_are_the_classes_own(spoken, length):
    samples, frames, waves = expected(spoken)
    assert len({len(row) for row in frames}) > 1, "rows must end at different steps"
    for drafter in (None, target(), small()):
        made = say(target(), TEXTS, drafter, temperature=0, voice=samples, draft_length=length)
        assert rows_of(made) == frames
        for mine, theirs in zip(made.waveforms, waves, strict=True):
            assert mine.shape == theirs.shape
            assert (mine - theirs).abs().max() < 1e-5
    one = say(target(), TEXTS[:1], small(), temperature=0, voice=samples[:1], draft_length=length)
    assert rows_of(one) == frames[:1]


def test_a_voice_changes_what_is_said():
    assert expected(True)[1][1] == expected(False)[1][1]
    assert expected(True)[1][0] != expected(False)[1][0]


def test_prompts_of_the_classes_processor_are_read():
    samples, frames, _ = expected(True)
    given = [inputs(text, sample) for text, sample in zip(TEXTS, samples, strict=True)]
    assert rows_of(say(target(), given, small(), temperature=0)) == frames


def test_itself_as_drafter_is_always_right():
    for options in ({"temperature": 0}, {"temperature": 0.9}, {"temperature": 0.9, "accept": Token()}):
        made = say(higgs_audio(ras=(4, 1)), TEXTS[:1], higgs_audio(ras=(4, 1)), draft_length=3, **options)
        assert made.stats.rejected == 0


@pytest.mark.parametrize("ras", [None, (4, 1)])
def test_drawn_sound_depends_on_the_seed_alone(ras):
    model, drafter = higgs_audio(ras), higgs_audio(ras, layers=1, hidden=16, seed=5)
    drawn = {"temperature": 0.8, "top_k": 9, "seed": 7, "voice": [voice(), None, voice(1)]}
    plain = say(model, TEXTS, **drawn)
    assert len({tuple(wave.tolist()) for wave in plain.waveforms}) == 3
    for other, length in ((drafter, 2), (model, 4)):
        made = say(model, TEXTS, other, draft_length=length, **drawn)
        assert rows_of(made) == rows_of(plain)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(made.waveforms, plain.waveforms, strict=True))
    for row, text in enumerate(TEXTS):
        alone = say(model, [text], drafter, draft_length=3, **drawn | {"seed": 7 + row, "voice": drawn["voice"][row]})
        assert rows_of(alone) == rows_of(plain)[row : row + 1]


def test_streams_give_the_whole_sound():
    made, most = say(target(), TEXTS[2:], temperature=0), (STEPS - target().lead + 0.5) / target().pace
    pieces = list(stream(target(), TEXTS[2], small(), temperature=0, draft_length=3, max_seconds=most))
    assert len(pieces) > 1
    assert (torch.cat(pieces) - made.waveforms[0]).abs().max() < 1e-6


# --- distributions ----------------------------------------------------------------------------------------------------


def distributions(model, given, frames, sampling):
    """[N + 1, K, V] probabilities before, between and behind `frames` [N, K]."""
    sampling = model.drawn(sampling)
    prompt = model.encode([given], [None])
    steps = pipeline(temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p, first=model.rules(prompt)).steps
    session, draft = HFTarget(model.model, model, Pipeline((*steps, *sampling.last))).begin(prompt)
    return session.score(draft.extend_chain(frames[None], torch.full((1,), 1000))).p.heads[0].softmax(-1)


@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("greedy", [False, True])
def test_distributions_are_those_the_class_draws_from(greedy, sample):
    """The scores and raw scores that the class records, put together as it draws: a repeated code is drawn again from raw scores."""
    model, given = higgs_audio(ras=(4, 1)), inputs(TEXTS[2], voice() if sample else None)
    before = given["audio_input_ids"].shape[1] if sample else 0
    torch.manual_seed(0)
    drawn = {"do_sample": False} if greedy else {"do_sample": True, "temperature": 0.7, "top_k": 9, "top_p": 0.95}
    told = model.model.generate(
        **given, max_new_tokens=STEPS, output_scores=True, output_logits=True, return_dict_in_generate=True, **drawn
    )
    frames = told.audio_sequences[0, before:]
    usual = torch.cat(told.scores).softmax(-1)  # [S, K, V]
    usual = torch.zeros_like(usual).scatter(-1, usual.argmax(-1, keepdim=True), 1.0) if greedy else usual
    raw, redrawn = torch.cat(told.logits).unflatten(-1, usual.shape[1:]).softmax(-1), 0
    wanted = usual.clone()
    for step in range(1, len(usual)):
        for book in range(usual.shape[1]):
            repeated = [code for code in set(frames[max(0, step - 4) : step, book].tolist()) if code not in (START, END)]
            mass = usual[step, book, repeated].sum()
            wanted[step, book, repeated] = 0
            wanted[step, book] += mass * raw[step, book]
            redrawn += bool(mass > 0.01)
    sampling = model.sampling if greedy else model.sampling.__class__(temperature=0.7, top_k=9, top_p=0.95, last=model.sampling.last)
    assert redrawn > 3
    assert (distributions(model, given, frames[:-1], sampling) - wanted).abs().max() < 1e-4


@pytest.mark.parametrize("rule", [NotYet, AnyBookEnds])
def test_a_delay_off_by_one_is_seen(rule):
    def late(self, scores, history, honest=rule.__call__):
        shifted = scores if rule is NotYet else torch.roll(scores, 1, 2)
        out = honest(self, shifted, type(history)(history.ids, history.visible, history.position - 1))
        return out if rule is NotYet else torch.roll(out, -1, 2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rule, "__call__", late)
        assert rows_of(say(target(), TEXTS, temperature=0)) != expected()[1]


def test_frames_are_judged_as_wholes_and_code_by_code():
    for rule in (Token(), PerCode()):
        made = say(target(), TEXTS, small(), temperature=0.7, accept=rule, draft_length=2, seed=1)
        assert made.tokens[:, 0].eq(START).all()
        assert made.stats.accepted > 0


# --- checkpoints and requests -----------------------------------------------------------------------------------------


def test_a_published_folder_loads_with_one_call(tmp_path):
    found = load_checkpoint(str(folder(tmp_path)))
    assert isinstance(found, HiggsAudio)
    made = say(found, TEXTS, small(), temperature=0, voice=expected(True)[0], draft_length=3)
    assert rows_of(made) == expected(True)[1]


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ([""], {}, "is empty"),
        ([{"attention_mask": torch.ones(1, 2)}], {}, "prompt 0 must hold input_ids"),
        ([{"input_ids": torch.tensor([[7, 8]])}], {}, "prompt 0 does not end where sound begins"),
        ([{"input_ids": torch.tensor([[4, 7, 8, 9, 3]])}], {}, "1 places for sound and 0 frames"),
        (["no"], {"voice": VoiceSample(torch.ones(3), RATE)}, "the voice has no text"),
        (["no"], {"voice": "ann"}, "unknown voice 'ann'; give a VoiceSample"),
        (["no"], {"drafter": "lookup"}, "copies single ids, but steps here are frames"),
        (["no"], {"drafter": HiggsAudio(higgs_network(codes=8), codec=parts().audio_tokenizer)}, "draft with a model of the same codec"),
    ],
)
def test_bad_requests_are_told_in_one_line(texts, options, message):
    with pytest.raises(ValueError, match=message) as told:
        say(target(), texts, **options)
    assert "\n" not in str(told.value)
