"""Strict YAML configs in four sections (target, drafter, accept, run), validated by pydantic.

A config is plain data. Unknown sections and keys, values of a wrong type and numbers out of bounds are errors of one line that name the
key, the value and the valid values; the same from YAML, `--set section.key=value`, command-line options and Python.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, Literal, dataclass_transform

import yaml
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from mmspec.core.control import MOST_DRAFTED
from mmspec.run.registry import nearest, unknown
from mmspec.utils.recipe_files import find_recipe

SECTIONS = ("target", "drafter", "accept", "run")
MOST_TOKENS = 2**31 - 1


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
def _section(name: str) -> Callable[[type], type]:
    """Class decorator: a frozen dataclass validated by pydantic, whose errors are one line that names `name`.key."""

    def decorate(cls: type) -> type:
        settings = ConfigDict(extra="forbid", strict=True)
        made: Any = dataclass(frozen=True, kw_only=True, config=settings)(cls)
        checked = made.__init__

        @wraps(checked)
        def init(self: Any, *args: Any, **given: Any) -> None:
            try:
                checked(self, *args, **given)
            except ValidationError as error:
                raise _in_one_line(error, name, made, given) from None

        made.__init__ = init
        return made

    return decorate


@_section("target")
class TargetSection:
    """The model: a shipped mini's name or a path, and how to load it."""

    path: str = Field(default="mini", min_length=1)
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    device: str = Field(default="cpu", min_length=1)


@_section("drafter")
class DrafterSection:
    """The drafter: a kind, or `model` or `trained` with a path.

    `tree` and `length` set the form of drafts; `references` is a file of texts that drafter `lookup` may quote; `options` are passed to
    the drafter.
    """

    kind: str = Field(default="none", min_length=1)
    path: str | None = Field(default=None, min_length=1)
    length: Literal["auto", "thompson"] | int = Field(default="auto")
    tree: list[int] | tuple[int, ...] | str | None = None
    references: str | None = Field(default=None, min_length=1)
    options: dict[str, Any] = Field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.length, int) and not 0 <= self.length <= MOST_DRAFTED:
            raise ValueError(f"drafter.length is {self.length}: give 0 to {MOST_DRAFTED}, auto or thompson")


@_section("accept")
class AcceptSection:
    """The accept rule and its parameters."""

    kind: str = Field(default="exact", min_length=1)
    options: dict[str, Any] = Field(default_factory=dict)


@_section("run")
class RunSection:
    """Sampling settings and length."""

    max_new_tokens: int = Field(default=128, ge=1, le=MOST_TOKENS)
    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=0, le=MOST_TOKENS)
    top_p: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    repetition_penalty: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    seed: int = 0


@_section("config")
class Config:
    """The settings of one run.

    `allow_code` lets kinds of the form module:Class import and call classes of your own. No config file can set it.
    """

    target: TargetSection = Field(default_factory=TargetSection)
    drafter: DrafterSection = Field(default_factory=DrafterSection)
    accept: AcceptSection = Field(default_factory=AcceptSection)
    run: RunSection = Field(default_factory=RunSection)
    allow_code: bool = False


_KINDS: dict[str, Any] = {"target": TargetSection, "drafter": DrafterSection, "accept": AcceptSection, "run": RunSection}


def load_config(path: str | Path | None, overrides: list[str] | tuple[str, ...] = (), *, allow_code: bool = False) -> Config:
    """Read a YAML config.

    Args:
        path: a file, or the name of a config that ships with mmspec; None for the defaults.
        overrides: changes of entries, each "section.key=value" with a YAML value.
        allow_code: let kinds of the form module:Class import and call classes of your own; see `mmspec.run.registry.build`.

    Returns:
        The validated settings.

    Raises:
        ValueError: for a file that cannot be read and for every wrong entry, in one line that names the entry and what is valid.
    """
    data = {} if path is None else _read(path)
    for override in overrides:
        section, key, value = _override(override)
        entries = data.setdefault(section, {})
        if not isinstance(entries, dict):
            raise _no_mapping(section, entries)
        entries[key] = value
    for section, entries in data.items():
        if section not in SECTIONS:
            raise unknown("section", str(section), SECTIONS)
        if not (entries is None or isinstance(entries, dict)):
            raise _no_mapping(section, entries)
    return Config(allow_code=allow_code, **{name: _made(name, data.get(name) or {}) for name in SECTIONS})


