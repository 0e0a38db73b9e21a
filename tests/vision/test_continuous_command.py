"""`mmspec image` over continuous tokens: the public call's pictures, what was asked and counted, one line for every mistake."""

import json

import pytest
import torch
from PIL import Image

import mmspec
from mmspec.commands.models import continuous_methods
from mmspec.loading.vision import CONTINUOUS, Loaded, check_decoder, is_continuous, load_image_model
from mmspec.vision import CONTINUOUS_METHODS, Sampling, generate
from mmspec.vision.checkpoints.latents import save_model
from mmspec.vision.continuous.generation import WINDOW
from mmspec.vision.continuous.state_draft import StateDraft
from tests.commands import refused, runner
from tests.vision import small_latents

CAUSAL = [name for name, way in CONTINUOUS_METHODS.items() if "masked" not in way.heads and name != "plain"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small_latents.folder(tmp_path_factory.mktemp("latents"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A target without a draft, and one head only."""
    return small_latents.folder(tmp_path_factory.mktemp("bare"), heads=("diffusion",), drafts=False)


@pytest.fixture
def image(capsys, tmp_path, folder):
    return runner(capsys, tmp_path, "image", folder, "out.png")


@pytest.mark.parametrize("method", [*CAUSAL, "plain", "cspd-compat"])
def test_the_picture_is_that_of_the_public_call(image, folder, method):
    window = {} if method in ("plain", "chain") else {"window": 3}
    code, out, _, path = image("trouser", "--method", method, *(("--window", 3) if window else ()), "--seed", 3, "--json")
    found = json.loads(out)
    wanted = generate(load_image_model(str(folder)).model, ["trouser"], method=method, seed=3, **window)
    assert code == 0
    torch.testing.assert_close(torch.tensor(found["vectors"]), wanted.tokens, atol=6e-5, rtol=0)
    assert Image.open(path).tobytes() == wanted.images[0].convert("RGB").tobytes()
    assert (found["method"], found["pictures"], found["exactness"]) == (method, 1, wanted.stats.exactness)
    assert found["tokens"] == small_latents.CELLS
    assert found["step_compression"] == pytest.approx(small_latents.CELLS / found["forwards"])
    assert found["head"] in CONTINUOUS_METHODS[method].heads
    assert found["window"] == (3 if window else 1)


def test_steps_of_the_chain_are_drafted(image, folder):
    """Options of one method are not the other's."""
    asked = ("--draft-steps", 2, "--head-steps", 6, "--seed", 3, "--json")
    found = json.loads(image("bag", "--method", "chain", "--compare", "plain", *asked)[1])
    wanted = generate(load_image_model(str(folder)).model, ["bag"], method="chain", seed=3, sampling=Sampling(6), draft_steps=2)
    torch.testing.assert_close(torch.tensor(found["vectors"]), wanted.tokens, atol=6e-5, rtol=0)
    assert (found["compare"]["method"], found["compare"]["head_steps"]) == ("plain", 6)


def test_a_state_draft_of_a_folder_drafts(image, folder, tmp_path):
    """Its calls are those of the public call; a folder that holds no draft for this target is refused in one line."""
    model = load_image_model(str(folder)).model
    torch.manual_seed(0)
    save_model(StateDraft.beside(model.model, head_width=16).eval(), tmp_path / "state")
    code, out, err, _ = image("trouser", "--drafter", tmp_path / "state", "--method", "path", "--seed", 3, "--json")
    assert code == 0, err
    found = json.loads(out)
    wanted = generate(model, ["trouser"], str(tmp_path / "state"), method="path", seed=3)
    torch.testing.assert_close(torch.tensor(found["vectors"]), wanted.tokens, atol=6e-5, rtol=0)
    assert found["forwards"] == wanted.stats.row_calls
    assert found["drafter"] == str(tmp_path / "state")
    (tmp_path / "empty").mkdir()
    code, out, err, _ = image("trouser", "--drafter", tmp_path / "empty", out="other.png")
    assert (code, out, len(err.splitlines())) == (2, "", 1)


def test_what_was_asked_and_what_the_model_says_are_both_told(image):
    asked = json.loads(image("bag", "--method", "path", "--head-steps", 2, "--sigma-out", 0.3, "--guidance", 2, "--json")[1])
    assert (asked["head_steps"], asked["sigma_out"], asked["window"], asked["settings"]["guidance"]) == (2, 0.3, WINDOW, 2)
    told = json.loads(image("bag", "--json")[1])
    assert (told["method"], told["head"], told["head_steps"], told["sigma_out"]) == ("path", "diffusion", 4, 0.1)
    assert told["settings"]["guidance"] is None  # the minis' guidance is for codes
    assert "head_steps" not in json.loads(image("bag", "--method", "density", "--json")[1])


def test_options_reach_the_distribution(image, folder):
    found = json.loads(image("bag", "--method", "aligned", "--head-steps", 2, "--sigma-out", 0.5, "--seed", 1, "--json")[1])
    model = load_image_model(str(folder)).model
    wanted = generate(model, ["bag"], method="aligned", seed=1, sampling=Sampling(2, 0.5))
    torch.testing.assert_close(torch.tensor(found["vectors"]), wanted.tokens, atol=6e-5, rtol=0)
    other = generate(model, ["bag"], method="aligned", seed=1)
    assert not torch.allclose(other.tokens, wanted.tokens, atol=0.05)


def test_several_pictures_and_two_methods(image, monkeypatch):
    monkeypatch.setattr("mmspec.commands.image.BATCH", 2)
    code, out, _, path = image("bag", "--method", "path", "--compare", "plain", "--grid", 3, "--seed", 5, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["seeds"] == [5, 6, 7]
    assert (found["compare"]["method"], found["compare"]["forwards"]) == ("plain", small_latents.CELLS)
    assert found["forwards"] < small_latents.CELLS
    assert Image.open(path).size[0] > 3 * 16
    one = json.loads(image("bag", "--method", "path", "--seed", 6, "--json")[1])  # alone: the same numbers
    torch.testing.assert_close(torch.tensor(one["vectors"][0]), torch.tensor(found["vectors"][1]), atol=2e-4, rtol=0)


def test_the_table_tells_that_pictures_are_not_plains(image):
    code, out, _, path = image("bag", "--method", "path", "--compare", "density")
    text = " ".join(out.split())
    assert code == 0
    for word in ("path", "diffusion", "density", "mixture", "tokens a", "distribution-exact", "two models, with a distribution each"):
        assert word in text
    assert "the same distribution, not the same picture" in " ".join(image("bag", "--compare", "plain")[1].split())
    assert str(path) in out.replace("\n", "")


MISTAKES = {
    "an unknown class": (("unicorn",), ("'unicorn'", "trouser, bag")),
    "a class that is none": (("3",), ("0 to 2",)),
    "no prompt": ((), ("no prompt", "'T-shirt'")),
    "a window by the clock for sets": (("bag", "--method", "cspd-compat", "--window", "auto"), ("cspd-compat", "number")),
    "an unknown method": (("bag", "--method", "magic"), ("'magic'", "path", "cspd-compat")),
    "a method of codes": (("bag", "--method", "jacobi"), ("'jacobi'", "continuous tokens", "aligned")),
    "an unknown second method": (("bag", "--compare", "scd"), ("'scd'", "density")),
    "no noise on tokens": (("bag", "--method", "path", "--sigma-out", 0), ("path", "sigma_out is 0", "sigma_out > 0")),
    "no noise, aligned": (("bag", "--method", "aligned", "--sigma-out", 0), ("aligned", "sigma_out is 0")),
    "negative noise": (("bag", "--sigma-out", -1), ("sigma_out is -1",)),
    "no steps": (("bag", "--head-steps", 0), ("steps is 0", "1 to 1024")),
    "steps of a mixture": (("bag", "--method", "density", "--head-steps", 4), ("head_steps", "mixture")),
    "a window of nothing": (("bag", "--window", 0), ("window is 0",)),
    "a window inside the chain": (("bag", "--method", "chain", "--window", 3), ("--window", "chain")),
    "drafted steps of plain decoding": (("bag", "--method", "plain", "--draft-steps", 3), ("draft_steps is 3", "'plain'")),
    "drafted steps of words": (("bag", "--method", "chain", "--draft-steps", "many"), ("--draft-steps is 'many'", "auto")),
    "a window of words": (("bag", "--window", "wide"), ("'wide'", "auto")),
    "the likeliest codes": (("bag", "--top-k", 5), ("top_k is 5", "continuous tokens")),
    "a size": (("bag", "--size", 32), ("size is 32",)),
    "a drift budget": (("bag", "--drift-budget", 1), ("drift_budget", "continuous tokens")),
    "no temperature": (("bag", "--temperature", 0), ("temperature is 0", "density")),
    "guidance of a mixture": (("bag", "--method", "density", "--guidance", 2), ("single Gaussian", "3")),
    "half precision": (("bag", "--dtype", "bfloat16"), ("bfloat16", "float32")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_one_line(image, mistake):
    args, words = MISTAKES[mistake]
    refused(image(*args), *words)


def test_methods_that_a_model_cannot_draw_by(image, bare):
    refused(image("bag", "--method", "density", model=bare), "density", "mixture", "diffusion head", "path")
    refused(image("bag", "--method", "path", model=bare), "needs a drafter", "plain")
    assert image("bag", "--method", "plain", model=bare)[0] == 0


def test_options_of_continuous_tokens_are_refused_for_codes(image):
    refused(image("bag", "--head-steps", 4, model="vision-fashion"), "--head-steps", "continuous")
    refused(image("bag", "--method", "path", model="vision-fashion"), "unknown method 'path'", "jacobi")


@pytest.mark.parametrize(("out", "words"), [("no/where.png", ("cannot write",)), ("a.doc", (".doc", ".png"))])
def test_a_place_that_cannot_be_written_to(image, out, words):
    refused(image("bag", out=out), *words)


def test_folders_and_names(folder, bare, tmp_path):
    assert {name: is_continuous(name) for name in ("mini", "vision", *CONTINUOUS)} == {"mini": False, "vision": False} | dict.fromkeys(
        CONTINUOUS, True
    )
    loaded = load_image_model(str(folder))
    assert (loaded.model.head, loaded.examples, loaded.guidance, loaded.cells) == ("diffusion", small_latents.NAMES, None, 16)
    assert [each.head for each in loaded.model.others] == ["mixture", "masked"]
    alone = load_image_model(str(folder / "mixture")).model
    assert (alone.head, alone.others) == ("mixture", ())
    assert not is_continuous(str(tmp_path))
    (tmp_path / "autoencoder").mkdir()
    with pytest.raises(FileNotFoundError, match=r"train_\w+\.py"):
        load_image_model(str(tmp_path))


def test_a_model_without_a_decoder_is_refused():
    with pytest.raises(ValueError, match="no decoder"):
        check_decoder(Loaded("tokens", mmspec.vision.ContinuousPictures(small_latents.model("diffusion"))))


def test_the_ways_are_listed():
    rows = {row["name"]: row for row in continuous_methods()}
    assert list(rows) == list(CONTINUOUS_METHODS)
    for name, row in rows.items():
        rule = CONTINUOUS_METHODS[name].accept
        assert row["heads"] == ", ".join(CONTINUOUS_METHODS[name].heads)
        if rule is not None:
            assert row["exactness"] == rule.exactness
    assert rows["cspd-compat"]["exactness"].startswith("lossy")
