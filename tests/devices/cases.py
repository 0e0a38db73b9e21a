"""Generations of every modality, small: their parts on the CPU, and the call that generates with them."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from mmspec import recsys, speech, text, vision
from mmspec.drafters.features.eagle import Eagle1
from mmspec.speech.families import speech_model
from mmspec.speech.families.bark import Bark
from mmspec.speech.families.csm import CsmModel
from mmspec.vision import CONTINUOUS_METHODS, LlamaGen, LlamaGenConfig
from mmspec.vision.families.llamagen import LlamaGenPictures
from tests import beam_world
from tests.companions import perturbed
from tests.devices.runs import Call, OnStep
from tests.families import FAMILIES, build, inputs_for
from tests.speech import small_bark, small_csm, small_delay, small_models, small_pocket, small_vibevoice
from tests.speech.test_csm import Mute
from tests.vision.pushed import pair
from tests.vision.small_latents import model as latents
from tests.vision.small_models import CASES as PICTURES


@dataclass(frozen=True)
class Case:
    """One generation. Outputs of `vectors` are compared within 1e-3: sums on the simulated device go through other kernels."""

    parts: Callable[[], Any]
    call: Call
    vectors: bool = False
    stages: bool = False  # a second generation begins between two rounds


# --- pictures ---------------------------------------------------------------------------------------------------------


def codes_model() -> LlamaGenPictures:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48, "initializer_range": 0.2}
    config = LlamaGenConfig(vocab_size=24, grid=3, classes=3, **sizes)
    drafter, small = Eagle1(**Eagle1.fit(config)).eval(), LlamaGenPictures(LlamaGen(config).eval())
    net, codebook = LlamaGen(config).eval(), torch.randn(24, 4)
    return LlamaGenPictures(net, codebook=codebook, labels=("cat", "dog", "owl"), drafter=drafter, assistant=small)


def picture(model: Any, on_step: OnStep, prompts: Any = (0, 1), **options: Any) -> Any:
    prompts = list(prompts) if isinstance(prompts, tuple) else prompts
    return vision.generate(model, prompts, seed=3, on_step=on_step, **options).tokens


def of_family(name: str) -> Case:
    case = PICTURES[name]
    options = {"method": "jacobi", "window": 4, "guidance": 2.0 if case.guided else None}
    return Case(lambda: (case.make(), case.prompts(2)), lambda parts, on_step: picture(parts[0], on_step, parts[1], **options))


def of_method(name: str, guidance: float | None) -> Case:
    options = {"method": name, "guidance": guidance} | ({"window": 4} if vision.METHODS[name].windowed else {})
    return Case(codes_model, partial(picture, **options))


def muted(model: CsmModel) -> CsmModel:
    """Without the codec, which closures of the adapter keep."""
    model.stream = Mute  # type: ignore[method-assign]
    return model


def of_vectors(name: str, guidance: float | None) -> Case:
    head = "mixture" if name == "density" else "diffusion"
    return Case(partial(pair, head, grid=3), partial(picture, method=name, guidance=guidance), vectors=True)


# --- speech -----------------------------------------------------------------------------------------------------------


def said(parts: Any, on_step: OnStep, texts: Any = ("one", "two three"), drafted: bool = True, **options: Any) -> Any:
    model, inputs, drafter = parts if isinstance(parts, tuple) else (parts, list(texts), None)
    options = {"seed": 3, "draft_length": 3} | options
    return speech.synthesize(model, inputs, drafter, on_step=on_step, **options).tokens


def letters(drafter: Callable[[], Any], **options: Any) -> Case:
    def parts() -> Any:
        return small_models.speaker(), ["one", "two three"], drafter()

    return Case(parts, partial(said, voice="jackson", max_seconds=0.1, **options))


class MuteBark(Bark):
    """Without its codec, whose recurrent layers ask for a driver."""

    def speak(self, coarse: Any, voice: str | None = None, seed: int = 0) -> torch.Tensor:
        return torch.zeros(len(coarse))


def bark() -> Any:
    made = MuteBark(small_bark.bark(layers=1), small_bark.tokenizer(), {"ann": small_bark.voice()})
    return made, ["hi"], Bark(small_bark.bark(layers=1, seed=1), small_bark.tokenizer())


# --- recommendations and text -----------------------------------------------------------------------------------------

SHOP = beam_world.shop()
HISTORIES = beam_world.users(SHOP, 3)


def recommended(parts: Any, on_step: OnStep, method: str, drafted: bool) -> Any:
    drafter = parts[1] if drafted else None
    return recsys.recommend(parts[0], HISTORIES, k=4, catalogue=SHOP, method=method, drafter=drafter, on_step=on_step).tokens


def of_beams(family: str, method: str, drafted: bool) -> Case:
    def parts() -> Any:
        model = beam_world.make(family)
        return model, beam_world.perturbed(model, 0.05)

    return Case(parts, partial(recommended, method=method, drafted=drafted))


def of_model(name: str) -> Case:
    def parts() -> Any:
        model = build(FAMILIES[name])
        model.generation_config.eos_token_id = None
        return model, inputs_for(name, 3), perturbed(copy.deepcopy(model))

    return Case(parts, written)


def written(parts: Any, on_step: OnStep) -> Any:
    options = {"draft_length": 3, "max_new_tokens": 4, "temperature": 0.9, "seed": 2}
    return text.generate(*parts, on_step=on_step, **options).tokens


GUIDED = {"plain", "jacobi", "eagle", "lantern", "zipar", "pjd"}  # with guidance too
CASES: dict[str, Case] = {
    **{f"codes {name}": of_method(name, None) for name in vision.METHODS},
    **{f"codes {name} guided": of_method(name, 2.5) for name in vision.METHODS if name in GUIDED},
    **{f"codes of {name}": of_family(name) for name in PICTURES},
    **{f"vectors {name}": of_vectors(name, None) for name in CONTINUOUS_METHODS if name != "cspd-compat"},
    "vectors plain, masked": Case(partial(latents, "masked", grid=3), picture, vectors=True),
    "vectors path guided": of_vectors("path", 2.0),
    "speech plain": letters(lambda: None),
    "speech lookup": letters(lambda: "lookup"),
    "speech model": letters(lambda: small_models.speaker(layers=1, seed=1)),
    "speech heads, tree": letters(lambda: small_models.heads(small_models.speaker()), tree=(3, 2, 1)),
    "speech frames": Case(
        lambda: (small_csm.csm(), small_csm.prompts(2)),
        lambda parts, on_step: said((muted(CsmModel(parts[0])), parts[1], None), on_step, max_seconds=0.3),
    ),
    "speech delayed books": Case(
        lambda: (small_delay.musicgen(mute=True), small_delay.music_prompts(2), small_delay.musicgen(mute=True, seed=1)),
        partial(said, max_seconds=0.1),
    ),
    "speech stages": Case(bark, partial(said, max_seconds=0.1), stages=True),
    "speech flow": Case(
        lambda: (small_pocket.pocket(), small_pocket.prompts(2), small_pocket.near(small_pocket.pocket(), 0.05)),
        partial(said, max_seconds=0.3),
        vectors=True,
    ),
    "speech diffusion": Case(
        lambda: (small_vibevoice.vibevoice(), small_vibevoice.prompts(2), small_vibevoice.near(small_vibevoice.vibevoice())),
        lambda parts, on_step: said((speech_model(parts[0]), *parts[1:]), on_step, max_seconds=3.5 / speech_model(parts[0]).pace),
        vectors=True,
    ),
    **{
        f"items {family} {name}{', drafted' * drafted}": of_beams(family, name, drafted)
        for family in ("llama", "t5")
        for name, method in recsys.METHODS.items()
        for drafted in (False, True)
        if not (drafted and method.plain)
    },
    **{f"text of {name}": of_model(name) for name in FAMILIES},
}
