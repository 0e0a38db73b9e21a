"""Resolves `view=`: what a drafter reads of a prompt with pictures or sound."""

from dataclasses import replace
from typing import Any

from mmspec.drafters.model.ensemble import ViewEnsemble, Views
from mmspec.drafters.views.base import View, can_see, same_prompt, seeing, text_alone, view_of
from mmspec.drafters.views.vision_inputs import Pooled, Pruned
from mmspec.models.families.mllama import Mllama
from mmspec.models.families.multimodal import Multimodal
from mmspec.models.target import HFTarget


def view_for(view: Any, target: HFTarget, drafter: Any) -> View:
    """Return the view for the value of `view=`: None chooses one; a name, a View, or several of them, which form an ensemble.

    ValueError for unknown or incomplete names, for targets whose prompts hold text only, and for views that the drafter cannot read.
    """
    if view is None:
        return view_of(target, drafter)
    if not isinstance(target.family, (Multimodal, Mllama)):
        raise ValueError(f"view applies to prompts with pictures, but prompts of {type(target.model).__name__} hold none: leave view out")
    if isinstance(view, Views):
        return replace(view, views=tuple(view_for(one, target, drafter) for one in view.views))
    if isinstance(view, (list, tuple)):
        return view_for(Views(tuple(view)) if len(view) != 1 else view[0], target, drafter)
    if view == "drop":
        return text_alone
    if view in ("own", "pooled", "pruned", same_prompt) or isinstance(view, (Pooled, Pruned)):
        return _looked(view, target, drafter)
    if callable(view):
        return view
    if view in ("newline", "caption"):
        raise ValueError(f"view {view!r} needs the target's tokenizer: pass mmspec.text.view({view!r}, processor)")
    raise ValueError(f"unknown view {view!r}; valid: 'drop', 'own', 'pooled', 'pruned', what mmspec.text.view makes, or several of these")


def _looked(view: Any, target: HFTarget, drafter: Any) -> View:
    """Return a view for a drafter that reads pictures."""
    name = view if isinstance(view, str) else "own" if view is same_prompt else type(view).__name__.lower()
    own = seeing(target, drafter)
    if not can_see(target, drafter):
        raise ValueError(
            f"view {name!r} needs a drafter that reads what the target's processor returns, and {type(drafter).__name__} does not: "
            "choose 'drop', or what mmspec.text.view makes of 'newline' or 'caption'"
        )
    if name == "own":
        return own
    if isinstance(target.family, Mllama):
        raise ValueError(f"view {name!r} needs pictures that stand within the prompt, and Mllama's do not: choose 'own' or 'drop'")
    if name == "pooled":
        return Pooled() if isinstance(view, str) else view
    return Pruned(base=own) if isinstance(view, str) else replace(view, base=own)


def mixed(own: HFTarget, view: View) -> HFTarget | ViewEnsemble:
    """Return a drafter's target, with rows for each view if there are several."""
    return ViewEnsemble(own, view.weights) if isinstance(view, Views) else own
