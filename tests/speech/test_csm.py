"""CSM behind the engine: the frames of its own generation whatever drafts them, and their distributions in closed form."""

import copy
import itertools
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from mmspec.core.distributions.depth_frame import JacobiWriter
from mmspec.core.processors.pipeline import MinP, Pipeline, TopK, pipeline
from mmspec.core.records import Draft
from mmspec.core.rules.per_code import PerCode
from mmspec.core.rules.token import Token
from mmspec.models.prompt_proof import note_proven
from mmspec.models.target import HFTarget
from mmspec.speech import synthesize
from mmspec.speech.families import speech_model
from mmspec.speech.families.base import SpeechSampling
from mmspec.speech.families.csm import CsmDepth, CsmModel
from tests.oracles.statistics import chi_square
from tests.speech.small_csm import FRAME, SOUND, SOUND_END, csm, frame_distribution, prompts

HOT = pipeline(temperature=0.9, top_k=10)
STEPS = 12


@pytest.fixture(scope="module")
def net() -> Any:
    return csm()


@pytest.fixture(scope="module")
def target(net) -> CsmModel:
    return CsmModel(net, depth=HOT)


@pytest.fixture(scope="module")
def drafters(net) -> dict[str, CsmModel]:
    """The model itself, one that is near it, and a narrower one that has never heard of it."""
    near = copy.deepcopy(net)
    torch.manual_seed(3)
    for parameter in near.lm_head.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    made = {"itself": net, "near": near, "strange": csm(seed=1, layers=1, width=24)}
    return {name: CsmModel(model, depth=HOT) for name, model in made.items()}


class Mute:
    """No sound: for tests of frames."""

    def push(self, steps: list) -> Any:
        return iter(())

    def close(self) -> Any:
        return iter(())


def say(model: CsmModel, inputs: list, drafter: Any = None, *, steps: int = STEPS, loud: bool = False, **options: Any) -> Any:
    if not loud:
        model = copy.copy(model)
        model.stream = Mute  # type: ignore[method-assign]
    return synthesize(model, inputs, drafter, max_seconds=(steps + 0.5) / model.pace, **{"draft_length": 3} | options)


def plain(net: Any, inputs: list[dict], steps: int = STEPS, **options: Any) -> list[list[list[int]]]:
    """What the class's own generation gives, up to every row's end; shorter prompts padded on the left, as its processor pads them."""
    most = max(row["input_ids"].shape[1] for row in inputs)
    ids, mask = (
        torch.cat([F.pad(part, (most - part.shape[1], 0)) for part in parts])
        for parts in ([row["input_ids"] for row in inputs], [torch.ones_like(row["input_ids"]) for row in inputs])
    )
    out = net.generate(input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=steps, **options)
    return [cut(row) for row in out.tolist()]


def cut(frames: list[list[int]]) -> list[list[int]]:
    ends = [step + 1 for step, frame in enumerate(frames) if not any(frame[:-1])]
    return frames[: min(ends, default=len(frames))]


def rows(speech: Any) -> list[list[list[int]]]:
    return [row[:length] for row, length in zip(speech.tokens.tolist(), speech.lengths.tolist(), strict=True)]


# --- greedy: the class's own frames -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", [None, "itself", "near", "strange"])
def test_greedy_is_the_classes_own_generation(net, target, drafters, count, name):
    inputs = prompts(count)
    expected = plain(net, inputs)
    for length in (1, 2, 3, 4) if name else (1,):
        assert rows(say(target, inputs, drafters.get(name), draft_length=length)) == expected


def test_rows_end_where_the_class_ends_them():
    """With two books a frame ends its row by its first code alone."""
    net = csm(books=2, size=8, seed=1, gain=10.0)
    inputs = prompts(5, seed=2)
    expected = plain(net, inputs, 16)
    assert len({len(row) for row in expected}) > 2, "the prompts must end at different steps"
    for drafter in (None, CsmModel(csm(2, 8, seed=0))):
        said = say(CsmModel(net), inputs, drafter, steps=16, loud=True)
        assert rows(said) == expected
        spoken = [len(row) - (not any(row[-1][:-1])) for row in expected]  # the frame that ends a row is no sound
        assert [len(wave) for wave in said.waveforms] == [FRAME * length for length in spoken]


