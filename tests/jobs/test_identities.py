"""A finished job that is asked for again with another input of any kind is refused in one line; the same one is found to be done."""

import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from mmspec.jobs import Job, JsonLines, Lines, run
from mmspec.jobs.captions_job import CaptionJobSpec, make_caption_job
from mmspec.jobs.recommendations_job import RecommendationJobSpec, make_recommendation_job
from mmspec.jobs.speech_job import SpeechJobSpec, make_speech_job
from mmspec.jobs.text import Continue, text_job_identity
from mmspec.loading.recsys import load_recommender
from mmspec.loading.speech import load_speaker
from mmspec.loading.text import load_pair
from mmspec.run.config import AcceptSection, Config, DrafterSection, RunSection, TargetSection
from tests import small_seers
from tests.recsys import shops
from tests.speech import small_models
from tests.vision.small_jobs import assisted, picture_job, write_lines

LOSSY = AcceptSection(kind="typical")


@contextmanager
def changed(holder, name, value):
    """An attribute, or an entry, that is another one for a while."""
    read, write = (dict.get, dict.__setitem__) if isinstance(holder, dict) else (getattr, setattr)
    before = read(holder, name)
    write(holder, name, value)
    yield
    write(holder, name, before)


@contextmanager
def one_number(module):
    """One number of a module's weights is another one for a while."""
    weight = next(iter(module.parameters())).data.view(-1)
    before = weight[-1].clone()
    weight[-1] += 1
    yield
    weight[-1] = before


@contextmanager
def bytes_of(path, data):
    """A file holds other bytes for a while."""
    before = path.read_bytes()
    path.write_bytes(data)
    yield
    path.write_bytes(before)


class TextJob:
    """Text with pools on disk, and a lossy rule, so that the drafter shows in the outputs."""

    def __init__(self, folder):
        self.prompts = folder / "in.jsonl"
        self.prompts.write_text(json.dumps({"prompt": "Once"}))
        self.store = folder / "store.npy"
        tokens = np.arange(40, dtype=np.int32)
        np.save(self.store, np.stack([tokens, tokens]))
        drafter = DrafterSection(kind="datastore", path=str(self.store), length=2)
        self.pair = load_pair(Config(drafter=drafter, accept=LOSSY, run=RunSection(max_new_tokens=3)))

    def job(self, out):
        model, options = text_job_identity(self.pair)
        work = Continue(self.pair)
        return Job(source=Lines(self.prompts), sink=JsonLines(), work=work, check=work.check, out=out, model=model, options=options)

    @property
    def inputs(self):
        target, words = self.pair.target, self.pair.tokenizer
        return {
            "prompts": bytes_of(self.prompts, b'{"prompt": "Twice"}'),
            "weights": one_number(target),
            "config": changed(target.config, "rms_norm_eps", 0.5),
            "generation config": changed(target.generation_config, "repetition_penalty", 1.1),
            "chat template": changed(words, "chat_template", "{{ messages }}"),
            "special tokens": changed(words, "pad_token", words.eos_token + "!"),
            "datastore": bytes_of(self.store, self.store.read_bytes()[:-4] + b"\1\0\0\0"),
            "settings": changed(self, "pair", replace(self.pair, config=replace(self.pair.config, run=RunSection(max_new_tokens=4)))),
        }


class CaptionJob:
    """Pictures that JSON lines name."""

    def __init__(self, folder):
        small_seers.save_all(folder)
        small_seers.drawn(folder / "pictures")
        self.picture = sorted((folder / "pictures").glob("*.png"))[0]
        self.lines = folder / "pictures" / "in.jsonl"
        self.lines.write_text(json.dumps({"file": self.picture.name}))
        self.target = TargetSection(path=str(folder / "seer"), device="cpu")

    def job(self, out):
        config = Config(target=self.target, drafter=DrafterSection(kind="none"), run=RunSection(max_new_tokens=2))
        return make_caption_job(CaptionJobSpec(config, (str(self.lines),), out))

    @property
    def inputs(self):
        return {
            "lines": bytes_of(self.lines, self.lines.read_bytes() + b"\n{}"),
            "a picture's bytes": bytes_of(self.picture, self.picture.read_bytes() + b"\0"),
            "processor": self.edited("processor_config.json", "0.5", "0.25"),
            "tokenizer": self.edited("tokenizer.json", '"circles"', '"circleS"'),
            "config": self.edited("config.json", '"rms_norm_eps": ', '"rms_norm_eps": 1'),
        }

    def edited(self, name, old, new):
        path = Path(self.target.path) / name
        assert old in path.read_text()
        return bytes_of(path, path.read_text().replace(old, new).encode())


