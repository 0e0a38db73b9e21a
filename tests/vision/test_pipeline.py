"""`mmspec.vision.Pipeline`: the call of diffusers' pipelines over `mmspec.vision.generate`, saved and loaded."""

import numpy as np
import pytest
import torch

import mmspec
from mmspec.vision import Pipeline
from tests.vision import small_checkpoints, small_minis, small_models, small_pipeline
from tests.vision.test_prompts import TEXTS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small_minis.fashion(tmp_path_factory.mktemp("fashion"))


@pytest.fixture(scope="module")
def pipe(folder):
    found = Pipeline.from_pretrained(folder)
    found.set_progress_bar_config(disable=True)
    return found


@pytest.fixture(scope="module")
def janus(tmp_path_factory):
    found = Pipeline.from_pretrained(small_checkpoints.janus(tmp_path_factory.mktemp("janus")))
    found.set_progress_bar_config(disable=True)
    return found


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_a_picture_is_that_of_generate_with_the_generators_seed(pipe):
    seed = int(torch.randint(2**62, (), generator=seeded(4)))
    wanted = mmspec.vision.generate(pipe.model, ["bag"], method="plain", seed=seed, guidance=2.0)
    found = pipe("bag", guidance_scale=2.0, generator=seeded(4))
    assert torch.equal(found.tokens, wanted.tokens)
    assert found.images[0].tobytes() == wanted.images[0].tobytes()
    assert found.stats.target_calls < wanted.stats.target_calls
    assert not torch.equal(found.tokens, pipe("bag", guidance_scale=2.0, generator=seeded(5)).tokens)


