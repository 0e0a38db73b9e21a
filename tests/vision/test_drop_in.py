"""The drop-in of image models: `generate` of GLM-Image and diffusers' pipeline give the same tokens and pictures, in fewer forwards."""

import warnings
from functools import cache

import numpy as np
import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList

import mmspec
from mmspec.core.noise import Noise
from mmspec.models import compat
from mmspec.models.prompt_proof import note_proven
from mmspec.run.drop_in.plain_decoding import decode_plainly
from mmspec.vision.drop_in.glm_image import GlmImageTokens, grids_of
from tests.vision import small_models, small_pipeline

SEED = 9
TEXTS = ["a red shoe", "a boat on the green sea"]


@cache
def model(codes_only=True):
    return small_pipeline.encoder(codes_only)


@cache
def pipe():
    return small_pipeline.pipeline()


@cache
def inputs(images=0, rows=2):
    """What the processor makes of ragged prompts, without images or with some each."""
    said = [
        [{"role": "user", "content": [{"type": "image", "image": small_pipeline.picture(k)} for k in range(images)] + [text]}]
        for text in ({"type": "text", "text": text} for text in TEXTS[:rows])
    ]
    options = {"tokenize": True, "padding": True, "return_dict": True, "return_tensors": "pt"}
    return dict(small_pipeline.processor().apply_chat_template(said, target_h=128, target_w=96, **options))


def plainly(seed, rows):
    """A decoding function: transformers' own loop with the noise of `seed`, through the class's own forward and positions."""

    def decode(model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs):
        noise = Noise.from_seed(seed, rows) if generation_config.do_sample else None
        return decode_plainly(model, input_ids, logits_processor, stopping_criteria, generation_config, None, noise, model_kwargs)

    return decode


def length(images):
    return 12 + 1 + (0 if images else 18 * 13)


def both(images=0, codes_only=True, rows=2, method="jacobi", **settings):
    """Tokens of the class's own loop and of the drop-in, and the drop-in's counts."""
    counts, own = [], model(codes_only)
    settings = {"max_new_tokens": length(images)} | settings
    wanted = own.generate(**inputs(images, rows), **settings, custom_generate=plainly(SEED, rows))
    speculate = mmspec.vision.speculate(method=method, seed=SEED, report=counts.append)
    found = own.generate(**inputs(images, rows), **settings, custom_generate=speculate)
    return wanted, found, counts[0] if counts else None


@pytest.mark.parametrize(("images", "sampled"), [(0, True), (1, True), (2, True), (1, False)])
def test_tokens_are_those_of_the_classs_own_loop_in_fewer_forwards(images, sampled):
    most = min(length(images), 60)
    wanted, found, counts = both(images, do_sample=sampled, max_new_tokens=most)
    assert torch.equal(wanted, found)
    assert found.shape[1] == inputs(images)["input_ids"].shape[1] + most
    assert counts.exactness == "token-exact"
    assert counts.target_calls < most * 0.6 if images == 0 else counts.target_calls <= most


def drafted(**settings):
    return model().generate(**inputs(1), max_new_tokens=5, **settings, custom_generate=mmspec.vision.speculate(seed=SEED))


def test_greedy_tokens_are_those_of_generate_itself():
    own = model().generate(**inputs(), max_new_tokens=30, do_sample=False)
    assert torch.equal(own, both(max_new_tokens=30, do_sample=False)[1])


def test_rows_that_end_early_and_budgets_behind_the_picture():
    settings = {"codes_only": False, "top_k": 60, "top_p": 1.0, "temperature": 3.0}
    wanted, found, _ = both(0, max_new_tokens=60, **settings)
    assert torch.equal(wanted, found)
    size = inputs(0)["input_ids"].shape[1]
    assert (found[:, size:] == 65).any(1).any()
    assert (found[:, -1] == small_models.PAD).any()
    counts = []
    longer = mmspec.vision.speculate(seed=SEED, report=counts.append)
    behind = model().generate(**inputs(1), max_new_tokens=length(1) + 9, custom_generate=longer)
    size = inputs(1)["input_ids"].shape[1] + length(1)
    assert torch.equal(behind[:, :size], both(1)[1])
    assert behind.shape[1] == size + 9


