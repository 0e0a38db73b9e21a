"""`mmspec image`: the pictures of `mmspec.vision.generate`, one line for every mistake, whole files or none."""

import errno
import json

import pytest
import torch
from PIL import Image

import mmspec
from mmspec.cli import app
from mmspec.jobs.pictures import PictureTotals
from mmspec.loading.vision import MINI_GUIDANCE, load_image_model
from mmspec.vision.codes.methods import METHODS
from mmspec.vision.plan import default_method
from mmspec.vision.quality.contact_sheets import RAMP, sheet, temperature
from tests.commands import refused, runner
from tests.vision import small_minis, small_models


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small_minis.fashion(tmp_path_factory.mktemp("fashion"))


@pytest.fixture(scope="module")
def captions(tmp_path_factory):
    return small_minis.scenes(tmp_path_factory.mktemp("scenes"))


@pytest.fixture
def image(capsys, tmp_path, folder):
    """The command into a file of its own: (exit code, stdout, stderr, path)."""
    return runner(capsys, tmp_path, "image", folder, "out.png")


def test_the_picture_is_that_of_the_public_call(image, folder):
    code, out, _, path = image("trouser", "--method", "jacobi", "--seed", 3, "--json")
    found = json.loads(out)
    model = load_image_model(str(folder)).model
    wanted = mmspec.vision.generate(model, ["trouser"], method="plain", seed=3, guidance=MINI_GUIDANCE)
    assert code == 0
    assert found["codes"] == wanted.tokens.tolist()
    assert Image.open(path).tobytes() == wanted.images[0].convert("RGB").tobytes()
    assert (found["exactness"], found["drift"], found["pictures"]) == ("token-exact", None, 1)
    assert found["tokens"] == 196
    assert found["step_compression"] == pytest.approx(196 / found["forwards"])
    assert found["forwards"] < 196


def test_without_a_method_it_is_the_public_default(image):
    found = json.loads(image("bag", "--json")[1])
    assert found["method"] == default_method()
    named = json.loads(image("bag", "--method", default_method(), "--json")[1])
    assert found["codes"] == named["codes"]


def test_captions_draw_too(image, captions):
    code, out, err, path = image("a large red star top left", "--method", "jacobi", "--json", model=captions)
    assert code == 0
    assert len(json.loads(out)["codes"][0]) == 16
    assert Image.open(path).size == (64, 64)
    assert "not trained on" not in err


def test_words_of_a_caption_that_the_model_does_not_know_are_named(image, captions):
    code, out, err, _ = image("a red apple", "--method", "jacobi", "--grid", 2, "--json", model=captions)
    assert code == 0
    assert len(json.loads(out)["codes"]) == 2
    assert err.count("words that the model was not trained on: apple; it knows a, and, blue,") == 1


