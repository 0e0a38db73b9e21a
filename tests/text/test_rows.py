"""Text jobs with continuous batching: the bytes of static batches, and no row that waits for the longest one."""

import json
from dataclasses import replace

import pytest
import torch

from mmspec.core.stats import Stats
from mmspec.jobs import Job, JsonLines, Lines, run
from mmspec.jobs.text import Continue, run_bulk, text_job_identity
from mmspec.loading.text import Pair, load_pair
from mmspec.run.config import Config, DrafterSection, RunSection
from tests.conftest import llama
from tests.jobs.folders import tree


class Letters:
    """A tokenizer: token i + 3 is letter i."""

    def __call__(self, texts, **_):
        if isinstance(texts, str):
            return {"input_ids": [ord(letter) - 94 for letter in texts]}
        rows = [self(text)["input_ids"] for text in texts]
        most = max(map(len, rows))
        ids = torch.tensor([[0] * (most - len(row)) + row for row in rows])
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}

    def decode(self, ids, **_):
        return " ".join(map(str, ids))

    def get_vocab(self):
        return {}


def pair_of(drafter="lookup", temperature=1.0, most=40):
    """A random model whose outputs have 1 to `most` tokens: a seventh of its tokens end an output."""
    model = llama(2, seed=0)
    model.generation_config.eos_token_id = list(range(0, model.config.vocab_size, 7))
    config = Config(
        drafter=DrafterSection(kind="lookup" if drafter else "none"), run=RunSection(max_new_tokens=most, temperature=temperature)
    )
    return Pair("letters", model, Letters(), model if drafter == "same" else drafter, str(drafter), "exact", config)


def records(count=24):
    return [{"prompt": "abcde"[: 1 + n % 5] * (1 + n % 3)} for n in range(count)]


class Rounds(Stats):
    """Also counts the rows of every round, and those that had ended before it."""

    rows = idle = 0

    def add(self, step):
        super().add(step)
        self.rows += len(step.committed.values)
        self.idle += sum(not values for values in step.committed.values)


@pytest.mark.parametrize(("drafter", "temperature"), [(None, 1.0), ("lookup", 1.0), ("same", 1.0), ("same", 0.0)])
def test_rows_that_join_give_what_static_batches_give(drafter, temperature):
    pair, found = pair_of(drafter, temperature), {}
    for continuous in (True, False):
        work = Continue(pair, stats=Rounds(), rows=4, continuous=continuous)
        found[continuous] = list(work(list(enumerate(records())))), work.stats
    (joined, rows), (static, batches) = found[True], found[False]
    assert joined == static
    assert (rows.tokens, rows.exactness) == (batches.tokens, batches.exactness)
    assert rows.tokens == sum(len(record["tokens"]) for record in joined)
    assert rows.idle == 0
    assert batches.rows == batches.row_calls + batches.idle
    if temperature:  # lengths differ
        assert batches.idle > 0.2 * batches.rows
        assert rows.rows < batches.rows


def test_a_stop_ends_a_record_alone_and_errors_are_raised():
    pair = pair_of()
    stop = [lambda row, ids: len(ids) == 3]
    for record in Continue(pair, stop, rows=3)(list(enumerate(records(7)))):
        assert len(record["tokens"]) <= 3

    def broken(row, ids):
        raise ZeroDivisionError("a stop function that fails")

    with pytest.raises(ZeroDivisionError):
        list(Continue(pair, [broken], rows=3)(list(enumerate(records(7)))))


def test_pairs_whose_rows_cannot_join_run_in_static_batches():
    pair = replace(pair_of(), accept="token")
    work = Continue(pair, rows=4)
    assert work._model is None
    assert len(list(work(list(enumerate(records(9)))))) == 9
    assert work.stats.target_calls > 0


def test_a_job_writes_the_same_bytes_and_goes_on(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join([*map(json.dumps, records(20)), "oops"]))
    pair = pair_of()

    def job(out, continuous, fail=False):
        def broken(row, ids):
            raise ZeroDivisionError

        work = Continue(pair, [broken] if fail else (), rows=3, continuous=continuous)
        model, options = text_job_identity(pair)
        job = Job(source=Lines(source), sink=JsonLines(), work=work, check=work.check, out=out, model=model, options=options)
        return replace(job, shard_size=8, batch_size=8, measures=work.measures)

    right = run(job(tmp_path / "right", False))
    assert (right.outputs, right.rejects) == (20, 1)
    found = run(job(tmp_path / "out", True))
    assert tree(tmp_path / "out") == tree(tmp_path / "right")
    assert found.measures["tokens"] == right.measures["tokens"]
    whole = job(tmp_path / "half", True)
    with pytest.raises(ZeroDivisionError):
        run(replace(whole, work=lambda batch: whole.work(batch) if batch[0][0] < 8 else job(None, True, fail=True).work(batch)))
    assert run(job(tmp_path / "half", True)).resumed == 1
    assert tree(tmp_path / "half") == tree(tmp_path / "right")


def test_bulk_of_the_mini_is_that_of_each_alone():
    pair = load_pair(Config(drafter=DrafterSection(kind="lookup"), run=RunSection(max_new_tokens=8, temperature=1.0, seed=7)))
    stats = Stats()
    prompts = [{"prompt": text} for text in ("Once upon a time", "Story: 3 birds", "Question:")]
    for index, row in enumerate(run_bulk(pair, prompts, 2, stats)):
        out = pair.generate(pair.inputs([row["prompt"]]), seed=7 + index, drafter=None)
        assert row["tokens"] == out.tokens[0, : out.lengths[0]].tolist()
    assert stats.tokens