def test_prompts_generators_and_images_a_prompt(janus):
    both = janus(TEXTS, num_images_per_prompt=2, guidance_scale=3.0, generator=[seeded(row) for row in range(4)])
    assert len(both.images) == 4
    for row in (0, 3):
        alone = janus(TEXTS[row // 2], guidance_scale=3.0, generator=seeded(row))
        assert torch.equal(alone.tokens[0], both.tokens[row])
    one = seeded(7)
    first, second = janus(TEXTS[0], generator=one).tokens, janus(TEXTS[0], generator=one).tokens
    assert not torch.equal(first, second)  # a generator moves on, as in diffusers
    torch.manual_seed(1)
    unseeded = janus(TEXTS[0]).tokens
    torch.manual_seed(1)
    assert torch.equal(janus(TEXTS[0]).tokens, unseeded)


def test_kinds_of_output(janus):
    def draw(kind, **more):
        return janus(TEXTS, generator=[seeded(0), seeded(1)], output_type=kind, **more)

    pil, arrays, tensors, codes = (draw(kind).images for kind in ("pil", "np", "pt", "latent"))
    assert arrays.shape == (2, 8, 8, 3)
    assert np.array_equal((arrays * 255).round().astype(np.uint8), np.stack([np.asarray(each) for each in pil]))
    assert np.array_equal(tensors.permute(0, 2, 3, 1).numpy(), arrays)
    assert torch.equal(codes, draw("pil").tokens)
    (images,) = draw("pil", return_dict=False)
    assert [each.tobytes() for each in images] == [each.tobytes() for each in pil]


def test_callbacks_see_every_round(janus):
    seen = []

    def callback(pipeline, step, codes, tensors):
        assert pipeline is janus
        seen.append((step, codes, tensors["codes"], tensors["lengths"].tolist()))

    found = janus(TEXTS, callback_on_step_end=callback, callback_on_step_end_tensor_inputs=["codes", "lengths"], guidance_scale=2.0)
    assert [step for step, *_ in seen] == list(range(found.stats.target_calls))
    assert seen[-1][1] == 16
    assert seen[-1][3] == [16, 16]
    for row in range(2):
        written = torch.cat([codes[row] for _, _, codes, _ in seen])
        assert torch.equal(written[written >= 0], found.tokens[row].flatten())


def test_negative_prompts(tmp_path):
    folder, decoder = small_checkpoints.chameleon(tmp_path)
    anole = Pipeline.from_pretrained(folder, decoder=decoder)
    anole.set_progress_bar_config(disable=True)
    options = {"guidance_scale": 3.0, "generator": seeded(2)}
    plain = anole("a red shoe", negative_prompt="green hat", **options)
    options["generator"] = seeded(2)
    other = anole("a red shoe", negative_prompt="boat", **options)
    assert not torch.equal(plain.tokens, other.tokens)
    both = anole(TEXTS, negative_prompt=["green hat", "boat"], guidance_scale=3.0, generator=[seeded(2), seeded(3)])
    assert torch.equal(both.tokens[0], plain.tokens[0])
    anole.save_pretrained(tmp_path / "saved")
    again = Pipeline.from_pretrained(tmp_path / "saved")
    saved = again("a red shoe", negative_prompt="green hat", guidance_scale=3.0, generator=seeded(2))
    assert saved.images[0].tobytes() == plain.images[0].tobytes()
    with pytest.raises(ValueError, match="without guidance"):
        anole("a red shoe", negative_prompt="boat")


def test_pipelines_are_saved_and_loaded(pipe, janus, tmp_path):
    lumina, decoder = small_checkpoints.chameleon(tmp_path, lumina=True)
    captions = Pipeline.from_pretrained(small_minis.scenes(tmp_path / "scenes"))
    llamagen = Pipeline.from_pretrained(small_checkpoints.llamagen(tmp_path)[0], decoder=tmp_path / "vq.pt")
    cases = {
        "fashion": (pipe, "bag", {}),
        "captions": (captions, "a large red star top left", {}),
        "janus": (janus, TEXTS[0], {}),
        "llamagen": (llamagen, 3, {}),
        "pixels": (Pipeline.from_pretrained(small_checkpoints.imagegpt(tmp_path)), None, {}),
        "lumina": (Pipeline.from_pretrained(lumina, decoder=decoder), TEXTS[0], {"height": 12, "width": 8}),
        "glm": (Pipeline.from_pretrained(small_checkpoints.glm_image(tmp_path)), TEXTS[0], small_pipeline.SIZE),
    }
    for name, (own, prompt, size) in cases.items():
        place = tmp_path / "saved" / name[:3]  # of Lumina-mGPT the config must tell the kind
        own.save_pretrained(place)
        again = Pipeline.from_pretrained(place)
        assert type(again.model) is type(own.model)
        for each in (own, again):
            each.set_progress_bar_config(disable=True)
        first, second = (each(prompt, generator=seeded(1), **size).images[0] for each in (own, again))
        assert first.tobytes() == second.tobytes(), name


def test_image_to_image(tmp_path):
    glm = Pipeline.from_pretrained(small_checkpoints.glm_image(tmp_path))
    glm.set_progress_bar_config(disable=True)
    shown = [small_pipeline.picture(5), small_pipeline.picture(6)]
    both = glm(TEXTS, [[shown[0]], [shown[1]]], generator=[seeded(0), seeded(1)], **small_pipeline.SIZE)
    alone = glm(TEXTS[1], shown[1], generator=seeded(1), **small_pipeline.SIZE)
    assert torch.equal(alone.tokens[0], both.tokens[1])
    assert alone.images[0].tobytes() == both.images[1].tobytes()
    assert alone.tokens.shape == (1, 4, 3)
    assert glm(TEXTS[0], shown, **small_pipeline.SIZE).tokens.shape == (1, 4, 3)


def test_devices(pipe):
    assert pipe.to("cpu") is pipe
    assert (pipe.device.type, pipe.dtype) == ("cpu", torch.float32)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"output_type": "jpg"}, "output_type is 'jpg'"),
        ({"num_images_per_prompt": 0}, "num_images_per_prompt is 0"),
        ({"height": 8}, "height is 8 and width is None"),
        ({"generator": [seeded(0)] * 2}, "2 generators for 1 images"),
        ({"callback_on_step_end_tensor_inputs": ["latents"]}, "codes and lengths"),
        ({"callback_on_step_end": lambda *_: {"codes": 1}}, "which nothing reads"),
        ({"negative_prompt": "b", "guidance_scale": 2.0}, "not read by Janus"),
        ({"image": [small_models.tiles(torch.zeros(1, 1, 1).long())[0]] * 2, "prompt": TEXTS}, "list of lists"),
        ({"image": small_models.tiles(torch.zeros(1, 1, 1).long())[0]}, "takes texts only"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(janus, options, said):
    with pytest.raises(ValueError, match=said) as error:
        janus(**{"prompt": TEXTS[0]} | options)
    assert "\n" not in str(error.value)
