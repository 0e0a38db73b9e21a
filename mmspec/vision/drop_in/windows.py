"""Window decoding within a `generate`: what `mmspec.vision.speculate` and `accelerate` were asked for, and its run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mmspec.core.control import Control, Fixed
from mmspec.core.decode import OnStep, generate
from mmspec.core.noise import Noise
from mmspec.core.processors.history import Processor
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.result import Generation
from mmspec.core.rules.base import Accept
from mmspec.core.stats import Stats
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.jacobi.couplers import Coupler
from mmspec.drafters.jacobi.initialisers import Initialiser
from mmspec.drafters.none import NoDraft
from mmspec.models.guidance import Guided, Pairs
from mmspec.models.target import HFTarget
from mmspec.run.arguments import check
from mmspec.vision.codes.methods import Method
from mmspec.vision.codes.registry import method_of
from mmspec.vision.families.prompts import Prompt
from mmspec.vision.plan import WINDOW, control_for, initialiser_of


@dataclass(frozen=True)
class WindowDecoding:
    """A method that drafts by a window or not at all, its window, and the callbacks."""

    plan: Method
    window: int | str | Control
    seed: int | Sequence[int] | None
    on_step: OnStep
    report: Callable[[Stats], None] | None

    @staticmethod
    def of(
        method: str | Method,
        window: int | str | Control | None,
        couple: Coupler | None,
        init: str | Initialiser | None,
        accept: Accept | None,
        seed: int | Sequence[int] | None,
        on_step: OnStep,
        report: Callable[[Stats], None] | None,
    ) -> "WindowDecoding":
        """Check the options of `mmspec.vision.speculate`. ValueError for invalid ones."""
        check(window=window, couple=couple, on_step=on_step)
        plan = method_of(method, accept=accept, couple=couple, init=initialiser_of(init))
        if plan.rows is not None or plan.shape is not None:
            raise ValueError(f"method {method!r} drafts by rows or with a trained net: within generate, give one that drafts by a window")
        if plan.couple is None and window not in (None, 1):
            raise ValueError(f"window is {window!r}, and method {method!r} decodes one token a forward: leave window out")
        return WindowDecoding(plan, WINDOW if window is None else window, seed, on_step, report)

    def run(
        self,
        adapter: Any,
        prompt: Prompt,
        steps: Sequence[Processor],
        stopping: DefaultStopping,
        noise: Noise,
        scale: float | None = None,
        pad: int = 0,
    ) -> Generation:
        """Decode, and report the counts.

        Args:
            adapter: the image model.
            prompt: embedded prompts; the unconditional ones last where `scale` is given.
            steps: processors of the logits, in order, behind guidance.
            stopping: when rows end.
            noise: one seed a row.
            scale: of classifier-free guidance; None for none.
            pad: fills rows that have ended.

        Returns:
            Sequences and counts.
        """
        rule = self.plan.rule(adapter)
        control, most = control_for(self.window, len(prompt.mask), adapter.model.device, adapter.raster.length)
        drafter = self.plan.drafter(adapter, rule, most, None) if most > 1 else NoDraft()
        distributions = Pipeline(tuple(steps)) if scale is None else Guided(tuple(steps), scale)
        target = HFTarget(adapter.model, adapter, distributions, reserve=adapter.raster.length + most)
        out = generate(
            target if scale is None else Pairs(target),
            drafter,
            rule,
            prompt,
            stopping=stopping,
            noise=noise,
            control=Fixed(0) if isinstance(drafter, NoDraft) else control,
            pad=pad,
            on_step=self.on_step,
        )
        if self.report is not None:
            self.report(out.stats)
        return out
