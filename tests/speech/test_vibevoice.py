"""VibeVoice behind the engine: the class's own ids, latents and sound for the same noise, and the target's distribution whatever drafts."""

from typing import Any

import pytest
import torch
from diffusers import DDPMScheduler, DPMSolverMultistepScheduler
from scipy.stats import kstest
from torch import Tensor

from mmspec.core.noise import Noise
from mmspec.core.rules.block import Block
from mmspec.core.rules.token import Token
from mmspec.speech import Speech, synthesize
from mmspec.speech.families import speech_model
from mmspec.speech.latents.vibevoice import VibeVoice
from mmspec.speech.latents.vibevoice_network import Hearing
from tests.speech.slips import FromP, NoRollback
from tests.speech.small_vibevoice import END, FRAME, PAD, SOUND, START, WIDTH, generated, leaning, near, prompts, row_of, vibevoice

STEPS, SEED = 12, 7
ROWS, LONG = 32, 60
"""Of the tests of the distribution."""
TURNS = {SOUND: 2.5, START: 1.0, END: 0.0, PAD: -1.0}
"""Scores by which all four ids are chosen now and then."""


@pytest.fixture(scope="module")
def net() -> Any:
    return vibevoice()


@pytest.fixture(scope="module")
def drafters(net) -> dict[str, Any]:
    """The model itself, one that is near it, and a narrower one that has never heard of it."""
    return {"itself": net, "near": near(net), "strange": vibevoice(seed=1, layers=1, width=16)}


def say(model: Any, inputs: Any, drafter: Any = None, *, steps: int = STEPS, **options: Any) -> Speech:
    model = speech_model(model)
    return synthesize(model, inputs, drafter, **{"seed": SEED, "draft_length": 3, "max_seconds": (steps + 0.5) / model.pace} | options)


def fed(rows: int, steps: int = STEPS) -> Tensor:
    """The noise [B, T, d] of every step."""
    place = torch.arange(steps).expand(rows, -1)
    return Noise.from_seed(SEED, rows).aligned(place).branch(1)[..., 0].normal(WIDTH).float()


def close(one: list[Tensor], other: list[Tensor], by: float = 2e-5) -> bool:
    return len(one) == len(other) and all(a.shape == b.shape and (a - b).abs().amax() < by for a, b in zip(one, other, strict=True))


# --- plain decoding is the class's own --------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("guidance", [1.0, 1.5])
def test_plain_decoding_is_the_classs_own(rows, guidance):
    net, inputs = vibevoice(guidance=guidance), prompts(rows)
    own, made = generated(net, inputs, fed(rows), STEPS)
    out = say(VibeVoice(net, sigma_out=0), inputs)
    assert close(list(out.tokens), list(torch.stack(made, 1)))
    assert close([wave / wave.std() for wave in out.waveforms], [wave.flatten() / wave.std() for wave in own.audio], 1e-4)
    assert [len(wave) for wave in out.waveforms] == [FRAME * STEPS] * rows


@pytest.mark.parametrize("seed", [1, 4])
def test_turns_are_the_classs_own(seed):
    """Ids of all kinds, chosen under guidance by what was heard: starts, after which the second stream begins anew, and ends."""
    net, inputs, steps, said = leaning(vibevoice(seed=seed, guidance=2.0), TURNS), row_of(prompts(), 0), 30, []
    model = VibeVoice(net, sigma_out=0)
    out = say(model, inputs, steps=steps, on_step=lambda step: said.extend(int(value[0]) for value in step.committed.values[0]))
    ids = [model.ids.all[number] for number in said]
    frames = [place for place, number in enumerate(ids) if number == SOUND]
    own, made = generated(net, inputs, fed(1, steps)[:, frames], steps)
    assert ids == own.sequences[0, inputs["input_ids"].shape[1] :].tolist()
    assert {SOUND, START, END} <= set(ids)
    assert close(list(out.tokens), list(torch.stack(made, 1)))


# --- drafts -----------------------------------------------------------------------------------------------------------


def test_the_target_accepts_all_that_it_drafts_itself(net):
    out = say(net, prompts(3), net, steps=25)
    assert out.stats.exactness == "distribution-exact"
    assert out.stats.accepted == out.stats.drafted > 0


