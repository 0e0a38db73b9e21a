"""Every way to draft tests an altered target before it drafts, in every modality: what is not exact is refused, what is exact goes on."""

import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from diffusers import DDPMPipeline, DDPMScheduler
from torch import nn

import mmspec
from mmspec.bench.diagnosis import own_drafter
from mmspec.models import prompt_proof
from mmspec.models.stack import stack
from mmspec.speech.families.bark import Bark
from mmspec.speech.latents.pocket_tts import PocketTTS
from mmspec.speech.latents.vibevoice import VibeVoice
from mmspec.vision import Sampling
from tests import beam_world
from tests.families import FAMILIES, build, inputs_for
from tests.proof_mutants import OneScale, ScalePerToken, changed, llama, with_linears
from tests.serving.test_engine_speech_families import parts
from tests.speech import small_bark, small_models, small_pocket, small_recognisers, small_vibevoice, small_whisper
from tests.vision import small_jobs, small_latents, small_nets, small_nextstep, small_pipeline
from tests.vision.small_models import CASES
from tests.vision.test_diffusion import unet

TOKENS = 8
Made = tuple[Any, Callable[[bool], Any]]
"""A network, and what decodes with it: drafting, or plainly."""


def drawn(adapter: Any, prompts: Any, plain: str = "plain", **drafted: Any) -> Made:
    both = {name: drafted.pop(name) for name in ("guidance", "sampling") if name in drafted}
    ways = {False: {"method": plain}, True: drafted}
    network = adapter if isinstance(adapter, nn.Module) else adapter.model
    return network, lambda drafts: mmspec.vision.generate(adapter, prompts, **both, **ways[drafts]).tokens


def family(name: str) -> Made:
    case = CASES[name]
    return drawn(case.make(), case.prompts(2), method="jacobi", window=5, **({"guidance": 2.0} if case.guided else {}))


def said(model: Any, prompts: Any, drafter: Any) -> Made:
    options = {"max_seconds": (TOKENS + 0.01) / model.pace, "draft_length": 3}
    return model.model, lambda drafts: mmspec.speech.synthesize(model, prompts, drafter if drafts else None, **options).tokens


def frames(name: str) -> Made:
    target, small, prompts = parts.__wrapped__(name)
    return said(target, prompts[:2], small)


def streamed() -> Made:
    target, small, prompts = parts.__wrapped__("dia")
    return target.model, lambda drafts: list(mmspec.speech.stream(target, prompts[0], small if drafts else None, max_seconds=0.2))


def bark() -> Made:
    made = Bark(small_bark.bark(), small_bark.tokenizer())
    return made.model, lambda drafts: mmspec.speech.synthesize(made, ["hello"], "lookup" if drafts else None, max_seconds=0.3).tokens


def heard(pair: tuple[Any, Any]) -> Made:
    waves, options = small_whisper.sounds(0.5), {"max_new_tokens": TOKENS}
    return pair[0], lambda drafts: mmspec.speech.transcribe(*pair, waves, "lookup" if drafts else None, **options).texts


def written(model: Any, inputs: Any) -> Made:
    return model, lambda drafts: mmspec.text.generate(model, inputs, "lookup" if drafts else None, max_new_tokens=TOKENS).tokens


def text() -> Made:
    return written(llama(), {"input_ids": torch.tensor([[3, 4, 5, 3, 4]])})


def through(call: Callable[[Any, Any], Any]) -> Made:
    model = llama()
    return model, lambda drafts: call(model, {"input_ids": torch.tensor([[3, 4, 5, 3, 4]])})


def text_drop_in(model: Any, inputs: Any) -> Any:
    return model.generate(**inputs, max_new_tokens=TOKENS, custom_generate=mmspec.text.speculate("lookup"))


def picture_drop_in() -> Made:
    model, said = small_pipeline.encoder(), [[{"role": "user", "content": [{"type": "text", "text": "a red shoe"}]}]]
    options = {"tokenize": True, "return_dict": True, "return_tensors": "pt", "target_h": 128, "target_w": 96}
    inputs = dict(small_pipeline.processor().apply_chat_template(said, **options)) | {"max_new_tokens": TOKENS, "do_sample": True}
    ways = {drafts: mmspec.vision.speculate(method="jacobi" if drafts else "plain", seed=3) for drafts in (True, False)}
    return model, lambda drafts: model.generate(**inputs, custom_generate=ways[drafts])


def denoised() -> Made:
    net = unet()
    pipeline = DDPMPipeline(net, DDPMScheduler(num_train_timesteps=20))
    return net, lambda drafts: mmspec.vision.denoise(pipeline, 2, steps=8, drafter="frozen" if drafts else None, draft_length=3).samples


