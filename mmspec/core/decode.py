"""The decoding loop: draft a tree, score it in one forward, commit a part of it. It does not branch on modality or method."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmspec.core.accept_rule import AcceptRule
from mmspec.core.control import Charged, Control, ControlSession, ReadsMatches
from mmspec.core.noise import Noise
from mmspec.core.protocols import Drafter, Later, Matches, StoppingCriteria, Target
from mmspec.core.records import Committed, Draft, Step
from mmspec.core.result import Generation
from mmspec.core.stats import Stats
from mmspec.utils.renamed import old_names

if TYPE_CHECKING:
    from mmspec.core.protocols import DraftSession

OnStep = Callable[[Step], None] | None
"""Type of `on_step` callbacks."""


def decode(
    target: Target, drafter: Drafter, accept: AcceptRule, prompt: Any, *, stopping: StoppingCriteria, noise: Noise, control: Control
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

    Yields:
        One `Step` a round, until all rows have ended.

    Raises:
        FloatingPointError: when the target's logits hold NaN or +inf, naming the row and the output position.
    """
    clock = _Clock()
    noise = replace(noise, coupled=accept.coupled)
    session, pending = target.begin(prompt)
    clock.lap("encode")
    controller = control.begin()
    if isinstance(drafter, Later):
        length = controller.length()
        proposer = drafter.later(prompt, session) if length == 0 else drafter.begin(prompt, session)
    else:
        proposer = drafter.begin(prompt, session)
        length = next_length(controller, proposer, pending, stopping)
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
        controller.observe(length, committed, seconds["total"])
        yield Step(draft, verdict, committed, seconds)
        if stopping.open:
            length = next_length(controller, proposer, pending, stopping)


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
    controller.read_matches(proposer.matches(pending))
    length = controller.length()
    most = stopping.budget(length).most
    return length if most is None else most


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

    def __init__(self):
        self.start = self.last = perf_counter()
        self.spent: dict[str, float] = {}
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
) -> Iterator[Step]:
    """`decode` with statistics: the driver of every modality.

    Args:
        target, drafter, accept, prompt, stopping, noise, control: as in `decode`.
        stats: every round is added to it.
        on_step: called with every round.

    Yields:
        One `Step` a round.

    Raises:
        FloatingPointError: when the target's logits hold NaN or +inf.
    """
    for step in decode(target, drafter, accept, prompt, stopping=stopping, noise=noise, control=control):
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
) -> Generation:
    """Decode until all rows have ended.

    Args:
        target, drafter, accept, prompt, stopping, noise, control: as in `decode`.
        pad: fills rows that ended before the longest one.
        on_step: called with every round, for streams and progress bars.

    Returns:
        The committed values [B, S, *value], right-padded, their lengths [B] and the statistics.

    Raises:
        FloatingPointError: when the target's logits hold NaN or +inf.
    """
    stats = Stats(exactness=accept.exactness)
    for _ in run(target, drafter, accept, prompt, stopping=stopping, noise=noise, control=control, stats=stats, on_step=on_step):
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
