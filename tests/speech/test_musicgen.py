"""MusicGen: frames behind a delay, guided, as long as they are asked to be, whatever drafts."""

from functools import cache
from types import SimpleNamespace

import pytest
import torch

from mmspec.core.rules.per_code import PerCode
from mmspec.core.rules.token import Token
from mmspec.minis.char_tokenizer import letter_tokenizer
from mmspec.models.prompt_proof import note_proven
from mmspec.speech import stream, synthesize
from mmspec.speech.families import speech_model
from mmspec.speech.families.base import SpeechSampling
from mmspec.speech.families.musicgen import Musicgen
from mmspec.speech.sampling.delay import NoMore, NotYet, undelayed
from tests.oracles.statistics import FAIL, PASS, chi_square
from tests.speech.small_delay import STEPS, distributions_along, first_frames, music_prompts, musicgen, musicgen_own, say
from tests.speech.small_models import speaker

SCALES = [None, 3.0]


@cache
def target():
    return musicgen()


@cache
def small():
    return musicgen(layers=1, hidden=16, seed=5)


@cache
def expected(scale, rows):
    return musicgen_own(target(), music_prompts(rows), do_sample=False, guidance_scale=scale)


def is_the_classes(made, scale, rows):
    codes, sound = expected(scale, rows)
    assert made.lengths.tolist() == [STEPS] * rows
    frames = [undelayed(row, target().delays) for row in made.tokens.tolist()]
    assert frames == codes.tolist()
    assert (torch.stack(made.waveforms) - sound).abs().max() < 1e-5


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("scale", SCALES)
def test_greedy_frames_and_their_sound_are_the_classes_own(scale, rows):
    assert len(set(expected(scale, rows)[0].flatten().tolist())) > 4
    is_the_classes(say(target(), music_prompts(rows), temperature=0, guidance=scale), scale, rows)


@pytest.mark.parametrize("length", [1, 2, 3, 4])
@pytest.mark.parametrize("scale", SCALES)
def test_any_drafter_leaves_greedy_frames_as_they_are(scale, length):
    for drafter in (target(), small()):
        made = say(target(), music_prompts(), drafter, temperature=0, guidance=scale, draft_length=length)
        is_the_classes(made, scale, 3)


def test_books_begin_and_end_by_their_delays():
    made = say(target(), music_prompts(), small(), temperature=1.0, draft_length=3)
    steps = torch.arange(STEPS)[:, None]
    outside = (steps < torch.tensor([0, 1, 2])) | (steps >= torch.tensor([0, 1, 2]) + STEPS - 2)
    assert ((made.tokens == 16) == outside).all()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_itself_as_drafter_is_always_right(scale, temperature):
    seen = []
    options = {"temperature": temperature, "guidance": scale, "draft_length": 3, "on_step": lambda step: seen.append(step.committed)}
    say(target(), music_prompts(), target(), **options)
    assert len(seen) == STEPS // 4
    assert all(one.accepted == [3] * 3 for one in seen)


def test_chunks_are_judged_as_steps_are():
    frames = torch.randint(0, 17, (3, 20, 3), generator=torch.Generator().manual_seed(0))  # beyond the table of positions
    for sampling in (SpeechSampling(), SpeechSampling(guidance=3.0)):
        chunk, steps = (
            distributions_along(target(), music_prompts(), frames, sampling, stepwise=way, rules=False) for way in (False, True)
        )
        assert (chunk - steps).abs().max() < 1e-4


@pytest.mark.parametrize("scale", SCALES)
def test_distributions_are_those_the_class_draws_from(scale):
    torch.manual_seed(3)
    temperature = {"temperature": 1.3, "top_k": 9, "top_p": 0.9}
    network, scores = target().model, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "_get_logits_processor", _kept(network._get_logits_processor, scores))
        codes, _ = musicgen_own(target(), music_prompts(), do_sample=True, guidance_scale=scale, **temperature)
    frames = torch.full((3, STEPS, 3), 16)
    for book in range(3):
        frames[:, book : book + STEPS - 2, book] = codes[:, :, book]
    mine = distributions_along(target(), music_prompts(), frames[:, :-1], SpeechSampling(**temperature, guidance=scale))[..., :16].softmax(
        -1
    )
    theirs = torch.stack(scores, 1).view(3, 3, STEPS, -1).transpose(1, 2).softmax(-1)
    assert (mine - theirs)[frames < 16].abs().max() < 1e-4


def _kept(honest, scores):
    """The class's processors, and behind them one that keeps what they made."""

    def processors(*args, **options):
        found = honest(*args, **options)
        found.append(lambda ids, made: scores.append(made) or made)
        return found

    return processors


@pytest.mark.parametrize("scale", SCALES)
def test_drawn_sound_depends_on_the_seed_alone(scale):
    prompts = music_prompts(8)
    plain = say(target(), prompts, seed=7, temperature=1.0, guidance=scale)
    assert len({tuple(wave.tolist()) for wave in plain.waveforms}) == 8
    for rows, drafter, length in ((1, small(), 2), (2, target(), 4), (8, small(), 3)):
        made = say(target(), prompts[:rows], drafter, seed=7, temperature=1.0, guidance=scale, draft_length=length)
        assert all(torch.equal(one, other) for one, other in zip(made.waveforms, plain.waveforms[:rows], strict=True))


