"""The whole loop: draft a tree, score it once, keep a part of it. It never branches on modality or method."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmspec.core.accept_rule import AcceptRule
from mmspec.core.control import Charged, Control
from mmspec.core.noise import Noise
from mmspec.core.records import Budget, Committed, Draft, Scored, Step, Verdict
from mmspec.core.stats import Stats
from mmspec.core.stopping import DefaultStopping


class TargetSession(Protocol):
    """One generation's view of a target; owns the cache. `scored` counts the columns of the draft under way scored so far."""

    @property
    def scored(self) -> int: ...

    def score(self, draft: Draft) -> Scored:
        """Distributions after every node not scored before in this round; a draft may grow between calls."""
        ...

    def commit(self, keep: Tensor, most: int) -> None:
        """Settle columns `keep` [B, K], at most `most` a row, and forget the rest."""
        ...


class Target(Protocol):
    def begin(self, prompt: Any) -> tuple[TargetSession, Draft]:
        """Open a session; the prompt's last position is the first pending token. Nothing need have run yet."""
        ...


class DraftSession(Protocol):
    """A drafter's view of one generation.

    `decode` proposes and observes in turn. Inside a drafter that drafts with others (a cascade, a relay) two things are added.
    `propose` may be called again before `observe`: each call takes the place of the one before. And a pending token may have more roots
    than one: values committed for now, which the next call may take back. Its first root is committed; PAD stands where a row has fewer
    values, and as the last root of a row that has no room left for now. Such a drafter then observes a draft without draft tokens,
    whose roots are all values committed since the last `observe`: the pending token's first root and those after it that were kept.
    """

    def propose(self, pending: Draft, budget: Budget, noise: Noise) -> Draft:
        """The pending token and draft tokens hanging on its last root, with the distribution each was drawn from. Draws happen here
        only."""
        ...

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, committed: Committed) -> None:
        """Learn what became of a draft. `committed` holds the newly committed values, the next pending token included."""
        ...


class Drafter(Protocol):
    def begin(self, prompt: Any, session: TargetSession) -> DraftSession:
        """Open a session on the drafter's own view of the prompt; `session` is the target's, for drafters that read it."""
        ...


class StoppingCriteria(Protocol):
    """Where one generation ends: `DefaultStopping`, or one of its kin for outputs of another form."""

    @property
    def outputs(self) -> Sequence[Sequence[Any]]:
        """What each row has committed so far."""
        ...

    @property
    def open(self) -> bool:
        """Has any row room left?"""
        ...

    def budget(self, length: int) -> Budget: ...

    def commit(self, draft: Draft, scored: Scored, verdict: Verdict) -> tuple[Verdict, Committed]:
        """Cut `verdict` at every row's end and bring the outcome to the host: the round's one synchronisation."""
        ...


@runtime_checkable
class Later(Protocol):
    """A drafter that can wait until it is wanted: a generation that starts without draft tokens does not pay for its prompt."""

    def later(self, prompt: Any, session: TargetSession) -> DraftSession:
        """As `begin`, but nothing is read or encoded before the first draft token is asked for."""
        ...


def decode(
    target: Target, drafter: Drafter, accept: AcceptRule, prompt: Any, *, stopping: StoppingCriteria, noise: Noise, control: Control
) -> Iterator[Step]:
    """Yield one `Step` a round until no row has room left.

    Raises FloatingPointError, naming row and output position, when the target's logits hold NaN or +inf.
    """
    clock = _Clock()
    noise = replace(noise, coupled=accept.coupled)
    session, pending = target.begin(prompt)
    clock.lap("encode")
    controller = control.begin()
    length = controller.length()
    if length == 0 and isinstance(drafter, Later):
        proposer = drafter.later(prompt, session)
    else:
        proposer = drafter.begin(prompt, session)
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
            length = controller.length()


def _check_health(stopping: StoppingCriteria, committed: Committed) -> None:
    for row, healthy in enumerate(committed.healthy):
        if not healthy and committed.values[row]:
            step = len(stopping.outputs[row]) - len(committed.values[row])
            raise FloatingPointError(
                f"the target's logits hold NaN or infinity in row {row} at output position {step}: "
                "check the weights and the dtype (float16 overflows where bfloat16 does not)"
            )


class _Clock:
    """Seconds by phase, as `core.stats.PHASES` tells them apart. On a GPU, work is booked where the host waits for it."""

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
        """Are these the drafter's first draft tokens? What it does from here on is no longer its prefill."""
        return made and self.firsts.pop("draft", None) is not None

    def round(self) -> dict[str, float]:
        """The phases of the round that ends now."""
        now = perf_counter()
        total = now - self.start
        spent = self.spent | {"other": max(0.0, total - sum(self.spent.values())), "total": total}
        self.start = self.last = now
        self.spent = {}
        self.firsts.pop("score", None)
        return spent


@dataclass(frozen=True)
class Generation:
    """What a generation committed."""

    sequences: Tensor  # [B, S, *value] right-padded
    lengths: Tensor  # [B]
    stats: Stats


def generate(
    target: Target,
    drafter: Drafter,
    accept: AcceptRule,
    prompt: Any,
    *,
    stopping: DefaultStopping,
    noise: Noise,
    control: Control,
    pad: int = 0,
    on_step: Callable[[Step], None] = lambda step: None,
) -> Generation:
    """Run `decode` to the end. `on_step` sees every round as it commits: for streams and progress bars."""
    stats = Stats(exactness=accept.exactness)
    for step in decode(target, drafter, accept, prompt, stopping=stopping, noise=noise, control=control):
        stats.add(step)
        on_step(step)
    return committed(stopping, stats, pad)


def committed(stopping: DefaultStopping, stats: Stats, pad: int = 0) -> Generation:
    """What `stopping` have seen commit so far."""
    lengths = torch.tensor([len(values) for values in stopping.outputs], device=stopping.left.device)
    rows = [_joined(values, stopping.left.device) for values in stopping.outputs]
    sequences = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
    return Generation(sequences, lengths, stats)


def _joined(values: list[Any], device: torch.device) -> Tensor:
    """One row's values [S, *value]: vectors stand on the device already."""
    vectors = bool(values) and isinstance(values[0], Tensor)
    return torch.stack(values) if vectors else torch.tensor(values, dtype=torch.long, device=device)
