"""The command lines that readers are shown: all are found, and each runs, or is read by the program that it names."""

import argparse
import io
import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import mmspec
from mmspec.commands import image
from mmspec.serving.http.schemas.text import CompletionBody
from mmspec.speech.sound.recogniser import word_errors
from tests.docs.examples import COMMANDS, NOT_OURS, OTHER_FENCES, READ, RECIPES, examples, fences
from tests.docs.judges import goes_round, heard, wrong_pictures
from tests.docs.pages import ROOT, named
from tests.docs.world import Begun, run, world

EXAMPLES = examples()
SCRIPTS = [example for example in EXAMPLES if example.program.endswith(".py") or example.program.startswith("-m ")]


class Read(BaseException):
    """Raised where a script has read its command line, and its work would begin."""


def script(program: str) -> Path:
    """The file of a recipe or of `-m NAME`."""
    path = ROOT / (f"{program[3:].replace('.', '/')}.py" if program.startswith("-m ") else program)
    return path if path.exists() else path.with_suffix("") / "__main__.py"


@pytest.mark.parametrize("program", sorted({example.program for example in SCRIPTS}))
def test_a_script_reads_its_examples(program, monkeypatch, capsys):
    read = argparse.ArgumentParser.parse_args

    def stop(self, *args, **options):
        read(self, *args, **options)
        raise Read

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    monkeypatch.syspath_prepend(script(program).parent)
    for example in (each for each in SCRIPTS if each.program == program):
        monkeypatch.setattr(sys, "argv", [program, *example.arguments])
        try:
            runpy.run_path(str(script(program)), run_name="__main__")
        except Read:
            continue
        except SystemExit as stopped:
            if stopped.code or "--help" not in example.arguments:
                pytest.fail(f"{example}: {capsys.readouterr().err}")
        assert not example.arguments or "--help" in example.arguments, f"{example}: no arguments are read"


@pytest.fixture(scope="module")
def put(tmp_path_factory):
    with world(tmp_path_factory.mktemp("world")) as put:
        yield put


def lines() -> dict[tuple[str, ...], str]:
    """The lines of `mmspec` -> the first place that shows each."""
    found: dict[tuple[str, ...], str] = {}
    for example in EXAMPLES:
        if example.program == "mmspec":
            found.setdefault((*example.arguments, *([f"< {example.typed}"] if example.typed else [])), str(example))
    return found


LINES = lines()


def test_no_example_is_uncollected():
    """Every block of code is of a language that is known, and every line is a recipe's, of `mmspec`, or of a program that is listed."""
    blocks = [(page, language) for page in READ for language, _ in fences(page)]
    assert {language for _, language in blocks} == {"sh", *OTHER_FENCES}
    for page in READ:
        text = page.read_text(encoding="utf-8")
        assert 2 * len(fences(page)) == len(re.findall(r"^[ >]*(?:```|~~~)", text, re.M)), f"{page}: a block that is not found"
    others = {each.program for each in EXAMPLES} - {each.program for each in SCRIPTS} - {"mmspec"}
    assert others == set(NOT_OURS)
    held = {each.place for each in EXAMPLES}
    assert {f"mmspec {name} --help" for name in COMMANDS} <= held
    assert {named(path) for path in RECIPES} <= held
    assert {named(page) for page, language in blocks if language == "sh"} <= held


def test_a_body_for_the_server_is_valid():
    (example,) = [each for each in EXAMPLES if each.program == "curl"]
    CompletionBody.model_validate_json(example.words[example.words.index("-d") + 1])


@pytest.mark.parametrize("words", LINES, ids=lambda words: " ".join(words)[:80])
def test_a_line_runs(words, put, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = list(words)
    if words and words[-1].startswith("< "):
        monkeypatch.setattr("sys.stdin", io.StringIO(words.pop()[2:]))
    put(tmp_path, words)
    drawn: list[Any] = []
    page = image._page
    monkeypatch.setattr(image, "_page", lambda draws, form: drawn.extend(draws) or page(draws, form))
    before = set(tmp_path.rglob("*"))
    try:
        code = run(words, judged=is_judged(words))
    except Begun:
        return
    out, err = capsys.readouterr()
    assert code == 0, err
    if not is_judged(words):
        return
    if words[0] == "image":
        model = words[words.index("--model") + 1] if "--model" in words else "mini"
        labels = () if model == "mini" else mmspec.load("vision-fashion").target.labels
        assert drawn
        for each in drawn:
            assert not wrong_pictures(words[1], each.images, labels), f"{each.method} drew something else"
    elif words[0] == "text":
        text = json.loads(out)["text"] if "--json" in words else re.sub(r"\x1b\[[0-9;]*m", "", out)
        assert not goes_round(text), text
    elif words[0] == "speech":
        texts = words[1 : next((n for n, word in enumerate(words) if word.startswith("--")), None)]
        count = int(words[words.index("--count") + 1]) if "--count" in words else 1
        files = sorted(path for path in set(tmp_path.rglob("*")) - before if path.suffix in (".wav", ".flac"))
        said = [text for text in texts for _ in range(count)]
        wrong = sum(word_errors(said, [heard(path) for path in files]))  # the mini says one number in eight wrong
        assert wrong <= 0.4 * len(" ".join(said).split())
    else:
        assert "one red circle" in out


def is_judged(words: list[str]) -> bool:
    """Whether a line's output is that of a mini that a judge can tell of."""
    model = words[words.index("--model") + 1] if "--model" in words else "mini"
    return {
        "image": model in ("mini", "vision-fashion", "continuous"),
        "text": model == "mini" and not {"--config", "--input", "--audio"} & set(words),
        "speech": model == "mini" and "--file" not in words,
        "caption": words[1:] == ["picture.png", "how many red circles?"],
    }.get(words[0] if words else "", False)
