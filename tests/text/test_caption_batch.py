"""The recipe: what `mmspec caption --out` writes, in a folder or in one file, by one process or several; mistakes are one line."""

import importlib.util
import json
import sys
from functools import cache, partial
from pathlib import Path

import pytest

from mmspec.jobs import Processes, run
from mmspec.jobs.captions_job import CaptionJobSpec, make_caption_job
from mmspec.loading import text as pairs
from mmspec.run.config import Config, DrafterSection, RunSection, TargetSection
from tests import small_seers
from tests.jobs.folders import tree

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def recipe():
    spec = importlib.util.spec_from_file_location("caption_batch", ROOT / "text" / "caption_batch.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = small_seers.save_all(tmp_path_factory.mktemp("seers"))
    small_seers.drawn(home / "pictures")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "load_model", cache(pairs.load_model))
        yield home


@pytest.fixture
def main(recipe, home, capsys, monkeypatch):
    """Run the recipe on the pictures: (exit code, stdout, stderr)."""

    def run(*args, pictures="pictures"):
        given = [home / pictures, "--model", home / "seer", "--max-new-tokens", 6, "--temperature", 1, "--device", "cpu", *args]
        monkeypatch.setattr(sys, "argv", ["caption_batch.py", *map(str, given)])
        capsys.readouterr()
        try:
            recipe.main()
            code = 0
        except SystemExit as stopped:
            code = stopped.code
        return (code, *capsys.readouterr())

    return run


def test_shards_batches_and_drafters_leave_the_answers_alone(main, home, tmp_path):
    first = main("--out", tmp_path / "a.jsonl", "--drafter", "lookup", "--batch-size", 3)
    assert first[0] == 0
    assert "5 pictures: 5 outputs, no rejects" in first[1]
    view = ("--drafter", home / "reader", "--view", "newline", "--draft-length", 2)
    assert main("--out", tmp_path / "b", *view, "--shard-size", 2, "--batch-size", 1)[0] == 0
    parts = b"".join(path.read_bytes() for path in sorted((tmp_path / "b").glob("part-*.jsonl")))
    assert parts == (tmp_path / "a.jsonl").read_bytes()
    assert "3 shards, 3 of them from before" in main("--out", tmp_path / "b", *view, "--shard-size", 2)[1]
    rows = [json.loads(line) for line in parts.splitlines()]
    assert len({tuple(row["tokens"]) for row in rows}) == 5


def test_several_processes_write_the_same_folder(recipe, home, tmp_path, monkeypatch):
    def asked(out):
        given = ["x", str(home / "pictures"), "--out", str(out), "--model", str(home / "seer"), "--drafter", "lookup", "--shard-size", "2"]
        monkeypatch.setattr(sys, "argv", [*given, "--max-new-tokens", "4", "--device", "cpu"])
        seen = []
        with monkeypatch.context() as patch:
            patch.setattr(recipe, "ask", lambda args: seen.append(recipe.asked_for(args)))
            recipe.main()
        return seen[0]

    run(partial(make_caption_job, asked(tmp_path / "one")))
    for rank in (1, 0):
        run(partial(make_caption_job, asked(tmp_path / "two")), processes=Processes(rank, 2))
    names = sorted(path.name for path in (tmp_path / "one").glob("*.jsonl"))
    assert len(names) == 4
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in names)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--out", "OUT", "--view", "newline", "--drafter", "lookup"), "draft with a model"),
        (("--out", "OUT", "--drafter", "oracle"), "'oracle'"),
        (("--out", "OUT", "--accept", "token", "--drafter", "lookup"), "--draft-length a number"),
        ((), "--out answers.jsonl"),
    ],
)
def test_a_mistake_is_told_in_one_line(main, tmp_path, args, words):
    code, out, err = main(*[tmp_path / "out.jsonl" if each == "OUT" else each for each in args])
    assert (code, out) == (2, "")
    assert words in err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_a_place_without_pictures(main, tmp_path):
    assert "does not exist" in main("--out", tmp_path / "a.jsonl", pictures="nowhere")[2]


def joined_and_static(config, lines, folder, **given):
    """The jobs of both ways to batch, which write the same bytes, and the report of the last one."""
    asked, jobs = folder / "asked.jsonl", {}
    asked.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for way in ("continuous", "static"):
        jobs[way] = make_caption_job(CaptionJobSpec(config, (str(asked),), folder / way, batch_size=2, batching=way, **given))
        report = run(jobs[way])
    assert tree(folder / "continuous") == tree(folder / "static")
    return jobs, report


@pytest.mark.parametrize(
    "drafting", [("lookup", None), ("reader", "newline"), ("reader", "drop"), ("seer", "own"), ("seer", "pruned"), ("seer", "own+drop")]
)
def test_questions_that_join_write_the_bytes_of_static_batches(home, tmp_path, drafting):
    """An ensemble of views runs in static batches."""
    (name, view), files = drafting, [str(home / "pictures" / f"{number}.png") for number in range(5)]
    lines = [{"file": file, "prompt": f"how many {word} ?"} for word in ("red", "of") for file in files]
    lines.insert(4, {"files": files * 9})  # exceeds the model's positions
    lines.insert(7, {"files": files[:2]})
    config = Config(
        target=TargetSection(path=str(home / "seer"), device="cpu"),
        drafter=DrafterSection(kind="model" if view else name, path=str(home / name) if view else None, length=2),
        run=RunSection(max_new_tokens=12, temperature=1.0),
    )
    jobs, report = joined_and_static(config, lines, tmp_path, view=view)
    assert (report.outputs, report.rejects) == (11, 1)
    assert (jobs["continuous"].work._model is None) == (view == "own+drop")


@pytest.mark.parametrize("drafter", ["none", "vlm"])
def test_answers_of_several_lengths_take_fewer_forwards(home, tmp_path, drafter):
    """Descriptions of 40 words and answers of 3, by the mini."""
    files = [str(home / "pictures" / f"{number}.png") for number in range(3)]
    questions = ("describe the picture .", "how many circles are there ?", "is there a red circle ?")
    lines = [{"file": file, "prompt": question} for file in files for question in questions]
    config = Config(target=TargetSection(path="vlm", device="cpu"), drafter=DrafterSection(kind=drafter, length=3))
    jobs, report = joined_and_static(config, lines, tmp_path)
    assert report.outputs == 9
    assert jobs["continuous"].work.stats.target_calls < jobs["static"].work.stats.target_calls


def test_an_unknown_way_to_batch_is_refused(home, tmp_path):
    spec = CaptionJobSpec(Config(), (str(home / "pictures"),), tmp_path / "out", batching="rows")
    with pytest.raises(ValueError, match="unknown batching 'rows'; valid: continuous, static"):
        make_caption_job(spec)
