"""`mmspec plan` and the function behind it: the best setting of each schedule, files of measurements, and refusals in one line."""

import json
from dataclasses import replace

import pytest

from mmspec.bench.explain.costs import PairCosts
from mmspec.bench.schedules.chain import ChainSchedule
from mmspec.bench.schedules.machine import PlannedMachine
from mmspec.bench.schedules.measured import MeasuredPair, fitted_machine, read_measured
from mmspec.bench.schedules.planning import LENGTHS, PlanRequest, plan_schedules
from mmspec.bench.schedules.simulation import MeasuredLatencies
from mmspec.cli import app

MACHINE = PlannedMachine(0.030, 0.003, 0.001)
QUICK = PlanRequest(simulated=200)


def by_name(found):
    return {each.name: each for each in found.schedules}


def run(capsys, *arguments):
    """(exit code, stdout, stderr) of a command line."""
    with pytest.raises(SystemExit) as stopped:
        app(["plan", *map(str, arguments)])
    out, err = capsys.readouterr()
    return stopped.value.code, out, err


GIVEN = ("--target-ms", 30, "--draft-ms", 3, "--acceptance", "0.8")


# --- the function -----------------------------------------------------------------------------------------------------


def test_one_device_and_two_are_compared():
    found = plan_schedules(MACHINE, 0.8, QUICK)
    assert set(by_name(found)) == {"plain", "chain", "tree", "pearl", "amusd"}
    assert [each.speed for each in found.schedules] == sorted((each.speed for each in found.schedules), reverse=True)
    assert {name: each.devices for name, each in by_name(found).items()} == {"plain": 1, "chain": 1, "tree": 1, "pearl": 2, "amusd": 2}
    assert by_name(found)["plain"].speed == 1
    assert found.omitted == ("pipeinfer, ppd, speed: for a target of several stages",)
    json.dumps(found.to_dict())


def test_the_best_chain_is_the_best_of_all_lengths():
    rates = {length: ChainSchedule(length).expect(MACHINE, (0.8,)).tokens_per_second for length in LENGTHS}
    best = max(rates, key=rates.__getitem__)
    found = by_name(plan_schedules(MACHINE, 0.8, QUICK))["chain"]
    assert found.setting == f"{best} draft tokens"
    assert found.tokens_per_second == rates[best]


def test_stages_bring_pipelines():
    machine = replace(MACHINE, stages=4)
    found = plan_schedules(machine, (0.8, 0.7), replace(QUICK, exits=(0.4, 0.6, 0.8)))
    assert {"pipeinfer", "ppd", "speed"} < set(by_name(found))
    assert by_name(found)["ppd"].tokens_per_second >= by_name(found)["speed"].tokens_per_second
    assert found.omitted == ()
    assert "not given" in plan_schedules(machine, 0.8, QUICK).omitted[0]


def test_drafts_shrink_as_rows_fill():
    """Beyond the free columns every draft token is paid for by all rows."""
    used = []
    for rows in (1, 16, 64, 256, 4096):
        machine = PlannedMachine(0.030, 0.0015, column=0.0001, free=300, rows=rows)
        chain = by_name(plan_schedules(machine, 0.8, QUICK))["chain"]
        used.append((int(chain.setting.split()[0]), chain.speed))
    assert used == sorted(used, reverse=True)
    assert used[0][0] >= 6
    assert used[-1] == (1, used[-1][1])
    assert used[-1][1] < 1


