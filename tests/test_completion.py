"""Shell completion: commands, options and values, in bash, zsh and fish, without a heavy library."""

import json
import re

import pytest

from mmspec.commands.options import completion
from tests.commands import HEAVY, python

SHELLS = ("bash", "zsh", "fish")


def completed(shell: str, *lines: str) -> list[list[str]]:
    """What `shell` is offered for each command line that ends where the cursor is; no heavy library is loaded for it."""
    out = python(
        f"""
import contextlib, io, json, os, sys
from mmspec.cli import app
sys.argv, found = ["mmspec"], []
for line in {lines!r}:
    os.environ |= dict(COMP_WORDS=line, COMP_CWORD=str(line.count(" ")), _TYPER_COMPLETE_ARGS=line, _TYPER_COMPLETE_FISH_ACTION="get-args")
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        app()
    found.append(said.getvalue())
assert not set({HEAVY}) & set(sys.modules), set({HEAVY}) & set(sys.modules)
print(json.dumps(found))
""",
        _MMSPEC_COMPLETE=f"complete_{shell}",
    )
    names = re.compile(r'"([^":\n]+)' if shell == "zsh" else r"^([^\t\n]+)", re.M)
    return [names.findall(each) for each in json.loads(out)]


EXPECTED = {
    "mmspec recom": ["recommend"],
    "mmspec image --guid": ["--guidance"],
    "mmspec text --drafter lo": ["lookup", "lookahead"],
    "mmspec speech --drafter vad": ["vadusa"],
    "mmspec text --accept typ": ["typical"],
    "mmspec image --method jac": ["jacobi"],
    "mmspec check --modality sp": ["speech"],
    "mmspec explain --drafter eag": ["eagle1", "eagle3"],
    "mmspec recommend --mode st": ["strict"],
    "mmspec caption --view own+new": ["own+newline"],
    "mmspec bench --dtype bf": ["bfloat16"],
    "mmspec recipe speech/train_t": ["speech/train_target.py"],
    "mmspec text --drafter zzz": [],
}


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_complete_commands_options_and_values(shell):
    for (line, expected), found in zip(EXPECTED.items(), completed(shell, *EXPECTED), strict=True):
        found = [each for each in found if each.startswith(line.rpartition(" ")[2].split("+")[0])]  # zsh adds descriptions
        assert found == expected, line


@pytest.mark.parametrize("shell", SHELLS)
def test_the_completion_script_is_printed(shell):
    script = python("import sys; sys.argv = ['mmspec']\nfrom mmspec.cli import app\napp()", _MMSPEC_COMPLETE=f"source_{shell}")
    assert f"complete_{shell}" in script


def test_completed_names_are_those_of_the_tables():
    from mmspec.commands.checking.kinds import KINDS
    from mmspec.recsys import METHODS as BEAM_METHODS
    from mmspec.text.views import NAMES
    from mmspec.vision import CONTINUOUS_METHODS, METHODS, PUBLISHED

    assert completion.IMAGE_METHODS == tuple(METHODS)
    assert completion.PUBLISHED_METHODS == tuple(PUBLISHED)
    assert completion.CONTINUOUS_METHODS == tuple(CONTINUOUS_METHODS)
    assert completion.MODES == tuple(BEAM_METHODS)
    assert completion.VIEWS == NAMES
    assert completion.MODALITIES == KINDS
