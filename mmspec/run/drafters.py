"""Resolves `drafter=` to a drafter whose draft tokens are drawn as the accept rule needs them."""

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from mmspec.core.processors.pipeline import Pipeline, Suppress, SuppressAt, Temperature
from mmspec.core.protocols import Drafter
from mmspec.core.rules.base import Accept
from mmspec.core.rules.transform import Transformed
from mmspec.drafters.block.pard import by_masks, mask_token_of
from mmspec.drafters.features.shared_states import SharedStates
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.model.distant import DistantDrafter, moved
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.model.ensemble import ViewEnsemble
from mmspec.drafters.model.padding import refuse_other_tokenizer
from mmspec.drafters.model.vocabulary import Overlap, Translated
from mmspec.drafters.none import NoDraft
from mmspec.drafters.views.base import View
from mmspec.drafters.views.vision_inputs import looking
from mmspec.models.compat import is_block_assistant
from mmspec.models.compat.shared_states import reads_shared_states
from mmspec.models.families.registry import family_of
from mmspec.models.model_checks import check_model_ready
from mmspec.models.target import HFTarget
from mmspec.run.composition import Composed, Fitting, is_composed, named
from mmspec.run.registry import DRAFTERS, build
from mmspec.run.shapes import Tree, draw_for, shape_of
from mmspec.run.views import mixed, view_for

_DRAWING = ("jacobi", "lookahead")  # they draw their tokens from distributions, and so as the rule needs them drawn


def drafter_of(drafter: Any, target: HFTarget, rule: Accept, tree: Tree, view: Any = None) -> Drafter:
    """Return the drafter for the value of `drafter=`, drawing as `rule` needs, on its `view` of the prompt.

    ValueError for a `view` or a `tree` that this drafter does not use, and for values that are no drafter.
    """
    unseeing = drafter is None or isinstance(drafter, str) or hasattr(drafter, "guide") or hasattr(drafter, "begin")
    if view is not None and (unseeing or is_block_assistant(drafter) or reads_shared_states(drafter)):
        raise ValueError(f"view applies to drafters that are transformers models, but drafter is {_named(drafter)}: leave view out")
    made = named(drafter) if isinstance(drafter, str) and is_composed(drafter) else drafter
    if isinstance(made, str):
        made = build(made, DRAFTERS, "drafter", {"draw": draw_for(rule)} if made in _DRAWING else None)
    away = _own_device(made, target)
    if is_block_assistant(made):
        from mmspec.drafters.checkpoints.load import from_assistant  # imports every kind of net

        made = from_assistant(made, target.model)
    if reads_shared_states(made):
        return GuidedDrafter(SharedStates(made), shape_of(tree, rule))  # pyright: ignore[reportArgumentType]
    if hasattr(made, "guide"):  # a source of distributions: heads, feature nets, the target itself run short
        return GuidedDrafter(made, shape_of(tree, rule))  # pyright: ignore[reportArgumentType]
    if tree is not None and (made is None or hasattr(made, "begin")):
        raise ValueError(f"drafter {_named(drafter)} takes no tree: leave tree out, or draft with a model or a trained drafter")
    if made is None:
        return NoDraft()
    if hasattr(made, "begin"):
        _check_draws(made, rule)
        return _composed(made, target, rule) if isinstance(made, Composed) else made
    seen = view_for(view, target, drafter)
    if away is not None:
        warnings.warn(
            f"the drafter is on {away} and the target on another device: drafts are moved in every round. If this is not meant, move the "
            "drafter to the target's device",
            stacklevel=2,
        )
        there = replace(target, processors=moved(target.processors, away))
        return DistantDrafter(_as_target(drafter, there, seen), shape_of(tree, rule), seen, away)
    made = ModelDrafter(_as_target(drafter, target, seen), shape_of(tree, rule), seen)
    return by_masks(made, mask_token_of(drafter))


def _composed(drafter: Composed, target: HFTarget, rule: Accept) -> Drafter:
    """Return a cascade, relay or asynchronous pair whose parts may be transformers models and names."""

    def as_target(model: Any, served: HFTarget) -> tuple[Any, View]:
        seen = view_for(None, served, model)
        return _as_target(model, served, seen), seen

    return Fitting(target, rule, as_target, lambda part, served, inner: drafter_of(part, served, inner, None)).fitted(drafter)


def _check_draws(drafter: Any, rule: Accept) -> None:
    """Raise ValueError for a ready-made drafter that does not apply a transform's temperature and truncation to its draws."""
    if not isinstance(rule, Transformed) or rule.warp.idle or isinstance(drafter, NoDraft):
        return
    if getattr(getattr(drafter, "shape", None), "draw", None) != draw_for(rule):
        raise ValueError(
            f"{type(rule.transform).__name__} reads distributions before temperature and truncation, and {type(drafter).__name__} does not "
            "apply these to its draws: pass the drafter's model itself, or sample at temperature 1 without truncation"
        )


def _own_device(drafter: Any, target: HFTarget) -> torch.device | None:
    """Return the device of a drafter model on another device than the target. ValueError for a net that must be on the target's."""
    if not isinstance(drafter, nn.Module) or not isinstance(target.model, nn.Module):
        return None
    theirs, mine = ({p.device for p in module.parameters() if p.device.type != "meta"} for module in (drafter, target.model))
    if not theirs or not mine or theirs & mine:
        return None
    here, there = next(iter(mine)), next(iter(theirs))
    model = hasattr(drafter, "generate") and not is_block_assistant(drafter) and not reads_shared_states(drafter)
    if not model or len(theirs) > 1 or mask_token_of(drafter) is not None:
        raise ValueError(f"the target is on {here} and the drafter, a {_named(drafter)}, on {there}: move it with .to('{here}')")
    return there


def _named(drafter: Any) -> str:
    return repr(drafter) if drafter is None or isinstance(drafter, str) else type(drafter).__name__


def _as_target(model: Any, target: HFTarget, view: View) -> HFTarget | ViewEnsemble | Translated:
    """Return a drafter model as a target with the target's own processors, its vocabulary cut or padded to the target's."""
    refuse_other_tokenizer(target.model, model)
    check_model_ready(model, "drafter")
    mine, theirs = (m.config.get_text_config(decoder=True).vocab_size for m in (target.model, model))
    own = replace(target, model=model, family=looking(family_of(model)), limit=None, trees=True)
    if mine == theirs:
        return mixed(own, view)
    return Translated(mixed(replace(own, processors=_untruncated(own.processors)), view), Overlap.of_sizes(mine, theirs))


def _untruncated(distributions: Pipeline) -> Pipeline:
    """Return only temperature and bans: truncation could leave no token that both vocabularies have."""
    return distributions.keep((Temperature, Suppress, SuppressAt))
