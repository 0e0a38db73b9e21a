"""Resolves `view=`: what a drafter reads of a prompt with pictures or sound."""

from dataclasses import replace
from typing import Any

from mmspec.drafters.model.ensemble import ViewEnsemble, Views
from mmspec.drafters.views.base import View, can_see, own_encoder, own_opening, same_prompt, seeing, text_alone, view_of
from mmspec.drafters.views.sound import Cropped
from mmspec.drafters.views.vision_inputs import Pooled, Pruned
from mmspec.models.families.mllama import Mllama
from mmspec.models.families.multimodal import Multimodal
from mmspec.models.families.whisper import Whisper
from mmspec.models.target import HFTarget


def view_for(view: Any, target: HFTarget, drafter: Any, translated: bool = False) -> View:
    """Return the view for the value of `view=`: None chooses one; a name, a View, or several of them, which form an ensemble.

    Args:
        view: the value.
        target: the target.
        drafter: the drafter's transformers model.
        translated: as in `view_of`.

    Raises:
        ValueError: for unknown or incomplete names, for targets whose prompts hold text only, and for views that the drafter cannot read.
    """
    if view is None:
        return view_of(target, drafter, translated)
    if view == "cropped" or isinstance(view, Cropped):
        return _cropped(Cropped() if isinstance(view, str) else view, target, drafter, translated)
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
    names = "'drop', 'own', 'pooled', 'pruned', 'cropped'"
    raise ValueError(f"unknown view {view!r}; valid: {names}, what mmspec.text.view makes, or several of these")


def _cropped(view: Cropped, target: HFTarget, drafter: Any, translated: bool) -> View:
    """Return a view of cropped recordings."""
    base = view_of(target, drafter, translated)
    if not isinstance(target.family, Whisper) or base not in (own_encoder, own_opening):
        raise ValueError(
            f"view 'cropped' is for Whisper models that draft for Whisper with an encoder of their own, and {type(drafter).__name__} for "
            f"{type(target.model).__name__} is none: leave view out"
        )
    return replace(view, base=base)


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