def recommended(rank: bool = False) -> Made:
    model, catalogue = beam_world.make(), beam_world.shop()
    histories, items = beam_world.users(catalogue, 2), list(catalogue.items[:5])
    if rank:
        return model, lambda drafts: mmspec.recsys.rank_candidates(model, histories, [items] * 2, catalogue=catalogue)
    return model, lambda drafts: mmspec.recsys.recommend(model, histories, k=3, catalogue=catalogue)


def served(model: Any, prompt: Any, drafter: Any, asked: dict[str, Any], **options: Any) -> Made:
    def call(drafts: bool) -> Any:
        with mmspec.Engine(model, drafter if drafts else None, **(options if drafts else dict.fromkeys(options, "plain"))) as engine:
            return engine.submit(prompt, **asked).result(60).tokens

    return model if isinstance(model, nn.Module) else model.model, call


def spoken(target: Any, small: Any, prompts: Any) -> Made:
    return served(target, prompts[0], small, {"max_seconds": 0.2})


def job(folder: Any) -> Made:
    loaded = small_jobs.assisted.__wrapped__()

    def call(drafts: bool) -> Any:
        lines = small_jobs.write_lines(folder / "in.jsonl", [{"class": 1}])
        ways = {"model": "x", **({"method": "jacobi"} if drafts else {"method": "plain", "window": None})}
        return mmspec.jobs.run(small_jobs.picture_job(lines, folder / str(drafts), loaded, **ways))

    return loaded.model.model, call


DEPTHS = {"draft_steps": 2}
WAYS: dict[str, Callable[[Any], Made]] = {
    **{f"pictures, {name}": lambda _, name=name: family(name) for name in CASES},
    "pictures, eagle": lambda _: drawn(small_nets.guided_model(), [0], method="eagle", guidance=2.0),
    "pictures, assisted": lambda _: drawn(small_nets.guided_model(), [0], method="assisted-jacobi"),
    "pictures, zipar": lambda _: drawn(small_nets.guided_model(), [0, 1], method="zipar"),
    "pictures, pjd": lambda _: drawn(small_nets.guided_model(), [0, 1], method="pjd", guidance=2.0),
    "pictures, drop-in": lambda _: picture_drop_in(),
    "pictures, engine": lambda _: served(small_nets.guided_model(), 1, None, {}, method="jacobi"),
    "pictures, job": job,
    "vectors, path": lambda _: drawn(small_latents.model("diffusion"), [0, 1], drafter=small_latents.model("diffusion", 1), window=4),
    "vectors, density": lambda _: drawn(small_latents.model("mixture"), [0, 1], drafter=small_latents.model("mixture", 1), window=4),
    "vectors, chain": lambda _: drawn(small_latents.model("diffusion"), [0, 1], method="chain", **DEPTHS),
    "vectors, masked chain": lambda _: drawn(small_latents.model("masked"), [0, 1], method="chain", **DEPTHS),
    "vectors, nextstep": lambda _: drawn(
        small_nextstep.pictures(),
        ["a red house"],
        method="path",
        drafter=small_nextstep.network(),
        window=3,
        sampling=Sampling(sigma_out=0.05),
    ),
    "diffusion": lambda _: denoised(),
    **{f"speech, {name}": lambda _, name=name: frames(name) for name in ("musicgen", "melody", "dia", "higgs", "csm", "cosyvoice")},
    "speech, bark": lambda _: bark(),
    "speech, pocket": lambda _: said(PocketTTS(net := small_pocket.pocket()), small_pocket.prompts(2), PocketTTS(small_pocket.near(net))),
    "speech, vibevoice": lambda _: said(
        VibeVoice(net := small_vibevoice.vibevoice()), small_vibevoice.prompts(2), VibeVoice(small_vibevoice.near(net))
    ),
    "speech, codes": lambda _: said(small_models.speaker(), ["one"], "lookup"),
    "speech, stream": lambda _: streamed(),
    "speech, engine": lambda _: served(
        parts.__wrapped__("dia")[0], parts.__wrapped__("dia")[2][0], parts.__wrapped__("dia")[1], {"max_seconds": 0.2}
    ),
    "recordings, whisper": lambda _: heard((small_whisper.whisper(), small_whisper.processor())),
    "recordings, qwen2-audio": lambda _: heard(small_recognisers.qwen2_audio()),
    "text": lambda _: text(),
    "text with pictures": lambda _: written(build(FAMILIES["LLaVA"]), inputs_for("LLaVA", 2)),
    "text, drop-in": lambda _: through(text_drop_in),
    "text, diagnosis": lambda _: through(partial(own_drafter, max_new_tokens=TOKENS)),
    "text, engine": lambda _: served(llama(), {"input_ids": torch.tensor([[3, 4, 5, 3, 4]])}, "lookup", {"max_new_tokens": TOKENS}),
    "items": lambda _: recommended(),
    "items, ranked": lambda _: recommended(rank=True),
}
"""Ways to draft, of every modality."""
ALWAYS = ("text", "recordings", "items", "speech, codes")
"""Ways that refuse a target even for plain decoding, since the self-test of texts compares plain decoding with uncached forwards."""
DRAWN = (
    "vectors",
    "diffusion",
    "speech, pocket",
    "speech, vibevoice",
    "speech, csm",
    "pictures, eagle",
    "pictures, zipar",
    "pictures, pjd",
)
"""Ways whose values are not those of plain decoding, and one that takes seconds."""


