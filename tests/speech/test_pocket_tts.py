"""Pocket TTS and Phonon behind the engine: the class's own latents for the same noise, and the target's distribution whatever drafts."""

import copy
from typing import Any

import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

from mmspec.core.noise import Noise
from mmspec.core.rules.block import Block
from mmspec.core.rules.token import Token
from mmspec.speech import Speech, synthesize
from mmspec.speech.families import speech_model
from mmspec.speech.latents.pocket_tts import PocketTTS
from tests.speech.slips import FromP, NoRollback
from tests.speech.small_pocket import FRAME, LATENT, WIDTH, codec, generated, near, phonon, pocket, processor, prompts, row_of

FRAMES, SEED = 14, 7
ROWS, LONG = 48, 80
"""Of the tests of the distribution."""


@pytest.fixture(scope="module")
def net() -> Any:
    return pocket()


@pytest.fixture(scope="module")
def drafters(net) -> dict[str, Any]:
    """The model itself, one that is near it, and a narrower one that has never heard of it."""
    return {"itself": net, "near": near(net, 0.05), "strange": pocket(seed=1, layers=1, width=16)}


def say(model: Any, inputs: Any, drafter: Any = None, *, frames: int = FRAMES, **options: Any) -> Speech:
    told = {"seed": SEED, "draft_length": 3, "max_seconds": (frames + 0.5) / 12.5} | options
    return synthesize(model, inputs, drafter, **told)


def fed(rows: int, frames: int = FRAMES) -> Tensor:
    """The noise [B, T, d] that the engine feeds a flow head."""
    place = torch.arange(frames).expand(rows, -1)
    return Noise.from_seed(SEED, rows).aligned(place).branch(1)[..., 0].normal(WIDTH).float()


def latents(out: Speech) -> list[Tensor]:
    return [row[:length] for row, length in zip(out.tokens, out.lengths.tolist(), strict=True)]


def close(one: list[Tensor], other: list[Tensor], by: float = 2e-5) -> bool:
    return len(one) == len(other) and all(a.shape == b.shape and (a - b).abs().max() < by for a, b in zip(one, other, strict=True))


# --- plain decoding is the class's own --------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("voice", [False, True])
def test_plain_decoding_is_the_classs_own(net, rows, temperature, voice):
    inputs = prompts(rows, voice)
    own = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    out = say(speech_model(net, sigma_out=0), inputs, temperature=temperature)
    assert close(latents(out), generated(net, inputs, fed(rows), FRAMES, **own))


@pytest.mark.parametrize("steps", [1, 3])
def test_flow_steps_are_the_classs_own(net, steps):
    inputs = prompts(2)
    out = say(speech_model(net, sigma_out=0, num_flow_steps=steps), inputs)
    assert close(latents(out), generated(net, inputs, fed(2), FRAMES, num_flow_steps=steps))


def test_phonon_goes_by_the_same_adapter():
    net, inputs = phonon(), prompts(3, width=6, phonon=True)
    out = say(speech_model(net, sigma_out=0), inputs)
    assert close(latents(out), generated(net, inputs, fed(3), FRAMES))
    drafted = say(net, inputs, net)
    assert drafted.stats.accepted == drafted.stats.drafted > 0


def ending(net: Any, inputs: Any) -> float:
    """A threshold that rows pass at different frames, told by the class's own logits."""
    out = copy.deepcopy(net)
    logits = generated(out, inputs, fed(len(inputs["input_ids"])), FRAMES, return_dict_in_generate=True, output_scores=True).scores  # type: ignore[attr-defined]
    most = torch.stack(list(logits))[2 : FRAMES - 3].amax(0)
    return float(most.min()) - 1e-3


@pytest.mark.parametrize("least", [0, 2, 6])
def test_rows_end_where_the_class_ends_them(net, least):
    inputs = prompts(4)
    told = {"eos_threshold": ending(net, inputs), "min_frames_before_eos": least}
    own = generated(net, inputs, fed(4), FRAMES, **told)
    out = say(speech_model(net, sigma_out=0, **told), inputs)
    assert close(latents(out), own)
    assert min(map(len, own)) < FRAMES
    assert len(set(map(len, own))) > 1


