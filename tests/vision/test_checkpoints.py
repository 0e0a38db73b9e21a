"""Published layouts: decoders give the pictures of independent networks, and every class is drawn by the command line from its folder."""

import json

import pytest
import torch
from PIL import Image

import mmspec
from mmspec.vision.checkpoints.load import load_image_checkpoint
from mmspec.vision.checkpoints.vqgan import VQGANDecoder
from mmspec.vision.families.lumina import LuminaMGPT
from tests.commands import refused, runner
from tests.vision import small_checkpoints, small_models, small_pipeline


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("published")


@pytest.fixture
def image(capsys, tmp_path):
    return runner(capsys, tmp_path, "image", "mini", "out.png")


def test_llamagens_decoder_is_that_of_janus(home):
    vq, codes = small_checkpoints.janus_vq(), torch.randint(0, 50, (2, 4, 4))
    torch.save({"model": small_checkpoints.llamagen_names(vq.state_dict())}, home / "vq.pt")
    found, wanted = VQGANDecoder.load(home / "vq.pt"), vq.decode(codes.flatten(1))
    torch.testing.assert_close(found.pixels(codes), wanted, atol=1e-4, rtol=1e-4)
    assert wanted.std() > 0.05
    found.normalised = False
    assert (found.pixels(codes) - wanted).abs().max() > 1e-2
    found.normalised = True
    found.save(home / "decoder.safetensors")
    again = VQGANDecoder.load(home / "decoder.safetensors")
    assert again.normalised
    assert torch.equal(again.pixels(codes), found.pixels(codes))


@pytest.mark.parametrize("channels", [(32, 32), (32, 64, 96)])
def test_chameleons_decoder_is_that_of_diffusers(home, channels):
    vq, codes = small_checkpoints.taming_vq(64, channels), torch.randint(0, 64, (2, 3, 5))
    torch.save({"state_dict": small_checkpoints.taming_names(vq)}, home / "vqgan.ckpt")
    found = VQGANDecoder.load(home / "vqgan.ckpt")
    with torch.no_grad():
        wanted = vq.decode(vq.quantize.embedding(codes).permute(0, 3, 1, 2), force_not_quantize=True).sample
    torch.testing.assert_close(found.pixels(codes), wanted, atol=1e-4, rtol=1e-4)
    assert wanted.std() > 0.05
    assert [picture.size for picture in found(codes)] == [(wanted.shape[3], wanted.shape[2])] * 2