def test_caches_that_are_read_hide_the_columns():
    """A forward takes the longer of reading weights and caches, and of computing its columns."""
    machine = PlannedMachine(1.0, 0.1, column=0.1, free=10, row=0.5, rows=4)
    assert [machine.score(columns) for columns in (1, 7, 8, 20)] == pytest.approx([3.0, 3.0, 3.2, 8.0])
    assert machine.step() == pytest.approx(0.1 * 3.0 / 1.5)
    lengths = [int(by_name(plan_schedules(replace(machine, row=row), 0.8, QUICK))["chain"].setting.split()[0]) for row in (0.0, 0.5, 2.0)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


def test_prompts_take_what_they_take():
    """The drafter reads the prompt too: after the target on the same device, beside it on another."""
    machine, request = PlannedMachine(1.0, 0.5, column=0.01, free=1), PlanRequest(tokens=10, prompt=101, simulated=10)
    assert machine.prompt(101) == (pytest.approx(2.0), pytest.approx(1.0))
    found = by_name(plan_schedules(machine, 1.0, replace(request, nodes=4)))
    plain, chain, pearl = (found[name] for name in ("plain", "chain", "pearl"))
    assert chain.speed == pytest.approx((2 + 10) / (2 + 1 + 10 / chain.tokens_per_second))
    assert pearl.speed == pytest.approx((2 + 10) / (2 + 10 / pearl.tokens_per_second))
    assert plain.speed == 1


def test_no_acceptance_leaves_no_tree():
    found = plan_schedules(MACHINE, 0.0, QUICK)
    assert found.best.name in ("plain", "pearl")
    assert found.best.speed == 1
    assert found.omitted[0] == "tree: no draft token is accepted"


@pytest.mark.parametrize("acceptance", [1.1, -0.1, (), (0.5, float("nan"))])
def test_chances_out_of_range_are_refused(acceptance):
    with pytest.raises(ValueError, match="give chances from 0 to 1"):
        plan_schedules(MACHINE, acceptance, QUICK)
    with pytest.raises(ValueError, match="at least 1"):
        PlanRequest(tokens=0)


# --- files ------------------------------------------------------------------------------------------------------------


def explained(folder, **changes):
    """A file in the form of `mmspec explain --output`."""
    costs = PairCosts({1: 0.010, 2: 0.011, 16: 0.025}, step=0.002, latencies=MeasuredLatencies((0.009, 0.011), (0.002,)))
    positions = [{"judged": 10, "accepted": 8}, {"judged": 8, "accepted": 4}, {"judged": 0, "accepted": 0}]
    data = {"acceptance": {"positions": positions}, "costs": costs.to_dict(), "batch_size": 2, **changes}
    path = folder / "why.json"
    path.write_text(json.dumps(data))
    return path


def test_what_explain_writes_is_read(tmp_path):
    found = read_measured(explained(tmp_path))
    assert found.rates == (0.8, 0.5)
    assert found.latencies == MeasuredLatencies((0.009, 0.011), (0.002,))
    machine = found.machine
    assert (machine.score(1), machine.step(), machine.rows) == (0.010, 0.002, 2)
    assert machine.score(16) == pytest.approx(0.025)
    assert read_measured(explained(tmp_path, costs={"columns": {"1": 0.01}, "step": 0.0})).latencies is None


def test_plain_lists_and_statistics_are_read(tmp_path):
    path = tmp_path / "calls.json"
    path.write_text(json.dumps({"acceptance": [0.9, 0.7], "target": [0.03, 0.031], "draft": [0.003]}))
    assert read_measured(path) == MeasuredPair((0.9, 0.7), None, MeasuredLatencies((0.03, 0.031), (0.003,)))
    path.write_text(json.dumps({"stats": {"acceptance_by_position": [0.6]}}))
    assert read_measured(path) == MeasuredPair((0.6,))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "no JSON object"),
        ("{}", "neither acceptance nor latencies"),
        ('{"acceptance": [2]}', "give chances from 0 to 1"),
        ('{"acceptance": "high"}', "could not convert"),
        ('{"target": [1]}', "'target' alone"),
        ('{"target": [1], "draft": [0]}', "latencies of 'draft'"),
        ('{"target": 3, "draft": [1]}', "not iterable"),
        ('{"costs": {}}', "acceptance"),
        ('{"costs": {"columns": {"2": 1}, "step": 1}, "acceptance": {"positions": []}}', "1 column"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path, capsys, text, words):
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        read_measured(path)
    code, out, err = run(capsys, "--measured", path)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "broken.json" in err


