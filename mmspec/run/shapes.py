"""Resolves `tree=` and `stop_below=`: the shape of drafts, and how their tokens are drawn for a rule."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmspec.core.protocols import Drafter
from mmspec.core.rules.base import Accept
from mmspec.drafters import shapes
from mmspec.drafters.fallback import AdaptiveFallback
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.stops import Confidence, Stop, Survival
from mmspec.drafters.trees.best_first import BestFirst
from mmspec.drafters.trees.search import BeamTree, DynamicDepth, ExpandRerank, OptTree
from mmspec.drafters.trees.static import MOST_NODES, StaticTree, Template
from mmspec.utils.names import shown

Tree = Sequence[int] | str | Path | Template | shapes.Shape | None
"""What `tree=` takes."""
_PICKS = {"with-replacement": shapes.draw_with_replacement, "top-and-one": shapes.top_and_one}
SEARCHES = {"expand": ExpandRerank(), "opt": ExpandRerank(depth=8, stop=OptTree()), "dynamic": ExpandRerank(depth=8, stop=DynamicDepth())}
SEARCHES |= {"beams": BeamTree(), "best-first": BestFirst()}
COMBS: dict[str, type[shapes.Comb]] = {"comb": shapes.Comb, "cape": shapes.ConfidentComb}


def stopping_below(drafter: Drafter, stop_below: float | str | Stop | None) -> Drafter:
    """Return `drafter` with chains that end where its largest probability falls below `stop_below`, or the chance that it gives them to be
    accepted, if it estimates that; "adaptive": where the probability of the path falls below a threshold that follows the verdicts, in
    chains and best-first trees; a stop: where it says so. ValueError if it drafts neither.
    """
    if stop_below is None:
        return drafter
    kinds = shapes.Chain | BestFirst if isinstance(stop_below, str) else shapes.Chain  # "adaptive"; other texts are refused before
    if not isinstance(drafter, (ModelDrafter, GuidedDrafter)) or not isinstance(shape := drafter.shape, kinds):
        raise ValueError(
            "stop_below ends a model's chains of draft tokens, and 'adaptive' also its best-first trees: draft with a model and leave tree "
            "out, or leave stop_below out"
        )
    if isinstance(stop_below, str):
        if not isinstance(drafter, ModelDrafter):
            raise ValueError("stop_below is 'adaptive', which needs a drafter that is a model of its own: give a probability, 0 to 1")
        return replace(drafter, shape=replace(shape, stop=AdaptiveFallback()))
    if not isinstance(stop_below, int | float):
        if stop_below.reads and not isinstance(drafter, ModelDrafter):
            raise ValueError(
                f"stop_below is a {type(stop_below).__name__}, which reads hidden states of a drafter that is a model of its own"
            )
        return replace(drafter, shape=replace(shape, stop=stop_below))
    estimates = isinstance(drafter, GuidedDrafter) and getattr(drafter.source, "confidence_head", None) is not None
    return replace(drafter, shape=replace(shape, stop=(Survival if estimates else Confidence)(stop_below)))


def shape_of(tree: Tree, rule: Accept) -> shapes.Shape:
    """Return the shape of a model's drafts for `rule`. ValueError for a tree that is unknown, unreadable or unsuitable for the rule."""
    if tree is None:
        ends_below = getattr(rule, "ends_below", None)
        return shapes.Chain(draw_for(rule), None if ends_below is None else Confidence(ends_below))
    if not rule.trees:
        raise ValueError(
            f"accept rule {type(rule).__name__} judges chains only: leave tree out, or accept with coupled, match or without-replacement"
        )
    if isinstance(tree, str) and tree in COMBS:
        return COMBS[tree](pick=pick_for(rule))
    if isinstance(tree, str) and tree in SEARCHES:
        return _search(tree, rule)
    return tree if hasattr(tree, "grow") else StaticTree(_template(tree), pick_for(rule))  # type: ignore[return-value]


def _search(tree: str, rule: Accept) -> shapes.Shape:
    """The searched tree of a name; with drawn siblings for rules that read q, where it can draw them."""
    search, name = SEARCHES[tree], type(getattr(rule, "siblings", rule)).__name__
    if not rule.uses_q:
        return search
    if not isinstance(search, BestFirst):
        raise ValueError(f"tree {tree!r} takes the most likely nodes, but {name} needs drawn ones: use 'best-first', 'comb' or numbers")
    if pick_for(rule) is not shapes.draw_without_replacement:
        raise ValueError(f"tree {tree!r} draws siblings without replacement, but {name} needs others: use 'comb' or numbers")
    return replace(search, drawn=True)


def _template(tree: Any) -> Template:
    if isinstance(tree, Template):
        return tree
    if isinstance(tree, Path) or (isinstance(tree, str) and tree.endswith(".json")):
        return Template.read(tree)
    if isinstance(tree, str):
        names = ", ".join(map(repr, (*COMBS, *SEARCHES)))
        raise ValueError(
            f"unknown tree {shown(tree)}; valid: {names}, children per level such as (4, 2, 1), a template's JSON file, or a shape"
        )
    return Template.branching(tree)


def longest_draft(tree: Tree, drafter: Any, tokens: int) -> int:
    """Return the most draft tokens a round that are of use: those a row may commit, or any number of nodes of a best-first tree.

    Args:
        tree: the form of the draft.
        drafter: the drafter, which may have a shape of its own.
        tokens: largest number of tokens that a row may commit.
    """
    best_first = tree == "best-first" or isinstance(tree, BestFirst) or isinstance(getattr(drafter, "shape", None), BestFirst)
    return MOST_NODES if best_first else tokens


def draw_for(rule: Accept) -> shapes.Draw:
    """Return how chain draft tokens are drawn for `rule`: with q recorded if it is read, with shared noise if coupled, else the best."""
    warp = getattr(rule, "warp", None)  # of transforms, which read distributions before temperature and truncation
    if warp is not None and not warp.idle:
        return shapes.Warped(warp)
    if getattr(rule, "takes_modes", False):
        return shapes.most_likely_of
    if rule.uses_q:
        return shapes.sampled
    return shapes.drawn if rule.coupled else shapes.most_likely


def pick_for(rule: Accept) -> shapes.Pick:
    """Return how siblings are chosen for `rule`."""
    siblings = getattr(rule, "siblings", None)  # of rules for trees; others judge siblings that are distinct
    if siblings is None:
        return shapes.draw_without_replacement if rule.coupled else shapes.top
    if getattr(siblings, "drawn", None) is not None:
        return _PICKS[siblings.drawn]
    return shapes.draw_without_replacement if rule.uses_q else shapes.top
