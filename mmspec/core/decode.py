"""The decoding loop: draft a tree, score it in one forward, commit a part of it. It does not branch on modality or method."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mmspec.core.accept_rule import AcceptRule, refuse_other_table, refuse_unordered
from mmspec.core.control import Charged, Control, PutsOff, chosen_once, expect_start, next_length
from mmspec.core.noise import Noise
from mmspec.core.protocols import CostlyStart, Drafter, Later, SelfTested, StoppingCriteria, Target
from mmspec.core.records import Step
from mmspec.core.result import DecodeError, Generation, committed
from mmspec.core.rows.rounds import RoundRows
from mmspec.core.stats import RoundClock, Stats
from mmspec.core.stopping import check_health
from mmspec.utils.renamed import old_names

if TYPE_CHECKING:
    from mmspec.core.protocols import TargetSession

OnStep = Callable[[Step], None] | None
"""Type of `on_step` callbacks."""


def decode(
    target: Target,
    drafter: Drafter,
    accept: AcceptRule,
    prompt: Any,
    *,
    stopping: StoppingCriteria,
    noise: Noise,
    control: Control,
    encoded: float = 0.0,
    plain: Callable[[], bool] | None = None,
) -> Iterator[Step]:
    """Decode round by round.

    Args:
        target: the model whose distribution the output has.
        drafter: where draft tokens come from.
        accept: the accept rule.
        prompt: what `target.begin` takes.
        stopping: where rows end.
        noise: the keyed noise, one seed a row.
        control: chooses the draft length of every round.
        encoded: seconds for which the target's encoder has already run on this prompt.
        plain: asked before every round; until it first returns False nothing is drafted and `control` neither chooses nor observes.

    Yields:
        One `Step` a round, until all rows have ended.

    Raises:
        FloatingPointError: when the target's logits hold NaN or +inf, naming the row and the output position.
    """
    settings: dict[str, Any] = {"stopping": stopping, "noise": noise, "control": control, "encoded": encoded, "plain": plain}
    rounds = Rounds(target, drafter, accept, prompt, **settings)
    while rounds.open:
        yield rounds.run()


class Rounds(RoundRows):
    """A generation under way, round by round. Between two rounds, rows may leave it, and those of another one join it.

    Args:
        target, drafter, accept, prompt, stopping, noise, control, encoded, plain: as in `decode`.

    Attributes:
        session: the target's session.
        proposer: the drafter's session.
        pending: the pending tokens.
        stopping: where rows end.
        noise: the keyed noise, one seed a row.

    Raises:
        ValueError: where drafted tokens would not get the distributions of plain decoding; see `SelfTested`.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        accept: AcceptRule,
        prompt: Any,
        *,
        stopping: StoppingCriteria,
        noise: Noise,
        control: Control,
        encoded: float = 0.0,
        plain: Callable[[], bool] | None = None,
    ):
        self.clock = clock = RoundClock(encoded)
        self.accept, self.stopping, self.noise, self.plain = accept, stopping, replace(noise, coupled=accept.coupled), plain
        refuse_unordered(target, accept)
        refuse_other_table(target, accept)
        if getattr(drafter, "drafts", True) and isinstance(target, SelfTested):
            target.require_columns(prompt)
        session, self.pending = target.begin(prompt)
        self.session: TargetSession = session
        clock.lap("encode")
        control, self.agree = chosen_once(target, control)
        self.controller = controller = control.begin()
        self.fixed = True  # the rows are those of the beginning
        self.held = plain is not None
        if isinstance(drafter, Later):
            if isinstance(controller, PutsOff) and isinstance(drafter, CostlyStart):
                expect_start(controller, drafter, prompt, session, clock.spent["encode"], stopping)
            length = self.length = self._choose(controller.length)
            self.proposer = drafter.later(prompt, session) if length == 0 else drafter.begin(prompt, session)
        else:
            self.proposer = drafter.begin(prompt, session)
            self.length = self._choose(self._next)
        clock.lap("draft")

    @property
    def open(self) -> bool:
        """True while any row can still generate."""
        return self.stopping.open

    def run(self) -> Step:
        """Run one round.

        Returns:
            The round.

        Raises:
            FloatingPointError: when the target's logits hold NaN or +inf, naming the row and the output position.
            DecodeError: for a ValueError of the round's own.
        """
        try:
            return self._run()
        except ValueError as error:
            raise DecodeError(str(error)) from error

    def _run(self) -> Step:
        length = self._choose(self._next) if self.length is None else self.length
        self.length, clock, stopping, session, proposer = None, self.clock, self.stopping, self.session, self.proposer
        draft = proposer.propose(self.pending, stopping.budget(length), self.noise)
        clock.lap("draft")
        begun = clock.draft_tokens(draft.size > draft.roots)
        scored = session.score(draft)
        clock.lap("score")
        verdict, committed = stopping.commit(draft, scored, self.accept(draft, scored, self.noise))
        check_health(stopping, committed)
        logprobs = None if scored.reported is None else scored.reported.of(draft, verdict, committed)
        clock.lap("accept")
        session.commit(verdict.keep, max(committed.accepted) + draft.roots)
        clock.lap("commit")
        proposer.observe(draft, scored, verdict, committed)
        self.pending = verdict.pending
        clock.lap("draft")
        seconds = clock.round()
        if begun and isinstance(self.controller, Charged):
            self.controller.charge(seconds["draft_prefill"])
        if not self.held:
            self.controller.observe(length, committed, seconds["total"])
        return Step(draft, verdict, committed, seconds, logprobs)

    def _choose(self, choose: Callable[[], int]) -> int:
        """The draft length of the coming round: 0 as long as the generation is to be plain."""
        self.held = self.held and self.plain is not None and self.plain()
        length = 0 if self.held else choose()
        return length if self.agree is None else self.agree(length)

    def _next(self) -> int:
        return next_length(self.controller, self.proposer, self.pending, self.stopping, self.fixed)


