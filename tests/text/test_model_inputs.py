"""Every type of input is read as a tensor would be, or refused by its name."""

import copy
from functools import cache

import numpy as np
import pytest
import torch
from transformers import BatchEncoding

import mmspec
from mmspec.models.families.multimodal import never_generated_ids_of
from tests.companions import llama, perturbed
from tests.films import batch, row
from tests.seeing import SIGHTS, seen
from tests.sizes import build

FORMS = {
    "lists": lambda value: value.tolist(),
    "numpy": lambda value: value.numpy(),
    "numpy in float64": lambda value: value.double().numpy() if value.is_floating_point() else value.numpy(),
    "a list of tensors": list,
    "a list of arrays": lambda value: [np.asarray(part) for part in value],
    "a tuple of lists": lambda value: tuple(value.tolist()),
}


@cache
def model_of(name):
    return build(SIGHTS[name].case)


def inputs_of(name):
    torch.manual_seed(2)
    if name == "Qwen2.5-VL":
        return batch(name, [row(name, 2, ("clip", 4, 4, 4, 2.0), 2), row(name, 1, ("picture", 4, 8), 3)])
    return seen(name, (1, 2))


def run(model, inputs, **options):
    return mmspec.text.generate(model, inputs, **{"max_new_tokens": 8, "draft_length": 3, "drafter": "lookup"} | options).sequences


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["LLaVA", "LLaVA-NeXT", "Qwen2.5-VL", "Idefics3", "Mllama"])
def test_every_input_may_be_a_list_or_an_array(name, form):
    model, inputs = model_of(name), inputs_of(name)
    expected = run(model, inputs)
    assert torch.equal(run(model, {key: FORMS[form](value) for key, value in inputs.items()}), expected)
    for key, value in inputs.items():
        assert torch.equal(run(model, inputs | {key: FORMS[form](value)}), expected), key


def test_seconds_between_grids_count_in_every_form():
    model, inputs = model_of("Qwen2.5-VL"), inputs_of("Qwen2.5-VL")
    slow = run(model, inputs | {"second_per_grid_ts": [20.0]})
    assert not torch.equal(slow, run(model, inputs))
    settings = {"do_sample": False, "max_new_tokens": 8, "suppress_tokens": list(never_generated_ids_of(model))}
    expected = model.generate(**inputs | {"second_per_grid_ts": torch.tensor([20.0])}, **settings)
    assert torch.equal(slow, expected[:, inputs["input_ids"].shape[1] :])


def test_none_is_left_out_and_mappings_of_any_kind_are_read():
    model, inputs = model_of("LLaVA"), inputs_of("LLaVA")
    assert torch.equal(run(model, BatchEncoding(inputs | {"image_sizes": None})), run(model, inputs))


@pytest.mark.parametrize("name", ["LLaVA", "Qwen2.5-VL", "Gemma-3 VLM"])
def test_pictures_encoded_beforehand(name):
    model, inputs = model_of(name), inputs_of(name)
    expected, made = run(model, inputs), {}
    with torch.no_grad():
        for kind, pixels, grid in (("image", "pixel_values", "image_grid_thw"), ("video", "pixel_values_videos", "video_grid_thw")):
            if pixels in inputs:
                beside = {grid: inputs[grid]} if grid in inputs else {}
                encode = getattr(model.model, f"get_{kind}_features")
                made[kind] = encode(inputs[pixels], **beside, return_dict=True)
    encoded = {key: value for key, value in inputs.items() if not key.startswith("pixel_values")} | {"mm_encoder_outputs": made}
    other = perturbed(copy.deepcopy(model))
    for options in ({}, {"drafter": model}, {"drafter": other, "tree": (2, 2)}, {"drafter": llama()}):
        assert torch.equal(run(model, encoded, **options), expected), options
    assert set(made) == set(encoded["mm_encoder_outputs"])
    if "video_grid_thw" in encoded:
        with pytest.raises(ValueError, match="mm_encoder_outputs but no video_grid_thw"):
            run(model, {key: value for key, value in encoded.items() if key != "video_grid_thw"})
    with pytest.raises(ValueError, match="pass pixels, or choose 'drop'"):
        run(model, encoded, drafter=other, view="pruned")


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"prompt": "a cat"}, "inputs has prompt of type str: pass a tensor"),
        ({"return_timestamps": True}, "inputs has return_timestamps of type bool"),
        ({"pixel_values": [torch.zeros(3, 8, 8), torch.zeros(3, 8, 6)]}, r"pixel_values as list that is no tensor \(shapes \(3, 8, 8\), "),
        ({"input_ids": [[5, 6, 7], [5, 6]]}, r"input_ids as list that is no tensor \(shapes \(3,\), \(2,\)\): .* padding"),
        ({"pixel_values": [object()]}, "pixel_values as list that is no tensor: ask"),
        ({"image_grid_thw": torch.ones(3, 3)}, "inputs has image_grid_thw, which is not read for Llava"),
        ({"position_ids": torch.ones(2, 4)}, "inputs has position_ids, which mmspec does not pass on to Llava"),
        ({"inputs_embeds": torch.ones(2, 4, 8)}, "inputs has inputs_embeds, which mmspec does not pass on"),
        ({"mm_encoder_outputs": {}}, "prompt and pictures do not fit together"),
    ],
)
def test_what_is_not_read_is_refused_by_name(more, match):
    with pytest.raises(ValueError, match=match) as caught:
        run(model_of("LLaVA"), inputs_of("LLaVA") | more)
    assert "\n" not in str(caught.value)


def test_mllama_refuses_by_name_what_it_does_not_read():
    with pytest.raises(ValueError, match="inputs has image_sizes, which is not read for Mllama"):
        run(model_of("Mllama"), inputs_of("Mllama") | {"image_sizes": torch.ones(3, 2)})
