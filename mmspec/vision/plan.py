"""How pictures of codes are generated: model, method, rule, window and drafter, resolved from the arguments of `mmspec.vision.generate`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mmspec.core.control import Control, Fixed
from mmspec.core.draft_length.window_cost import LADDER, WindowCost, in_flight
from mmspec.core.noise import Noise
from mmspec.core.noise_ring import RingNoise
from mmspec.core.protocols import Drafter
from mmspec.core.rules.base import GROUP_EXACT, LOSSY, Accept
from mmspec.drafters.jacobi.couplers import Coupler
from mmspec.drafters.jacobi.initialisers import INITIALISERS, Initialiser
from mmspec.drafters.none import NoDraft
from mmspec.models.guidance import Pairs, is_guided
from mmspec.models.target import HFTarget
from mmspec.run.arguments import check_drafted
from mmspec.run.draft_length import control_of
from mmspec.run.drop_in.arguments import READ_ELSEWHERE, cache_reason, unread_field
from mmspec.run.guidance import scale_of
from mmspec.run.shapes import Tree, shape_of
from mmspec.utils.names import unknown
from mmspec.vision.checkpoints.drafters import load_image_drafter
from mmspec.vision.codes.assisted import assisted_drafter, small_image_model
from mmspec.vision.codes.methods import Method
from mmspec.vision.codes.registry import check_read, method_of
from mmspec.vision.families.base import ImageModel
from mmspec.vision.families.prompts import Prompt

WINDOW = 32
"""Default number of codes per forward."""
CHAIN = 6
"""The same where a smaller model drafts all of them."""
_HEAD = 0.02  # of a picture's values: what window="auto" may lose before it decodes plainly
PLAIN = Fixed(0)
"""No draft tokens."""
_READ = READ_ELSEWHERE | {"do_sample", "temperature", "top_k", "top_p", "guidance_scale"}
"""Fields of a generation config that the call has arguments for, that adapters read, or that change no code."""


@dataclass(frozen=True)
class PicturePlan:
    """How pictures are generated.

    Args:
        model: the adapter of the target.
        method: the method.
        rule: its accept rule.
        drafter: the trained net or the adapter of the smaller image model that the method drafts with; None for methods that need none.
        control: chooses draft lengths.
        most: most tokens of a forward, the pending one included; 1 without drafts.
    """

    model: ImageModel
    method: Method
    rule: Accept
    drafter: Any = None
    control: Control = PLAIN
    most: int = 1

    @staticmethod
    def of(
        model: ImageModel,
        method: str | Method | None,
        drafter: Any,
        *,
        window: int | str | Control | None = None,
        tree: Tree = None,
        accept: Accept | Callable[[ImageModel], Accept] | None = None,
        couple: Coupler | None = None,
        init: str | Initialiser | None = None,
        drift_budget: float | None = None,
    ) -> "PicturePlan":
        """Resolve the arguments of `mmspec.vision.generate` for models of codes.

        Args:
            model: the adapter of the target.
            method, drafter, window, tree, accept, couple, init, drift_budget: as in `mmspec.vision.generate`.

        Returns:
            The plan, without drafts: see `windowed`.

        Raises:
            ValueError: for invalid arguments, for those that the method does not read, and for settings of the model's generation config
                that pictures are drawn without.
        """
        _refuse_settings(model)
        drafter = load_image_drafter(drafter, model) if isinstance(drafter, str | Path) else drafter
        method = default_method(drafter) if method is None else method
        plan = method_of(method, accept=accept, couple=couple, init=initialiser_of(init))
        check_read(
            plan, method, drafter=drafter, tree=tree, window=window, accept=accept, couple=couple, init=init, drift_budget=drift_budget
        )
        if plan.rows is not None:
            return PicturePlan(model, plan, plan.rule(model))
        rule = _budgeted(plan.rule(model), drift_budget)
        plan = plan if tree is None else replace(plan, shape=shape_of(tree, rule))
        return PicturePlan(model, plan, rule, drafter)

    def windowed(self, window: int | str | Control | None, rows: int) -> "PicturePlan":
        """Return this plan with drafts, if its method has any.

        Args:
            window: as in `mmspec.vision.generate`.
            rows: rows of a forward, both rows of a guided pair counted.

        Raises:
            ValueError: for an invalid window, and without the model or the net that the method drafts with.
        """
        if not self.method.windowed:
            return self
        control, most = control_for(
            usual_window(self.method) if window is None else window, rows, self.model.model.device, self.model.raster.length
        )
        if most == 1:
            return self
        if self.method.assisted:
            return replace(self, control=control, most=most, drafter=small_image_model(self.model, self.drafter))
        return replace(self, control=control, most=most, drafter=self.model.drafter if self.drafter is None else self.drafter)

    def target(self, processors: Any, capture: bool = False) -> HFTarget | Pairs:
        """Return the target, which reads pairs of prompts with `Guided` processors.

        Args:
            processors: form the distributions: a pipeline, `Guided`, or `GuidedRows`.
            capture: compile its forward with fixed shapes.
        """
        family: Any = self.model  # its prompts are `Prompt`s
        target = HFTarget(self.model.model, family, processors, reserve=self.model.raster.length + self.most)
        target = target.capture(target.reserve) if capture else target
        return Pairs(target) if is_guided(processors) else target

    def proposer(self, processors: Any, encode: Callable[[ImageModel], Prompt]) -> Drafter:
        """Return the drafter.

        Args:
            processors: those of the target.
            encode: returns the prompts as an image model reads them, for a smaller model that drafts.
        """
        if self.most == 1:
            return NoDraft()
        if self.method.assisted:
            room = None if self.method.couple is None else self.most
            return assisted_drafter(self.drafter, encode(self.drafter), processors, self.rule, room, self.most)
        return self.method.drafter(self.model, self.rule, self.most, self.drafter)

    def noise(self, noise: Noise) -> RingNoise:
        """Return `noise` as it is drawn for windows: once a position."""
        return RingNoise.of(noise, self.most + 1)


def _refuse_settings(model: ImageModel) -> None:
    """Raise ValueError for a setting of the model's generation config by which its class would draw other codes."""
    config = getattr(model.model, "generation_config", None)
    if config is None:
        return
    read = _READ - {"cache_implementation"} if cache_reason(config) else _READ
    if not any(map(model.may_draw, config.suppress_tokens or ())):
        read = read | {"suppress_tokens"}
    if unread := unread_field(config, read):
        name, value, off = unread
        raise ValueError(
            f"{type(model.model).__name__}'s generation_config.{name} is {value!r}, and pictures are drawn without it: "
            f"set model.generation_config.{name} = {off}"
        )