def test_sound_in_the_prompt_is_heard(net, target):
    """Twelve frames of sound, as the class's processor lays them out."""
    torch.manual_seed(4)
    sound = torch.randn(1, 1, 12 * FRAME)
    ids = torch.cat([torch.randint(2, SOUND, (1, 3)), torch.full((1, 12), SOUND), torch.tensor([[SOUND_END, 5, 6]])], 1)
    inputs = {"input_ids": ids, "input_values": sound, "input_values_cutoffs": torch.tensor([[12 * FRAME]])}
    expected = net.generate(**inputs, do_sample=False, max_new_tokens=STEPS)[0].tolist()
    other = CsmModel(csm(seed=1, layers=1, width=24))
    for drafter in (None, other):
        assert rows(say(target, [inputs], drafter)) == [cut(expected)]
    short = prompts(1)[0]
    assert rows(say(target, [inputs, short])) == [cut(expected), *plain(net, [short])]
    deaf = {"input_ids": ids}
    assert rows(say(target, [deaf])) != [cut(expected)]


def test_itself_as_drafter_is_always_right(target, drafters):
    for sampling in ({"temperature": 0.0}, {"temperature": 0.9}, {"temperature": 0.9, "accept": Token()}):
        said = say(target, prompts(2), drafters["itself"], steps=16, **sampling)
        assert said.stats.tokens_per_call == 4
        assert said.stats.rejected == 0


# --- what a run costs -------------------------------------------------------------------------------------------------


class Count:
    """Forwards of a network's parts."""

    def __init__(self, net: Any):
        self.seen = Counter()
        for name in ("backbone_model", "depth_decoder"):
            getattr(net, name).register_forward_hook(lambda *_, name=name: self.seen.update([name]))

    def taken(self) -> tuple[int, int]:
        seen, self.seen = self.seen, Counter()
        return seen["backbone_model"], seen["depth_decoder"]


def test_forwards_are_as_few_as_they_can_be(net):
    """A frame of K books, plain: a run of the backbone and K - 1 of the depth decoder. With 3 draft tokens, all right: one and K for 4."""
    mine, theirs = copy.deepcopy(net), copy.deepcopy(net)
    target, drafter, own, drafted = CsmModel(mine, depth=HOT), CsmModel(theirs, depth=HOT), Count(mine), Count(theirs)
    note_proven(mine, target)  # the self-test that hooks ask for is not counted
    for temperature in (0.0, 0.9):
        say(target, prompts(1), temperature=temperature)
        assert own.taken() == (STEPS, STEPS * 3)
        said = say(target, prompts(1), drafter, temperature=temperature)
        assert said.stats.target_calls == 3
        assert own.taken() == (3, 3 * (1 + 3))
        assert drafted.taken() == (9, 9 * 3)


def test_writing_by_fixed_points_gives_the_same_frames(net):
    mine = copy.deepcopy(net)
    own = Count(mine)
    one, many = CsmModel(mine, depth=HOT), CsmModel(mine, depth=HOT, writer=JacobiWriter())
    taken = []
    for model in (one, many):
        taken.append([rows(say(model, prompts(2), temperature=temperature, seed=5)) for temperature in (0.0, 0.9)])
        calls, depth = own.taken()
        assert depth <= calls * 4
        assert model is many or depth == calls * 3
    assert taken[0] == taken[1]
    known = CsmModel(
        mine, depth=HOT, writer=JacobiWriter(lambda state, choose: torch.tensor(taken[0][0][0][:1]))
    )  # draft tokens the first frame
    own.taken()
    assert rows(say(known, prompts(1), steps=1, temperature=0.0)) == [taken[0][0][0][:1]]
    assert own.taken() == (1, 1)


# --- hidden states ----------------------------------------------------------------------------------------------------


