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

from mmspec.utils.recipe_files import find_recipe

ACCEPT = {
    "greedy": "mmspec.core.rules.greedy:Greedy",
    "match": "mmspec.core.rules.match:Match",
    "coupled": "mmspec.core.rules.coupled:Coupled",
    "token": "mmspec.core.rules.token:Token",
    "block": "mmspec.core.rules.block:Block",
    "topk": "mmspec.core.rules.sibling_rules:topk_rule",
    "with-replacement": "mmspec.core.rules.sibling_rules:with_replacement_rule",
    "without-replacement": "mmspec.core.rules.sibling_rules:without_replacement_rule",
    "hybrid": "mmspec.core.rules.sibling_rules:hybrid_rule",
    "kseq": "mmspec.core.rules.sibling_rules:kseq_rule",
    "lenience": "mmspec.core.rules.lossy.lenience:Lenience",
    "ensemble": "mmspec.core.rules.lossy.ensemble:Ensemble",
    "typical": "mmspec.core.rules.lossy.typical:Typical",
    "topk-gap": "mmspec.core.rules.lossy.top_k:TopKGap",
    "topk-floor": "mmspec.core.rules.lossy.top_k:TopKFloor",
    "rollback": "mmspec.core.rules.lossy.rollback:Rollback",
    "tolerance": "mmspec.core.rules.lossy.tolerance:Tolerance",
    "ssd": "mmspec.core.rules.lossy.ssd:SSD",
    "ssd-tree": "mmspec.core.rules.lossy.ssd:ssd_tree",
    "membership": "mmspec.core.rules.lossy.membership:Membership",
    "membership-tree": "mmspec.core.rules.lossy.membership:membership_tree",
    "ratio-to-max": "mmspec.core.rules.lossy.membership:RatioToMax",
    "always_accept": "mmspec.core.rules.lossy.always_accept:AlwaysAccept",
    "cool-sd": "mmspec.core.rules.lossy.cool_sd:CoolSD",
    "cool-sd-tree": "mmspec.core.rules.lossy.cool_sd:cool_tree",
    "chow": "mmspec.core.rules.transform:chow",
    "deferral": "mmspec.core.rules.transform:deferral",
    "token-deferral": "mmspec.core.rules.transform:token_deferral",
    "contrastive": "mmspec.core.rules.transform:contrastive",
}
DRAFTERS = {
    "none": "mmspec.drafters.none:NoDraft",
    "lookup": "mmspec.drafters.retrieval.lookup:Lookup",
    "suffix": "mmspec.drafters.retrieval.suffix:Suffix",
    "ngram": "mmspec.drafters.retrieval.ngram:NGram",
    "copy": "mmspec.drafters.retrieval.copy:Copy",
    "recycling": "mmspec.drafters.retrieval.recycling:Recycling",
    "jacobi": "mmspec.drafters.jacobi.decoding:Jacobi",
    "lookahead": "mmspec.drafters.jacobi.lookahead:Lookahead",
    "early-exit": "mmspec.drafters.self_drafting.early_exit:EarlyExit",
    "layer-skip": "mmspec.drafters.self_drafting.layer_skip:SkipLayers",
    "similar-layers": "mmspec.drafters.self_drafting.layer_skip:SimilarLayers",
    "swift": "mmspec.drafters.self_drafting.swift:Swift",
    "windowed": "mmspec.drafters.self_drafting.windowed:Windowed",
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
