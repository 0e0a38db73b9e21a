"""The decoding loop: draft a tree, score it in one forward, commit a part of it. It does not branch on modality or method."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import ceil
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmspec.core.accept_rule import AcceptRule
from mmspec.core.control import Charged, Control, ControlSession, PutsOff, ReadsMatches
from mmspec.core.noise import Noise
from mmspec.core.protocols import CostlyStart, Drafter, Later, Matches, StoppingCriteria, Target
from mmspec.core.records import Committed, Draft, Step
from mmspec.core.result import Generation
from mmspec.core.stats import Stats
from mmspec.utils.renamed import old_names

if TYPE_CHECKING:
    from mmspec.core.protocols import DraftSession, TargetSession

_LEAD = 16  # values by which a row is far ahead of the slowest one

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
    clock = _Clock(encoded)
    noise = replace(noise, coupled=accept.coupled)
    session, pending = target.begin(prompt)
    clock.lap("encode")
    controller = control.begin()
    if isinstance(drafter, Later):
        if isinstance(controller, PutsOff) and isinstance(drafter, CostlyStart):
            _expect_start(controller, drafter, prompt, session, clock.spent["encode"], stopping)
        held = plain is not None and plain()
        length = 0 if held else controller.length()
        proposer = drafter.later(prompt, session) if length == 0 else drafter.begin(prompt, session)
    else:
        proposer = drafter.begin(prompt, session)
        held = plain is not None and plain()
        length = 0 if held else next_length(controller, proposer, pending, stopping)
    clock.lap("draft")
    while stopping.open:
        draft = proposer.propose(pending, stopping.budget(length), noise)
        clock.lap("draft")
        begun = clock.draft_tokens(draft.size > draft.roots)
        scored = session.score(draft)
        clock.lap("score")
        verdict, committed = stopping.commit(draft, scored, accept(draft, scored, noise))
        _check_health(stopping, committed)
        clock.lap("accept")
        session.commit(verdict.keep, max(committed.accepted) + draft.roots)
        clock.lap("commit")
        proposer.observe(draft, scored, verdict, committed)
        pending = verdict.pending
        clock.lap("draft")
        seconds = clock.round()
        if begun and isinstance(controller, Charged):
            controller.charge(seconds["draft_prefill"])
        if not held:
            controller.observe(length, committed, seconds["total"])
        yield Step(draft, verdict, committed, seconds)
        if stopping.open:
            held = held and plain is not None and plain()
            length = 0 if held else next_length(controller, proposer, pending, stopping)


def _expect_start(
    controller: PutsOff, drafter: CostlyStart, prompt: Any, session: "TargetSession", encode: float, stopping: StoppingCriteria
) -> None:
    """Tell the controller what the drafter's start is expected to cost; `encode` are the seconds of the target's encoder."""
    work = drafter.start_work(prompt, session)
    if work is not None:
        most = stopping.budget(ceil(work.values)).most
        controller.expect_start(work.encoder * encode, work.step, work.values if most is None else min(work.values, most + 1))


def next_length(controller: ControlSession, proposer: "DraftSession", pending: Draft, stopping: StoppingCriteria) -> int:
    """Return the draft length of the coming round.

    Args:
        controller: chooses it; one that reads matches gets the drafter's.
        proposer: the drafter's session.
        pending: the pending tokens.
        stopping: where rows end.

    Returns:
        Draft tokens; for a controller that reads matches, no more than the longest row can commit.
    """
    if not (isinstance(controller, ReadsMatches) and isinstance(proposer, Matches)):
        return controller.length()
    controller.read_matches(_of_slow_rows(proposer.matches(pending), stopping.outputs))
    length = controller.length()
    most = stopping.budget(length).most
    return length if most is None else most


def _of_slow_rows(matches: list[int | None] | None, outputs: Sequence[Sequence[Any]]) -> list[int | None] | None:
    """`matches` without rows that are far ahead: the batch ends with its slowest row, which pays for their columns."""
    if matches is None or len(matches) == 1:
        return matches
    sizes = [len(values) for values in outputs]
    least = min((size for size, match in zip(sizes, matches, strict=True) if match is not None), default=0)
    return [match if size <= least + _LEAD else None for size, match in zip(sizes, matches, strict=True)]


def _check_health(stopping: StoppingCriteria, committed: Committed) -> None:
    for row, healthy in enumerate(committed.healthy):
        if not healthy and committed.values[row]:
            step = len(stopping.outputs[row]) - len(committed.values[row])
            raise FloatingPointError(
                f"the target's logits hold NaN or infinity in row {row} at output position {step}: "
                "check the weights and the dtype (float16 overflows where bfloat16 does not)"
            )


class _Clock:
    """Seconds by phase, see `core.stats.PHASES`. On a GPU, work is counted in the phase in which the host waits for it."""

    def __init__(self, encoded: float):
        self.last = perf_counter()
        self.start = self.last - encoded
        self.spent = {"encode": encoded}
        self.firsts = {"score": "prefill", "draft": "draft_prefill"}

    def lap(self, phase: str) -> None:
        now = perf_counter()
        phase = self.firsts.get(phase, phase)
        self.spent[phase] = self.spent.get(phase, 0.0) + now - self.last
        self.last = now

    def draft_tokens(self, made: bool) -> bool:
        """Return True for the drafter's first draft tokens; its later work is not counted as prefill."""
        return made and self.firsts.pop("draft", None) is not None

    def round(self) -> dict[str, float]:
        """Return the seconds of the round that ends now."""
        now = perf_counter()
        total = now - self.start
        spent = self.spent | {"other": max(0.0, total - sum(self.spent.values())), "total": total}
        self.start = self.last = now
        self.spent = {}
        self.firsts.pop("score", None)
        return spent


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


def committed(stopping: StoppingCriteria, stats: Stats, device: torch.device, pad: int = 0) -> Generation:
    """Collect what has been committed so far.

    Args:
        stopping: the stopping criteria of the generation, which hold the committed values.
        stats: the statistics to return with them.
        device: device of the result.
        pad: fills rows that are shorter than the longest one.

    Returns:
        The committed values [B, S, *value], right-padded, their lengths LongTensor [B], and `stats`.
    """
    lengths = torch.tensor([len(values) for values in stopping.outputs], device=device)
    rows = [_joined(values, device) for values in stopping.outputs]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
    return Generation(tokens, lengths, stats)


def _joined(values: Sequence[Any], device: torch.device) -> Tensor:
    """Return one row's values [S, *value]; vectors are on the device already."""
    vectors = bool(values) and isinstance(values[0], Tensor)
    return torch.stack(list(values)) if vectors else torch.tensor(values, dtype=torch.long, device=device)


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