def guidance_of(model: ImageModel, guidance: float | Sequence[float] | None) -> float | tuple[float, ...] | None:
    """Return the guidance scale, one a row as a tuple; None for no guidance.

    Args:
        model: the adapter of the target.
        guidance: as in `mmspec.vision.generate`.

    Raises:
        ValueError: for anything but numbers from 0 on, and for none where the model's generation config has a scale.
    """
    said = getattr(getattr(model.model, "generation_config", None), "guidance_scale", None)
    if guidance is None and scale_of(said) is not None:
        raise ValueError(
            f"{type(model.model).__name__}'s generation_config.guidance_scale is {said}, and no guidance is given: "
            f"give guidance={said}, or guidance=1 for none"
        )
    return scale_of(guidance)


def usual_window(method: Method) -> int:
    """Return the default number of codes a forward.

    Args:
        method: the method.
    """
    return CHAIN if method.assisted and method.couple is None else WINDOW


def default_method(drafter: Any = None) -> str:
    """Return the default method of `generate` for codes, with a `drafter` or without."""
    if drafter is None:
        return "jacobi"
    return "eagle" if hasattr(drafter, "guide") else "assisted-jacobi"


def initialiser_of(init: str | Initialiser | None) -> Initialiser | None:
    """Return the initialiser of that name; None for None. ValueError lists the names."""
    if not isinstance(init, str):
        return init
    if init not in INITIALISERS:
        raise unknown("initialiser", init, INITIALISERS)
    return INITIALISERS[init]


def _budgeted(rule: Accept, budget: float | None) -> Accept:
    """Return `rule` with a drift budget. Exact rules are returned unchanged."""
    if budget is None or rule.exactness not in (GROUP_EXACT, LOSSY):
        return rule
    inner = getattr(getattr(rule, "siblings", None), "rule", None)
    if inner is not None:  # a relaxed rule at work in a tree
        return replace(rule, siblings=replace(rule.siblings, rule=replace(inner, budget=budget)))  # pyright: ignore
    if not hasattr(rule, "budget"):
        raise ValueError(f"{type(rule).__name__} has no drift budget: leave drift_budget out, or choose cool-sd, lantern or gsd")
    return replace(rule, budget=budget)  # pyright: ignore[reportArgumentType]


def control_for(window: int | str | Control, rows: int, device: torch.device, work: int) -> tuple[Control, int]:
    """Return the controller of the window and its largest number of tokens. `work` is the number of tokens of a picture."""
    if isinstance(window, int):
        check_drafted("window", window, work)
        return control_of(window - 1), window
    plan = WindowCost(first=in_flight(rows, device.type == "cuda") - 1, head=max(2.0, _HEAD * work))
    return control_of(window, auto=lambda: plan, thompson=False, name="window", unit="tokens"), LADDER[-1] + 1
