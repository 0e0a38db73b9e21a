"""Models whose requests are rows of one generation of tokens: what text and speech share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from mmspec.core.control import Control, Fixed
from mmspec.core.decode import Rounds
from mmspec.core.draft_length.by_rows import ByRows
from mmspec.core.noise import Noise
from mmspec.core.protocols import Drafter, Target
from mmspec.core.rules.base import TOKEN_EXACT, Accept
from mmspec.core.stopping import DefaultStopping, EndTest, Stop
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.none import NoDraft
from mmspec.models.target import HFTarget
from mmspec.run.request import Request
from mmspec.serving.models.base import EngineWork

_FIRST = 2  # draft tokens of the rounds before a drafter has run its prompt, where the draft length is adaptive


class RowWork(EngineWork, Protocol):
    """A request of one row."""

    @property
    def seed(self) -> int:
        """The seed of its noise."""
        ...

    @property
    def most(self) -> int:
        """Largest number of tokens."""
        ...

    @property
    def stops(self) -> Sequence[Stop]:
        """Functions that end it; see `core.stopping`."""
        ...


@dataclass(frozen=True, kw_only=True)
class RowsModel(ABC):
    """A target and a drafter that serve requests of one row each.

    Args:
        request: drafter, accept rule, tree and what else all requests share.
        rule: the accept rule.
        control: chooses draft lengths.
        max_length: most tokens of a prompt and its output; None for no bound.
        drafter: the drafter. One that is a model is resolved anew for every generation, with the processors of its requests.
    """

    request: Request
    rule: Accept
    control: Control
    max_length: int | None
    drafter: Drafter = field(repr=False)

    @abstractmethod
    def target(self, works: Sequence[Any], reserve: int) -> HFTarget:
        """Return the target with the processors of some requests, which are by row.

        Args:
            works: the requests.
            reserve: slots beyond the prompt.
        """
        ...

    @abstractmethod
    def prompt(self, works: Sequence[Any]) -> Any:
        """Return the prompts of some requests as one batch, as the target takes it.

        Args:
            works: the requests.
        """
        ...

    @property
    @abstractmethod
    def ends(self) -> Sequence[int] | EndTest:
        """Tokens that end a row, or a test for them."""
        ...

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Device of the target."""
        ...

    @property
    def forced(self) -> bool:
        """True if an end value behind a row's last place was forced there; see `DefaultStopping`."""
        return False

    def whole(self, target: HFTarget) -> Target:
        """Return what decodes: the target, unless a row of the output is several rows of it.

        Args:
            target: what `target` returned.
        """
        return target

    def model_of(self, target: HFTarget) -> Callable[[Any], Any] | None:
        """Return what makes drafting targets of models of the modality's own; see `Request.resolve`.

        Args:
            target: the target.
        """
        return None

    def open(self, works: Sequence[RowWork], control: Control | None = None) -> Rounds:
        """Open a generation of some requests, one a row; see `EngineModel.open`."""
        target = self.target(works, min(max(work.most for work in works) + 32, 1024))
        first, *others = (DefaultStopping(1, work.most, self.ends, work.stops, self.device, forced=self.forced) for work in works)
        for other in others:
            first.join_rows(other)
        return Rounds(
            self.whole(target),
            self._drafting(target),
            self.rule,
            self.prompt(works),
            stopping=first,
            noise=Noise.from_seed([work.seed for work in works], len(works), self.device),
            control=first_control(self.control, self.drafter) if control is None else control,
        )

    def _drafting(self, target: HFTarget) -> Drafter:
        """The drafter with the requests' own processors, where it is a model; other drafters read them of the target's session."""
        if not isinstance(self.drafter, ModelDrafter):
            return self.drafter
        own: Any = target.processors.silent  # type: ignore[attr-defined]
        silent = replace(target, processors=own)
        return self.request.resolve(silent, self.rule, self.model_of(silent)).drafter


def shared_rule(request: Request) -> Accept:
    """Return the accept rule of an engine.

    Args:
        request: what all requests share.

    Returns:
        The rule; "exact" is that of any temperature.

    Raises:
        ValueError: for rules that are not token-exact.
    """
    rule = request.model_copy(update={"temperature": 1.0}).rule() if request.accept == "exact" else request.rule()
    if rule.exactness != TOKEN_EXACT:
        raise ValueError(
            f"accept rule {type(rule).__name__} is {rule.exactness}, so that outputs would depend on the requests beside them: "
            "choose 'exact', 'greedy', 'coupled' or 'match'"
        )
    return rule


def by_rows(control: Control) -> Control:
    """Return what chooses the draft lengths of a generation whose number of rows changes.

    Args:
        control: chooses those of one number of rows.
    """
    return control if isinstance(control, Fixed) else ByRows(control)


def first_control(control: Control, drafter: Drafter) -> Control:
    """Return what chooses the draft lengths before rows join: at least 1, so that the drafter runs its prompt.

    Args:
        control: chooses those of the running generation.
        drafter: the drafter.
    """
    if isinstance(drafter, NoDraft):
        return Fixed(0)
    return control if isinstance(control, Fixed) else Fixed(_FIRST)


def check_greedy(rule: Accept, temperature: float) -> None:
    """Refuse a temperature that the accept rule cannot draw at.

    Args:
        rule: the engine's accept rule.
        temperature: the request's.

    Raises:
        ValueError: for a temperature other than 0 under a greedy rule.
    """
    if temperature != 0 and getattr(rule, "reads_raw", False):
        raise ValueError(f"temperature is {temperature}, but this engine accepts greedily: leave accept out")


def check_one_row(options: Any) -> None:
    """Refuse options with a value per row.

    Args:
        options: the options of a request.

    Raises:
        ValueError: naming the first option that has several values.
    """
    for name in ("seed", "temperature", "top_k", "top_p", "repetition_penalty", "guidance"):
        value = getattr(options, name, None)
        if isinstance(value, Sequence) and not isinstance(value, str):
            raise ValueError(f"{name} has {len(value)} values, but a request of an engine is one row: give one number")