@pytest.mark.parametrize("name", ["itself", "near", "strange"])
def test_a_batch_sounds_like_its_rows_alone(name):
    """With turns that begin and rows that end at different steps."""
    target = leaning(vibevoice(seed=1), TURNS)
    strange = leaning(vibevoice(seed=4, layers=1, width=16), TURNS)
    drafter = {"itself": target, "near": near(target), "strange": strange}[name]
    together = say(target, prompts(4), drafter, steps=25)
    assert len(set(together.lengths.tolist())) > 1
    for row in range(4):
        alone = say(target, row_of(prompts(4), row), drafter, steps=25, seed=SEED + row)
        assert close(list(alone.tokens), [together.tokens[row, : together.lengths[row]]], 1e-4)


# --- the distribution ----------------------------------------------------------------------------------------------------------


def projected(net: Any, drafter: Any, rule: Any, sigma: float = 0.3) -> tuple[float, float]:
    """The p-value of (x - m_p) / sigma along m_q - m_p, N(0, 1) for every frame where the distribution is kept; and the share of draft
    tokens accepted.

    Means are told anew from the latents that came out, by the class's own generation with these put in its head's place.
    """
    inputs = prompts(ROWS)
    out = say(VibeVoice(net, sigma_out=sigma), inputs, drafter, steps=LONG, accept=rule)
    p, q = (torch.stack(generated(model, inputs, fed(ROWS, LONG), LONG, out.tokens)[1], 1) for model in (net, drafter))
    along = ((out.tokens - p) / sigma * (q - p)).sum(-1) / (q - p).norm(dim=-1)
    return float(kstest(along.double().flatten().numpy(), "norm").pvalue), out.stats.accepted / out.stats.drafted


@pytest.mark.parametrize("rule", [Token(), Block()], ids=["token", "block"])
def test_frames_keep_the_distribution(net, drafters, rule):
    p, accepted = projected(net, drafters["near"], rule)
    assert 0.2 < accepted < 0.8
    assert p > 0.01


@pytest.mark.parametrize(("rule", "by"), [(FromP(), 0.05), (NoRollback(), 0.15)], ids=["from p", "no rollback"])
def test_published_slips_are_found_out(net, rule, by):
    assert projected(net, near(net, by), rule)[0] < 1e-6


def test_ears_that_keep_what_was_rejected_are_found_out(net, drafters, monkeypatch):
    """The states of hearing stand where the last frame that was run left them, kept or not: the target's means are no longer its own."""
    worst = {}
    for name in ("as it is", "no rollback"):
        if name == "no rollback":
            monkeypatch.setattr(Hearing, "_heard", lambda self, latents, *rest: self._run(latents))
        means: list[Tensor] = []
        watched = Watching(means)
        out = say(net, row_of(prompts(), 0), drafters["near"], accept=watched, steps=30)
        own = torch.stack(generated(net, row_of(prompts(), 0), fed(1, 30), 30, out.tokens)[1], 1)[0]
        worst[name] = float((torch.cat(means)[:30] - own).abs().max())
    assert worst["as it is"] < 1e-4
    assert worst["no rollback"] > 1e-3


class Watching(Token):
    """The token rule, and the target's means of all frames of the first row as they are committed."""

    def __init__(self, means: list[Tensor]):
        object.__setattr__(self, "means", means)

    def __call__(self, draft: Any, scored: Any, noise: Any) -> Any:
        verdict = super().__call__(draft, scored, noise)
        self.means.append(scored.p.mean[0, : int(verdict.count[0]), 1:])  # type: ignore[attr-defined]
        return verdict


# --- what is refused --------------------------------------------------------------------------------------------------


def test_schedulers_that_draw_are_refused(net):
    stochastic = DPMSolverMultistepScheduler(algorithm_type="sde-dpmsolver++", prediction_type="v_prediction")
    for scheduler in (DDPMScheduler(), stochastic):
        with pytest.raises(ValueError, match="draws noise at every step: take one that is deterministic") as told:
            VibeVoice(net, noise_scheduler=scheduler)
        assert "\n" not in str(told.value)


def test_wrong_requests_are_told_in_one_line(net):
    with pytest.raises(ValueError, match="sigma_out is 0, and two heads never make the same latent: make VibeVoice with"):
        say(VibeVoice(net, sigma_out=0), prompts(1), net)
    with pytest.raises(ValueError, match="the drafter's latents are 6 wide, the target's 4"):
        say(net, prompts(1), vibevoice(latents=6))
    with pytest.raises(ValueError, match="top_p is"):
        say(net, prompts(1), top_p=0.5)
    with pytest.raises(ValueError, match="texts need a processor"):
        say(net, ["hello"])
    with pytest.raises(ValueError, match="places for a voice, but no input_values"):
        say(net, {"input_ids": torch.tensor([[SOUND, START]])})