def changed(config: Config, section: str, **values: Any) -> Config:
    """Return `config` with `values` in its section "target", "drafter", "accept" or "run". ValueError for an invalid value, in one line."""
    return replace(config, **{section: replace(getattr(config, section), **values)})


def _read(path: str | Path) -> dict[Any, Any]:
    """Return the mapping in a YAML file."""
    try:
        where = Path(path) if Path(path).exists() else _shipped(path)
        data = yaml.safe_load(where.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"config {path} does not exist") from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "it is no UTF-8 text"
        raise ValueError(f"config {path} cannot be read: {reason}; give a YAML file") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"config {path} is not valid YAML: {' '.join(str(error).split())[:200]}") from None
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise ValueError(f"config {path} holds {type(data).__name__}: it must be a mapping with sections {', '.join(SECTIONS)}")
    return data


def _shipped(path: str | Path) -> Path:
    """Return the config of that name that ships with mmspec, such as configs/text/tree.yaml; else `path` itself."""
    try:
        return find_recipe(str(path)).path
    except (ValueError, OSError):
        return Path(path)


def _override(override: str) -> tuple[str, str, Any]:
    """Return (section, key, value) of "section.key=value"."""
    name, separator, value = override.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (separator and dot and section and key):
        raise ValueError(f"override {override!r} is not of the form section.key=value")
    if section not in SECTIONS:
        raise unknown("section", section, SECTIONS)
    try:
        return section, key, yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"override {override!r} has a value that is not valid YAML: {' '.join(str(error).split())[:200]}") from None


def _made(name: str, entries: Mapping[Any, Any]) -> Any:
    valid = list(_KINDS[name].__dataclass_fields__)
    for key in entries:
        if key not in valid:
            raise _unknown_key(name, key, valid)
    return _KINDS[name](**entries)


def _unknown_key(name: str, key: Any, valid: Iterable[str]) -> ValueError:
    return ValueError(f"unknown key {name}.{key}{nearest(str(key), valid)}; valid: {', '.join(valid)}")


def _no_mapping(section: Any, entries: Any) -> ValueError:
    return ValueError(f"section {section} is {_short(entries)}: write its entries as key: value")


_WORDS = {
    "integer": "a whole number",
    "string": "text",
    "list": "a list",
    "number": "a number",
    "dictionary": "key: value entries",
    "None": "nothing",
    "tuple": "a list",
    "String should have at least 1 character": "text",
    "boolean": "true or false",
}


def _in_one_line(error: ValidationError, name: str, kind: Any, given: Mapping[str, Any]) -> ValueError:
    """Return the first error that pydantic found, with the key, the value and the valid values."""
    found = error.errors(include_url=False)
    kinds, place = {each["type"] for each in found[:1]}, found[0]["loc"]
    key = str(place[0]) if place else ""
    where = f"{name}.{key}" if key else name
    if kinds & {"unexpected_keyword_argument", "unexpected_positional_argument"}:
        return _unknown_key(name, key, kind.__dataclass_fields__)
    if kinds == {"value_error"}:
        return ValueError(str(found[0].get("ctx", {}).get("error")))
    messages = [each["msg"].removeprefix("Input should be ").removeprefix("a valid ") for each in found if each["loc"][:1] == place[:1]]
    words = [_WORDS.get(each, f"a number {each}" if each.startswith(("greater", "less")) else each) for each in dict.fromkeys(messages)]
    return ValueError(f"{where} is {_short(given.get(key, found[0]['input']))}: give {' or '.join(dict.fromkeys(words))}")


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:60]}..."