def test_the_budget_is_the_classs_own_for_a_single_text(net):
    inputs = row_of(prompts(1), 0)
    out = synthesize(speech_model(net, sigma_out=0), inputs)
    assert out.lengths.tolist() == [len(row) for row in net.generate(**inputs)]


# --- drafts -----------------------------------------------------------------------------------------------------------


def test_the_target_accepts_all_that_it_drafts_itself(net):
    out = say(net, prompts(3), net, frames=40)
    assert out.stats.exactness == "distribution-exact"
    assert out.stats.accepted == out.stats.drafted > 0


@pytest.mark.parametrize("name", ["itself", "near", "strange"])
def test_a_batch_sounds_like_its_rows_alone(net, drafters, name):
    inputs, model = prompts(4), speech_model(net, codec=codec(), eos_threshold=ending(net, prompts(4)))
    together = say(model, inputs, drafters[name])
    for row in range(4):
        alone = say(model, row_of(inputs, row), drafters[name], seed=SEED + row)
        assert close(latents(alone), latents(together)[row : row + 1], 1e-4)
        assert close(alone.waveforms, together.waveforms[row : row + 1], 1e-4)


def test_a_drafter_of_another_scale_writes_in_the_targets(net):
    other = near(net)
    family: Any = PocketTTS(other).drafting(PocketTTS(net), 0.0, Noise.from_seed(0, 1)).family
    sampler = family.sampler
    z = torch.randn(1, 5, 32)
    there = sampler(z, torch.randn(1, 5, 1, WIDTH))[0]
    own = other.sample_latent(z[0], torch.zeros(5, WIDTH), 1)
    assert (net.denormalize_latents(there) - other.denormalize_latents(own)).abs().max() < 1e-5
    assert (sampler.scale.back(there) - own).abs().max() < 1e-5


# --- the distribution ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def means(model: Any, inputs: Any, said: Tensor, temperature: float) -> Tensor:
    """What a model's head makes of the engine's noise after each prefix of latents `said` [B, T, d], by one forward of the class."""
    rows, length = said.shape[:2]
    ids = torch.cat([inputs["input_ids"], torch.full((rows, length - 1), LATENT)], 1)
    mask = torch.cat([inputs["attention_mask"], torch.ones(rows, length - 1, dtype=torch.long)], 1)
    own = ((said - model.latent_mean) / model.latent_std)[:, :-1]
    told = {name: value for name, value in inputs.items() if "prompt" in name}
    place = (mask.cumsum(1) - 1).clamp_min(0)
    out = model(input_ids=ids, audio_latents=own, attention_mask=mask, position_ids=place, use_cache=False, **told)
    noise = fed(rows, length) * temperature**0.5
    return model.denormalize_latents(model.sample_latent(out.last_hidden_state[:, -length:].flatten(0, 1), noise.flatten(0, 1), 1)).view_as(
        said
    )


def projected(net: Any, drafter: Any, rule: Any, temperature: float = 0.7, sigma: float = 0.3) -> tuple[float, float]:
    """The p-value of (x - m_p) / sigma along m_q - m_p, N(0, 1) for every frame where the distribution is kept; and the share of draft
    tokens accepted.

    All is told anew from the latents that came out, by whole forwards of the class: caches that keep what was rejected are found out, too.
    """
    inputs = prompts(ROWS)
    out = say(speech_model(net, sigma_out=sigma), inputs, drafter, frames=LONG, accept=rule, temperature=temperature)
    p, q = (means(model, inputs, out.tokens, temperature) / net.latent_std for model in (net, drafter))
    along = ((out.tokens / net.latent_std - p) / sigma * (q - p)).sum(-1) / (q - p).norm(dim=-1)
    return float(kstest(along.double().flatten().numpy(), "norm").pvalue), out.stats.accepted / out.stats.drafted


