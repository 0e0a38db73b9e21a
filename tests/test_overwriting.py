"""No output of any command or recipe takes the place of an input, under whatever name: the files stay, one line says why, exit code 2."""

import os
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import typer

from mmspec.cli import app
from mmspec.commands.options.running import outputs_of
from mmspec.utils.files import whole
from mmspec.utils.places import declare, forget, reads
from mmspec.utils.recipe_options import RecipeParser
from tests.test_recipes import RECIPES, ROOT

COMMANDS = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
FUNCTIONS = {each.name or each.callback.__name__: each.callback for each in app.registered_commands if each.callback}
WRITING = {name: written for name, function in FUNCTIONS.items() if (written := outputs_of(function))}
BYTES = b'{"prompt": "once"}\n'
WORDS = ("out", "output", "html", "page", "copy", "work")
"""What parameters that say where is written are called; a test holds that each of them is declared."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with an input under every kind of name, and a folder of inputs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_bytes(BYTES)
    (tmp_path / "link.jsonl").symlink_to("in.jsonl")
    os.link(tmp_path / "in.jsonl", tmp_path / "hard.jsonl")
    (tmp_path / "folder" / "part").mkdir(parents=True)
    (tmp_path / "folder" / "weights.safetensors").write_bytes(BYTES)
    (tmp_path / "to-folder").symlink_to("folder")
    return tmp_path


def same(place):
    """Pairs (input, output) of one place under two names."""
    names = ("in.jsonl", "./in.jsonl", str(place / "in.jsonl"), "link.jsonl", "hard.jsonl", "folder/../in.jsonl")
    return [("in.jsonl", name) for name in names] + [("link.jsonl", "in.jsonl"), ("folder", "to-folder"), ("folder", "./folder/")]


INSIDE = [("folder", "."), ("folder/part", "folder"), ("folder", "folder/weights.safetensors"), ("folder", "folder/part")]
"""Pairs (input, output) of which one holds the other."""


def takes_text(parameter):
    return not getattr(parameter, "is_flag", False) and parameter.name not in ("help", "changes")


def line_of(command, given):
    """The words of a command line with the options and arguments in `given`, and something for required ones."""
    words, places = command.split(), []
    arguments = [each.name for each in COMMANDS[command].params if not each.opts[0].startswith("-")]
    last = max((number for number, name in enumerate(arguments) if name in given), default=-1)
    for name, value in given.items():
        if name not in arguments:
            words += [next(each.opts[0] for each in COMMANDS[command].params if each.name == name), value]
    places = [given.get(name, "nothing") for name in arguments[: last + 1]]
    return [*words, *places]


def refused_by_itself(command, given):
    """The command's function refuses; what parses the line is left out, which takes most of the time."""
    with pytest.raises(ValueError, match="would be overwritten; give another place"):
        FUNCTIONS[command](**given)


def refused(line, capsys):
    with pytest.raises(SystemExit) as stopped:
        app(line)
    said = capsys.readouterr()
    assert stopped.value.code == 2, (line, said)
    assert said.err.count("\n") == 1
    assert "would be overwritten; give another place" in said.err, (line, said.err)
    assert not said.out


@pytest.mark.parametrize("command", WRITING)
def test_no_command_writes_over_what_it_reads(command, place, capsys):
    written = WRITING[command]
    inputs = [each.name for each in COMMANDS[command].params if each.name not in written and takes_text(each) and type_of(each) is str]
    for out, how in written.items():
        for name in inputs:
            refused(line_of(command, {name: "in.jsonl", out: "link.jsonl"}), capsys)
            for source, target in same(place):
                if not (how.keeps and name in how.beside and source == "folder"):
                    refused_by_itself(command, {name: source, out: target})
            for source, target in INSIDE:
                if not how.keeps and not (name in how.beside and target.startswith("folder/")):
                    refused_by_itself(command, {name: source, out: target})
    assert (place / "in.jsonl").read_bytes() == (place / "folder" / "weights.safetensors").read_bytes() == BYTES


def type_of(parameter):
    """The Python type that the words behind a parameter are read as."""
    return str if parameter.metavar not in ("N", "T", "K", "P", "X", "F", "S", "SEED", "TAU", "MS") else float


