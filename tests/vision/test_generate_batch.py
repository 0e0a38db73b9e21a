"""Pictures in bulk: the same bytes whatever the batches, resumed where it was, lines that ask for nothing told with reasons."""

import copy
import errno
import json
from pathlib import Path

import pytest
import torch

import mmspec
from mmspec.jobs import Stopped, run
from mmspec.jobs.pictures import Draw
from mmspec.loading.vision import load_image_model
from mmspec.vision.checkpoints.load import load_image_checkpoint
from mmspec.vision.quality.contact_sheets import picture_bytes
from tests.vision import small_checkpoints, small_latents
from tests.vision.small_jobs import picture_job, recipe, write_lines


@pytest.fixture
def job(tmp_path):
    """Run the recipe's job over LINES into a folder."""
    prompts = write_lines(tmp_path / "in.jsonl")

    def done(name: str, loaded=None, **changes):
        return run(picture_job(changes.pop("prompts", prompts), tmp_path / name, loaded, **changes))

    return done


def contents(folder: Path) -> dict[str, bytes]:
    """All files that are promised to be the same."""
    files = (path for path in folder.rglob("*") if path.is_file() and "timing" not in str(path.relative_to(folder)))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for path in sorted(folder.glob("part-*.jsonl")) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("method", ["scd", "jacobi", "zipar"])
def test_pictures_do_not_depend_on_batches(job, tmp_path, method):
    for size in (1, 2, 5):
        job(str(size), batch_size=size, method=method, window=None if method == "zipar" else 6)
    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "5")
    assert len({path.read_bytes() for path in (tmp_path / "1" / "images").iterdir()}) == 4


def test_a_picture_is_that_of_the_public_call(job, tmp_path):
    report = job("out")
    found = {row["index"]: row for row in rows(tmp_path / "out")}
    assert (report.outputs, report.rejects, sorted(found)) == (4, 3, [0, 1, 3, 6])
    assert found[0] == {"index": 0, "prompt": "cat", "id": 7, "seed": 3, "file": "images/000000.png"}
    assert [found[index]["seed"] for index in (1, 3, 6)] == [4, 41, 9]
    for index, prompt in ((1, 2), (3, "owl")):
        alone = mmspec.vision.generate(recipe().tiny().model, [prompt], method="scd", window=6, guidance=2.0, seed=found[index]["seed"])
        assert (tmp_path / "out" / found[index]["file"]).read_bytes() == picture_bytes(alone.images[0])


def test_rejects_say_why(job, tmp_path):
    job("out")
    reasons = {row["line"]: row["reason"] for row in map(json.loads, (tmp_path / "out" / "rejects.jsonl").read_text().splitlines())}
    assert sorted(reasons) == [3, 5, 6]
    assert "unknown class 'unicorn'" in reasons[3]
    assert "cat, dog, owl" in reasons[3]
    assert 'no "prompt"' in reasons[5]
    assert "seed is 'x'" in reasons[6]


def test_a_job_that_was_stopped_goes_on(job, tmp_path, monkeypatch):
    job("whole")
    draw, calls = Draw.__call__, []

    def full(self, batch):
        calls.append(batch)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return draw(self, batch)

    monkeypatch.setattr(Draw, "__call__", full)
    with pytest.raises(Stopped, match=r"(?i)full|space"):
        job("again")
    assert not list((tmp_path / "again").glob(".unfinished*"))
    monkeypatch.setattr(Draw, "__call__", draw)
    report = job("again", batch_size=1)
    assert report.resumed >= 1
    assert contents(tmp_path / "again") == contents(tmp_path / "whole")


@pytest.mark.parametrize("change", [{"method": "jacobi"}, {"guidance": 1.0}, {"seed": 4}, {"window": 7}, {"temperature": 0.5}])
def test_another_job_is_refused(job, change):
    job("out")
    with pytest.raises(ValueError, match="holds another job"):
        job("out", **change)


def test_a_published_file_is_drawn_with_its_decoder_and_size(job, tmp_path):
    file, decoder = small_checkpoints.llamagen(tmp_path)
    prompts = tmp_path / "classes.jsonl"
    prompts.write_text('{"class": 3}\n{"class": 5, "seed": 8}')
    plain = file.rename(tmp_path / "model.pt")  # a name that tells no size
    asked = {"model": str(plain), "decoder": str(decoder), "size": 64, "prompts": prompts, "guidance": 4.0}
    job("out", **asked)
    model, found = load_image_checkpoint(plain, decoder=decoder, size=64), {row["index"]: row for row in rows(tmp_path / "out")}
    for index, number, seed in ((0, 3, 3), (1, 5, 8)):
        alone = mmspec.vision.generate(model, [number], method="scd", window=6, guidance=4.0, seed=seed)
        assert (tmp_path / "out" / found[index]["file"]).read_bytes() == picture_bytes(alone.images[0])
    other = torch.load(decoder)
    other["model"]["decoder.conv_out.bias"] += 0.1  # the same codebook
    torch.save(other, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"holds another job.*decoder"):
        job("out", **asked | {"decoder": str(tmp_path / "other.pt")})


def test_decoders_are_refused_as_by_the_command(job, tmp_path):
    anole, vqgan = small_checkpoints.chameleon(tmp_path)
    file, _ = small_checkpoints.llamagen(tmp_path)
    wrong = {
        "no decoder of its own": {"model": str(anole)},
        "64 codes and .* has 50": {"model": str(file), "decoder": str(vqgan)},
        "has its own: leave it out": {"model": "mini", "decoder": str(vqgan)},
        "captions is .* does not read it": {"model": str(anole), "decoder": str(vqgan), "captions": str(tmp_path)},
    }
    for words, change in wrong.items():
        with pytest.raises(ValueError, match=words):
            job("out", **change)
    assert not (tmp_path / "out").exists()


