"""Dia: frames behind a delay, guided and ended as the class has it, whatever drafts."""

from functools import cache
from types import SimpleNamespace

import pytest
import torch
import transformers as hf

from mmspec.core.processors.history import History
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.records import Draft
from mmspec.core.rules.per_code import PerCode
from mmspec.core.rules.token import Token
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.shapes import Chain, drawn
from mmspec.models.prompt_proof import note_proven
from mmspec.models.target import HFTarget
from mmspec.speech import stream
from mmspec.speech.families import speech_model
from mmspec.speech.families.base import SpeechSampling
from mmspec.speech.families.delayed_codebooks import Texts
from mmspec.speech.families.dia import Dia
from mmspec.speech.sampling.delay import EndsInFirst, NotYet
from tests.oracles.statistics import FAIL, PASS, chi_square
from tests.speech.small_delay import STEPS, TEXTS, dac, dia, dia_own, distributions_along, first_frames, say, target_of
from tests.speech.small_delay import dia_drafter as small
from tests.speech.small_delay import dia_target as target

METHODS = {"plain": {}, "guided": {"guidance": 3.0, "top_k": 20}, "filtered": {"guidance": 3.0, "top_k": 5}}
EIGHT = [*TEXTS, "[S1] one", "[S2] eight nine", "[S1] oh", "[S2] two two", "[S1] zero"]


@cache
def expected(way, rows):
    options = METHODS[way]
    return dia_own(target(), TEXTS[:rows], do_sample=False, guidance_scale=options.get("guidance"), top_k=options.get("top_k", 50))


def is_the_classes(made, own):
    for row, length in enumerate(made.lengths.tolist()):
        assert made.tokens[row, :length].tolist() == own[row, 1 : length + 1].tolist()
        assert (own[row, length + 1 :] == target().pad).all()


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("way", METHODS)
def test_greedy_frames_are_the_classes_own(way, rows):
    is_the_classes(say(target(), TEXTS[:rows], temperature=0, **METHODS[way]), expected(way, rows))


@pytest.mark.parametrize("length", [1, 2, 3, 4])
@pytest.mark.parametrize("way", ["plain", "filtered"])
def test_any_drafter_leaves_greedy_frames_as_they_are(way, length):
    for drafter in (target(), small()):
        is_the_classes(say(target(), TEXTS, drafter, temperature=0, draft_length=length, **METHODS[way]), expected(way, 3))


def test_rows_end_down_the_delay_by_themselves_and_for_want_of_room():
    made = say(target(), TEXTS, temperature=0, **METHODS["filtered"])
    assert min(made.lengths) < STEPS == max(made.lengths)
    for row, length in enumerate(made.lengths.tolist()):
        frames, first = made.tokens[row, :length], length - 4
        for book, delay in enumerate(target().delays):
            assert frames[:, book].tolist().index(target().end) == first + delay
            assert (frames[first + delay + 1 :, book] == target().pad).all()
            assert (frames[:delay, book] == target().start).all()
        assert len(made.waveforms[row]) == 4 * first
        codes = torch.stack([frames[delay : delay + first, book] for book, delay in enumerate(target().delays)])
        assert torch.allclose(target().codec.decode(codes.T.tolist()), made.waveforms[row], atol=1e-5)


@pytest.mark.parametrize("way", METHODS)
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_itself_as_drafter_is_always_right(way, temperature):
    seen = []
    say(
        target(),
        TEXTS,
        target(),
        temperature=temperature,
        draft_length=3,
        on_step=lambda step: seen.append(step.committed),
        **METHODS[way],
    )
    assert all(one.accepted[row] == len(one.values[row]) - 1 for one in seen[:4] for row in range(3) if not one.ended[row])
    assert all(len(values) == 4 for values in seen[0].values)


def test_chunks_are_judged_as_steps_are():
    frames = torch.randint(0, 16, (3, 6, 3), generator=torch.Generator().manual_seed(0))
    for sampling in (SpeechSampling(), SpeechSampling(guidance=3.0)):
        chunk, steps = (distributions_along(target(), TEXTS, frames, sampling, stepwise=way, rules=False) for way in (False, True))
        assert (chunk - steps).abs().max() < 1e-4


