"""What importing mmspec costs, and what type checkers see of it."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mmspec
from tests.commands import HEAVY, ROOT, python


@pytest.mark.parametrize("what", ["import mmspec", "from mmspec import text, vision, speech, recsys", "import mmspec.minis, mmspec.cli"])
def test_imports_load_no_heavy_library(what):
    python(f"import sys\n{what}\nassert not set({HEAVY}) & set(sys.modules), set({HEAVY}) & set(sys.modules)")


def test_the_help_of_every_command_loads_no_heavy_library():
    found = python(f"""
import sys
from mmspec.cli import app
from typer.main import get_command
for command in ([], *[[name] for name in get_command(app).commands]):
    try:
        app([*command, "--help"])
    except SystemExit as stopped:
        assert stopped.code == 0
heavy = set({HEAVY}) & set(sys.modules)
assert not heavy, heavy
""")
    assert found.count("Usage: ") >= 11


def test_help_loads_few_modules():
    """`mmspec text --help` loads 478 modules (0.27 s); with torch they were over 2,000 (2.1 s)."""
    counted = "import atexit, sys; sys.argv = ['mmspec', 'text', '--help']; atexit.register(lambda: print(len(sys.modules)))"
    found = python(f"{counted}\nfrom mmspec.cli import main\nmain()")
    assert int(found.split()[-1]) < 600


def test_lazy_packages_have_what_they_name():
    for package in (mmspec.text, mmspec.vision, mmspec.speech, mmspec.recsys):
        assert set(package.__all__) <= set(dir(package))
        assert all(getattr(package, name) is not None for name in package.__all__)
        with pytest.raises(AttributeError, match="has no attribute 'nothing'; it has "):
            package.nothing  # noqa: B018
    assert callable(mmspec.text.speculate)
    assert {"text", "load"} <= set(dir(mmspec))


# --- types ------------------------------------------------------------------------------------------------------------

USER_SCRIPT = """
import mmspec
from mmspec.recsys import Catalogue
from mmspec.text import StopStrings, speculate, view

mini = mmspec.load("text")
out = mmspec.text.generate(mini.target, mini.examples, mini.drafters["model"], accept="exact", temperature=0.7, seed=1, tree="comb")
print(out.sequences.shape, int(out.lengths[0]), out.stats.tokens, out.stats.target_calls, out.stats.tokens_per_call, out.stats.exactness)
print(out.stats.to_dict(), out.stats.acceptance_by_position, out.stats.drift, out.stats.drafted, out.stats.seconds["total"])
pictures = mmspec.vision.generate(mini.target, ["a large red star top left"], guidance=2.0, seed=1)
pictures.images[0].save("star.png")
print(pictures.tokens.shape, pictures.sequences.shape, pictures.stats.row_calls)
said = mmspec.speech.synthesize(mini.target, ["three"], mini.drafters["vadusa"], voice="jackson", seed=1)
print(said.waveforms[0].shape, said.sample_rate, said.save("a.wav")[0].name, said.tokens.shape, said.lengths.shape, said.real_time_factor)
for piece in mmspec.speech.stream(mini.target, "three"):
    print(len(piece))
catalogue = Catalogue.read("catalogue.parquet")
found = mmspec.recsys.recommend(mini.target, [[1, 2]], k=10, catalogue=catalogue, drafter=mini.drafters["model"])
print(found.items[0][0], found.scores[0][0], found.stats.tokens_per_call, catalogue.name(found.items[0][0]))
drafter = mmspec.load_drafter("folder", mini.target)
stops = StopStrings(("end",), lambda ids: "".join(map(str, ids)))
print(drafter, stops, view("drop"), speculate("lookup", draft_length=3))
print(mmspec.vision.METHODS["jacobi"].accept, mmspec.recsys.METHODS["strict"].about)
"""


def pyright(folder: Path, script: str) -> list[dict]:
    """The errors of pyright's strict mode in a script that imports mmspec."""
    (folder / "script.py").write_text(script, encoding="utf-8")
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict", "extraPaths": [str(ROOT)]}))
    command = [shutil.which("pyright") or str(Path(sys.executable).with_name("pyright")), "--pythonpath", sys.executable, "--outputjson"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300)
    return [found for found in json.loads(run.stdout)["generalDiagnostics"] if found["severity"] == "error"]


def test_a_user_script_is_clean_under_strict_pyright_and_mistakes_are_found(tmp_path):
    mistakes = "\nmmspec.text.genrate\nmmspec.text.generate(mini.target, mini.examples, draught='x')\nout.stats.tokens_per_cal\n"
    lines = len(USER_SCRIPT.splitlines())
    found = pyright(tmp_path, USER_SCRIPT + mistakes)
    assert not [each for each in found if each["range"]["start"]["line"] < lines]
    rules = ("reportAttributeAccessIssue", "reportCallIssue")
    assert {re.findall(r'"(\w+)"', each["message"])[0] for each in found if each["rule"] in rules} == {
        "genrate",
        "draught",
        "tokens_per_cal",
    }