def test_chunks_and_steps_and_the_classes_own_forward_agree(net, target):
    """Hidden states and code 0's scores after every node: a chain at once, one by one, and without a cache; rows of three lengths."""
    inputs = prompts(3)
    prompt = target.encode(inputs, [None] * 3)
    torch.manual_seed(6)
    frames = torch.randint(16, (3, 5, 4))
    driven = HFTarget(net, target.family)
    session, pending = driven.begin(prompt)
    chain = pending.extend_chain(frames[:, :4], torch.full((3,), 4))
    whole = session.score(chain).p.hidden
    session.commit(torch.arange(5).expand(3, -1), 5)
    one_more = session.score(Draft.root(frames[:, 4], torch.full((3,), 5))).p.hidden
    stepping, pending = driven.begin(prompt)
    steps = []
    for step in range(5):
        steps.append(stepping.score(pending).p.hidden)
        stepping.commit(torch.zeros(3, 1, dtype=torch.long), 1)
        pending = Draft.root(frames[:, step], torch.full((3,), step + 1))
    steps.append(stepping.score(pending).p.hidden)
    found, slow = torch.cat([whole, one_more], 1), torch.cat(steps, 1)
    assert (found - slow).abs().max() <= 1e-4
    for row, given in enumerate(inputs):
        embeds = torch.cat([net.embed_text_tokens(given["input_ids"]), net.backbone_model.embed_tokens(frames[row : row + 1])], 1)
        hidden = net.backbone_model(inputs_embeds=embeds, use_cache=False).last_hidden_state[:, -6:]
        alone = torch.cat([hidden, net.lm_head(hidden)], -1)[0].detach()
        assert (found[row] - alone).abs().max() <= 1e-4 * max(1, float(alone.abs().max()))


# --- sampling ---------------------------------------------------------------------------------------------------------


def test_coupled_audio_is_plain_samplings_audio(target, drafters):
    """The same frames and the very same samples for a seed, whatever drafts, how far, and in whatever batch."""
    inputs = prompts(8)
    base = say(target, inputs, temperature=0.9, top_k=8, seed=range(8), loud=True)
    assert len({str(row) for row in rows(base)}) == 8
    assert all(wave.abs().max() > 0 for wave in base.waveforms)
    for count in (1, 2, 8):
        for name in (None, "itself", "near", "strange"):
            length = 1 + count % 4
            drawing = {"temperature": 0.9, "top_k": 8, "seed": range(count), "draft_length": length}
            said = say(target, inputs[:count], drafters.get(name), loud=True, **drawing)
            assert rows(said) == rows(base)[:count]
            assert all(torch.equal(*pair) for pair in zip(said.waveforms, base.waveforms, strict=False))
    assert rows(say(target, inputs, temperature=0.9, top_k=8, seed=range(8, 16))) != rows(base)


V, K, ROWS, GAIN = 4, 2, 4000, 10.0
FIRST, BEHIND = pipeline(temperature=1.3, top_k=3), pipeline(temperature=0.6)
SAMPLING = {"temperature": 1.3, "top_k": 3}


def outcomes(net: Any) -> dict[tuple, float]:
    """P of everything that two steps may commit, in fp64, by the class's own full forwards."""
    exact, ids = copy.deepcopy(net).double(), prompts(1)[0]["input_ids"]
    found = {}
    distribution = frame_distribution(exact, ids, [], FIRST, BEHIND)
    for one in itertools.product(range(V), repeat=K):
        if not any(one[:-1]):
            found[(one,)] = float(distribution[one])
            continue
        second = frame_distribution(exact, ids, [list(one)], FIRST, BEHIND)
        found |= {(one, two): float(distribution[one] * second[two]) for two in itertools.product(range(V), repeat=K)}
    return found


@pytest.fixture(scope="module")
def tiny() -> tuple[Any, dict[tuple, float], CsmModel]:
    net = csm(K, V, gain=GAIN)
    return net, outcomes(net), CsmModel(csm(K, V, seed=1, layers=1, gain=GAIN), depth=BEHIND)


def surprise(model: CsmModel, drafter: Any, accept: Any, distribution: dict[tuple, float]) -> float:
    """The p-value of what 2 steps committed in many rows."""
    said = say(model, prompts(1) * ROWS, drafter, steps=2, accept=accept, seed=0, draft_length=2, **SAMPLING)
    keys = {outcome: index for index, outcome in enumerate(distribution)}
    seen = torch.tensor([keys[tuple(map(tuple, row))] for row in rows(said)])
    if drafter is not None:
        assert 0.05 < said.stats.accepted / said.stats.judged < 0.97
    return chi_square(seen, torch.tensor(list(distribution.values())))


