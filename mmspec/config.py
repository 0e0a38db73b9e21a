"""Names and configs: the tables that turn a kind into a class, and strict YAML in four sections (target, drafter, accept, run).

A config is plain data. Unknown sections, keys and kinds are errors that list the valid ones. A kind may also be
"module:Class" for a class of your own.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

ACCEPT = {
    "greedy": "mmspec.core.accept:Greedy",
    "match": "mmspec.core.accept:Match",
    "coupled": "mmspec.core.accept:Coupled",
    "token": "mmspec.core.accept:Token",
    "block": "mmspec.core.accept:Block",
    "topk": "mmspec.core.siblings:topk",
    "with-replacement": "mmspec.core.siblings:with_replacement",
    "without-replacement": "mmspec.core.siblings:without_replacement",
    "hybrid": "mmspec.core.siblings:hybrid",
    "kseq": "mmspec.core.siblings:kseq",
    "lenience": "mmspec.core.lenience:Lenience",
    "ensemble": "mmspec.core.lossy:Ensemble",
    "typical": "mmspec.core.lossy:Typical",
    "topk-gap": "mmspec.core.lossy:TopKGap",
    "topk-floor": "mmspec.core.lossy:TopKFloor",
    "rollback": "mmspec.core.lossy:Rollback",
    "tolerance": "mmspec.core.lossy:Tolerance",
    "ssd": "mmspec.core.ssd:SSD",
    "ssd-tree": "mmspec.core.ssd:ssd_tree",
    "membership": "mmspec.core.membership:Membership",
    "membership-tree": "mmspec.core.membership:membership_tree",
    "ratio-to-max": "mmspec.core.membership:RatioToMax",
    "unchecked": "mmspec.core.unchecked:Unchecked",
    "cool-sd": "mmspec.core.cool:CoolSD",
    "cool-sd-tree": "mmspec.core.cool:cool_tree",
    "chow": "mmspec.core.transform:chow",
    "deferral": "mmspec.core.transform:deferral",
    "token-deferral": "mmspec.core.transform:token_deferral",
    "contrastive": "mmspec.core.transform:contrastive",
}
DRAFTERS = {
    "none": "mmspec.drafters.none:NoDraft",
    "lookup": "mmspec.drafters.lookup:Lookup",
    "suffix": "mmspec.drafters.suffix:Suffix",
    "ngram": "mmspec.drafters.ngram:NGram",
    "copy": "mmspec.drafters.copy:Copy",
    "recycling": "mmspec.drafters.recycling:Recycling",
    "jacobi": "mmspec.drafters.jacobi:Jacobi",
    "lookahead": "mmspec.drafters.lookahead:Lookahead",
    "early-exit": "mmspec.drafters.early_exit:EarlyExit",
    "layer-skip": "mmspec.drafters.layer_skip:SkipLayers",
    "similar-layers": "mmspec.drafters.layer_skip:SimilarLayers",
    "swift": "mmspec.drafters.swift:Swift",
    "windowed": "mmspec.drafters.windowed:Windowed",
}
SELF_DRAFTING = ("early-exit", "layer-skip", "similar-layers", "swift", "windowed")  # of those above: the target run short
SECTIONS = ("target", "drafter", "accept", "run")


def build(kind: str, table: Mapping[str, str], what: str, options: Mapping[str, Any] | None = None) -> Any:
    """The object of `kind` from `table`, made with `options`. ValueError lists the valid kinds or keys."""
    where = table.get(kind, kind if ":" in kind else None)
    if where is None:
        raise ValueError(f"unknown {what} {kind!r}; valid: {', '.join(sorted(table))}")
    module, _, name = where.partition(":")
    try:
        make = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{what} {kind!r} cannot be imported: {error}") from None
    valid = list(inspect.signature(make).parameters)
    for key in options or {}:
        if key not in valid:
            raise ValueError(f"unknown key {key!r} for {what} {kind!r}; valid: {', '.join(valid) or 'none'}")
    try:
        return make(**(options or {}))
    except TypeError as error:
        raise ValueError(f"{what} {kind!r}: {error}; valid keys: {', '.join(valid) or 'none'}") from None


@dataclass(frozen=True, kw_only=True)
class TargetSection:
    """Which model: a shipped mini's name or a path, and how to load it."""

    path: str = "mini"
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class DrafterSection:
    """Where guesses come from: a kind, or `model` or `trained` with a path; `tree` and `length` shape them; `options` go to the drafter."""

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


def _section(kind: type, name: str, data: Mapping[str, Any]) -> Any:
    given = data.get(name) or {}
    valid = list(kind.__dataclass_fields__)
    for key in given:
        if key not in valid:
            raise ValueError(f"unknown key {name}.{key}; valid: {', '.join(valid)}")
    return kind(**given)