CASES = {
    "llamagen": (lambda home: small_checkpoints.llamagen(home), "3", (), {}, 16, (16, 16)),
    "anole": (lambda home: small_checkpoints.chameleon(home), "a red shoe", ("--negative", "green hat"), {"guidance": 3.0}, 25, (10, 10)),
    "lumina": (
        lambda home: small_checkpoints.chameleon(home, lumina=True),
        "a red shoe",
        ("--size", "12x8"),
        {"guidance": 3.0, "size": (12, 8)},
        6 * 5 + 1,
        (8, 12),
    ),
    "janus": (lambda home: (small_checkpoints.janus(home), None), "a red shoe", (), {"guidance": 3.0}, 16, (8, 8)),
    "emu3": (
        lambda home: (small_checkpoints.emu3(home), None),
        "a red shoe",
        ("--size", "8x10", "--negative", "low"),
        {"guidance": 3.0, "size": (8, 10)},
        27,
        (10, 8),
    ),
    "imagegpt": (lambda home: (small_checkpoints.imagegpt(home), None), None, (), {}, 16, (4, 4)),
    "glm_image": (
        lambda home: (small_checkpoints.glm_image(home), None),
        "a red shoe",
        ("--size", "128x96"),
        {"size": (128, 96)},
        247,
        (96, 128),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_class_is_drawn_from_its_folder(image, home, name):
    make, prompt, args, options, length, size = CASES[name]
    folder, decoder = make(home)
    args = [*args, *(("--decoder", decoder) if decoder else ()), *(("--guidance", 3) if "guidance" in options else ())]
    code, out, err, path = image(*([prompt] if prompt else []), *args, "--seed", 3, "--compare", "plain", "--json", model=folder)
    assert code == 0, err
    found = json.loads(out)
    assert found["codes"] == found["compare"]["codes"]
    assert found["compare"]["forwards"] == length >= found["forwards"]
    assert Image.open(path).size[0] > size[0]
    model = load_image_checkpoint(folder, decoder=decoder)
    if "--negative" in args:
        model = model.guided_from(args[args.index("--negative") + 1])
    wanted = mmspec.vision.generate(model, [prompt], method="plain", seed=3, **options)
    assert found["codes"] == wanted.tokens.tolist()
    assert wanted.images[0].size == size


def test_image_to_image_from_the_command_line(image, home, tmp_path_factory):
    folder, street = small_checkpoints.glm_image(home), tmp_path_factory.mktemp("in") / "street.png"
    small_pipeline.picture().save(street)
    code, out, err, path = image("a red shoe", "--image", street, "--size", "128x96", "--seed", 3, "--json", model=folder)
    assert code == 0, err
    found = json.loads(out)
    assert found["images"] == [str(street)]
    assert Image.open(path).size == (96, 128)
    model = load_image_checkpoint(folder)
    prompts = [mmspec.vision.ImagePrompt("a red shoe", (small_pipeline.picture(),))]
    wanted = mmspec.vision.generate(model, prompts, method="plain", seed=3, size=(128, 96))
    assert found["codes"] == wanted.tokens.tolist()
    assert wanted.stats.tokens == 13
    other = [mmspec.vision.ImagePrompt("a red shoe", (small_pipeline.picture(6),))]
    assert mmspec.vision.generate(model, other, method="plain", seed=3, size=(128, 96)).images[0].tobytes() != wanted.images[0].tobytes()


def test_luminas_prompts_are_the_published_ones(home):
    folder, _ = small_checkpoints.chameleon(home, lumina=True)
    model = load_image_checkpoint(folder)
    assert isinstance(model, LuminaMGPT)
    model = model.resized((12, 8))
    said = model.processor("Generate an image of 8x12 according to the following prompt:\na boat<reserved08706>")["input_ids"]
    opening = [5, 40, 41]  # the picture's beginning, 3 units high, 2 wide
    prompt, embed = model.encode(["a boat"], True), model.model.get_input_embeddings()
    assert torch.equal(prompt.embeds[0, prompt.mask[0]], embed(torch.tensor([*said, *opening])))
    assert torch.equal(prompt.embeds[1, prompt.mask[1]], embed(torch.tensor(opening)))
    assert (model.raster.height, model.raster.width, model.raster.length) == (6, 4, 6 * 5 + 1)


MISTAKES = {
    "no decoder": (lambda home: small_checkpoints.chameleon(home)[0], ("a cat",), ("no decoder", "--decoder")),
    "a decoder that is none": (
        lambda home: small_checkpoints.chameleon(home)[0],
        ("a cat", "--decoder", "pyproject.toml"),
        ("cannot be read",),
    ),
    "a decoder of other codes": (
        lambda home: small_checkpoints.llamagen(home)[0],
        ("3", "--decoder", "VQGAN"),
        ("64 codes", "50"),
    ),
    "a decoder for a model with its own": (
        lambda home: small_checkpoints.janus(home),
        ("a cat", "--decoder", "VQGAN"),
        ("leave decoder out",),
    ),
    "a negative text without guidance": (lambda home: small_checkpoints.janus(home), ("a cat", "--negative", "b"), ("without guidance",)),
    "a negative text that is not read": (
        lambda home: small_checkpoints.janus(home),
        ("a cat", "--negative", "b", "--guidance", 2),
        ("not read by Janus",),
    ),
    "a picture that is not read": (lambda home: small_checkpoints.janus(home), ("a cat", "--image", "x.png"), ("reads no pictures",)),
    "a size that no name tells": (
        lambda home: small_checkpoints.llamagen(home)[0].rename(home / "model.pt"),
        ("3", "--decoder", "VQGAN"),
        ("size is None",),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_told_in_one_line(image, home, mistake):
    make, args, words = MISTAKES[mistake]
    folder = make(home)
    _, vqgan = small_checkpoints.chameleon(home)
    refused(image(*(vqgan if arg == "VQGAN" else arg for arg in args), model=folder), *words)


def test_the_wrong_file_is_named(home):
    torch.save({"model": small_models.llamagen().state_dict()}, home / "narrow_64.pt")
    with pytest.raises(ValueError, match="hidden size 32 is none of LlamaGen's"):
        load_image_checkpoint(home / "narrow_64.pt")
    torch.save({"a": torch.ones(1)}, home / "other_64.pt")
    with pytest.raises(ValueError, match="holds no LlamaGen"):
        load_image_checkpoint(home / "other_64.pt")
    with pytest.raises(ValueError, match=r"tensor decoder\.conv_in\.weight is missing"):
        VQGANDecoder.load(home / "other_64.pt")
