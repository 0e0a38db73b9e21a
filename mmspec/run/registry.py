"""The registry of names: the strings that `accept=` and `drafter=` accept, on the command line and in YAML. Imports nothing heavy."""

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from mmspec.utils.names import nearest, unknown


class Entry(NamedTuple):
    """Entry of a name."""

    where: str
    """"module:attribute"."""
    is_a: str
    """Short description."""
    needs: str = ""
    """Requirements on a request; empty for none."""
    refuses: str = ""
    """Inputs that are refused; empty for none."""


_CHAINS = "trees"
_DRAWN = "draft tokens drawn from q"
_LAYERS = "a decoder of layers"
_TREE = "siblings drawn as the rule reads them"

RULES: dict[str, Entry] = {
    "greedy": Entry("mmspec.core.rules.greedy:Greedy", "the target's most likely token", "temperature 0"),
    "match": Entry("mmspec.core.rules.match:Match", "the target's own draw, kept while drafts equal it"),
    "coupled": Entry("mmspec.core.rules.coupled:Coupled", "as match, with drafts drawn by the same Gumbel noise"),
    "token": Entry("mmspec.core.rules.token:Token", "token rejection sampling", _DRAWN, _CHAINS),
    "block": Entry("mmspec.core.rules.block:Block", "block verification", _DRAWN, _CHAINS),
    "topk": Entry("mmspec.core.rules.sibling_rules:topk_rule", "siblings that are the drafter's most likely tokens", _TREE),
    "with-replacement": Entry("mmspec.core.rules.sibling_rules:with_replacement_rule", "siblings drawn with replacement", _TREE),
    "without-replacement": Entry("mmspec.core.rules.sibling_rules:without_replacement_rule", "siblings drawn without replacement", _TREE),
    "hybrid": Entry("mmspec.core.rules.sibling_rules:hybrid_rule", "the most likely siblings and one that is drawn", _TREE),
    "kseq": Entry("mmspec.core.rules.sibling_rules:kseq_rule", "K-SEQ over siblings drawn with replacement", _TREE),
    "lenience": Entry("mmspec.core.rules.lossy.lenience:Lenience", "the drafter's probability times l < 1", _DRAWN, _CHAINS),
    "ensemble": Entry("mmspec.core.rules.lossy.ensemble:Ensemble", "a mixture of p and q as the target", _DRAWN, _CHAINS),
    "typical": Entry("mmspec.core.rules.lossy.typical:Typical", "typical acceptance"),
    "topk-gap": Entry("mmspec.core.rules.lossy.top_k:TopKGap", "among the k most likely, within a gap of the best"),
    "topk-floor": Entry("mmspec.core.rules.lossy.top_k:TopKFloor", "among the k most likely, above a floor"),
    "distance": Entry("mmspec.core.rules.lossy.top_k:ByDistance", "within a distance of the best", "values in order"),
    "rollback": Entry("mmspec.core.rules.lossy.rollback:Rollback", "rejected where the target clearly disagrees"),
    "threshold": Entry("mmspec.core.rules.lossy.always_accept:Threshold", "unchecked where the drafter is sure", _DRAWN, _CHAINS),
    "tolerance": Entry("mmspec.core.rules.lossy.tolerance:Tolerance", "among tau draws from p"),
    "ssd": Entry("mmspec.core.rules.lossy.ssd:SSD", "SSD for speech tokens", _DRAWN, _CHAINS),
    "ssd-tree": Entry("mmspec.core.rules.lossy.ssd:ssd_tree", "SSD over siblings", _TREE),
    "membership": Entry("mmspec.core.rules.lossy.membership:Membership", "among the target's k most likely", _DRAWN, _CHAINS),
    "membership-tree": Entry("mmspec.core.rules.lossy.membership:membership_tree", "membership over siblings", _TREE),
    "ratio-to-max": Entry("mmspec.core.rules.lossy.membership:RatioToMax", "within a ratio of the most likely", _DRAWN, _CHAINS),
    "always-accept": Entry("mmspec.core.rules.lossy.always_accept:AlwaysAccept", "no check at all", _DRAWN, _CHAINS),
    "cool-sd": Entry("mmspec.core.rules.lossy.cool_sd:CoolSD", "annealed relaxation", _DRAWN, _CHAINS),
    "cool-sd-tree": Entry("mmspec.core.rules.lossy.cool_sd:cool_tree", "annealed relaxation over siblings", _TREE),
    "chow": Entry("mmspec.core.rules.transform:chow", "lossless for Chow's mixture of p and q", _DRAWN, _CHAINS),
    "deferral": Entry("mmspec.core.rules.transform:deferral", "lossless for a deferral to p", _DRAWN, _CHAINS),
    "token-deferral": Entry("mmspec.core.rules.transform:token_deferral", "lossless for a deferral token by token", _DRAWN, _CHAINS),
    "contrastive": Entry("mmspec.core.rules.transform:contrastive", "lossless for contrastive decoding", _DRAWN, _CHAINS),
}
SOURCES: dict[str, Entry] = {
    "none": Entry("mmspec.drafters.none:NoDraft", "plain decoding", "", "tree, view"),
    "lookup": Entry("mmspec.drafters.retrieval.lookup:Lookup", "n-grams of the prompt", "", "tree, view"),
    "suffix": Entry("mmspec.drafters.retrieval.suffix:Suffix", "suffix automaton of the prompt and a corpus", "", "tree, view"),
    "ngram": Entry("mmspec.drafters.retrieval.ngram:NGram", "adaptive n-grams", "", "tree, view"),
    "copy": Entry("mmspec.drafters.retrieval.copy:Copy", "the input as the draft of an output like it", "", "tree, view"),
    "recycling": Entry("mmspec.drafters.retrieval.recycling:Recycling", "the target's own runners-up", "", "tree, view"),
    "jacobi": Entry("mmspec.drafters.jacobi.decoding:Jacobi", "a Jacobi window", "", "tree, view"),
    "lookahead": Entry("mmspec.drafters.jacobi.lookahead:Lookahead", "n-grams of a Jacobi window", "", "tree, view"),
    "early-exit": Entry("mmspec.drafters.self_drafting.early_exit:EarlyExit", "the target's first layers", _LAYERS, "view"),
    "layer-skip": Entry("mmspec.drafters.self_drafting.layer_skip:SkipLayers", "the target without some layers", _LAYERS, "view"),
    "similar-layers": Entry(
        "mmspec.drafters.self_drafting.layer_skip:SimilarLayers",
        "the target without its most similar layers",
        _LAYERS,
        "view",
    ),
    "swift": Entry("mmspec.drafters.self_drafting.swift:Swift", "the target without layers that a search finds", _LAYERS, "view"),
    "windowed": Entry("mmspec.drafters.self_drafting.windowed:Windowed", "the target on a part of its cache", _LAYERS, "view"),
    "mtp": Entry(
        "mmspec.drafters.heads.shipped_mtp:ShippedMTP",
        "the multi-token prediction modules in the target's checkpoint",
        "a checkpoint that has them",
        "view",
    ),
}
RENAMED = {"unchecked": "always-accept"}
"""Names of version 0.1 -> current names; removed in 0.3."""
ACCEPT = {name: entry.where for name, entry in RULES.items()}
DRAFTERS = {name: entry.where for name, entry in SOURCES.items()}
SELF_DRAFTING = tuple(name for name, entry in SOURCES.items() if ".self_drafting." in entry.where)
PROTOCOLS = {"accept rule": (("exactness", "coupled", "uses_q"),), "drafter": (("begin",), ("guide",))}
"""For each kind, the sets of members of which a class given as module:Class must have one."""


def build(kind: str, table: Mapping[str, str], what: str, options: Mapping[str, Any] | None = None, *, allow_code: bool = False) -> Any:
    """Make the object of a name.

    Args:
        kind: a key of `table`; or, with `allow_code`, "module:Class" for a class of your own.
        table: names, and where each is defined.
        what: "accept rule" or "drafter", for messages and for the protocol that a class of your own must follow.
        options: keyword arguments of the class.
        allow_code: import and call a class of your own. Off by default: a config file cannot run code.

    Returns:
        The object.

    Raises:
        ValueError: for an unknown name, an unknown option, or a class that does not follow the protocol, in one line.
    """
    kind = RENAMED.get(kind, kind)
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
    """Return the class "module:Class". ValueError if code is not allowed, and for anything but a class of the protocol."""
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