def test_other_settings_and_processors_are_kept():
    for settings in ({"repetition_penalty": 1.4}, {"no_repeat_ngram_size": 2, "min_p": 0.05, "bad_words_ids": [[3], [4, 5]]}):
        own = inputs(1, 1)
        got = [
            model().generate(**own, max_new_tokens=13, **settings, custom_generate=way)
            for way in (plainly(SEED, 1), mmspec.vision.speculate(seed=SEED))
        ]
        assert torch.equal(*got)


@pytest.mark.parametrize("method", ["plain", "scd", "sjd", "scd-gumbel", "block"])
def test_other_methods(method):
    wanted, found, counts = both(1, method=method)
    assert counts.target_calls <= length(1)
    if method == "plain":
        assert torch.equal(wanted, found)
        assert counts.target_calls == length(1)
    assert torch.equal(both(1, method=method, do_sample=False)[1], both(1, do_sample=False)[0])


def test_seeds_come_from_torch_where_none_is_given():
    call = mmspec.vision.speculate()

    def draw(seed):
        torch.manual_seed(seed)
        return model().generate(**inputs(1, 1), max_new_tokens=length(1), custom_generate=call).tolist()

    assert draw(1) == draw(1) != draw(2)


def test_nothing_is_kept_on_the_model():
    fresh = small_pipeline.encoder()
    before = {name: id(value) for name, value in vars(fresh.model).items()}
    fresh.generate(**inputs(rows=1), max_new_tokens=20, custom_generate=mmspec.vision.speculate())
    assert {name: id(value) for name, value in vars(fresh.model).items()} == before