def test_streams_give_whole_frames_only():
    prompt = music_prompts(1)
    made = say(target(), prompt, seed=7, temperature=1.0)
    budget = (STEPS - 2) / target().pace
    pieces = list(stream(target(), prompt[0], small(), seed=7, temperature=1.0, draft_length=3, max_seconds=budget))
    assert len(pieces) > 1
    assert torch.equal(torch.cat(pieces), made.waveforms[0])


def test_the_encoder_runs_once_whatever_is_drafted():
    runs = []
    models = [target().model, small().model]
    hooks = [model.text_encoder.register_forward_hook(lambda *_, own=number: runs.append(own)) for number, model in enumerate(models)]
    note_proven(target().model, target())  # the self-test that hooks ask for is not counted
    say(target(), music_prompts(), small(), temperature=1.0, draft_length=2, guidance=3.0)
    [hook.remove() for hook in hooks]
    assert sorted(runs) == [0, 1]


# --- distributions -------------------------------------------------------------------------------------------------------------


@cache
def tiny():
    """Two books of 4 codes, guided, and a drafter that says other things."""
    sizes = ((2, 32, 0), (1, 16, 5))
    return tuple(musicgen(True, layers=layers, hidden=hidden, seed=seed, books=2, codes=4) for layers, hidden, seed in sizes)


@cache
def exact():
    """The distribution of frames 1 and 2, by enumeration over the first three."""
    distribution = torch.zeros(5**4, dtype=torch.double)
    for path, mass in first_frames(tiny()[0], music_prompts(1)[0], 3, SpeechSampling(temperature=3.0, guidance=2.0)).items():
        distribution[_cell(torch.tensor(path[2:]))] += mass
    return distribution


def drawn_cells(model, drafter, rule):
    options = {"accept": rule, "temperature": 3.0, "guidance": 2.0, "draft_length": 2, "seed": 3, "steps": 8}
    made = say(model, music_prompts(1) * 2500, drafter, **options)
    return chi_square(_cell(made.tokens[:, 1:3].flatten(1)), exact())


def _cell(codes):
    return (codes * 5 ** torch.arange(4)).sum(-1)


@pytest.mark.parametrize("rule", [Token(), PerCode()], ids=["frames", "code by code"])
def test_frames_are_drawn_from_the_targets_distribution(rule):
    model, drafter = tiny()
    assert exact().sum() == pytest.approx(1, abs=1e-9)
    assert drawn_cells(model, drafter, rule) > PASS


def test_the_drafters_own_distribution_is_told_from_it():
    assert drawn_cells(tiny()[1], None, "exact") < FAIL


# --- planted bugs and requests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [NotYet, NoMore])
def test_a_delay_off_by_one_is_seen(rule):
    def late(self, scores, history, honest=rule.__call__):
        history = type(history)(history.ids, history.visible, history.position - 1)
        return honest(self, scores, history)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rule, "__call__", late)
        made = say(target(), music_prompts(), temperature=0)
    assert [undelayed(row, target().delays) for row in made.tokens.tolist()] != expected(None, 3)[0].tolist()


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        (["a song"], {}, "needs a tokenizer"),
        ([{"attention_mask": torch.ones(1, 2)}], {}, "prompt 0 must hold input_ids"),
        ([{"input_ids": torch.tensor([[60]])}], {}, "prompt 0 holds id 60, but the text encoder knows 60"),
        ({"input_ids": torch.tensor([[1], [2]])}, {}, "list of one prompt or more"),
        (music_prompts(1), {"guidance": float("inf")}, "guidance is inf"),
        (music_prompts(1), {"drafter": "lookup"}, "copies single ids, but steps here are frames"),
    ],
)
def test_bad_requests_are_told_in_one_line(prompts, options, message):
    with pytest.raises(ValueError, match=message) as told:
        say(target(), prompts, **options)
    assert "\n" not in str(told.value)


def test_texts_are_read_by_the_models_own_tokenizer():
    parts = SimpleNamespace(tokenizer=letter_tokenizer())
    model = Musicgen(target().model, parts)
    ids = [parts.tokenizer([text], return_tensors="pt") for text in ("three", "five seven")]
    made, wanted = (say(model, prompts, temperature=0, guidance=3.0) for prompts in (["three", "five seven"], ids))
    assert made.tokens.tolist() == wanted.tokens.tolist()
    with pytest.raises(ValueError, match="is empty"):
        say(model, ["three", ""])


def test_guidance_is_refused_where_it_cannot_be_had():
    with pytest.raises(ValueError, match="reads one row's states"):
        say(target(), music_prompts(1), SimpleNamespace(guide=None), guidance=3.0)
    with pytest.raises(ValueError, match="LlamaForCausalLM has no unconditional prompts"):
        synthesize(speaker(), ["three"], guidance=3.0)


def test_the_class_is_known():
    assert speech_model(target().model).delays == (0, 1, 2)
