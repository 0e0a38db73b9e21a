"""`mmspec bench --suite real`: prompts, contenders, the journal that a stopped run continues, figures worked out by hand, refusals."""

import gzip
import json
import re

import pytest

from mmspec.bench.compare.peers import run_transformers
from mmspec.bench.suites import page
from mmspec.bench.suites.contenders import LOOKUP, PLAIN
from mmspec.bench.suites.journal import Journal
from mmspec.bench.suites.prompts import KINDS, kinds_of, own_prompts, prompts_of, spread_out
from mmspec.bench.suites.real import measure, render
from mmspec.bench.suites.summary import turn_rows
from mmspec.cli import app
from mmspec.loading.text import load_pair
from mmspec.run.config import Config, DrafterSection, RunSection

SMALL = {"model": "mini", "device": "cpu", "kinds": "qa,gsm8k", "limit": 1, "max_new_tokens": 6}


@pytest.fixture(autouse=True)
def no_data(tmp_path, monkeypatch):
    monkeypatch.setenv("MMSPEC_DATA", str(tmp_path / "no data"))


# --- prompts ----------------------------------------------------------------------------------------------------------


def test_every_kind_has_prompts_of_our_own():
    for kind in KINDS:
        found = prompts_of(kind)
        assert found == own_prompts(kind)
        assert len(found) >= max(4, len({prompt.text for prompt in found}))
        assert {prompt.kind for prompt in found} == {kind}


def test_data_sets_are_read_where_they_are(tmp_path):
    def write(name, records):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        with gzip.open(path, "wt", encoding="utf-8") as file:
            file.write("\n".join(json.dumps(record) for record in records) + "\n")

    asked = [(81, "writing"), (91, "stem"), (321, "qa"), (401, "math_reasoning")]
    write("spec-bench/question.jsonl.gz", [{"question_id": n, "category": c, "turns": [f"turn of {n}", "later"]} for n, c in asked])
    write("gsm8k/test.jsonl.gz", [{"question": "How many?", "answer": "4"}])
    write("human-eval/HumanEval.jsonl.gz", [{"task_id": "HumanEval/7", "prompt": "def f():\n"}])
    names = {kind: [prompt.name for prompt in prompts_of(kind, tmp_path)] for kind in KINDS}
    assert names["conversation"] == ["conversation/81", "conversation/91"]
    assert names["math"] == ["math/401"]
    assert names["gsm8k"] == ["gsm8k/0"]
    assert names["humaneval"] == ["humaneval/7"]
    assert names["rag"] == [f"own/rag/{n}" for n in range(4)]  # of which these files have none
    assert prompts_of("conversation", tmp_path)[0].text == "turn of 81"
    assert prompts_of("gsm8k", tmp_path)[0].text == "Question: How many?\nAnswer:"


def test_prompts_are_taken_at_even_distances():
    assert spread_out(list("abcdefgh"), 4) == list("aceg")
    assert spread_out(list("abc"), 2) == list("ab")
    assert spread_out(list("abc"), 9) == list("abc")
    assert kinds_of("qa, gsm8k,qa") == ("qa", "gsm8k")


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    lines = []
    patch = pytest.MonkeyPatch()
    patch.setenv("MMSPEC_DATA", str(tmp_path_factory.mktemp("nothing")))
    done = measure(**SMALL, drafter="model,eagle3", note=lines.append)
    patch.undo()
    return done, lines


def test_every_contender_runs_on_every_kind_in_every_setting(found):
    done, lines = found
    names = {row["contender"] for row in done["rows"]}
    assert names == {
        *("transformers", "transformers lookup", "transformers early exit", "transformers assisted by model"),
        *("mmspec plain", "mmspec lookup", "mmspec suffix", "mmspec recycling", "mmspec model", "mmspec eagle3"),
    }
    settings = {(row["temperature"], row["top_p"], row["batch_size"]) for row in done["rows"]}
    assert settings == {(0.0, None, 1), (0.0, None, 4), (0.7, 0.9, 1), (0.7, 0.9, 4)}
    assert {row["kind"] for row in done["rows"]} == {"qa", "gsm8k", "all"}
    assert len(done["rows"]) == len(names) * 4 * 3
    for row in done["rows"]:
        if row["batch_size"] == 4 and row["contender"].startswith("transformers "):
            assert "batch_size" in row["refused"]
            continue
        assert row["refused"] is None
        assert row["tokens"] > 0
        assert row["cpu_seconds"] > 0
        assert (row["to_lookup"] is None) == (row["batch_size"] == 4)
        if row["temperature"] == 0:
            assert row["same_text"]["same"] == row["same_text"]["of"] == row["batch_size"] * (2 if row["kind"] == "all" else 1)
    assert lines[0].startswith("no data for qa, gsm8k")
    assert len(lines) == 1 + 8 * len(names)