def quantized(network: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.ao.quantization.quantize_dynamic(network, {nn.Linear}, dtype=torch.qint8, inplace=True)


def last_column_hooked(network: Any) -> None:
    def hook(module: Any, args: Any, output: Any) -> Any:
        return (changed(output[0]), *output[1:]) if isinstance(output, tuple) else changed(output)

    stack(network)[0].register_forward_hook(hook)


WRONG = {"one scale": partial(with_linears, OneScale), "torch's dynamic int8": quantized, "a hook on the last column": last_column_hooked}
BY_NAME = {  # of the ways: torch's int8 linears have no weights that can be read, and not every network has one list of layers
    "torch's dynamic int8": ("pictures, llamagen-class", "pictures, janus", "speech, dia", "speech, musicgen", "speech, bark", "text"),
    "a hook on the last column": (*(f"pictures, {name}" for name in CASES), "vectors, path", "speech, dia", "speech, higgs", "text"),
}
CASES_OF = [(alteration, name) for alteration in WRONG for name in BY_NAME.get(alteration, WAYS)]


@pytest.fixture(autouse=True)
def own_models():
    """Networks are changed here, and tests keep small ones in caches: whoever comes next makes new ones."""
    yield
    for name, module in list(sys.modules.items()):
        if name.startswith("tests."):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


@pytest.mark.parametrize(("alteration", "name"), CASES_OF)
def test_a_target_whose_columns_depend_on_each_other_is_refused(alteration, name, tmp_path):
    network, call = WAYS[name](tmp_path)
    WRONG[alteration](network)
    with pytest.raises(Exception, match="of their spread with") as found:
        call(True)
    line = str(found.value)
    assert "\n" not in line
    assert "use plain" in line or "decode plainly: no drafter, and for pictures method='plain'" in line
    if alteration != "one scale" and not name.startswith("speech, bark"):
        assert "first in " in line
    if not name.startswith(ALWAYS):
        call(False)


@pytest.mark.parametrize("name", [name for name in WAYS if not name.startswith(DRAWN)])
def test_a_target_with_a_scale_for_each_token_is_accepted_and_exact(name, tmp_path):
    network, call = WAYS[name](tmp_path)
    with_linears(ScalePerToken, network)
    drafted, plain = call(True), call(False)
    if isinstance(drafted, torch.Tensor):
        assert torch.equal(drafted, plain)


def test_a_target_is_tested_once_and_again_when_it_has_changed(monkeypatch):
    tests, real = [], prompt_proof._tested
    monkeypatch.setattr(prompt_proof, "_tested", lambda *args: tests.append(args) or real(*args))
    network, call = family("llamagen-class")
    call(True)
    assert not tests  # it is what its class makes
    with_linears(ScalePerToken, network)
    call(True)
    call(True)
    assert len(tests) == 1
    last_column_hooked(network)
    for _ in range(2):
        with pytest.raises(ValueError, match="a forward hook"):
            call(True)
    assert len(tests) == 2


@pytest.mark.parametrize("name", ["pictures, llamagen-class", "speech, dia", "vectors, path", "diffusion"])
def test_the_model_and_the_random_state_stay_as_they_were(monkeypatch, name, tmp_path):
    """A test before a request changes neither its values nor its counts."""
    network, call = WAYS[name](tmp_path)
    before = call(True)
    network.register_forward_hook(lambda *args: None)
    state = torch.random.get_rng_state()
    assert torch.equal(call(True), before)
    assert torch.equal(torch.random.get_rng_state(), state)
