"""Command lines in the text of the docs: commands, options, recipes and test modules exist. Those in blocks run: test_examples.py."""

import re
import shlex

import pytest
from typer.main import get_command

from mmspec.cli import app
from tests.docs.pages import GUIDES, ROOT, TOP, named

COMMANDS = get_command(app).commands
_OPTION = re.compile(r"^--?[a-z][a-z-]*")


def lines(page) -> list[list[str]]:
    """The words of a page's command lines between backticks, which may be parts of lines."""
    text = page.read_text(encoding="utf-8")
    inline = re.findall(r"`((?:mmspec|python) [^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    shown = [" ".join(line.split()) for line in inline]
    return [words for line in shown if (words := shlex.split(line.replace("$'", "'"), comments=True))]


def after(words: list[str], *names: str) -> list[str] | None:
    """What follows the first word that ends with one of `names`."""
    for place, word in enumerate(words):
        if word.rpartition("/")[2] in names or word in names:
            return words[place + 1 :]
    return None


@pytest.mark.parametrize("page", [*TOP[:2], *GUIDES], ids=named)
def test_commands_and_recipes_exist(page):
    for words in lines(page):
        rest = after(words, "mmspec", "mmspec.cli")
        if rest and re.fullmatch(r"[a-z]+", rest[0]) and words[0] not in ("git", "cd"):
            assert rest[0] in COMMANDS, " ".join(words)
            command = " ".join(rest[:2]) if " ".join(rest[:2]) in COMMANDS else rest[0]  # a step, such as recommend prepare
            known = {name for parameter in COMMANDS[command].params for name in (*parameter.opts, *parameter.secondary_opts)}
            given = {found[0] for word in rest[1:] if (found := _OPTION.match(word))}
            assert given <= known | {"--help"}, f"{' '.join(words)}: {given - known}"
        for word in words:
            if re.fullmatch(r"(text|vision|speech|recsys)/\w+\.py", word):
                assert (ROOT / word).exists(), word
                source = (ROOT / word).read_text(encoding="utf-8")
                shared = re.findall(r"^from (mmspec\.[\w.]+) import .*\badd_\w*options", source, re.M)  # options of several recipes
                source += "".join((ROOT / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8") for name in shared)
                given = {found[0] for other in words[words.index(word) + 1 :] if (found := re.match(r"^--[a-z][a-z-]*", other))}
                missing = {name for name in given - {"--help"} if f'"{name}"' not in source}
                assert not missing, f"{' '.join(words)}: {missing}"
        rest = after(words, "-m")
        if rest and rest[0].startswith(("tests.", "mmspec.")):
            path = ROOT / rest[0].replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), rest[0]
