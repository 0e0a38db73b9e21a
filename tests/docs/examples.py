"""Every command line that a reader is shown: in pages, cards, help pages and docstrings. Others are listed with the reason."""

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from typer.main import get_command

from mmspec.cli import app
from tests.docs.pages import PAGES, ROOT, named

COMMANDS = get_command(app).commands
FOLDERS = ("text", "vision", "speech", "recsys")
RECIPES = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.py"))
MODULES = sorted((ROOT / "mmspec").rglob("*.py"))
CARDS = sorted((ROOT / "mmspec" / "minis").rglob("card.md"))
READ = [page for page in PAGES if page.name != "CHANGELOG.md" and page not in CARDS] + CARDS

FENCE = re.compile(r"^([ >]*)(```+|~~~+)(\w*)[^\n]*\n(.*?)^\1\2[ \t]*$", re.S | re.M)
_LOOP = re.compile(r"for (\w+) in ([^;]+?); do\s+(.*?);?\s*done", re.S)
_ASSIGNED = re.compile(r"([A-Z_]+)=(\S+)$")
_SHOWN = re.compile(r"^    (?=(?:mmspec|python|torchrun|accelerate|vllm|[A-Z_]+=\S+ mmspec|echo .*\| mmspec) )(.*)$", re.M)
_LAUNCHED = re.compile(r"(?:torchrun|accelerate launch) (?:--\S+ \d+ )*(?=\S)")
_RECIPE = re.compile(rf"({'|'.join(FOLDERS)})/\w+\.py")

OTHER_FENCES = {"text": "what a command prints, or a formula", "python": "run by test_blocks.py"}
"""Language of a block of code that holds no command lines -> why."""
NOT_OURS = {
    "pip": "installs packages",
    "venv": "makes a virtual environment",
    "git": "copies the repository",
    "cd": "changes the folder",
    "cp": "copies a folder that a recipe wrote",
    "sed": "changes a file that a recipe wrote",
    "curl": "a client of the server, whose body is judged by test_a_body_for_the_server_is_valid",
    "vllm": "another library's server",
    "ruff": "checks the code in CI",
    "pyright": "checks the code in CI",
    "pytest": "the suite itself",
    "mkdocs": "builds the site: test_site.py",
}
"""Program that is not ours -> why its lines are not run."""


@dataclass(frozen=True)
class Example:
    """A command line.

    Attributes:
        place: the page, the help page or the docstring that shows it.
        shown: the line as it is shown.
        words: what the shell makes of it, without launchers and redirections.
        typed: what is piped to standard input.
    """

    place: str
    shown: str
    words: tuple[str, ...]
    typed: str = ""

    @property
    def program(self) -> str:
        """The program that runs: "mmspec", a recipe's path, a module as "-m NAME", or another program's name."""
        if self.words[0].rpartition("/")[2].startswith("python") and len(self.words) > 1:
            if self.words[1] == "-m":
                return {"mmspec.cli": "mmspec", "pytest": "pytest", "venv": "venv"}.get(self.words[2], f"-m {self.words[2]}")
            return self.words[1]
        return self.words[0] if _RECIPE.fullmatch(self.words[0]) else self.words[0].rpartition("/")[2]

    @property
    def arguments(self) -> list[str]:
        """What follows the program's name."""
        first, second = self.words[0].rpartition("/")[2], self.words[1:2]
        return list(self.words[3 if first.startswith("python") and second == ("-m",) else 2 if first.startswith("python") else 1 :])

    def __str__(self) -> str:
        return f"{self.place}: {self.shown}"


def fences(page: Path) -> list[tuple[str, str]]:
    """The blocks of code of a page: language and text."""
    return [(language, block) for _, _, language, block in FENCE.findall(page.read_text(encoding="utf-8"))]


def examples() -> list[Example]:
    """All of them, a line shown in several places once for each."""
    found = []
    for page in READ:
        for language, block in fences(page):
            if language == "sh":
                found += _of_block(named(page), block)
    for name, command in COMMANDS.items():
        found += _of_block(
            f"mmspec {name} --help",
            "\n".join(line.strip() for line in (command.epilog or "").splitlines() if line.strip() not in ("Examples:", "\b")),
        )
    for path in (*RECIPES, *MODULES):
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        lines = re.sub(r" {4,}(?=--)", " ", "\n".join(_SHOWN.findall(doc)))  # a backslash at a line's end is gone from a docstring
        found += _of_block(named(path), re.sub(r" +\([^\n]*\)$", "", lines, flags=re.M))
    return found


def _of_block(place: str, block: str) -> Iterator[Example]:
    values = {"MMSPEC_DATA": "data"}
    for line in _unrolled(block.replace("\\\n", " ")).splitlines():
        for part in re.split(r" && ", line):
            for name, value in values.items():
                part = part.replace(f"${name}", value)
            if (match := _ASSIGNED.match(part)) is not None:
                values[match[1]] = match[2]
            elif (example := _of_line(place, part)) is not None:
                yield example


def _unrolled(block: str) -> str:
    """A block whose loops are written out."""
    return _LOOP.sub(lambda loop: "\n".join(loop[3].replace(f"${loop[1]}", value) for value in loop[2].split()), block)


def _of_line(place: str, line: str) -> Example | None:
    """The example of a line; None for an empty one."""
    shown = " ".join(line.split())
    line = _LAUNCHED.sub("", line.replace('"$(mmspec recipe text/generate_batch.py --path)"', "text/generate_batch.py"))
    line = re.sub(r"^-m ", "python -m ", line.strip())
    typed, bar, rest = line.partition(" | mmspec ")
    line = f"mmspec {rest}" if bar else line
    line = re.sub(r"\$'((?:[^'\\]|\\.)*)'", lambda quoted: shlex.quote(quoted[1].replace("\\n", "\n")), line)  # bash's $'...'
    words = [word for word in shlex.split(line, comments=True) if word != "..."]  # "and so on"
    while words and re.fullmatch(r"[A-Z_]+=\S+", words[0]):
        words = words[1:]
    if ">" in words:
        words = words[: words.index(">")]
    if words[:2] == ["mmspec", "recipe"] and "--" in words:  # runs the recipe in a process of its own
        words = words[2:3] + words[words.index("--") + 1 :]
    return Example(place, shown, tuple(words), " ".join(shlex.split(typed)[1:]) if bar else "") if words else None