def run(
    target: Target,
    drafter: Drafter,
    accept: AcceptRule,
    prompt: Any,
    *,
    stopping: StoppingCriteria,
    noise: Noise,
    control: Control,
    stats: Stats,
    on_step: OnStep = None,
    encoded: float = 0.0,
    plain: Callable[[], bool] | None = None,
) -> Iterator[Step]:
    """`decode` with statistics: the driver of every modality.

    Args:
        target, drafter, accept, prompt, stopping, noise, control: as in `decode`.
        stats: every round is added to it.
        on_step: called with every round.
        encoded, plain: as in `decode`.

    Yields:
        One `Step` a round.

    Raises:
        FloatingPointError: when the target's logits hold NaN or +inf.
    """
    settings: dict[str, Any] = {"stopping": stopping, "noise": noise, "control": control, "encoded": encoded, "plain": plain}
    for step in decode(target, drafter, accept, prompt, **settings):
        stats.add(step)
        if on_step is not None:
            on_step(step)
        yield step


def generate(
    target: Target,
    drafter: Drafter,
    accept: AcceptRule,
    prompt: Any,
    *,
    stopping: StoppingCriteria,
    noise: Noise,
    control: Control,
    pad: int = 0,
    on_step: OnStep = None,
    encoded: float = 0.0,
) -> Generation:
    """Decode until all rows have ended.

    Args:
        target, drafter, accept, prompt, stopping, noise, control: as in `decode`.
        pad: fills rows that ended before the longest one.
        on_step: called with every round, for streams and progress bars.
        encoded: as in `decode`.

    Returns:
        The committed values [B, S, *value], right-padded, their lengths [B] and the statistics.

    Raises:
        FloatingPointError: when the target's logits hold NaN or +inf.
    """
    stats = Stats(exactness=accept.exactness)
    settings: dict[str, Any] = {"stopping": stopping, "noise": noise, "control": control, "encoded": encoded}
    for _ in run(target, drafter, accept, prompt, stats=stats, on_step=on_step, **settings):
        pass
    return committed(stopping, stats, noise.seeds.device, pad)


def each(*callbacks: OnStep) -> OnStep:
    """Combine several `on_step` callbacks into one.

    Args:
        callbacks: called in this order with every round; None is skipped.

    Returns:
        One callback.
    """
    called = [callback for callback in callbacks if callback is not None]

    def call(step: Step) -> None:
        for callback in called:
            callback(step)

    return call


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)  # names of 0.1