# --- continuous tokens ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """A small random model of continuous tokens, and one whose autoencoder or draft is another."""
    home = tmp_path_factory.mktemp("latents")
    names = ("cat", "dog", "owl")
    return load_image_model(str(small_latents.folder(home, heads=("diffusion", "mixture"), id2label=dict(enumerate(names)))))


VECTORS = {"method": "path", "window": 4, "guidance": None}


def test_continuous_tokens_in_bulk_are_those_of_the_public_call(job, vectors, tmp_path):
    report = job("out", vectors, **VECTORS, head_steps=3, batch_size=1)
    found = {row["index"]: row for row in rows(tmp_path / "out")}
    assert (report.outputs, report.rejects, sorted(found)) == (4, 3, [0, 1, 3, 6])
    assert "unknown class 'unicorn'" in (tmp_path / "out" / "rejects.jsonl").read_text()
    for index, prompt in ((0, "cat"), (1, 2)):
        alone = mmspec.vision.generate(
            vectors.model, [prompt], method="path", window=4, seed=found[index]["seed"], sampling=mmspec.vision.Sampling(3)
        )
        assert (tmp_path / "out" / found[index]["file"]).read_bytes() == picture_bytes(alone.images[0])
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert {"target", "config", "autoencoder", "drafter", "sampling", "everything else"} == set(manifest["model"])
    assert manifest["options"]["batch_size"] == 1


def test_steps_of_the_chain_are_drafted(job, vectors, tmp_path):
    asked = VECTORS | {"method": "chain", "window": None, "head_steps": 6, "draft_steps": 2, "batch_size": 1}
    job("out", vectors, **asked)
    found = {row["index"]: row for row in rows(tmp_path / "out")}
    settings = {"sampling": mmspec.vision.Sampling(6), "draft_steps": 2, "seed": found[0]["seed"]}
    alone = mmspec.vision.generate(vectors.model, ["cat"], method="chain", **settings)
    assert (tmp_path / "out" / found[0]["file"]).read_bytes() == picture_bytes(alone.images[0])
    with pytest.raises(ValueError, match="holds another job"):
        job("out", vectors, **asked | {"draft_steps": 3})
    assert job("auto", vectors, **asked | {"draft_steps": "auto"}).outputs == 4


@pytest.mark.parametrize("method", ["path", "density"])
def test_a_job_of_continuous_tokens_that_was_stopped_goes_on(job, vectors, tmp_path, monkeypatch, method):
    settings = VECTORS | {"method": method}
    job("whole", vectors, **settings)
    draw, calls = Draw.__call__, []

    def full(self, batch):
        calls.append(batch)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return draw(self, batch)

    monkeypatch.setattr(Draw, "__call__", full)
    with pytest.raises(Stopped, match=r"(?i)full|space"):
        job("again", vectors, **settings)
    monkeypatch.setattr(Draw, "__call__", draw)
    assert job("again", vectors, **settings).resumed >= 1
    assert contents(tmp_path / "again") == contents(tmp_path / "whole")


def test_another_job_of_continuous_tokens_is_refused(job, vectors):
    job("out", vectors, **VECTORS)
    for change in ({"method": "aligned"}, {"sigma_out": 0.2}, {"head_steps": 3}, {"window": 3}, {"batch_size": 3}, {"temperature": 0.9}):
        with pytest.raises(ValueError, match="holds another job"):
            job("out", vectors, **(VECTORS | change))
    other = copy.deepcopy(vectors)
    other.autoencoder.config["latents_std"][0] *= 1.5  # the same weights
    with pytest.raises(ValueError, match=r"holds another job.*autoencoder"):
        job("out", other, **VECTORS)
    other = copy.deepcopy(vectors)
    other.model.drafter = small_latents.near(vectors.model.model, 0.003)
    with pytest.raises(ValueError, match=r"holds another job.*drafter"):
        job("out", other, **VECTORS)


def test_bad_requests_for_continuous_tokens_are_told_before_anything_is_drawn(job, vectors, tmp_path):
    wrong = {
        "unknown method for continuous tokens 'jacobi'": {"method": "jacobi"},
        "steps is 0": {"head_steps": 0},
        "sigma_out is -1": {"sigma_out": -1.0},
        "draft_steps is 'many'": {"method": "chain", "window": None, "draft_steps": "many"},
        "draft_steps is 32": {"draft_steps": 32},
        "draft_steps is 3, but method 'plain'": {"method": "plain", "window": None, "draft_steps": 3},
        "draft_steps is 3, but method 'density'": {"method": "density", "draft_steps": 3},
    }
    for words, change in wrong.items():
        with pytest.raises(ValueError, match=words):
            job("out", vectors, **(VECTORS | change))
    with pytest.raises(ValueError, match="head_steps is for continuous tokens"):
        job("out", head_steps=4)
    with pytest.raises(ValueError, match="draft_steps is for continuous tokens"):
        job("out", draft_steps=2)
    assert not (tmp_path / "out").exists()


def test_bad_requests_are_told_before_a_model_is_loaded(job, tmp_path):
    with pytest.raises(ValueError, match="unknown method 'magic'"):
        job("out", method="magic")
    with pytest.raises(ValueError, match="does not exist"):
        job("out", prompts=tmp_path / "nowhere.txt")


def test_captions_are_texts():
    from tests.vision import small_models

    loaded = recipe().Loaded("captions", recipe().LlamaGenPictures(small_models.llamagen("caption")))
    work = Draw(loaded, {})
    assert work.check({"prompt": "a red apple"})
    for record in ({"prompt": 3}, {"prompt": ""}, {}, {"prompt": "a", "seed": True}):
        with pytest.raises(ValueError, match=r"prompt|seed"):
            work.check(record)