@pytest.mark.parametrize("way", ["plain", "filtered"])
def test_distributions_are_those_the_class_draws_from(way):
    """Along paths the class drew, its own processed scores stand for the same distributions."""
    torch.manual_seed(3)
    temperature = {"temperature": 1.3, "top_k": 5 if way == "filtered" else 9, "top_p": 0.9}
    guidance = METHODS[way].get("guidance")
    shown = {"do_sample": True, "return_dict_in_generate": True, "output_scores": True}
    own = dia_own(target(), TEXTS, guidance_scale=guidance, **temperature, **shown)
    frames = own.sequences[:, 1:]
    mine = distributions_along(target(), TEXTS, frames[:, :-1], SpeechSampling(**temperature, guidance=guidance)).softmax(-1)
    theirs = torch.stack(own.scores, 1).view(3, 3, frames.shape[1], -1).transpose(1, 2).softmax(-1)
    steps = torch.arange(frames.shape[1])[:, None]
    compared = (steps >= torch.tensor(target().delays)) & (frames != target().pad)
    assert compared.sum() > 100
    assert (mine - theirs)[compared].abs().max() < 1e-4


@pytest.mark.parametrize("way", ["plain", "filtered"])
def test_drawn_sound_depends_on_the_seed_alone(way):
    plain = say(target(), EIGHT, seed=7, temperature=1.0, **METHODS[way])
    assert len({tuple(wave.tolist()) for wave in plain.waveforms}) == 8
    for rows, drafter, length in ((1, small(), 2), (2, target(), 4), (8, small(), 3)):
        made = say(target(), EIGHT[:rows], drafter, seed=7, temperature=1.0, draft_length=length, **METHODS[way])
        assert all(torch.equal(one, other) for one, other in zip(made.waveforms, plain.waveforms[:rows], strict=True))


def test_streams_give_whole_frames_only():
    made = say(target(), TEXTS[:1], seed=7, temperature=1.0)
    budget = (STEPS - 4) / target().pace
    pieces = stream(target(), TEXTS[0], small(), seed=7, temperature=1.0, draft_length=3, max_seconds=budget)
    assert torch.equal(torch.cat(list(pieces)), made.waveforms[0])


def test_the_encoder_runs_once_whatever_is_drafted():
    runs = []
    models = [target().model.model, small().model.model]
    hooks = [model.encoder.register_forward_hook(lambda *_, own=number: runs.append(own)) for number, model in enumerate(models)]
    note_proven(target().model, target())  # the self-test that hooks ask for is not counted
    say(target(), TEXTS, small(), temperature=1.0, draft_length=2, guidance=3.0)
    [hook.remove() for hook in hooks]
    assert sorted(runs) == [0, 1]


# --- distributions -------------------------------------------------------------------------------------------------------------


@cache
def tiny():
    """Two books of 4 codes, and a drafter that says other things."""
    sizes = ((2, 32, 0), (1, 16, 5))
    return tuple(dia(True, layers=layers, hidden=hidden, seed=seed, delays=(0, 1), codes=4) for layers, hidden, seed in sizes)


@cache
def exact():
    return first_frames(tiny()[0], TEXTS[0], 3, SpeechSampling())


def drawn_cells(model, drafter, rule):
    """The frames 1 and 2 of many rows, as numbers, and their exact distribution."""
    rows, distribution = 2500, torch.zeros(8**4, dtype=torch.double)
    for path, mass in exact().items():
        distribution[_cell(torch.tensor(path[2:]))] += mass
    made = say(model, TEXTS[:1] * rows, drafter, steps=8, seed=3, accept=rule, temperature=1.0, draft_length=2)
    return chi_square(_cell(made.tokens[:, 1:3].flatten(1)), distribution)


def _cell(codes):
    return (codes * 8 ** torch.arange(4)).sum(-1)


@pytest.mark.parametrize("rule", [Token(), PerCode()], ids=["frames", "code by code"])
def test_frames_are_drawn_from_the_targets_distribution(rule):
    model, drafter = tiny()
    assert sum(exact().values()) == pytest.approx(1, abs=1e-9)
    assert drawn_cells(model, drafter, rule) > PASS


def test_the_drafters_own_distribution_is_told_from_it():
    assert drawn_cells(tiny()[1], None, "exact") < FAIL


# --- planted bugs -----------------------------------------------------------------------------------------------------


def branching(pending):
    """Book 0 ends in the first branch, and goes on in the second; a node behind each."""
    end, start = target().end, target().start
    values = torch.tensor([[[end, start, start], [1, start, start], [target().pad, start, start], [2, start, start]]])
    return pending.extend(values, torch.tensor([[0, 0, 1, 2]]), width=2, levels=2)


