"""The tables of docs/calls.md are the signatures and result classes of the four public calls, which agree with one another."""

import dataclasses
import inspect
import itertools

import pytest

import mmspec
from mmspec.core.result import Generation, Result
from mmspec.vision.generation import Pictures
from tests.docs.pages import ROOT

CALLS = {
    "text": mmspec.text.generate,
    "vision": mmspec.vision.generate,
    "speech": mmspec.speech.synthesize,
    "recsys": mmspec.recsys.recommend,
}
RESULTS = (Generation, Pictures, mmspec.speech.Speech, mmspec.recsys.Recommendations)
SHARED = ("accept", "draft_length", "tree", "seed", "temperature", "top_k", "top_p")
PARAMETERS = {name: inspect.signature(call).parameters for name, call in CALLS.items()}


def table(heading: str) -> dict[str, list[str]]:
    """The rows of the table below a heading: the first cell -> the cells behind the second."""
    section = (ROOT / "docs" / "calls.md").read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")]
    return {cells[0].strip("`"): cells[2:] for cells in rows[2:]}


def default(name: str, argument: str) -> str:
    """A cell of the table: the default of an argument of a call."""
    if argument not in PARAMETERS[name]:
        return ""
    value = PARAMETERS[name][argument].default
    return "required" if value is inspect.Parameter.empty else f"`{value!r}`"


def kind(result: type, name: str) -> str:
    """A cell of the table: how a result has a name."""
    if name in {field.name for field in dataclasses.fields(result)}:
        return "field"
    return "property" if hasattr(result, name) else ""


def test_the_table_of_arguments_is_the_signatures():
    names = {argument for parameters in PARAMETERS.values() for argument in parameters}
    assert table("Arguments") == {argument: [default(call, argument) for call in CALLS] for argument in table("Arguments")}
    assert set(table("Arguments")) == names


def test_the_table_of_results_is_the_classes():
    names = {name for result in RESULTS for name in dir(result) if not name.startswith("_")}
    names |= {field.name for result in RESULTS for field in dataclasses.fields(result)}
    assert table("Results") == {name: [kind(result, name) for result in RESULTS] for name in table("Results")}
    assert set(table("Results")) == names
    assert all(issubclass(result, Result) for result in RESULTS)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_takes_model_inputs_and_drafter_by_position(name):
    kinds = [(argument, parameter.kind) for argument, parameter in PARAMETERS[name].items()]
    positional = [argument for argument, kind in kinds if kind is not inspect.Parameter.KEYWORD_ONLY]
    assert len(positional) == 3
    assert (positional[0], positional[2]) == ("model", "drafter")
    shared = [argument for argument, _ in kinds if argument in SHARED]
    assert shared == [argument for argument in SHARED if argument in shared]
    assert [argument for argument, _ in kinds][3 : 3 + len(shared)] == shared


@pytest.mark.parametrize(("one", "other"), itertools.combinations(CALLS, 2))
def test_shared_arguments_stand_in_one_order(one, other):
    first, second = (list(PARAMETERS[call]) for call in (one, other))
    assert [name for name in first if name in second] == [name for name in second if name in first]