def test_every_place_that_a_command_writes_to_is_declared():
    for name, command in COMMANDS.items():
        places = {each.name for each in command.params if each.name in WORDS}
        assert places == set(WRITING.get(name, ())), name


def parser_of(recipe, monkeypatch):
    """The parser of a recipe, taken where its `main` would parse."""
    seen = []

    class Caught(BaseException):
        pass

    def caught(parser, *_):
        seen.append(parser)
        raise Caught

    with monkeypatch.context() as patched:
        patched.setattr(RecipeParser, "parse_args", caught)
        spec = spec_from_file_location("_recipe", recipe)
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        with pytest.raises(Caught):
            (getattr(module, "main", None) or module.parsed)()
    return seen[0]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_recipe_writes_over_what_it_reads(recipe, place, monkeypatch, capsys):
    parser = parser_of(recipe, monkeypatch)
    actions = {action.dest: action for action in parser._actions}
    for out, how in RecipeParser.OUTPUTS.items():
        for name, action in actions.items():
            if out not in actions or name in RecipeParser.OUTPUTS or action.type not in (None, Path) or action.nargs == 0 or action.choices:
                continue
            for source, target in [*same(place), *(() if how.keeps else INSIDE)]:
                words = said_of(parser, {name: source, out: target})
                with pytest.raises(SystemExit) as stopped:
                    parser.parse_args(words)
                error = capsys.readouterr().err
                assert stopped.value.code == 2
                assert error.count("\n") == 1
                assert "would be overwritten; give another place" in error, (words, error)
    assert (place / "in.jsonl").read_bytes() == (place / "folder" / "weights.safetensors").read_bytes() == BYTES
    forget_all()


def said_of(parser, given):
    """The command line with the options and arguments in `given`, and something for the arguments before them."""
    options, arguments, last = [], [], 0
    for action in parser._actions:
        values = [given.get(action.dest, next(iter(action.choices or ["nothing"])))] * (
            action.nargs if isinstance(action.nargs, int) else 1
        )
        if not action.option_strings:
            arguments += values
            last = len(arguments) if action.dest in given else last
        elif action.dest in given:
            options += [action.option_strings[0], *values]
    return [*arguments[:last], *options]


def forget_all():
    declare({}, {}, {})


def test_a_file_that_is_read_is_not_written_by_another_way(place):
    tokens = declare({"prompts": "in.jsonl"}, {}, {"prompts": "--prompts"})
    try:
        for name in ("in.jsonl", "link.jsonl", "hard.jsonl"):
            with pytest.raises(ValueError, match="is read as --prompts"), whole(name) as file:
                file.write("over")
        with whole("new.jsonl") as file:
            file.write("new")
    finally:
        forget(tokens)
    with whole("in.jsonl") as file:
        file.write("the next command may")


def test_what_a_config_names_is_an_input(place, capsys):
    (place / "settings.yaml").write_text("target: {path: folder}\n")
    refused(["explain", "--config", "settings.yaml", "--output", "folder/weights.safetensors"], capsys)


def test_what_is_right_is_not_refused(place):
    from mmspec.utils.places import Writes

    (place / "folder" / "job").mkdir()
    (place / "folder" / "job" / "manifest.json").write_text("{}")
    right = [("in.jsonl", "new.jsonl"), ("folder", "folder/new.jsonl"), ("folder", "folder/job"), ("a prompt", "in.jsonl")]
    right += [("/dev/null", "/dev/null"), ("-", "new.jsonl"), ("x" * 5000, "in.jsonl"), ("nul\0", "in.jsonl")]
    for source, target in right:
        forget(declare({"a": source, "out": target}, {"out": Writes()}, {}))
    forget(declare({"a": "in.jsonl", "out": "."}, {"out": Writes(keeps=True)}, {}))
    forget(declare({"a": "folder", "out": "folder"}, {"out": Writes(keeps=True, beside=("a",))}, {}))
    with pytest.raises(ValueError, match="both"):
        declare({"out": "new", "html": "./new"}, {"out": Writes(), "html": Writes()}, {})
    reads("in.jsonl", "--prompts")
