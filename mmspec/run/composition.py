"""Cascades, relays and asynchronous pairs as users write them: objects made of transformers models, sources and names, or one name.

`cascade:MIDDLE,INNER` drafts with MIDDLE, for which INNER drafts. `relay:FIRST,COUNT,THEN` drafts the first COUNT tokens of a round with
FIRST and the others with THEN. `asynchronous:DRAFTER` drafts with the model DRAFTER in another process.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mmspec.core.rules.base import Accept
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.match import Match
from mmspec.core.rules.token import Token
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.model.asynchronous import Asynchronous
from mmspec.drafters.model.horizontal_cascade import HorizontalCascade
from mmspec.drafters.model.vertical_cascade import VerticalCascade
from mmspec.models.target import HFTarget
from mmspec.run.registry import ACCEPT, DRAFTERS, SELF_DRAFTING, build

KINDS = {"cascade": "cascade:MIDDLE,INNER", "relay": "relay:FIRST,COUNT,THEN", "asynchronous": "asynchronous:DRAFTER"}
_PARTS = {"cascade": 2, "relay": 3, "asynchronous": 1}
Composed = VerticalCascade | HorizontalCascade | Asynchronous


@dataclass(frozen=True)
class Fitting:
    """Converts the parts of a composition to engine objects, for one request.

    Args:
        target: the request's target.
        rule: its accept rule.
        as_target: from (transformers model, target it drafts for) to (a target with the same processors, its view of the prompt).
        as_drafter: from (any value of `drafter=`, target, rule) to a drafter.
    """

    target: HFTarget
    rule: Accept
    as_target: Callable[[Any, HFTarget], tuple[Any, Any]]
    as_drafter: Callable[[Any, HFTarget, Accept], Any]

    def fitted(self, drafter: Any) -> Any:
        """Return `drafter`, a cascade, a relay or an asynchronous pair, with every part an engine object."""
        if isinstance(drafter, Asynchronous):
            return replace(drafter, drafter=self.as_drafter(drafter.drafter, self.target, self.rule))
        if isinstance(drafter, HorizontalCascade):
            first, then = (self.as_drafter(part, self.target, self.rule) for part in (drafter.first, drafter.then))
            _check_reads(then, "the later drafter of a relay")
            return replace(drafter, first=first, then=then)
        rule = inner_rule(drafter.accept, self.rule)
        middle, view = drafter.middle, drafter.view
        if isinstance(middle, str):
            if middle not in SELF_DRAFTING:
                known = ", ".join(SELF_DRAFTING)
                raise ValueError(f"the middle of a cascade is {middle!r}: pass a transformers model, or one of {known}")
            middle = build(middle, DRAFTERS, "drafter")
        elif not hasattr(middle, "begin") and not hasattr(middle, "guide"):
            middle, view = self.as_target(middle, self.target)
        inner = self.as_drafter(drafter.inner, middle if isinstance(middle, HFTarget) else self.target, rule)
        _check_reads(inner, "the inner drafter of a cascade")
        return replace(drafter, middle=middle, inner=inner, accept=rule, view=view)


def _check_reads(drafter: Any, place: str) -> None:
    """Raise ValueError for a drafter that needs the target's states at draft tokens that the target has not scored yet."""
    if isinstance(drafter, GuidedDrafter):
        raise ValueError(
            f"{type(drafter.source).__name__} reads the target, which has not scored the draft tokens before it, so it cannot be {place}: "
            "make it the first of a relay or the middle of a cascade"
        )


def inner_rule(accept: Any, outer: Accept) -> Accept:
    """Return the rule of a cascade's inner rounds; "exact" and None stand for the one that fits `outer`."""
    if not isinstance(accept, str) and accept is not None:
        return accept
    if accept not in (None, "exact"):
        return build(accept, ACCEPT, "accept rule")
    if outer.coupled:
        return Coupled()
    return Token() if outer.uses_q else Match() if isinstance(outer, Match) else Greedy()


def is_composed(name: str) -> bool:
    """Return True for names of cascades, relays and asynchronous pairs."""
    return name.partition(":")[0] in KINDS and ":" in name


def named(name: str, part: Callable[[str], Any] = lambda name: name) -> Composed:
    """Return the composition of a name. `part` converts the names of its parts to values of `drafter=`.

    Raises:
        ValueError: for a name of another form, in one line that shows the form.
    """
    kind, _, rest = name.partition(":")
    parts = [each.strip() for each in rest.split(",")]
    if not all(parts) or len(parts) != _PARTS[kind] or (kind == "relay" and not parts[1].isdecimal()):
        raise ValueError(f"drafter {name!r} cannot be read: write {KINDS[kind]}, such as {_EXAMPLES[kind]}")
    if kind == "cascade":
        return VerticalCascade(part(parts[0]), part(parts[1]), None)  # type: ignore[arg-type]
    if kind == "asynchronous":
        return Asynchronous(part(parts[0]))
    return HorizontalCascade(part(parts[0]), int(parts[1]), part(parts[2]))


_EXAMPLES = {
    "cascade": "cascade:windowed,lookup or cascade:./small,lookup",
    "relay": "relay:./small,2,lookup",
    "asynchronous": "asynchronous:./small",
}