def test_a_line_is_fitted_through_the_measured_sizes():
    assert fitted_machine({1: 1.0}, 0.1) == PlannedMachine(1.0, 0.1)
    assert fitted_machine({1: 1.0, 8: 0.9}, 0.1).column == 0
    assert fitted_machine({1: 1.0, 11: 3.0}, 0.1, rows=4).score(11) == pytest.approx(3.0)


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_prints_a_table_and_what_is_fastest(capsys):
    code, out, err = run(capsys, *GIVEN, "--column-ms", 1)
    assert (code, err) == (0, "")
    for words in ("schedule", "plain", "chain", "pearl", "amusd", "left out: pipeinfer", "fastest: "):
        assert words in out


def test_the_command_prints_json_of_the_same_plan(capsys):
    code, out, _ = run(capsys, *GIVEN, "--column-ms", 1, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["machine"]["target"] == 0.03
    expected = plan_schedules(MACHINE, 0.8).to_dict()
    assert {name: found[name] for name in expected} == json.loads(json.dumps(expected))


def test_measured_files_are_overridden_by_options(capsys, tmp_path):
    path = explained(tmp_path)
    code, out, _ = run(capsys, "--measured", path, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["machine"] | {"target": 0.010, "rows": 2} == found["machine"]
    _, out, _ = run(capsys, "--measured", path, "--rows", 1, "--target-ms", 50, "--acceptance", path, "--json")
    assert json.loads(out)["machine"] | {"target": 0.05, "rows": 1, "draft": 0.002} == json.loads(out)["machine"]
    calls = tmp_path / "calls.json"
    calls.write_text(json.dumps({"acceptance": 0.9, "target": [0.02, 0.04], "draft": [0.003]}))
    _, out, _ = run(capsys, "--measured", calls, "--json")
    assert json.loads(out)["machine"]["target"] == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--acceptance is missing"),
        (("--acceptance", "0.8"), "--target-ms is missing"),
        (("--acceptance", "0.8", "--target-ms", "3"), "--draft-ms is missing"),
        ((*GIVEN, "--acceptance", "0.8,,"), "--acceptance is '0.8,,'"),
        ((*GIVEN, "--acceptance", "nan"), "--acceptance is 'nan'"),
        ((*GIVEN, "--acceptance", "nowhere.json"), "nowhere.json: No such file"),
        ((*GIVEN, "--target-ms", "0"), "--target-ms is 0.0"),
        ((*GIVEN, "--target-ms", "nan"), "--target-ms is nan"),
        ((*GIVEN, "--draft-ms", "inf"), "--draft-ms is inf"),
        ((*GIVEN, "--column-ms", "-1"), "--column-ms is -1"),
        ((*GIVEN, "--row-ms", "nan"), "--row-ms is nan"),
        ((*GIVEN, "--rows", "0"), "--rows is 0"),
        ((*GIVEN, "--rows", "9" * 30), "--rows is 1e30"),
        ((*GIVEN, "--nodes", "100000"), "--nodes is"),
        ((*GIVEN, "--prompt", "-1"), "--prompt is -1"),
        ((*GIVEN, "--tokens", "0"), "--tokens is 0"),
        ((*GIVEN, "--sibling-factor", "2"), "--sibling-factor is 2"),
        ((*GIVEN, "--exit-acceptance", "0.5"), "give --stages"),
        ((*GIVEN, "--stages", "4", "--exit-acceptance", "0.5,0.6"), "2 chances of early exits for 4 stages"),
        ((*GIVEN, "--measured", "."), "Is a directory"),
    ],
)
def test_bad_input_is_refused_in_one_line(capsys, arguments, words):
    code, out, err = run(capsys, *arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert words in err
