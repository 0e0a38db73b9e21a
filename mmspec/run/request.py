"""A request: the arguments of a generation, validated once, and resolved to engine objects.

The public calls, `--set`, YAML configs and the commands all create a `Request`. `resolve` refuses arguments that the drafter, the rule or
the model does not use, by name.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from mmspec.core.control import Control
from mmspec.core.draft_length.by_match import ByMatch
from mmspec.core.processors.history import Processor
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.protocols import Drafter
from mmspec.core.rules.base import Accept
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.models.target import HFTarget
from mmspec.run.arguments import CHECKS
from mmspec.run.draft_length import control_of
from mmspec.run.drafters import drafter_of
from mmspec.run.match_records import match_record
from mmspec.run.rules import distributions_for, rule_of
from mmspec.run.shapes import shape_of, stopping_below


def refuse(purpose: str, **given: Any) -> None:
    """Refuse arguments that a request does not use.

    Args:
        purpose: what the arguments are for, and why it does not apply.
        given: the arguments by name; None if not given.

    Raises:
        ValueError: naming the first that was given.
    """
    for name, value in given.items():
        if value is not None:
            shown = repr(value) if isinstance(value, (str, int, float)) else type(value).__name__
            raise ValueError(f"{name} is {shown}, but it is for {purpose}: leave {name} out")


@dataclass(frozen=True)
class Resolved:
    """The engine objects of a request: drafter and draft-length controller."""

    drafter: Drafter
    control: Control

    def capture(self, length: int) -> "Resolved":
        """Return this object with the steps of a drafter model compiled, for outputs of up to `length` tokens."""
        return replace(self, drafter=self.drafter.capture(length)) if isinstance(self.drafter, ModelDrafter) else self


class Request(BaseModel):
    """The arguments that all modalities share.

    Attributes:
        drafter: None, a name, a model, a `Drafter` or a source of distributions.
        accept: "exact", a name, or a rule.
        draft_length: draft tokens a round, "auto", "thompson", or a controller.
        tree: the shape of drafts; None for a chain.
        view: what a drafter reads of a prompt with pictures.
        stop_below: a chain ends where the drafter's best probability falls below this, in [0, 1]; or "adaptive".
        seed: an int (row r gets seed + r), or one per row.
        temperature, top_k, top_p, repetition_penalty: how p and q are formed; one number, or one per row.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    drafter: Any = None
    accept: Any = "exact"
    draft_length: Any = "auto"
    tree: Any = None
    view: Any = None
    stop_below: Any = None
    seed: Any = 0
    temperature: Any = 0.0
    top_k: Any = None
    top_p: Any = None
    repetition_penalty: Any = None

    @classmethod
    def of(cls, **given: Any) -> "Request":
        """Return a validated request. ValueError, in one line that names the argument, for values out of bounds."""
        try:
            return cls(**given)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ValueError(first["msg"].removeprefix("Value error, ")) from None

    @field_validator("*")
    @classmethod
    def _checked(cls, value: Any, info: ValidationInfo) -> Any:
        if (check := CHECKS.get(str(info.field_name))) is not None:
            check(str(info.field_name), value)
        return value

    def rule(self) -> Accept:
        """Return the accept rule."""
        return rule_of(self.accept, self.temperature, self.top_k, self.top_p)

    def distributions(self, rule: Accept, first: Sequence[Processor] = ()) -> Pipeline:
        """Return the processors of p and q; `first` precede all others."""
        return distributions_for(rule, self.temperature, self.top_k, self.top_p, self.repetition_penalty, first)

    def resolve(self, target: HFTarget, rule: Accept, model_of: Callable[[Any], Any] | None = None, rows: int | None = None) -> Resolved:
        """Resolve the drafter and the draft length.

        Args:
            target: the target, its processors included.
            rule: the accept rule, which determines how draft tokens are drawn.
            model_of: for modalities with model classes of their own: from `drafter` to a target that drafts, or None for other drafters.
            rows: rows of the batch, if what earlier requests of the kind learnt about draft lengths is to be used.

        Returns:
            The engine objects.

        Raises:
            ValueError: for arguments that cannot be combined.
        """
        own = None if model_of is None else model_of(self.drafter)
        if own is not None:
            drafter: Drafter = ModelDrafter(own, shape_of(self.tree, rule))
        else:
            drafter = drafter_of(self.drafter, target, rule, self.tree, self.view)
        drafter = stopping_below(drafter, self.stop_below)
        control = control_of(self.draft_length, drafter)
        if rows is not None and isinstance(control, ByMatch) and self.draft_length == "auto":
            control = replace(control, record=match_record(target.model, drafter, rows, self.temperature != 0))
        return Resolved(drafter, control)
