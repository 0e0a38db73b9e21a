"""Text as a job: plain generation of each prompt with its own seed, in any split; mistakes are reasons; another pair is another job."""

import json
from dataclasses import replace

import pytest

from mmspec.jobs import Job, JsonLines, Lines, run
from mmspec.jobs.text import Continue, text_job_identity
from mmspec.loading.text import load_pair
from mmspec.run.config import Config, DrafterSection, RunSection


@pytest.fixture(scope="module")
def pair():
    return load_pair(Config(drafter=DrafterSection(kind="model"), run=RunSection(max_new_tokens=6, temperature=1.0, seed=7)))


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.jsonl"
    lines = [json.dumps({"prompt": f"Story: {n} birds", "id": n}) for n in range(5)]
    lines[2:2] = ["oops", '{"prompt": " "}', '{"text": "a"}', '{"prompt": 3}', json.dumps({"prompt": "bird " * 3000})]
    path.write_text("\n".join(lines))
    return path


def test_a_job_is_plain_generation_of_each_line_with_its_own_seed(pair, source, tmp_path):
    expected = []
    for index, line in enumerate(source.read_text().splitlines()):
        if not 2 <= index < 7:
            record = json.loads(line)
            out = pair.generate(pair.inputs([record["prompt"]]), seed=7 + index, drafter=None)
            ids = out.sequences[0, : out.lengths[0]].tolist()
            told = {"text": pair.decode(ids), "tokens": ids, "finish_reason": out.finish_reasons[0]}
            expected.append({"index": index, **record, **told})
    assert len({tuple(row["tokens"]) for row in expected}) > 1
    for shard_size, batch_size in ((4, 3), (100, 8)):
        work, out = Continue(pair), tmp_path / f"{shard_size}"
        model, options = text_job_identity(pair)
        job = Job(source=Lines(source), sink=JsonLines(), work=work, check=work.check, out=out, model=model, options=options)
        report = run(replace(job, shard_size=shard_size, batch_size=batch_size, measures=work.measures))
        found = [json.loads(line) for part in sorted(out.glob("part-*")) for line in part.read_text().splitlines()]
        assert found == expected
        assert report.measures["tokens"] == sum(len(row["tokens"]) for row in expected)
        reasons = [json.loads(line) for line in (out / "rejects.jsonl").read_text().splitlines()]
        assert [reject["line"] for reject in reasons] == [3, 4, 5, 6, 7]
        assert all('no "prompt" with text' in reject["reason"] for reject in reasons[1:4])
        assert "positions: shorten it" in reasons[4]["reason"]


def test_what_shows_in_the_outputs_is_part_of_the_identity(pair):
    model, options = text_job_identity(pair)
    assert json.loads(json.dumps([model, options])) == [model, options]
    warmer = replace(pair, config=replace(pair.config, run=replace(pair.config.run, temperature=0.5)))
    assert text_job_identity(warmer)[1] != options
    assert text_job_identity(replace(pair, target=pair.drafter))[0]["target"] != model["target"]
    elsewhere = replace(pair.config, target=replace(pair.config.target, path="/elsewhere", device="cuda"))
    assert text_job_identity(replace(pair, config=elsewhere)) == (model, options)
