"""Resolves `draft_length=` to a controller."""

from collections.abc import Callable
from typing import Any

from mmspec.core.control import Control, Fixed
from mmspec.core.draft_length.break_even import BreakEven
from mmspec.core.draft_length.by_match import ByMatch
from mmspec.core.draft_length.thompson import Thompson
from mmspec.core.draft_length.throughput import Throughput
from mmspec.core.draft_length.tree_size import SIZES, TreeSize
from mmspec.core.protocols import Drafter
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.none import NoDraft
from mmspec.drafters.retrieval.copy import Copy
from mmspec.drafters.retrieval.lookup import Lookup
from mmspec.drafters.retrieval.ngram import NGram
from mmspec.drafters.retrieval.suffix import Suffix
from mmspec.drafters.trees.best_first import BestFirst

_MATCHING = (Lookup, Suffix, NGram, Copy)
"""Drafters whose sessions report the lengths of matches."""


def control_of(
    draft_length: int | str | Control | None,
    drafter: Drafter | None = None,
    *,
    auto: Callable[[], Control] | None = None,
    thompson: bool = True,
    name: str = "draft_length",
    unit: str = "draft tokens",
) -> Control:
    """Resolve `draft_length` to a controller.

    Args:
        draft_length: a number of draft tokens a round; "auto"; "thompson" for Thompson sampling; or a controller.
        drafter: the drafter. With `NoDraft` nothing is drafted.
        auto: makes the controller of "auto". By default it maximises measured throughput, zero draft tokens included: up to a tree's own
            depth, over the sizes of best-first trees, and by the lengths of matches for drafters that copy earlier text.
        thompson: False if Thompson sampling is not supported.
        name, unit: of the argument, for messages.

    Returns:
        The controller.

    Raises:
        ValueError: for anything else.
    """
    if isinstance(drafter, NoDraft):
        return Fixed(0)
    if isinstance(draft_length, int) and not isinstance(draft_length, bool):
        return Fixed(draft_length)
    if not isinstance(draft_length, (str, int)) and hasattr(draft_length, "begin"):
        return draft_length  # pyright: ignore[reportReturnType]
    if thompson and draft_length == "thompson":
        return Thompson()
    if draft_length != "auto":
        known = "'auto', 'thompson'" if thompson else "'auto'"
        raise ValueError(f"{name} is {draft_length!r}: give a number of {unit}, {known} or a Control object")
    return _throughput(drafter) if auto is None else auto()


def _throughput(drafter: Any) -> Control:
    """Return the controller that maximises measured throughput, with the break-even test."""
    if isinstance(drafter, _MATCHING):
        return ByMatch()
    shape = getattr(drafter, "shape", None)
    if isinstance(shape, BestFirst):
        sizes = tuple(size for size in SIZES if size <= shape.nodes)
        return BreakEven(TreeSize(sizes, first=min(TreeSize.first, sizes[-1])))
    depth = getattr(shape, "depth", None)
    if depth is not None:
        return BreakEven(Throughput(lengths=tuple(range(depth + 1)), first=depth))
    return BreakEven(Throughput() if isinstance(drafter, (ModelDrafter, GuidedDrafter)) else Throughput(first=3))
