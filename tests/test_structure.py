"""The shape of the project: who may import whom, how long files are, and that the README says what is true."""

import os
import re
import subprocess
import sys
from pathlib import Path

from rich.progress import Progress

from mmspec.utils import screen
from tests import structure

ROOT = Path(__file__).parents[1]
MODALITIES = ("text", "vision", "speech", "recsys")
SOURCES = sorted((ROOT / "mmspec").rglob("*.py"))


def test_imports_point_one_way():
    """No import of a room above or beside, and no folders that import each other."""
    assert structure.upward() == []
    assert structure.circles(structure.arrows()) == []
    assert structure.circles(structure.module_arrows()) == []


def test_only_one_module_knows_transformers_caches():
    knowing = [p.name for p in SOURCES if "transformers.cache_utils" in p.read_text(encoding="utf-8")]
    assert knowing == ["slot_cache.py"]


def test_only_one_module_lets_rich_read_text_as_markup():
    """Whatever of rich reads "[red]" in a text as markup by itself is imported by one module, which switches it off."""
    reads = re.compile(
        r"^\s*(from rich\.(console|markup|status|prompt) |import rich|from rich import|from rich\.progress .*\b(TextColumn|track)\b)", re.M
    )
    recipes = [path for folder in MODALITIES for path in (ROOT / folder).glob("*.py")]
    knowing = {p.name for p in (*SOURCES, *recipes) if reads.search(_run_code(p.read_text(encoding="utf-8")))}
    assert knowing == {"screen.py"}


def test_text_of_users_is_shown_as_it_is(capsys):
    hostile = "[red]x[/nope] :smile: [/]"
    with screen.spinner(hostile) as say:
        say(hostile)
    screen.console().print(hostile)
    screen.console(stderr=True).print(hostile)
    with Progress(screen.text_column(), console=screen.console()) as bars:
        bars.add_task(hostile)
    assert list(screen.track([1], hostile)) == [1]
    shown = capsys.readouterr()
    assert shown.out.count(hostile) >= 2
    assert hostile in shown.err


def _run_code(source: str) -> str:
    """`source` without what only type checkers import."""
    return re.sub(r"^if TYPE_CHECKING:\n(?:    .*\n|\n)*", "", source, flags=re.M)


def test_ci_calls_the_readmes_test_command():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    command = re.search(r"<!-- test command -->\n```sh\n(.*?)\n```", text, re.S)
    assert command
    assert "\n" not in command[1]
    extract = [line for line in (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines() if line.startswith("bash -c")]
    shown = subprocess.run(["bash", "-c", extract[0].replace("bash -c", "echo")], capture_output=True, text=True, check=True, cwd=ROOT)
    assert shown.stdout.strip() == command[1]


def test_a_mismatched_torchaudio_is_said_in_one_line(tmp_path):
    """A stand-in torchaudio that fails to load, as one built for another torch does."""
    (tmp_path / "torchaudio").mkdir()
    (tmp_path / "torchaudio" / "__init__.py").write_text("raise OSError('undefined symbol: torch_something')")
    (tmp_path / "torchaudio-2.5.0.dist-info").mkdir()
    (tmp_path / "torchaudio-2.5.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torchaudio\nVersion: 2.5.0\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = tmp_path / "mmspec"
    command.write_text("import mmspec")
    for arguments, code, lines in ((["-c", "import mmspec"], 1, None), ([str(command)], 2, 1)):
        run = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=300)
        said = run.stderr.strip().splitlines()
        assert run.returncode == code
        assert lines is None or len(said) == lines
        assert "torchaudio 2.5.0 does not match torch" in said[-1]
        assert "reinstall the pair with: pip install" in said[-1]