def test_contenders_can_be_named():
    asked = SMALL | {"kinds": "qa", "temperature": 0.0, "batch_size": 1}
    done = measure(**asked, contenders="mmspec lookup, transformers early exit", note=lambda line: None)
    assert list(done["turns"][0]["outcomes"]) == ["transformers", "transformers early exit", "mmspec lookup"]
    assert [row["to_lookup"] for row in done["rows"]] == [None] * 3
    with pytest.raises(ValueError, match="unknown contender 'lookup'"):
        measure(**asked, contenders="lookup", note=lambda line: None)


def test_contenders_take_turns_in_being_first(found):
    _, lines = found
    firsts = {}
    for line in lines[1:]:
        firsts.setdefault(line.partition("]")[0], re.sub(r" (refused|\d+ tokens).*", "", line.partition(": ")[2]))
    assert len(firsts) == len(set(firsts.values())) == 8


def test_the_tables_hold_every_contender(found):
    text = render(json.loads(json.dumps(found[0])))
    for words in ("### Greedy, batch 1", "### Temperature 0.7, top-p 0.9, batch 4", "| mmspec eagle3 |", "8 of them our own", "refused"):
        assert words in text
    widths = [line.count("|") for line in text.splitlines() if line.startswith("|")]
    assert set(widths) == {8, 4}


def test_forwards_of_an_early_exit_are_not_calls_of_the_model():
    pair = load_pair(Config(drafter=DrafterSection(kind="none"), run=RunSection(max_new_tokens=12)))
    inputs = pair.inputs([pair.examples[0]])
    plain = run_transformers(pair, inputs, 0, {})
    early = run_transformers(pair, inputs, 0, {"assistant_early_exit": 1})
    assert early.tokens == plain.tokens
    assert early.calls <= plain.calls + 1


# --- the journal ------------------------------------------------------------------------------------------------------


def test_a_stopped_run_continues(tmp_path):
    output, lines = tmp_path / "real.json", []

    def stop(line):
        lines.append(line)
        if len(lines) == 1 + 7 + 3:  # in the second turn
            raise KeyboardInterrupt

    asked = SMALL | {"temperature": 0.0, "batch_size": 1, "output": str(output)}
    with pytest.raises(KeyboardInterrupt):
        measure(**asked, note=stop)
    path = tmp_path / "real.jsonl"
    whole = path.read_text()
    assert len(whole.splitlines()) == 2
    path.write_text(whole + '{"turn": {"kin')  # and it was killed while it wrote
    again = []
    done = measure(**asked, note=again.append)
    assert len(again) == 1 + 7
    assert len(done["turns"]) == 2
    assert path.read_text().startswith(whole)
    kept = []
    assert measure(**asked, note=kept.append)["turns"] == done["turns"]
    assert len(kept) == 1
    more = measure(**(asked | {"limit": 2}), note=kept.append)
    assert len(more["turns"]) == 4
    with pytest.raises(ValueError, match="max_new_tokens"):
        measure(**(asked | {"max_new_tokens": 5}), note=kept.append)


def test_a_journal_tells_turns_apart(tmp_path):
    journal = Journal(tmp_path / "a.json", {"seed": 0})
    journal.add({"kind": "qa", "prompts": ["qa/1"]}, {"x": 1})
    assert Journal(tmp_path / "a.json", {"seed": 0}).found({"prompts": ["qa/1"], "kind": "qa"})["outcomes"] == {"x": 1}
    assert journal.found({"kind": "qa", "prompts": ["qa/2"]}) is None
    with pytest.raises(ValueError, match="other values of seed"):
        Journal(tmp_path / "a.json", {"seed": 1})
    with pytest.raises(ValueError, match=r"ends in \.json"):
        Journal(tmp_path / "a.jsonl", {})


# --- figures ----------------------------------------------------------------------------------------------------------


def turn(kind, number, **outcomes):
    made = {
        name: {"tokens": tokens, "calls": calls, "row_calls": calls, "seconds": seconds, "cpu": 2 * seconds, "refused": None}
        for name, (tokens, calls, seconds) in outcomes.items()
    }
    return {"turn": {"temperature": 0.0, "top_p": None, "batch_size": 1, "kind": kind, "prompts": [number]}, "outcomes": made}


