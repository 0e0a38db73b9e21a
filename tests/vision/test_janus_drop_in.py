"""`mmspec.vision.accelerate` of Janus: pictures of `generate` are the class's own, in fewer forwards; texts stay the class's."""

import copy
import pickle
from functools import cache

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessorList, TopKLogitsWarper

import mmspec
from mmspec.core.noise import Noise
from tests.vision import small_models

SEED, CODES = 9, 16


@cache
def fresh():
    return small_models.janus()


@pytest.fixture
def model():
    found = fresh()
    yield found
    vars(found).pop("generate", None)


def prompts(rows):
    return small_models.token_prompts(rows, end=5)


def image(model, rows, **options):
    return model.generate(**prompts(rows), generation_mode="image", **options)


@pytest.mark.parametrize(("rows", "options"), [(1, {}), (3, {"guidance_scale": 2.5})])
def test_greedy_pictures_are_the_classs_own_in_fewer_forwards(model, rows, options):
    expected = image(model, rows, do_sample=False, **options)
    counts = []
    assert mmspec.vision.accelerate(model, window=8, report=counts.append) is model
    assert torch.equal(image(model, rows, do_sample=False, **options), expected)
    assert counts[0].exactness == "token-exact"
    assert counts[0].target_calls < CODES
    assert counts[0].tokens == CODES * rows


SETTINGS = [
    {},
    {"top_k": 0, "num_return_sequences": 2},
    {"top_k": 5, "temperature": 2.5},
    {"top_k": 0, "top_p": 0.8, "min_p": 0.05},
    {"top_k": 20, "typical_p": 0.9, "epsilon_cutoff": 0.01, "eta_cutoff": 0.02, "renormalize_logits": True},
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("rows", [1, 3])
def test_sampled_pictures_are_the_classs_own_sampling_with_the_same_noise(model, rows, settings, monkeypatch):
    """The class's own loop, its draw replaced by the argmax of log p + the seed's noise."""
    options = {"do_sample": True, "guidance_scale": 1.5, "temperature": 4.0} | settings
    mmspec.vision.accelerate(model, seed=SEED)
    found = image(model, rows, **options)
    mmspec.vision.accelerate(model, seed=SEED, method="plain")
    assert torch.equal(found, image(model, rows, generation_config=GenerationConfig(**options)))
    del model.generate
    count, step = len(found), iter(range(CODES))
    noise = Noise.from_seed([SEED + row for row in range(count)], count)

    def multinomial(probabilities, num_samples):
        position = torch.full((len(probabilities), 1), next(step))
        return (probabilities.double().log() + noise.value(position).gumbel(48)[:, 0]).argmax(-1, keepdim=True)

    monkeypatch.setattr(torch, "multinomial", multinomial)
    assert torch.equal(found, image(model, rows, **options))
    assert count == rows * settings.get("num_return_sequences", 1)
    assert not torch.equal(found[:1], image(model, rows, do_sample=False, guidance_scale=1.5)[:1])


def test_without_guidance_rows_are_run_once(model):
    counts = []
    mmspec.vision.accelerate(model, report=counts.append)
    found = image(model, 3, do_sample=False, guidance_scale=1.0)
    expected = mmspec.vision.generate(model, prompts(3), temperature=0.0, window=1).sequences
    assert torch.equal(found, expected)


def test_texts_are_the_classs_own(model):
    options = {"max_new_tokens": 6, "do_sample": False, "repetition_penalty": 1.3}
    expected = model.generate(**prompts(3), **options)
    mmspec.vision.accelerate(model)
    assert torch.equal(model.generate(**prompts(3), **options), expected)
    assert torch.equal(model.generate(**prompts(3), generation_mode="text", **options), expected)
    ids = prompts(3)["input_ids"]
    assert torch.equal(model.generate(ids, prompts(3)["attention_mask"], **options), expected)


def test_seeds_come_from_torch_where_none_is_given_and_outputs_may_be_dicts(model):
    mmspec.vision.accelerate(model)

    asked = prompts(1)  # seeds torch

    def drawn(seed):
        torch.manual_seed(seed)
        options = {"do_sample": True, "temperature": 50.0, "return_dict_in_generate": True}
        return model.generate(**asked, generation_mode="image", **options).sequences.tolist()

    assert drawn(1) == drawn(1) != drawn(2)


def test_the_unconditional_prompt_is_the_calls_own(model):
    own = {"bos_token_id": 1, "pad_token_id": 3, "generation_kwargs": {"boi_token_id": 5}, "do_sample": False}
    expected = image(model, 3, **own)
    assert not torch.equal(expected, image(model, 3, do_sample=False))
    mmspec.vision.accelerate(model)
    assert torch.equal(image(model, 3, **own), expected)


def test_copies_draw_by_their_own_weights_and_undoing_leaves_nothing(model):
    mmspec.vision.accelerate(model, seed=SEED)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.generate.model is other
        assert torch.equal(image(other, 1, do_sample=True), image(model, 1, do_sample=True))
    before = set(vars(fresh())) - {"generate"}
    del model.generate
    assert set(vars(model)) == before


REFUSED = [
    ({"num_beams": 2}, "num_beams"),
    ({"repetition_penalty": 1.2}, "repetition_penalty is 1.2"),
    ({"suppress_tokens": [3]}, "suppress_tokens"),
    ({"min_new_tokens": 3}, "min_new_tokens"),
    ({"max_new_tokens": 3}, "fixed number of codes"),
    ({"max_length": 3}, "fixed number of codes"),
    ({"output_scores": True, "return_dict_in_generate": True}, "output_scores"),
    ({"logits_processor": LogitsProcessorList([TopKLogitsWarper(3)])}, "holds TopKLogitsWarper"),
    ({"pixel_values": torch.ones(1, 3, 16, 16)}, "pixel_values is given"),
    ({"streamer": object()}, "streamer is given"),
    ({"custom_generate": object()}, "custom_generate is given"),
    ({"inputs": torch.ones(1, 3).long()}, "give the prompts once"),
    ({"cache_implementation": "quantized"}, "quantized"),
    ({"generation_mode": "video"}, "'text' or 'image'"),
    ({"max_time": 3.0}, "max_time"),
]


@pytest.mark.parametrize(("options", "said"), REFUSED)
def test_what_pictures_are_not_drawn_by_is_refused_in_one_line(model, options, said):
    mmspec.vision.accelerate(model)
    with pytest.raises(ValueError, match=said) as error:
        model.generate(**{**prompts(1), "generation_mode": "image"} | options)
    assert "\n" not in str(error.value)


def test_options_that_nobody_reads_are_refused(model):
    with pytest.raises(ValueError, match="stateless is set"):
        mmspec.vision.accelerate(model, stateless=[TopKLogitsWarper])
    with pytest.raises(ValueError, match=r"for Janus, mmspec.vision.accelerate"):
        model.generate(**prompts(1), custom_generate=mmspec.vision.speculate(), max_new_tokens=2)


def test_a_window_that_forgets_guidance_is_caught(model, monkeypatch):
    """A mutant: pictures drawn without guidance differ from the class's own."""
    expected = image(model, 3, do_sample=False, guidance_scale=4.0)
    monkeypatch.setattr("mmspec.vision.drop_in.janus.USUAL_SCALE", 1.0)
    mmspec.vision.accelerate(model)
    assert not torch.equal(image(model, 3, do_sample=False), expected)
