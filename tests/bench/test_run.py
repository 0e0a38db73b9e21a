"""The benchmark: fair turns, paired ratios, honest refusals, provenance beside the figures."""

import json

import pytest

from mmspec.bench.compare import run as module
from mmspec.bench.compare.peers import ASSISTED, DRAFTED, ENGINE, PLAIN, Outcome, assistance, constant_draft_tokens
from mmspec.bench.compare.run import Spread, Trial, paired, run_trials, same_text, summarise
from mmspec.cli import app
from mmspec.loading.text import load_pair
from mmspec.run.config import Config, DrafterSection, RunSection
from tests.bench.test_report import Page


def trial(name, batch, repeat, tokens, seconds, **changes):
    return Trial(name, batch, repeat, Outcome([tokens], len(tokens), len(tokens), seconds, **changes))


def test_a_spread_is_a_median_with_quartiles():
    assert Spread.of([4, 1, 3, 2, 5]) == Spread(3, 2, 4)
    assert Spread.of([7]) == Spread(7, 7, 7)
    assert Spread.of([]) is None


def test_ratios_are_paired_by_batch_and_repeat():
    trials = [
        trial(PLAIN, 0, 0, [1, 2], 2.0),
        trial(PLAIN, 1, 0, [1], 8.0),
        trial(DRAFTED, 1, 0, [1], 2.0),
        trial(DRAFTED, 0, 0, [1, 2], 1.0),
    ]
    assert paired(trials, DRAFTED, PLAIN) == [4.0, 2.0]
    assert paired(trials, DRAFTED, ASSISTED) == []


def test_texts_are_compared_row_by_row():
    trials = [trial(PLAIN, 0, 0, [1, 2], 1), trial(DRAFTED, 0, 0, [1, 2], 1), trial(DRAFTED, 0, 1, [1, 3], 1)]
    assert same_text(trials, DRAFTED) == {"same": 1, "of": 2}


def test_a_refusal_is_reported_in_its_own_words():
    trials = [trial(PLAIN, 0, 0, [1], 1), trial(ASSISTED, 0, 0, [], 0, refused="batch of 1 only"), trial(ENGINE, 0, 0, [1], 1)]
    rows = {row["contender"]: row for row in summarise(trials, greedy=True)}
    assert rows[ASSISTED] == {"contender": ASSISTED, "refused": "batch of 1 only"}
    assert rows[ENGINE]["ratio_to_assisted"] is None
    assert rows[ENGINE]["ratio_to_plain"]["median"] == 1


@pytest.fixture(scope="module")
def pair():
    return load_pair(Config(drafter=DrafterSection(kind="model", length=3), run=RunSection(max_new_tokens=6)))


def test_contenders_take_turns_at_going_first(pair, monkeypatch):
    order = []

    def contender(name):
        return lambda inputs, seed: order.append((name, seed)) or Outcome([[1]], 1, 1, 1.0)

    monkeypatch.setattr(module, "contenders", lambda *_: {name: contender(name) for name in "abc"})
    trials = run_trials(pair, pair.examples[:2], draft_tokens=3, batch_size=1, repeats=2, done=lambda: None)
    assert len(trials) == 12
    assert "".join(name for name, _ in order[:3]) == "abc"  # warm-up
    turns = ["".join(name for name, _ in order[at : at + 3]) for at in range(3, 15, 3)]
    assert turns == ["bca", "cab", "abc", "bca"]
    assert [seed for _, seed in order[3::3]] == [0, 1, 0, 1]


def test_the_peer_drafts_as_the_pair_does(pair):
    assert assistance(pair, 4) == {"assistant_model": pair.model}
    lookup = load_pair(Config(drafter=DrafterSection(kind="lookup")))
    assert assistance(lookup, 4) == {"prompt_lookup_num_tokens": 4}
    assert assistance(load_pair(Config(drafter=DrafterSection(kind="suffix"))), 4) is None


def test_an_assistant_keeps_its_own_settings(pair):
    config = pair.model.generation_config
    before = config.to_dict()
    with constant_draft_tokens(pair.model, 3):
        assert (config.num_assistant_tokens, config.num_assistant_tokens_schedule) == (3, "constant")
    assert config.to_dict() == before


def bench(capsys, *args):
    with pytest.raises(SystemExit) as stopped:
        app(["bench", "--limit", "2", "--repeats", "2", "--max-new-tokens", "6", *args])
    assert stopped.value.code == 0
    return capsys.readouterr().out


def test_the_command_measures_counts_ratios_and_equality(capsys, tmp_path):
    output, html = tmp_path / "results.json", tmp_path / "bench.html"
    found = json.loads(bench(capsys, "--json", "--draft-length", "3", "--output", str(output), "--html", str(html)))
    assert json.loads(output.read_text()) == found
    rows = {row["contender"]: row for row in found["contenders"]}
    assert list(rows) == [PLAIN, ASSISTED, ENGINE, DRAFTED]
    for name, row in rows.items():
        assert row["tokens"] == rows[PLAIN]["tokens"], name
        assert row["same_text"] == {"same": 4, "of": 4}
        assert row["ratio_to_plain"]["low"] <= row["ratio_to_plain"]["median"] <= row["ratio_to_plain"]["high"]
    assert rows[PLAIN]["tokens_per_call"] == rows[ENGINE]["tokens_per_call"] == 1
    assert rows[DRAFTED]["target_calls"] <= rows[ASSISTED]["target_calls"] < rows[PLAIN]["target_calls"]
    assert rows[DRAFTED]["seconds"]["draft"] > 0
    assert {"argv", "date", "git", "versions", "device", "cpu", "threads"} <= set(found["provenance"])
    assert len(found["trials"]) == 16
    text = html.read_text()
    assert "4 of 4" in text
    assert "http" not in text
    page = Page(text)
    assert (page.open, page.fetched, page.problems) == ([], [], [])
    best = rows[DRAFTED]
    assert f">{1 - 1 / best['tokens_per_call']:.0%}<" in text
    assert f"<b>{best['ratio_to_plain']['median']:.2f}&times;</b> generate <small>" in " ".join(text.split())


def test_batches_are_refused_by_assisted_generation_only(capsys):
    rows = {row["contender"]: row for row in json.loads(bench(capsys, "--json", "--batch-size", "2"))["contenders"]}
    assert "batch_size = 1" in rows[ASSISTED]["refused"]
    assert rows[DRAFTED]["same_text"] == {"same": 4, "of": 4}
    table = bench(capsys, "--batch-size", "2", "--temperature", "0.8")
    assert f"{ASSISTED} refused: assisted generate is only supported for batch_size = 1" in table