def test_distributions_sum_to_one_and_are_the_classes_own(tiny):
    """By enumeration: log P of every frame that the engine's distribution gives, from one depth run, is that of the class's full
    forwards."""
    net, distribution, _ = tiny
    assert abs(sum(distribution.values()) - 1) < 1e-9
    model = CsmModel(copy.deepcopy(net).double(), depth=BEHIND)
    session, pending = HFTarget(model.model, model.family, FIRST).begin(model.encode(prompts(1), [None]))
    p = session.score(pending).p
    every = torch.tensor(list(itertools.product(range(V), repeat=K)))
    many = p.at(torch.zeros(1, len(every), dtype=torch.long))
    mass: Counter = Counter()
    for outcome, chance in distribution.items():
        mass[outcome[0]] += chance  # type: ignore[assignment]
    expected = torch.tensor([mass[tuple(frame)] for frame in every.tolist()])
    assert (many.log_prob(every[None])[0].exp() - expected).abs().max() < 1e-6  # the engine keeps hidden states in fp32


@pytest.mark.parametrize("rule", [Token(), PerCode()], ids=["frames", "codes"])
def test_rules_that_read_q_are_distribution_exact(tiny, rule):
    net, distribution, drafter = tiny
    assert surprise(CsmModel(net, depth=BEHIND), drafter, rule, distribution) > 1e-4


class LateHidden(CsmModel):
    """Reads the state one column too early."""

    def run(self, embeds, layout, cache, prompt):
        hidden = super().run(embeds, layout, cache, prompt)
        return hidden if hidden.shape[1] == 1 else torch.cat([hidden[:, :1], hidden[:, :-1]], 1)


class LatePrefix(CsmDepth):
    """Tells every code the ones two before it."""

    def scores(self, hidden, codes):
        return super().scores(hidden, torch.roll(codes, 1, -1))


class ColdDepth(CsmDepth):
    """Leaves the depth books' temperature out where frames are judged."""

    def scores(self, hidden, codes):
        return CsmDepth(self.model, Pipeline((TopK(2),))).scores(hidden, codes)


def broken(net: Any, kind: str) -> CsmModel:
    if kind == "hidden":
        return LateHidden(net, depth=BEHIND)
    model = CsmModel(net, depth=BEHIND)
    model.depth = {"prefix": LatePrefix, "cold": ColdDepth}[kind](net, BEHIND)
    return model


@pytest.mark.parametrize("kind", ["hidden", "prefix", "cold"])
def test_planted_bugs_are_seen(tiny, kind):
    net, distribution, drafter = tiny
    note_proven(net, broken(net, kind))  # its self-test would find "hidden"
    assert surprise(broken(net, kind), drafter, Token(), distribution) < 1e-9


def test_planted_bugs_are_seen_in_greedy_frames(net, drafters):
    """A wrong state is seen in the frames; a wrong prefix, where draft tokens are judged only, in what the model says of its own."""
    note_proven(net, broken(net, "hidden"))
    said = say(broken(net, "hidden"), prompts(3), drafters["itself"], temperature=0.0)
    assert rows(said) != plain(net, prompts(3))
    assert say(broken(net, "prefix"), prompts(3), drafters["itself"], temperature=0.0).stats.tokens_per_call < 2


def test_the_depth_books_are_drawn_as_the_class_draws_them(net):
    """Greedy unless the depth decoder's own generation config samples, whatever the call's temperature."""
    cold = CsmModel(net)
    hot = copy.deepcopy(net)
    hot.depth_decoder.generation_config.update(do_sample=True, temperature=0.7, top_k=5)
    hot.generation_config.update(do_sample=True, temperature=0.8, min_p=0.1)
    assert CsmModel(hot).depth.distributions == pipeline(temperature=0.7, top_k=5)
    assert CsmModel(hot).sampling == SpeechSampling(temperature=0.8, top_k=50, last=(MinP(0.1),))
    said = rows(say(cold, prompts(1), temperature=1.5))[0]
    inputs = prompts(1)[0]["input_ids"]
    for step, frame in enumerate(said):
        distribution = frame_distribution(net, inputs, said[:step], pipeline(), pipeline(temperature=0.0))
        assert distribution[tuple(frame)] > 0
        assert int((distribution > 0).sum()) == 16
    bad = copy.deepcopy(hot)
    bad.depth_decoder.generation_config.update(repetition_penalty=1.1)
    with pytest.raises(ValueError, match=r"repetition_penalty is 1\.1"):
        CsmModel(bad)


