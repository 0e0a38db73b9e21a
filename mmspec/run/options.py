"""What the arguments of the public calls stand for: an accept rule, a drafter, the shape of its draft tokens, and how many a round.

Shared by every modality whose values are ids, so that "exact", "lookup" or a tree mean one thing everywhere.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmspec.core.control import Control, Fixed
from mmspec.core.decode import Drafter
from mmspec.core.draft_length.break_even import BreakEven
from mmspec.core.draft_length.thompson import Thompson
from mmspec.core.draft_length.throughput import Throughput
from mmspec.core.processors.pipeline import Pipeline, Processor, Suppress, SuppressAt, Temperature, pipeline
from mmspec.core.rules.base import Accept
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.lossy.lenience import GreedyLenience, Lenience
from mmspec.core.rules.lossy.rollback import Rollback
from mmspec.core.rules.lossy.top_k import TopKFloor, TopKGap
from mmspec.core.rules.lossy.typical import Typical
from mmspec.core.rules.siblings import Hybrid, KSeq, Walk, WithReplacement
from mmspec.core.rules.transform import Transformed
from mmspec.drafters import shapes
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.model.ensemble import ViewEnsemble, Views
from mmspec.drafters.model.horizontal_cascade import HorizontalCascade
from mmspec.drafters.model.padding import refuse_other_tokenizer
from mmspec.drafters.model.vertical_cascade import VerticalCascade
from mmspec.drafters.model.vocabulary import Overlap, Translated
from mmspec.drafters.none import NoDraft
from mmspec.drafters.stops import Confidence
from mmspec.drafters.trees.search import DynamicDepth, ExpandRerank, OptTree
from mmspec.drafters.trees.static import StaticTree, Template
from mmspec.drafters.views.base import View, can_see, same_prompt, seeing, text_alone, view_of
from mmspec.drafters.views.vision_inputs import Pooled, Pruned, looking
from mmspec.models.families.mllama import Mllama
from mmspec.models.families.multimodal import Multimodal
from mmspec.models.families.registry import family_of
from mmspec.models.model_checks import check_model
from mmspec.models.target import HFTarget
from mmspec.run.composition import Fitting, is_composed, named
from mmspec.run.config import ACCEPT, DRAFTERS, build

_READS_RAW_DISTRIBUTION = (
    Greedy,
    GreedyLenience,
    Typical,
    TopKGap,
    TopKFloor,
    Rollback,
)  # rules that look at the argmax or the untempered distribution
Tree = Sequence[int] | str | Path | Template | shapes.Shape | None
"""What `tree=` takes."""
_SEARCHES = {"expand": ExpandRerank(), "opt": ExpandRerank(depth=8, stop=OptTree()), "dynamic": ExpandRerank(depth=8, stop=DynamicDepth())}
_DRAWING = ("jacobi", "lookahead")  # they draw their draft tokens from distributions, and so as the rule wants them drawn


def rule_of(accept: str | Accept, temperature: float | Sequence[float], top_k: int | None = None, top_p: float | None = None) -> Accept:
    """The rule a name stands for, for a request that samples with these settings.

    "exact" is greedy where nothing is sampled, else coupled: plain sampling's very tokens. Rules that read distributions before temperature
    and truncation are handed both; lenience at temperature 0 is a rule of its own.
    """
    if accept == "exact":
        return Greedy() if temperature == 0 else Coupled()
    rule = build(accept, {"exact": "", **ACCEPT}, "accept rule") if isinstance(accept, str) else accept
    if isinstance(rule, Transformed):
        return rule.warped_by(pipeline(temperature=temperature, top_k=top_k, top_p=top_p))
    zeros = [each == 0 for each in (temperature if isinstance(temperature, Sequence) else (temperature,))]
    if isinstance(rule, Lenience) and any(zeros):
        if not all(zeros):
            raise ValueError("lenience at temperature 0 is another rule than above 0: give all rows temperature 0, or none")
        return rule.at_temperature_zero()
    return rule


def reads_raw(rule: Accept) -> bool:
    """True for rules that at temperature 0 read distributions before temperature."""
    return isinstance(rule, _READS_RAW_DISTRIBUTION)


def distributions_for(
    rule: Accept,
    temperature: float | Sequence[float],
    top_k: int | None,
    top_p: float | None,
    repetition_penalty: float | None,
    first: Sequence[Processor],
) -> Pipeline:
    """The processors of p and q. Rules that take the argmax skip what does not change it; transforms apply temperature and top-k later."""
    if isinstance(rule, Transformed):
        assert rule.warp == pipeline(temperature=temperature, top_k=top_k, top_p=top_p), "make the rule with rule_of"
    if isinstance(rule, Transformed) or (isinstance(rule, _READS_RAW_DISTRIBUTION) and temperature == 0):
        return pipeline(repetition_penalty=repetition_penalty, first=first)
    return pipeline(temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty, first=first)


def drafter_of(drafter: Any, target: HFTarget, rule: Accept, tree: Tree, view: Any = None) -> Drafter:
    """The drafter that `drafter` stands for, drawing its draft tokens the way `rule` judges them, on its `view` of the prompt.

    ValueError for a `view` or a `tree` that this drafter has no use for, and for what it cannot be made of.
    """
    if view is not None and (drafter is None or isinstance(drafter, str) or hasattr(drafter, "guide") or hasattr(drafter, "begin")):
        raise ValueError(f"view says what a transformers model reads that drafts, but drafter is {_named(drafter)}: leave view out")
    made = named(drafter) if isinstance(drafter, str) and is_composed(drafter) else drafter
    if isinstance(made, str):
        made = build(made, DRAFTERS, "drafter", {"draw": draw_for(rule)} if made in _DRAWING else None)
    if hasattr(made, "guide"):  # a source of distributions: heads, feature nets, the target itself run short
        return GuidedDrafter(made, shape_of(tree, rule))  # pyright: ignore[reportArgumentType]
    if tree is not None and (made is None or hasattr(made, "begin")):
        raise ValueError(f"drafter {_named(drafter)} takes no tree: leave tree out, or draft with a model or a trained drafter")
    if made is None:
        return NoDraft()
    if hasattr(made, "begin"):
        _check_draws(made, rule)
        return _composed(made, target, rule) if isinstance(made, (VerticalCascade, HorizontalCascade)) else made
    seen = view_for(view, target, drafter)
    return ModelDrafter(_as_target(drafter, target, seen), shape_of(tree, rule), seen)


def _composed(drafter: VerticalCascade | HorizontalCascade, target: HFTarget, rule: Accept) -> Drafter:
    """A cascade or relay whose parts may be transformers models and names."""

    def as_target(model: Any, served: HFTarget) -> tuple[Any, View]:
        seen = view_for(None, served, model)
        return _as_target(model, served, seen), seen

    return Fitting(target, rule, as_target, lambda part, served, inner: drafter_of(part, served, inner, None)).fitted(drafter)


def _check_draws(drafter: Any, rule: Accept) -> None:
    """ValueError for a ready-made drafter whose draft tokens are not drawn as a transform's temperature and truncation ask."""
    if not isinstance(rule, Transformed) or rule.warp.idle or isinstance(drafter, NoDraft):
        return
    if getattr(getattr(drafter, "shape", None), "draw", None) != draw_for(rule):
        raise ValueError(
            f"{type(rule.transform).__name__} reads distributions before temperature and truncation, and {type(drafter).__name__} does not "
            "apply these to its draws: pass the drafter's model itself, or sample at temperature 1 without truncation"
        )