class Own(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores.index_fill(1, torch.tensor([7]), -torch.inf)


def test_what_has_no_form_is_decoded_by_transformers_with_a_warning():
    settings = {"max_new_tokens": 14, "logits_processor": LogitsProcessorList([Own()])}
    with pytest.warns(UserWarning, match="Own may keep a state"):
        wanted, found, counts = both(**settings)
    assert torch.equal(wanted, found)
    assert counts is None
    call = mmspec.vision.speculate(seed=SEED, stateless=[Own])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(wanted, model().generate(**inputs(), **settings, custom_generate=call))
    with pytest.warns(UserWarning, match="image_grid_thw is not given"):
        small_pipeline.encoder().generate(inputs()["input_ids"], max_new_tokens=3, custom_generate=call)


@pytest.mark.parametrize("shift", [1, 5])
def test_wrong_places_are_caught(monkeypatch, shift):
    places = GlmImageTokens._places
    monkeypatch.setattr(GlmImageTokens, "_places", lambda self, ids, sources: places(self, ids, sources).roll(shift, 1))
    wanted, found, _ = both(1)
    assert not torch.equal(wanted, found)


def test_places_are_the_classs_own():
    for images in (0, 1, 2):
        prompt, fresh = inputs(images), small_pipeline.encoder()
        grids = grids_of(prompt["image_grid_thw"], prompt["images_per_sample"], prompt["input_ids"], 65)
        adapter = GlmImageTokens(fresh, grids, length(images))
        table = adapter.encode_prepared(prompt["input_ids"], prompt).extra
        own, _ = fresh.model.get_rope_index(
            prompt["input_ids"], prompt["image_grid_thw"], prompt["images_per_sample"], prompt["attention_mask"]
        )
        for row, real in enumerate(prompt["attention_mask"].bool()):
            size = int(real.sum())
            assert torch.equal(table[row, :, :size], own[:, row, real])
            assert torch.equal(table[row, :, size : size + length(images)], fresh.model._cached_decode_position_ids[row])


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (lambda: mmspec.vision.speculate(method="eagle"), "with a trained net"),
        (lambda: mmspec.vision.speculate(method="pjd"), "drafts by rows"),
        (lambda: mmspec.vision.speculate(method="plain", window=4), "leave window out"),
        (lambda: mmspec.vision.speculate(method="jacoby"), "jacobi"),
        (lambda: mmspec.vision.speculate(init="lft"), "left"),
        (lambda: drafted(num_beams=2, do_sample=False), "num_beams"),
        (lambda: drafted(num_return_sequences=2), "repeat the prompts"),
        (lambda: drafted(output_scores=True, return_dict_in_generate=True), "output_scores"),
        (lambda: small_models.emu3().generate(torch.ones(1, 3).long(), custom_generate=mmspec.vision.speculate()), "is not an image model"),
        (lambda: mmspec.vision.accelerate(torch.nn.Linear(1, 1)), "give a GlmImagePipeline"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(attempt, said):
    with pytest.raises(ValueError, match=said) as error:
        attempt()
    assert "\n" not in str(error.value)


# --- diffusers' pipeline ----------------------------------------------------------------------------------------------


def draw(texts="a red shoe", seed=3, **options):
    """Pictures of the pipeline, and the forwards of its autoregressive model."""
    calls = []
    hook = pipe().vision_language_encoder.model.language_model.register_forward_hook(lambda *_: calls.append(1))
    note_proven(pipe().vision_language_encoder, object.__new__(GlmImageTokens))  # the self-test that hooks ask for is not counted
    generator = torch.Generator().manual_seed(seed)
    settings = {"num_inference_steps": 2, "output_type": "np", "generator": generator} | small_pipeline.SIZE | options
    try:
        return pipe()(texts, **settings).images, len(calls)
    finally:
        hook.remove()


@pytest.fixture
def accelerated():
    yield lambda **options: mmspec.vision.accelerate(pipe(), **options)
    vars(pipe()).pop("generate_prior_tokens", None)
    pipe().vision_language_encoder.generation_config.top_k = 20


def test_the_pipelines_pictures_are_equal_and_forwards_are_saved(accelerated):
    pipe().vision_language_encoder.generation_config.top_k = 1  # sampling from the best token: any noise draws the same
    plain, calls = draw(TEXTS)
    assert accelerated() is pipe()
    fast, fewer = draw(TEXTS)
    assert np.array_equal(plain, fast)
    assert calls == length(0) > fewer


def test_a_sampled_picture_is_the_class_loops_with_the_same_noise(accelerated, monkeypatch):
    accelerated(seed=SEED)
    fast, fewer = draw()
    del pipe().generate_prior_tokens
    encoder = pipe().vision_language_encoder
    own = type(encoder).generate
    monkeypatch.setattr(encoder, "generate", lambda **given: own(encoder, **given, custom_generate=plainly(SEED, 1)), raising=False)
    plain, calls = draw()
    assert np.array_equal(plain, fast)
    assert calls == length(0)
    assert fewer < calls / 2.5


def test_the_generator_seeds_pictures_and_methods_agree(accelerated):
    accelerated()
    one, fewer = draw(seed=4)
    other, _ = draw(seed=5)
    accelerated(window=6)
    again, calls = draw(seed=4)
    assert np.array_equal(one, again)
    assert fewer < calls < length(0)
    assert not np.array_equal(one, other)


def test_the_rest_of_the_pipeline_stays(accelerated, tmp_path):
    modules = dict(pipe().components)
    accelerated()
    assert draw(num_images_per_prompt=2, seed=6)[0].shape[0] == 2
    assert all(modules[name] is part for name, part in pipe().components.items())
    assert "generate" not in vars(pipe().vision_language_encoder)
    pipe().save_pretrained(tmp_path)
    assert (tmp_path / "model_index.json").is_file()


def test_weights_that_accelerate_keeps_elsewhere_are_brought():
    seen = []

    class Hook:
        def pre_forward(self, module):
            seen.append(module)

    own = torch.nn.Linear(1, 1)
    compat.bring_weights(own)
    own._hf_hook = Hook()
    compat.bring_weights(own)
    assert seen == [own]