def test_two_methods_side_by_side_and_several_pictures(image, monkeypatch):
    monkeypatch.setattr("mmspec.commands.image.BATCH", 2)
    code, out, _, path = image("bag", "--method", "jacobi", "--compare", "plain", "--grid", 3, "--seed", 5, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["seeds"] == [5, 6, 7]
    assert found["compare"]["same_pictures"] == 3
    assert found["compare"]["forwards"] == 196
    assert found["codes"] == found["compare"]["codes"]
    assert len({json.dumps(codes) for codes in found["codes"]}) == 3
    width, height = Image.open(path).size
    assert width > 3 * 128
    assert height > 2 * 128
    one = json.loads(image("bag", "--method", "jacobi", "--seed", 6, "--json")[1])
    assert one["codes"][0] == found["codes"][1]


def test_the_table_tells_figures_and_the_file(image):
    code, out, _, path = image("bag", "--method", "gsd", "--compare", "scd", "--drift-budget", 2)
    assert code == 0
    for word in ("gsd", "forwards", "drift", "lossy", "distribution-exact", "the same code for code"):
        assert word in out
    assert str(path) in out.replace("\n", "")


MISTAKES = {
    "an unknown class": (("unicorn",), ("'unicorn'", "trouser, bag")),
    "no prompt": ((), ("no prompt", "'T-shirt'")),
    "an unknown method": (("bag", "--method", "magic"), ("'magic'", "jacobi", "zipar-adaptive")),
    "an unknown second method": (("bag", "--compare", "magic"), ("'magic'", "scd")),
    "a size it cannot do": (("bag", "--size", 512), ("one size only",)),
    "a size of words": (("bag", "--size", "big"), ("'big'", "HEIGHTxWIDTH")),
    "a window of words": (("bag", "--window", "wide"), ("'wide'", "auto")),
    "a window of nothing": (("bag", "--window", 0), ("window is 0",)),
    "no pictures": (("bag", "--grid", 0), ("--grid is 0",)),
    "a negative temperature": (("bag", "--temperature", -1), ("temperature is -1",)),
    "negative guidance": (("bag", "--guidance", -2), ("guidance is -2",)),
    "a method without its net": (("bag", "--method", "eagle"), ("drafts with a trained net",)),
    "a budget that no one keeps": (("bag", "--method", "zipar", "--drift-budget", 1), ("drift_budget",)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_one_line(image, mistake):
    args, words = MISTAKES[mistake]
    refused(image(*args), *words)


def test_models_that_cannot_serve(image, tmp_path_factory):
    home = tmp_path_factory.mktemp("models")
    refused(image("bag", model="./nowhere"), "./nowhere does not exist")
    (home / "bare").mkdir()
    refused(image("bag", model=home / "bare"), "cannot be loaded")
    small_models.chameleon().save_pretrained(home / "chameleon")
    refused(image("a cat", model=home / "chameleon"), "cannot be loaded")  # no processor beside it


def test_guidance_where_there_is_nothing_to_guide_by(image, monkeypatch):
    from mmspec.loading.vision import Loaded
    from mmspec.vision.families.imagegpt import ImageGPT

    loaded = Loaded("pixels", ImageGPT(small_models.imagegpt(), small_models.colours(), size=(4, 6)), prompted=False)
    monkeypatch.setattr("mmspec.loading.vision.load_image_model", lambda *args: loaded)
    refused(image("--guidance", 3), "leave guidance out")
    refused(image("a cat"), "takes none")
    assert image()[0] == 0


def test_a_model_without_a_decoder_is_refused_before_it_draws(image, monkeypatch):
    from mmspec.loading.vision import Loaded
    from mmspec.vision import generation
    from mmspec.vision.families.llamagen import LlamaGenPictures

    loaded = Loaded("codes", LlamaGenPictures(small_models.llamagen()))
    monkeypatch.setattr("mmspec.loading.vision.load_image_model", lambda *args: loaded)
    monkeypatch.setattr(generation, "run", None)
    refused(image("1"), "no decoder", "to_pictures")


@pytest.mark.parametrize(
    ("out", "words"), [("no/where.png", ("cannot write", "where.png")), ("a.doc", (".doc", ".png")), ("a", ("ends in",))]
)
def test_a_place_that_cannot_be_written_to(image, out, words):
    refused(image("bag", out=out), *words)


def test_a_full_disk_is_one_line_and_leaves_the_earlier_picture(image, monkeypatch):
    path = image("bag")[-1]
    before = path.read_bytes()

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mmspec.utils.files.os.fsync", full)
    code, out, err, path = image("bag", "--seed", 9)
    assert (code, out) == (1, "")
    assert "disk is full" in err
    assert len(err.splitlines()) == 1
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == ["out.png"]


def test_sheets_and_temperature_maps():
    dot = Image.new("RGB", (2, 2), "red")
    page = sheet([[dot, dot], [dot]], ["one", "two"], least=8)
    assert page.size[0] >= 2 * 8
    assert page.getpixel((9, 8 + 15 + 8 + 1)) == (255, 0, 0)
    picture = temperature(torch.tensor([[1, 4], [16, 99]]), 16)
    assert [picture.getpixel(at) for at in ((0, 0), (1, 0), (0, 1), (1, 1))] == [RAMP[0], RAMP[1], RAMP[2], RAMP[2]]


def test_totals_are_of_all_parts(folder):
    model, totals = load_image_model(str(folder)).model, PictureTotals()
    for seed in (0, 1):
        totals.add(mmspec.vision.generate(model, ["bag"], method="plain", seed=seed))
    assert (totals.pictures, totals.forwards, totals.compression, totals.drift) == (2, 196, 1, None)


def test_models_lists_minis_and_methods(capsys):
    with pytest.raises(SystemExit):
        app(["models", "--json"])
    found = json.loads(capsys.readouterr().out)
    methods = {row["name"]: row for row in found["picture_methods"]}
    assert [name.split()[0] for name in methods] == list(METHODS)
    assert methods[f"{default_method()} (default)"]
    for row in methods.values():
        rule = METHODS[row["name"].split()[0]].accept
        if METHODS[row["name"].split()[0]].rows is None and hasattr(rule, "exactness"):
            assert row["exactness"] == rule.exactness
    assert {"text", "vision", "vision-fashion"} <= {mini["name"] for mini in found["minis"]}
    assert "LlamaGen" in next(row for row in found["families"] if row["kind"] == "pictures")["models"]