class PictureJob:
    def __init__(self, folder):
        self.prompts = write_lines(folder / "in.jsonl", [{"prompt": "cat"}])
        self.loaded, self.given = assisted(), {}

    def job(self, out):
        return picture_job(self.prompts, out, self.loaded, **self.given)

    @property
    def inputs(self):
        model = self.loaded.model
        return {
            "prompts": bytes_of(self.prompts, b'{"prompt": "dog"}'),
            "weights": one_number(model.model),
            "config": changed(model.model.config, "rms_norm_eps", 0.5),
            "codebook": changed(model, "codebook", model.codebook + 1),
            "labels": changed(model, "labels", ("dog", "cat", "owl")),
            "grid": changed(model, "raster", replace(model.raster, height=model.raster.height + 1)),
            "method": changed(self, "given", {"window": 5}),
        }


class SpeechJob:
    def __init__(self, folder):
        self.texts = folder / "in.jsonl"
        self.texts.write_text('{"text": "one"}')
        self.speaker, self.given = load_speaker(str(small_models.folder(folder / "tiny")), "none"), {}

    def job(self, out):
        return make_speech_job(SpeechJobSpec(texts=self.texts, out=out, max_seconds=0.2, **self.given), self.speaker)

    @property
    def inputs(self):
        model = self.speaker.model
        mirrored = replace(model.letters, voices=tuple(reversed(model.letters.voices)))
        return {
            "texts": bytes_of(self.texts, b'{"text": "two"}'),
            "weights": one_number(model.model),
            "config": changed(model.model.config, "rms_norm_eps", 0.5),
            "codec": one_number(model.codec),
            "letters": changed(model.letters.tokenizer, "chat_template", "{{ messages }}"),
            "voices": changed(self, "speaker", replace(self.speaker, model=replace(model, letters=mirrored))),
            "rate": changed(self, "given", {"sample_rate": 16000}),
        }


class RecommendationJob:
    def __init__(self, folder):
        self.users = folder / "users.parquet"
        self.table = pa.table({"user_id": [1], "history": pa.array([[100, 101]], pa.list_(pa.int64()))})
        pq.write_table(self.table, self.users)
        (folder / "only.txt").write_text("\n".join(map(str, range(100, 150))))
        self.only, self.given = folder / "only.txt", {}
        self.loaded = load_recommender(str(shops.write(folder / "shop")), drafter="model")

    def job(self, out):
        given = {"users": self.users, "out": out, "k": 3, "draft_length": 1, "only": str(self.only), "device": "cpu"} | self.given
        return make_recommendation_job(RecommendationJobSpec(**given), self.loaded)

    @property
    def inputs(self):
        other = pa.table({"user_id": [1], "history": pa.array([[100, 102]], pa.list_(pa.int64()))})
        sink = pa.BufferOutputStream()
        pq.write_table(other, sink)
        return {
            "users": bytes_of(self.users, sink.getvalue().to_pybytes()),
            "weights": one_number(self.loaded.model),
            "config": changed(self.loaded.model.config, "rms_norm_eps", 0.5),
            "generation config": changed(self.loaded.model.generation_config, "repetition_penalty", 1.05),
            "catalogue": changed(self, "loaded", replace(self.loaded, catalogue=shops.catalogue(61))),
            "drafter": one_number(getattr(self.loaded.drafter, "model", self.loaded.drafter)),
            "allowed items": bytes_of(self.only, b"100\n101\n102\n103\n104"),
            "settings": changed(self, "given", {"k": 2}),
        }


@pytest.mark.parametrize("kind", [TextJob, CaptionJob, PictureJob, SpeechJob, RecommendationJob])
def test_another_input_of_any_kind_is_another_job(kind, tmp_path):
    made, out = kind(tmp_path), tmp_path / "out"
    assert run(made.job(out)).resumed == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert run(made.job(out)).resumed == 1  # the same again: nothing is left to do
    for name, other in made.inputs.items():
        with other:
            try:
                with pytest.raises(ValueError, match="holds another job") as refused:
                    run(made.job(out))
            except BaseException as error:
                raise AssertionError(name) from error
            assert "\n" not in str(refused.value)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert run(made.job(out)).resumed == 1
    assert torch.is_grad_enabled()
