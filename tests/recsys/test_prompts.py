"""A column of prompts: texts through the model's tokenizer, in a job, with the lists of the public call on the same texts."""

from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.jobs import run
from mmspec.jobs.recommendations_job import RecommendationJobSpec, make_recommendation_job
from mmspec.loading.recsys import load_recommender
from mmspec.recsys import recommend
from tests.recsys import shops

PROMPTS = ["tent lamp", "rope", None, "tent tent rope lamp lamp", " ", "lamp " * 70, "rope tent"]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A recommender whose tokenizer lies beside it: words are tokens of the catalogue's."""
    folder = shops.write(tmp_path_factory.mktemp("shop"))
    words = {"<pad>": 0, "<unk>": 1, "tent": 3, "lamp": 9, "rope": 12}
    inner = Tokenizer(models.WordLevel(words, "<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>").save_pretrained(folder / "target")
    return folder


def table(path: Path) -> Path:
    deny = [[100, 101], None, None, [102], None, None, None]
    pq.write_table(pa.table({"user_id": list(range(7)), "prompt": PROMPTS, "sold": pa.array(deny, pa.list_(pa.int64()))}), path)
    return path


def test_the_lists_of_the_public_call(home, tmp_path):
    sizes = {"rows": 2, "batch_size": 3, "shard_size": 4, "k": 5, "device": "cpu", "draft_length": 2}
    spec = RecommendationJobSpec(
        users=table(tmp_path / "u.parquet"), out=tmp_path / "out", model=str(home), prompt_column="prompt", deny_column="sold", **sizes
    )
    report = run(partial(make_recommendation_job, spec))
    assert (report.outputs, report.rejects) == (4, 3)
    found = [row for part in sorted((tmp_path / "out").glob("part-*")) for row in pq.read_table(part).to_pylist()]
    told = load_recommender(str(home))
    words = {"tent": 3, "lamp": 9, "rope": 12}
    for user, deny in ((0, [100, 101]), (1, None), (3, [102]), (6, None)):
        ids = {"input_ids": [[words[word] for word in (PROMPTS[user] or "").split()]]}
        inputs = {name: torch.tensor(rows) for name, rows in ids.items()}
        inputs["attention_mask"] = inputs["input_ids"] * 0 + 1
        alone = recommend(told.model, inputs, k=5, catalogue=told.catalogue, deny=[deny])
        mine = [(row["item"], row["score"]) for row in found if row["user_id"] == user]
        assert [item for item, _ in mine] == alone.items[0]
        assert [score for _, score in mine] == pytest.approx(alone.scores[0], abs=1e-3)


@pytest.mark.parametrize("more", [["--unseen"], ["--fallback", "popularity"], ["--unknown", "skip"], ["--history-column", "prompt"]])
def test_options_that_read_histories_are_refused(home, tmp_path, more):
    command = ["recommend", str(table(tmp_path / "u.parquet")), str(tmp_path / "out"), "--model", str(home), "--prompt-column", "prompt"]
    asked = CliRunner().invoke(app, [*command, *more])
    assert asked.exit_code == 2
    assert "prompt" in asked.output
    assert not (tmp_path / "out").exists()


def test_a_model_without_a_tokenizer(tmp_path):
    folder = shops.write(tmp_path / "shop")
    command = ["recommend", str(table(tmp_path / "u.parquet")), str(tmp_path / "out"), "--prompt-column", "prompt"]
    for model in (str(folder), "mini"):
        asked = CliRunner().invoke(app, [*command, "--model", model])
        assert asked.exit_code == 2
        assert "has no tokenizer" in asked.output