# --- streams ----------------------------------------------------------------------------------------------------------


def test_no_frame_sounds_before_all_its_books_are_committed(net, target, drafters, monkeypatch):
    """What streams are given is whole frames, as they commit; what they gave out rests on those alone, and is never taken back."""
    pushed: dict[int, list] = {}
    stream = target.stream

    def watched() -> Any:
        made = stream()
        row, push = len(pushed), made.push
        pushed[row] = []
        made.push = lambda steps: push((pushed[row].extend(steps), steps)[1])
        return made

    monkeypatch.setattr(target, "stream", watched)
    heard: dict[int, list] = {0: [], 1: []}

    def on_sound(row: int, piece: Any) -> None:
        heard[row].append(piece)
        sound = torch.cat(heard[row])
        assert len(sound) <= FRAME * len(pushed[row])
        assert all(len(frame) == 4 for frame in pushed[row])
        codes = torch.tensor(pushed[row])
        alone = net.codec_model.decode(codes.T[None]).audio_values[0, 0]
        assert (alone[: len(sound)] - sound).abs().max() < 1e-4

    said = say(target, prompts(2), drafters["near"], steps=40, temperature=0.9, loud=True, on_sound=on_sound)
    assert [pushed[row] for row in (0, 1)] == rows(said)
    assert all(len(heard[row]) >= 3 and torch.equal(torch.cat(heard[row]), said.waveforms[row]) for row in (0, 1))
    whole = target.sound(rows(said)[0])
    assert torch.equal(whole, said.waveforms[0])


def test_sound_is_the_classes_own(net, target):
    audio = net.generate(**prompts(1)[0], do_sample=False, max_new_tokens=STEPS, output_audio=True)[0]
    wave = say(target, prompts(1), loud=True).waveforms[0]
    assert wave.shape == audio.shape
    assert (wave - audio).abs().max() < 1e-5
    with pytest.raises(ValueError, match="code 16 is none of the codec's 16"):
        target.sound([[1, 2, 16, 3]])


# --- requests ---------------------------------------------------------------------------------------------------------


class Spelled:
    """A tokenizer and its template, as far as an adapter sees them."""

    voices = ("0", "1")

    def __call__(self, texts: list[str], voices: list[str | None]) -> dict[str, Any]:
        ids = torch.tensor(
            [[2 + int(voice or 0), *(5 + ord(mark) % 30 for mark in text)] for text, voice in zip(texts, voices, strict=True)]
        )
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def test_texts_are_said_in_the_voice_asked_for(net):
    model, letters = speech_model(net, Spelled()), Spelled()
    said = say(model, ["one two", "three"], voice=["1", "0"])
    assert rows(said) == plain(net, [letters(["one two"], ["1"]), letters(["three"], ["0"])])
    assert rows(say(model, ["three"], voice="1")) != rows(say(model, ["three"]))


def test_wrong_requests_are_told_in_one_line(net, target):
    assert speech_model(net).model is net
    assert speech_model(target) is target
    with pytest.raises(ValueError, match="needs a tokenizer"):
        synthesize(target, ["hello"])
    for texts in ([], prompts(1)[0]):
        with pytest.raises(ValueError, match="give at least one"):
            target.encode(texts, [None] * len(texts))
    with pytest.raises(ValueError, match="unknown voice 'ada'"):
        say(target, prompts(1), voice="ada")
    with pytest.raises(ValueError, match="input_ids of one row"):
        synthesize(target, [{"input_ids": torch.ones(2, 3, dtype=torch.long)}])
    with pytest.raises(ValueError, match="256 positions"):
        synthesize(target, [{"input_ids": torch.ones(1, 300, dtype=torch.long)}])
    with pytest.raises(ValueError, match="the drafter writes 3 books"):
        say(target, prompts(1), CsmModel(csm(books=3)))