@pytest.mark.parametrize("rule", [Token(), Block()], ids=["token", "block"])
def test_frames_keep_the_distribution(net, drafters, rule):
    p, accepted = projected(net, drafters["near"], rule)
    assert 0.2 < accepted < 0.8
    assert p > 0.01


def test_frames_keep_the_distribution_without_noise_to_start_from(net, drafters):
    assert projected(net, drafters["near"], Token(), temperature=0.0)[0] > 0.01


@pytest.mark.parametrize("rule", [FromP(), NoRollback()], ids=["from p", "no rollback"])
def test_published_slips_are_found_out(net, drafters, rule):
    assert projected(net, drafters["near"], rule)[0] < 1e-6


# --- texts, sound, and what is refused --------------------------------------------------------------------------------


def test_texts_go_through_the_processor_and_come_out_as_sound(net):
    reader, voice = processor(), torch.randn(2, WIDTH)
    model = PocketTTS(net, reader, voices={"ann": voice}, sigma_out=0)
    out = say(model, ["w1 w2 w3", "w4"], voice="ann")
    inputs = reader(
        text=["<s><v>w1 w2 w3<b>", "<s><v>w4<b>"], audio_prompt_latents=[voice] * 2, padding=True, padding_side="left", return_tensors="pt"
    )
    assert close(latents(out), generated(net, inputs, fed(2), FRAMES))
    assert [len(wave) for wave in out.waveforms] == [FRAME * FRAMES] * 2
    assert out.sample_rate == 200
    assert close(out.waveforms, reader.decode(out.tokens))


def test_without_a_codec_there_are_latents_alone(net):
    out = say(net, prompts(2), net)
    assert out.waveforms == []
    assert out.tokens.shape == (2, FRAMES, WIDTH)


REFUSED = {
    "top_k is 5, but a model of latents has none": {"top_k": 5},
    "guidance is 3": {"guidance": 3},
    "tree is ": {"tree": (2, 1)},
    "accept rule Coupled is none for latents": {"accept": "coupled"},
    "drafter 'lookup' writes no latents": {"drafter": "lookup"},
    "temperature is -1": {"temperature": -1},
    r"max_seconds is 0\.01": {"max_seconds": 0.01},
}


@pytest.mark.parametrize("said", REFUSED)
def test_wrong_requests_are_told_in_one_line(net, said):
    with pytest.raises(ValueError, match=said) as told:
        say(net, prompts(2), **REFUSED[said])
    assert "\n" not in str(told.value)


def test_drafts_need_noise_on_the_latents(net):
    with pytest.raises(ValueError, match="sigma_out is 0, and two heads never make the same latent: make PocketTTS with"):
        say(speech_model(net, sigma_out=0), prompts(1), net)
    with pytest.raises(ValueError, match=r"sigma_out is -0\.1"):
        speech_model(net, sigma_out=-0.1)


def test_drafters_of_other_latents_or_ids_are_told_so(net):
    with pytest.raises(ValueError, match="the drafter's latents are 6 wide, the target's 4"):
        say(net, prompts(1, voice=False), pocket(latents=6))
    with pytest.raises(ValueError, match="the drafter's ids are not the target's"):
        say(net, prompts(1, voice=False), phonon())


def test_prompts_that_cannot_be_gone_on_from_are_told_so(net):
    inputs = prompts(2)
    with pytest.raises(ValueError, match="prompt 0 ends with id"):
        say(net, {"input_ids": inputs["input_ids"][:, :-1], "attention_mask": inputs["attention_mask"][:, :-1]})
    with pytest.raises(ValueError, match="places for a voice, but no audio_prompt_latents"):
        say(net, {name: value for name, value in inputs.items() if "latents" not in name})
    with pytest.raises(ValueError, match="texts need a processor"):
        say(net, ["hello"])