def test_branches_end_by_themselves():
    alone = [
        distributions_along(target(), TEXTS[:1], branching(_root()).nodes[:, path], SpeechSampling())[:, -1] for path in ([1, 3], [2, 4])
    ]

    def together():
        opened, prompt = target_of(target(), TEXTS[:1], SpeechSampling())
        session, pending = opened.begin(prompt)
        return session.score(branching(pending)).p.heads[:, 3:].unbind(1)

    def same():
        return [torch.allclose(one.softmax(-1), other.softmax(-1), atol=1e-4) for one, other in zip(alone, together(), strict=True)]

    assert same() == [True, True]
    assert alone[0][0, 0].argmax() == target().pad
    assert alone[0][0, 1].argmax() == target().end
    with pytest.MonkeyPatch.context() as patch:
        honest = EndsInFirst.since
        every = lambda self, history: honest(self, History(history.ids, torch.ones_like(history.visible), history.position))  # noqa: E731
        patch.setattr(EndsInFirst, "since", every)
        assert same() != [True, True]


def _root():
    return Draft.root(torch.full((1, 3), target().start), torch.zeros(1, dtype=torch.long))


def test_a_delay_off_by_one_is_seen():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NotYet, "__call__", _late)
        made = say(target(), TEXTS, temperature=0)
    assert made.tokens.tolist() != expected("plain", 3)[:, 1:].tolist()


def _late(self, scores, history, honest=NotYet.__call__):
    return honest(NotYet([delay + 1 for delay in self.delays], self.fill), scores, history)


def test_a_draft_without_guidance_costs_draft_tokens_but_no_frames():
    honest = say(target(), TEXTS, target(), seed=7, temperature=1.0, draft_length=3, guidance=3.0)
    distributions = Pipeline((*target().closing(STEPS), *target().rules(None)))

    def conditional(prompt, session):
        rows = len(prompt.ids) // 2
        return Texts(prompt.ids[:rows], prompt.mask[:rows], prompt.writer)

    unguided = ModelDrafter(HFTarget(target().model, target(), distributions), Chain(drawn), conditional)
    made = say(target(), TEXTS, unguided, seed=7, temperature=1.0, draft_length=3, guidance=3.0)
    assert made.tokens.tolist() == honest.tokens.tolist()
    assert made.stats.accepted_per_call < 0.7 * honest.stats.accepted_per_call


# --- requests ---------------------------------------------------------------------------------------------------------


def test_prompts_may_be_ids():
    ids = [target().letters([text], [None]) for text in TEXTS]
    silent = Dia(target().model, codec=target().codec)
    assert say(silent, ids, temperature=0).tokens.tolist() == say(target(), TEXTS, temperature=0).tokens.tolist()
    with pytest.raises(ValueError, match="needs a tokenizer"):
        say(silent, TEXTS)
    with pytest.raises(ValueError, match="prompt 1 holds id 300, but the text encoder knows 256"):
        say(silent, [ids[0], {"input_ids": torch.tensor([[300]])}])


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ([], {}, r"texts is \[\]: give at least one"),
        ("hi", {}, "give a list with one entry per row"),
        ([" "], {}, "is empty"),
        (["a" * 41], {}, "too long: 41 ids where the model takes 40"),
        (["hi"], {"guidance": 0.5}, "guidance is 0.5: Dia takes scales above 1"),
        (["hi"], {"guidance": -1.0}, "guidance is -1.0: give a number from 0 on"),
        (["hi"], {"voice": "jo"}, "unknown voice 'jo'"),
        (["hi"], {"steps": 500}, "max_seconds is"),
        (["hi"], {"steps": 4}, "max_seconds is 0.0: give a number of seconds above 0"),
    ],
)
def test_bad_requests_are_told_in_one_line(texts, options, message):
    with pytest.raises(ValueError, match=message) as told:
        say(target(), texts, **options)
    assert "\n" not in str(told.value)


def test_a_drafter_of_another_codec_is_refused():
    with pytest.raises(ValueError, match="draft with a model of the same codec"):
        say(target(), TEXTS, tiny()[0], draft_length=2)


def test_the_class_is_known():
    """Its processor brings what it needs beside it."""
    parts = SimpleNamespace(tokenizer=hf.DiaTokenizer(), audio_tokenizer=dac(3, 16))
    made = say(speech_model(target().model, parts), TEXTS, temperature=0)
    is_the_classes(made, expected("plain", 3))
    with pytest.raises(ValueError, match="Dia has no codec of its own"):
        speech_model(target().model)
