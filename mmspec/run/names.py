"""Names that stand for classes: the tables of accept rules and drafters, building from a name, and the error for unknown names.

This module imports no heavy library, so that help and completion can read the tables.
"""

import inspect
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

ACCEPT = {
    "greedy": "mmspec.core.rules.greedy:Greedy",
    "match": "mmspec.core.rules.match:Match",
    "coupled": "mmspec.core.rules.coupled:Coupled",
    "token": "mmspec.core.rules.token:Token",
    "block": "mmspec.core.rules.block:Block",
    "topk": "mmspec.core.rules.siblings:topk",
    "with-replacement": "mmspec.core.rules.siblings:with_replacement",
    "without-replacement": "mmspec.core.rules.siblings:without_replacement",
    "hybrid": "mmspec.core.rules.siblings:hybrid",
    "kseq": "mmspec.core.rules.siblings:kseq",
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
SELF_DRAFTING = ("early-exit", "layer-skip", "similar-layers", "swift", "windowed")
"""The drafters of `DRAFTERS` that run a part of the target."""
PROTOCOLS = {"accept rule": (("exactness", "coupled", "uses_q"),), "drafter": (("begin",), ("guide",))}
"""For each kind, the sets of members of which a class given as module:Class must have one."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """The words " (did you mean NAME?)" for the valid name nearest to `name`; nothing where none is near."""
    near = get_close_matches(name.lower(), list(valid), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def unknown(what: str, name: Any, valid: Iterable[str], *also: str) -> ValueError:
    """The error for a name that is in no table, with the nearest valid name.

    Args:
        what: the kind of name, such as "drafter".
        name: what was given.
        valid: the valid names.
        also: what may stand in place of a name, such as "a model's path".

    Returns:
        A ValueError of one line, to be raised by the caller.
    """
    names = [str(each) for each in valid]
    shown = name if isinstance(name, str) and len(name) <= 60 else f"{str(name)[:60]}..." if isinstance(name, str) else name
    text = f"unknown {what} {shown!r}" if isinstance(name, str) else f"{what} is a {type(name).__name__}: give a name"
    meant = nearest(name, names) if isinstance(name, str) else ""
    return ValueError(f"{text}{meant}; valid: {', '.join([*names, *also])}")


def build(kind: str, table: Mapping[str, str], what: str, options: Mapping[str, Any] | None = None, *, allow_code: bool = False) -> Any:
    """Make the object that a name stands for.

    Args:
        kind: a key of `table`; or, with `allow_code`, "module:Class" for a class of your own.
        table: names, and where each is defined.
        what: "accept rule" or "drafter", for messages and for the protocol a class of your own must follow.
        options: keyword arguments of the class.
        allow_code: import and call a class of your own. Off by default: a config file cannot run code.

    Returns:
        The object.

    Raises:
        ValueError: for an unknown name, an unknown option, or a class that does not follow the protocol, in one line.
    """
    own = kind not in table and ":" in kind
    if kind not in table and not own:
        raise unknown(what, kind, sorted(table))
    if not own and not table[kind]:
        raise ValueError(f"{what} {kind!r} takes no options here: leave out {', '.join(map(str, options or {})) or 'the name'}")
    make = _own_class(kind, what, allow_code) if own else _imported(table[kind], what, kind)
    valid = list(inspect.signature(make).parameters)
    for key in options or {}:
        if key not in valid:
            raise ValueError(f"unknown key {key!r} for {what} {kind!r}{nearest(str(key), valid)}; valid: {', '.join(valid) or 'none'}")
    try:
        return make(**(options or {}))
    except (TypeError, AttributeError, IndexError, KeyError, OverflowError, ArithmeticError) as error:
        reason, keys = " ".join(str(error).split()), ", ".join(valid) or "none"
        raise ValueError(f"{what} {kind!r} cannot be made of {dict(options or {})}: {reason}; valid keys: {keys}") from None


def _imported(where: str, what: str, kind: str) -> Any:
    module, _, name = where.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{what} {kind!r} cannot be imported: {error}") from None


def _own_class(kind: str, what: str, allow_code: bool) -> Any:
    """The class "module:Class". ValueError where code is not allowed, and for anything that is no class of the protocol."""
    if not allow_code:
        raise ValueError(
            f"{what} {kind!r} names code to import, which is off: give one of mmspec models, pass the object itself in Python, "
            "or allow it with --allow-code (load_config(..., allow_code=True))"
        )
    found = _imported(kind, what, kind)
    members = set(dir(found)) | {name for base in getattr(found, "__mro__", ()) for name in getattr(base, "__annotations__", ())}
    if not inspect.isclass(found) or not any(members.issuperset(each) for each in PROTOCOLS[what]):
        wanted = " or ".join(", ".join(each) for each in PROTOCOLS[what])
        raise ValueError(f"{what} {kind!r} is no class of a {what}: it must be a class with {wanted}")
    return found
