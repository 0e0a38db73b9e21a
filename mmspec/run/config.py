"""Names and configs: the tables that turn a kind into a class, and strict YAML in four sections (target, drafter, accept, run).

A config is plain data. Unknown sections, keys and kinds are errors that list the valid ones. A kind may also be
"module:Class" for a class of your own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mmspec.utils.recipe_files import find_recipe

SECTIONS = ("target", "drafter", "accept", "run")


@dataclass(frozen=True, kw_only=True)
class TargetSection:
    """Which model: a shipped mini's name or a path, and how to load it."""

    path: str = "mini"
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class DrafterSection:
    """Where draft tokens come from: a kind, or `model` or `trained` with a path; `tree` and `length` shape them; `options` go to the
    drafter."""

    kind: str = "none"
    path: str | None = None
    length: int | str = "auto"
    tree: list[int] | str | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AcceptSection:
    """Which rule, and its numbers."""

    kind: str = "exact"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunSection:
    """How to sample and how far."""

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Config:
    target: TargetSection = field(default_factory=TargetSection)
    drafter: DrafterSection = field(default_factory=DrafterSection)
    accept: AcceptSection = field(default_factory=AcceptSection)
    run: RunSection = field(default_factory=RunSection)


def load_config(path: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> Config:
    """Read a YAML config; `overrides` are "section.key=value" strings. ValueError names the offending entry and the valid ones."""
    try:
        path = path if Path(path).exists() else _shipped(path)
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        raise ValueError(f"config {path} does not exist") from None
    except yaml.YAMLError as error:
        raise ValueError(f"config {path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise ValueError(f"config {path} holds {type(data).__name__}: it must be a mapping with sections {', '.join(SECTIONS)}")
    for override in overrides:
        target, separator, value = override.partition("=")
        section, dot, key = target.partition(".")
        if not (separator and dot):
            raise ValueError(f"override {override!r} is not of the form section.key=value")
        data.setdefault(section, {})[key] = yaml.safe_load(value)
    for section in data:
        if section not in SECTIONS:
            raise ValueError(f"unknown section {section!r} in {path}; valid: {', '.join(SECTIONS)}")
    return Config(
        target=_section(TargetSection, "target", data),
        drafter=_section(DrafterSection, "drafter", data),
        accept=_section(AcceptSection, "accept", data),
        run=_section(RunSection, "run", data),
    )


def _shipped(path: str | Path) -> Path:
    """The config of that name that ships with mmspec, such as configs/text/tree.yaml; else `path` itself."""
    try:
        return find_recipe(str(path)).path
    except (ValueError, FileNotFoundError):
        return Path(path)


def _section(kind: type, name: str, data: Mapping[str, Any]) -> Any:
    given = data.get(name) or {}
    valid = list(kind.__dataclass_fields__)
    for key in given:
        if key not in valid:
            raise ValueError(f"unknown key {name}.{key}; valid: {', '.join(valid)}")
    return kind(**given)