def _named(drafter: Any) -> str:
    return repr(drafter) if drafter is None or isinstance(drafter, str) else type(drafter).__name__


def view_for(view: Any, target: HFTarget, drafter: Any) -> View:
    """The view `view` stands for: None chooses one; a name, a View, or several of them, which make an ensemble.

    ValueError for a name that is unknown or needs more, for a target whose prompts hold words only, and for eyes a drafter has not.
    """
    if view is None:
        return view_of(target, drafter)
    if not isinstance(target.family, (Multimodal, Mllama)):
        raise ValueError(f"view says how pictures are read, but prompts of {type(target.model).__name__} hold none: leave view out")
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
    """A view for a drafter with eyes."""
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


def stopping_below(drafter: Drafter, stop_below: float | None) -> Drafter:
    """`drafter`, its chains ended where its best probability falls below `stop_below`. ValueError for one that drafts no such chains."""
    if stop_below is None:
        return drafter
    if not (isinstance(drafter, (ModelDrafter, GuidedDrafter)) and isinstance(drafter.shape, shapes.Chain)):
        raise ValueError("stop_below ends a model's chains of draft tokens: draft with a model and leave tree out, or leave stop_below out")
    return replace(drafter, shape=replace(drafter.shape, stop=Confidence(stop_below)))


