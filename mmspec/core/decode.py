"""The whole loop: guess a tree, score it once, keep a part of it. It never branches on modality or method."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmspec.core.control import Charged, Control
from mmspec.core.judge import Judge
from mmspec.core.limits import Limits
from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Room, Scored, Settled, Step, Verdict
from mmspec.core.stats import Stats


class TargetSession(Protocol):
    """One generation's view of a target; owns the cache. `scored` counts the columns of the draft under way scored so far."""

    @property
    def scored(self) -> int: ...

    def score(self, draft: Draft) -> Scored:
        """Laws after every node not scored before in this round; a draft may grow between calls."""
        ...

    def commit(self, keep: Tensor, most: int) -> None:
        """Settle columns `keep` [B, K], at most `most` a row, and forget the rest."""
        ...


class Target(Protocol):
    def begin(self, prompt: Any) -> tuple[TargetSession, Draft]:
        """Open a session; the prompt's last position is the first frontier. Nothing need have run yet."""
        ...


class DraftSession(Protocol):
    """A drafter's view of one generation.

    `decode` proposes and observes in turn. Inside a drafter that drafts with others (a cascade, a relay) two things are added.
    `propose` may be called again before `observe`: each call takes the place of the one before. And a frontier may have more roots
    than one: values settled for now, which the next call may take back. Its first root is settled; PAD stands where a row has fewer
    values, and as the last root of a row that has no room left for now. Such a drafter then observes a draft without guesses,
    whose roots are all values settled since the last `observe`: the frontier's first root and those after it that were kept.
    """

    def propose(self, frontier: Draft, room: Room, noise: Noise) -> Draft:
        """The frontier and guesses hanging on its last root, with the law each was drawn from. Draws happen here only."""
        ...

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, settled: Settled) -> None:
        """Learn what became of a draft. `settled` holds the newly settled values, the next frontier included."""
        ...


class Drafter(Protocol):
    def begin(self, prompt: Any, session: TargetSession) -> DraftSession:
        """Open a session on the drafter's own view of the prompt; `session` is the target's, for drafters that read it."""
        ...


class Ends(Protocol):
    """Where one generation ends: `Limits`, or one of its kin for outputs of another form."""

    @property
    def outputs(self) -> Sequence[Sequence[Any]]:
        """What each row has settled so far."""
        ...

    @property
    def open(self) -> bool:
        """Has any row room left?"""
        ...

    def room(self, length: int) -> Room: ...

    def settle(self, draft: Draft, scored: Scored, verdict: Verdict) -> tuple[Verdict, Settled]:
        """Cut `verdict` at every row's end and bring the outcome to the host: the round's one synchronisation."""
        ...


@runtime_checkable
class Later(Protocol):
    """A drafter that can wait until it is wanted: a generation that starts without guesses does not pay for its prompt."""

    def later(self, prompt: Any, session: TargetSession) -> DraftSession:
        """As `begin`, but nothing is read or encoded before the first guess is asked for."""
        ...


def decode(target: Target, drafter: Drafter, accept: Judge, prompt: Any, *, limits: Ends, noise: Noise, control: Control) -> Iterator[Step]:
    """Yield one `Step` a round until no row has room left.

    Raises FloatingPointError, naming row and output position, when the target's logits hold NaN or +inf.
    """
    clock = _Clock()
    noise = replace(noise, coupled=accept.coupled)
    session, frontier = target.begin(prompt)
    clock.lap("encode")
    controller = control.begin()
    length = controller.length()
    if length == 0 and isinstance(drafter, Later):
        guesser = drafter.later(prompt, session)
    else:
        guesser = drafter.begin(prompt, session)
    clock.lap("draft")
    while limits.open:
        draft = guesser.propose(frontier, limits.room(length), noise)
        clock.lap("draft")
        begun = clock.guesses(draft.size > draft.roots)
        scored = session.score(draft)
        clock.lap("score")
        verdict, settled = limits.settle(draft, scored, accept(draft, scored, noise))
        _check_health(limits, settled)
        clock.lap("accept")
        session.commit(verdict.keep, max(settled.accepted) + draft.roots)
        clock.lap("commit")
        guesser.observe(draft, scored, verdict, settled)
        frontier = verdict.frontier
        clock.lap("draft")
        seconds = clock.round()
        if begun and isinstance(controller, Charged):
            controller.charge(seconds["draft_prefill"])
        controller.observe(length, settled, seconds["total"])
        yield Step(draft, verdict, settled, seconds)
        if limits.open:
            length = controller.length()


def _check_health(limits: Ends, settled: Settled) -> None:
    for row, healthy in enumerate(settled.healthy):
        if not healthy and settled.values[row]:
            step = len(limits.outputs[row]) - len(settled.values[row])
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

    def guesses(self, made: bool) -> bool:
        """Are these the drafter's first guesses? What it does from here on is no longer its prefill."""
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
    """What a generation settled."""

    sequences: Tensor  # [B, S, *value] right-padded
    lengths: Tensor  # [B]
    stats: Stats


def generate(
    target: Target,
    drafter: Drafter,
    accept: Judge,
    prompt: Any,
    *,
    limits: Limits,
    noise: Noise,
    control: Control,
    pad: int = 0,
    on_step: Callable[[Step], None] = lambda step: None,
) -> Generation:
    """Run `decode` to the end. `on_step` sees every round as it settles: for streams and progress bars."""
    stats = Stats(exactness=accept.exactness)
    for step in decode(target, drafter, accept, prompt, limits=limits, noise=noise, control=control):
        stats.add(step)
        on_step(step)
    return settled(limits, stats, pad)


def settled(limits: Limits, stats: Stats, pad: int = 0) -> Generation:
    """What `limits` have seen settle so far."""
    lengths = torch.tensor([len(values) for values in limits.outputs], device=limits.left.device)
    rows = [_joined(values, limits.left.device) for values in limits.outputs]
    sequences = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
    return Generation(sequences, lengths, stats)


def _joined(values: list[Any], device: torch.device) -> Tensor:
    """One row's values [S, *value]: vectors stand on the device already."""
    vectors = bool(values) and isinstance(values[0], Tensor)
    return torch.stack(values) if vectors else torch.tensor(values, dtype=torch.long, device=device)