def test_figures_worked_out_by_hand():
    names = {PLAIN: 0, LOOKUP: 1, "mmspec lookup": 2}

    def one(kind, number, *each):
        return turn(kind, number, **dict(zip(names, each, strict=True)))

    turns = [
        one("qa", 0, ([[1, 2, 3, 4]], 4, 4.0), ([[1, 2, 3, 4]], 2, 2.0), ([[1, 2, 3, 4]], 2, 1.0)),
        one("qa", 1, ([[1, 2]], 2, 2.0), ([[1, 2]], 1, 4.0), ([[1, 9]], 2, 2.0)),
        one("rag", 0, ([[5, 6]], 2, 2.0), ([[5, 6]], 2, 2.0), ([[5, 6]], 1, 0.5)),
    ]
    rows = {(row["kind"], row["contender"]): row for row in turn_rows(turns)}
    own = rows["qa", "mmspec lookup"]
    assert (own["tokens"], own["target_calls"], own["tokens_per_call"], own["seconds"], own["cpu_seconds"]) == (6, 4, 1.5, 3.0, 6.0)
    assert (own["to_plain"]["median"], own["to_lookup"]["median"], own["cpu_to_plain"]["median"]) == (2.5, 2.0, 2.5)
    assert own["same_text"] == {"same": 1, "of": 2}
    assert rows["all", "mmspec lookup"]["to_plain"]["median"] == 4.0
    assert rows["all", PLAIN]["to_plain"] == {"median": 1.0, "low": 1.0, "high": 1.0, "count": 3}
    turns[1]["outcomes"][LOOKUP]["refused"] = "no"
    rows = {(row["kind"], row["contender"]): row for row in turn_rows(turns)}
    assert rows["qa", LOOKUP] == {
        **{"temperature": 0.0, "top_p": None, "batch_size": 1, "kind": "qa"},
        **{"contender": LOOKUP, "refused": "no"},
    }
    assert rows["qa", "mmspec lookup"]["to_lookup"]["count"] == 1


def test_figures_stand_between_the_marks_of_a_page(tmp_path):
    path = tmp_path / "page.md"
    assert page.with_figures(path, "new") == f"{page.START}\n\nnew\n\n{page.END}\n"
    path.write_text(f"before\n{page.START}\nold\n{page.END}\nafter\n")
    assert page.with_figures(path, "new") == f"before\n{page.START}\n\nnew\n\n{page.END}\nafter\n"
    for text in ("no marks", f"{page.END} {page.START}"):
        path.write_text(text)
        with pytest.raises(ValueError, match="has no place for figures"):
            page.check_page(path)


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def bench(capsys):
    def run(*args):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            app(["bench", *map(str, args)])
        return stopped.value.code, *capsys.readouterr()

    return run


def test_the_command_writes_json_and_page(bench, tmp_path):
    path = tmp_path / "page.md"
    small = ("--model", "mini", "--kinds", "qa", "--limit", 1, "--max-new-tokens", 4, "--temperature", 0, "--batch-size", 1)
    code, out, err = bench("--suite", "real", *small, "--output", tmp_path / "real.json", "--page", path, "--device", "cpu")
    assert code == 0
    assert "### Greedy, batch 1" in out
    assert out.strip() in path.read_text()
    assert json.loads((tmp_path / "real.json").read_text())["suite"] == "real"
    assert "mmspec lookup 4 tokens" in err
    code, out, _ = bench("--suite", "real", *small, "--json", "--device", "cpu")
    assert code == 0
    assert json.loads(out)["about"]["model"] == "mini"


def test_what_cannot_be_run_is_refused(bench, tmp_path, monkeypatch):
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path / "empty"))
    (tmp_path / "page.md").write_text("nothing")
    real = ("--suite", "real", "--model", "mini")
    for words, args in {
        "did you mean 'real'": ("--suite", "reel"),
        "--tree is not read by --suite real": (*real, "--tree", "comb"),
        "--repeats is not read": (*real, "--repeats", 2),
        "--html is not read": (*real, "--html", "a.html"),
        "--kinds belongs to a suite": ("--kinds", "qa"),
        "--page belongs to a suite": ("--page", "a.md"),
        "--max-prompt-tokens belongs to a suite": ("--max-prompt-tokens", 9),
        "text/fetch_model.py": ("--suite", "real"),
        "unknown kind of prompts 'qb'": (*real, "--kinds", "qb"),
        "--top-p needs --temperature": (*real, "--top-p", 0.5),
        "temperature": (*real, "--temperature", -1),
        "short enough": (*real, "--max-prompt-tokens", 1),
        "has no place for figures": (*real, "--page", tmp_path / "page.md"),
        "reads pictures": ("--suite", "real", "--model", "vlm"),
        "has no drafter 'hivis'": (*real, "--drafter", "hivis"),
        "--limit is 0": (*real, "--limit", 0),
        "unknown drafter": (*real, "--drafter", "model,psychic"),
    }.items():
        code, out, err = bench(*args)
        assert (code, out) == (2, ""), (words, err)
        assert len(err.splitlines()) == 1 + (err.startswith("no data")), err
        assert words in err, err


def test_sampled_texts_of_very_different_lengths_are_not_compared():
    def one(number, *lengths):
        made = turn("qa", number, **{PLAIN: ([[1] * lengths[0]], 1, 1.0), "mmspec lookup": ([[1] * lengths[1]], 1, 1.0)})
        return made | {"turn": made["turn"] | {"temperature": 0.7}}

    rows = {row["contender"]: row for row in turn_rows([one(0, 64, 1), one(1, 40, 64), one(2, 1, 64)])}
    assert (rows["mmspec lookup"]["to_plain"]["median"], rows["mmspec lookup"]["to_plain"]["count"]) == (64 / 40, 1)
    (row,) = [row for row in turn_rows([one(0, 64, 1)]) if row["contender"] == "mmspec lookup"]
    assert row["to_plain"] is None