def mixed(own: HFTarget, view: View) -> HFTarget | ViewEnsemble:
    """A drafter's target, in rows for each of its views where there are several."""
    return ViewEnsemble(own, view.weights) if isinstance(view, Views) else own


def _as_target(model: Any, target: HFTarget, view: View) -> HFTarget | ViewEnsemble | Translated:
    """A drafter's model behind the target's own processors, its vocabulary cut or padded to the target's."""
    refuse_other_tokenizer(target.model, model)
    check_model(model, "drafter")
    mine, theirs = (m.config.get_text_config(decoder=True).vocab_size for m in (target.model, model))
    own = replace(target, model=model, family=looking(family_of(model)), limit=None, trees=True)
    if mine == theirs:
        return mixed(own, view)
    return Translated(mixed(replace(own, processors=_untruncated(own.processors)), view), Overlap.of_sizes(mine, theirs))


def _untruncated(distributions: Pipeline) -> Pipeline:
    """Temperature and bans alone: truncation could leave a distribution nothing that both vocabularies have."""
    return Pipeline(tuple(step for step in distributions.steps if isinstance(step, (Temperature, Suppress, SuppressAt))))


def shape_of(tree: Tree, rule: Accept) -> shapes.Shape:
    """The shape a model drafter grows for `rule`. ValueError for a tree that is unknown, cannot be read or does not suit the rule."""
    if tree is None:
        return shapes.Chain(draw_for(rule))
    if not rule.trees:
        raise ValueError(
            f"accept rule {type(rule).__name__} judges chains only: leave tree out, or accept with coupled, match or without-replacement"
        )
    if tree == "comb":
        return shapes.Comb(pick=pick_for(rule))
    if isinstance(tree, str) and tree in _SEARCHES:
        if rule.uses_q:
            raise ValueError(f"tree {tree!r} takes the likeliest nodes, but {type(rule).__name__} needs drawn ones: use 'comb' or numbers")
        return _SEARCHES[tree]
    return tree if hasattr(tree, "grow") else StaticTree(_template(tree), pick_for(rule))  # type: ignore[return-value]


def _template(tree: Any) -> Template:
    if isinstance(tree, Template):
        return tree
    if isinstance(tree, Path) or (isinstance(tree, str) and tree.endswith(".json")):
        return Template.read(tree)
    if isinstance(tree, str):
        names = ", ".join(map(repr, ("comb", *_SEARCHES)))
        raise ValueError(f"unknown tree {tree!r}; valid: {names}, children per level such as (4, 2, 1), a template's JSON file, or a shape")
    return Template.branching(tree)


def draw_for(rule: Accept) -> shapes.Draw:
    """How chain draft tokens are drawn for `rule`: with q recorded where it is read, with the shared noise where coupled, else the best."""
    if isinstance(rule, Transformed) and not rule.warp.idle:
        return shapes.Warped(rule.warp)
    if rule.uses_q:
        return shapes.sampled
    return shapes.drawn if rule.coupled else shapes.most_likely


def pick_for(rule: Accept) -> shapes.Pick:
    """How siblings are chosen for `rule`."""
    if isinstance(rule, Walk):
        if isinstance(rule.siblings, (WithReplacement, KSeq)):
            return shapes.draw_with_replacement
        if isinstance(rule.siblings, Hybrid):
            return shapes.top_and_one
        return shapes.draw_without_replacement if rule.uses_q else shapes.top
    return shapes.draw_without_replacement if rule.coupled else shapes.top


def control_of(draft_length: int | str | Control, drafter: Drafter) -> Control:
    """How many draft tokens a round. "auto" maximises measured throughput and may choose none: up to a tree's own depth, and starting
    from more draft tokens where they come without a model and so cost nothing."""
    if isinstance(drafter, NoDraft):
        return Fixed(0)
    if isinstance(draft_length, int) and not isinstance(draft_length, bool):
        return Fixed(draft_length)
    if not isinstance(draft_length, (str, int)) and hasattr(draft_length, "begin"):
        return draft_length
    if draft_length == "thompson":
        return Thompson()
    if draft_length != "auto":
        raise ValueError(f"draft_length is {draft_length!r}: give a number of draft tokens, 'auto', 'thompson' or a Control object")
    depth = getattr(getattr(drafter, "shape", None), "depth", None)
    if depth is not None:
        return BreakEven(Throughput(lengths=tuple(range(depth + 1)), first=depth))
    return BreakEven(Throughput() if isinstance(drafter, (ModelDrafter, GuidedDrafter)) else Throughput(first=8))
