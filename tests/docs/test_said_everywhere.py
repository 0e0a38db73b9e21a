"""What a public call takes, its command takes, and configs and the drop-in where it applies; tables say what is left out, and why."""

import inspect

import pytest
import typer

import mmspec
from mmspec.cli import app
from mmspec.run.config import Config
from tests.docs.test_calls import PARAMETERS

OBJECT, FORWARDS = "it is a Python object", "each command is a process, and compiling takes a minute of it"
LEFT_OUT: dict[str, dict[str, str]] = {
    "text": {
        "processors": OBJECT,
        "streamer": "the command streams to the terminal",
        "on_step": "--show-rounds shows rounds",
        "capture": FORWARDS,
        "view": "mmspec text shows no pictures; mmspec caption has --view",
    },
    "image": {
        "accept": "a rule of codes is an object made for a model; --method names one",
        "draft_length": "--window says it",
        "couple": OBJECT,
        "on_step": "a bar shows rounds",
        "capture": FORWARDS,
    },
    "speech": {"samplers": OBJECT, "on_step": "a bar shows rounds", "capture": FORWARDS},
    "recommend": {
        "allowed": "a mask of all items; --only and columns of the users' table say it",
        "rules": OBJECT,
        "on_step": "a bar shows rounds",
        "capture": FORWARDS,
    },
    "config": {
        "stops": "texts of one prompt; --stop",
        "view": "pictures come with commands that have --view",
        "processors": OBJECT,
        "streamer": OBJECT,
        "on_step": OBJECT,
        "capture": FORWARDS,
    },
    "drop-in": {
        **dict.fromkeys(
            ("temperature", "top_k", "top_p", "repetition_penalty", "max_new_tokens", "processors", "stops", "streamer"),
            "generate takes it itself",
        ),
        "on_step": "a streamer gets the tokens",
        "capture": "generate's own compile settings are left to it",
    },
}
"""Where -> arguments that cannot be said there -> why."""
SAID_AS: dict[str, dict[str, str]] = {
    "text": {"inputs": "prompt", "stops": "stop"},
    "image": {"prompts": "prompt", "sampling": "head_steps"},
    "speech": {"on_sound": "stream"},
    "recommend": {"histories": "history", "method": "mode", "allow": "allow_column", "deny": "deny_column"},
    "config": {
        "model": "target.path",
        "drafter": "drafter.kind",
        "accept": "accept.kind",
        "draft_length": "drafter.length",
        "tree": "drafter.tree",
        "stop_below": "drafter.options",
    },
}
"""Where -> an argument -> its name there."""
CALLS = {"text": "text", "image": "vision", "speech": "speech", "recommend": "recsys", "config": "text", "drop-in": "text"}


def said(where: str) -> set[str]:
    """The names that a command, the config or the drop-in has."""
    if where == "config":
        run = {name: f"{section}.{name}" for section in ("run", "drafter") for name in getattr(Config(), section).__dataclass_fields__}
        return {*run, *run.values(), "target.path", "accept.kind", "inputs"}
    if where == "drop-in":
        return {*inspect.signature(mmspec.text.speculate).parameters, "model", "inputs"}
    return {parameter.name for parameter in typer.main.get_command(app).commands[where].params}  # type: ignore[attr-defined]


@pytest.mark.parametrize("where", CALLS)
def test_every_argument_of_the_call_can_be_said(where):
    names, renamed = said(where), SAID_AS.get(where, {})
    missing = {name for name in PARAMETERS[CALLS[where]] if renamed.get(name, name) not in names}
    assert missing == set(LEFT_OUT[where])


@pytest.mark.parametrize("where", LEFT_OUT)
def test_exceptions_are_arguments_with_a_reason(where):
    assert set(LEFT_OUT[where]) <= set(PARAMETERS[CALLS[where]])
    assert all(LEFT_OUT[where].values())
