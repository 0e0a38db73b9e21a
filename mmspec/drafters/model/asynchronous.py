"""Asynchronous pairs: the drafter goes on in a process of its own while the target verifies (PEARL, Liu et al. 2024, 2408.11850; AMUSD,
McDanel 2024, 2410.17375).

A round verifies what has been drafted by then. If all of it is accepted, and the value that the target adds is the one that was drafted
next, what was drafted meanwhile is verified in the next round (PEARL's post-verify). Otherwise the row is rolled back and drafted anew.
Rows of a batch are rolled back one by one. The first round does not wait, so that both models read the prompt at the same time.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import finalize

from torch import Tensor

from mmspec.core.control import is_whole
from mmspec.core.noise import Noise
from mmspec.core.protocols import TargetSession
from mmspec.core.records import Budget, Committed, Draft, Scored, Verdict
from mmspec.drafters.model.ahead import DraftedChains, DrafterRoom, DraftingStart, RoundOutcome
from mmspec.drafters.model.draft_process import DraftProcess, DraftProcesses, own_model
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.shapes import Chain, drawn, most_likely
from mmspec.drafters.views.base import same_prompt
from mmspec.utils.devices import device_of, to_device


@dataclass(frozen=True)
class Asynchronous:
    """Drafts with a model in another process, while the target verifies (PEARL, Liu et al. 2024; AMUSD, McDanel 2024).

    The process is started by the first generation, which takes seconds, and kept for later ones; it ends with this object, or with the
    calling process. It has a copy of the model. For accept rules that read draft tokens only: greedy, coupled, match.

    Args:
        drafter: a transformers model, or a `ModelDrafter` that drafts chains.
        least: draft tokens that a round waits for, in every row that can take them; 0 never waits (PEARL's pre-verify).
        ahead: draft tokens of a row that may wait for the target; the drafter pauses there.
        device: where the drafter's model is run, such as "cuda:1"; None for where it is.
        threads: threads of the drafter's process. On a CPU, leave the cores they use to them (`torch.set_num_threads`).
        processes: shares the processes of another object of the same device and threads; None for its own.

    Raises:
        ValueError: for numbers out of range and unknown devices.
    """

    drafter: Any
    least: int = 1
    ahead: int = 32
    device: str | None = None
    threads: int = 1
    processes: DraftProcesses | None = field(default=None, compare=False, repr=False)

    def __post_init__(self):
        if not is_whole(self.threads) or self.threads < 1:
            raise ValueError(f"threads is {self.threads!r}: give at least 1")
        if not is_whole(self.ahead) or not is_whole(self.least) or not 0 <= self.least <= self.ahead or self.ahead < 1:
            raise ValueError(f"least and ahead are {self.least!r} and {self.ahead!r}: give ahead of at least 1, and least of 0 to ahead")
        if self.device is not None:
            device_of(self.device)
        if self.processes is None:
            object.__setattr__(self, "processes", DraftProcesses(self.device, self.threads))

    def begin(self, prompt: Any, session: TargetSession) -> "AsynchronousSession":
        """Open the drafting session of one generation.

        Args:
            prompt: the target's prompt.
            session: the target's session.

        Returns:
            The session. The other process is told when the first draft token is asked for.

        Raises:
            ValueError: for a drafter that cannot draft in another process.
        """
        if not isinstance(self.drafter, ModelDrafter):
            name = type(self.drafter).__name__
            raise ValueError(f"an asynchronous drafter drafts with a transformers model, but was given a {name}: give a model")
        shape, view = self.drafter.shape, self.drafter.view
        own_model(self.drafter)
        if not (isinstance(shape, Chain) and shape.stop is None and shape.draw in (drawn, most_likely)):
            raise ValueError(
                "an asynchronous drafter sends chains of draft tokens without their distributions: leave tree and stop_below out, and "
                "accept with greedy, coupled or match"
            )
        if getattr(view, "late", False):
            raise ValueError("an asynchronous drafter reads its prompt while the target does, so it cannot share what the target encodes")
        return AsynchronousSession(self, view(prompt, session), self._processes)

    def close(self) -> None:
        """End the processes that no generation uses. A later generation starts another one."""
        self._processes.close()

    @property
    def _processes(self) -> DraftProcesses:
        return self.processes  # type: ignore[return-value]  # set when the object was made


class AsynchronousSession:
    """Drafting session of one generation.

    Args:
        drafter: the settings.
        prompt: what the drafter's model reads.
        processes: one of them drafts.
    """

    def __init__(self, drafter: Asynchronous, prompt: Mapping[str, Any], processes: DraftProcesses):
        self.drafter, self.prompt, self.processes = drafter, prompt, processes
        self.process: DraftProcess | None = None
        self.opening: DraftingStart | None = None  # of a generation that has not drafted yet
        self.before = RoundOutcome([], [])  # what was committed until then
        self.chains = DraftedChains(0)  # as the other process had them when it sent its last message
        self.unread: deque[list[list[int]]] = deque()  # committed by the rounds that it had not heard of then
        self.observed = 0  # rounds that it had heard of
        self.left: list[int] = []
        self.committed: list[int] = []  # values, by row
        self.room: list[int] | None = None  # values that the drafter can take behind each prompt

    def propose(self, pending: Draft, budget: Budget, noise: Noise) -> Draft:
        """Return the draft of this round; see `DraftSession.propose`.

        Raises:
            ValueError: for values that are no single ids, and for provisional roots.
            RuntimeError: if the drafter's process has ended or failed.
        """
        if not self.left:
            self._open(pending, budget, noise)
        if budget.length == 0 or not any(self.left):
            return pending
        if self.process is None:  # both models read the prompt in this round
            self._start()
            return pending
        process = self.process
        while process.waits():
            self._read(process)
        while self._waits(min(self.drafter.least, budget.length)):
            self._read(process)
        rows = [row[: min(budget.length, max(0, left - 1))] for row, left in zip(self._current().rows, self.left, strict=True)]
        width = max(map(len, rows))
        if width == 0:
            return pending
        table = to_device([[*row, *[0] * (width - len(row)), len(row)] for row in rows], pending.nodes.device)
        return pending.extend_chain(table[:, :-1], table[:, -1])

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, committed: Committed) -> None:
        """Take in the verdict of the round; see `DraftSession.observe`."""
        for row, (values, ended) in enumerate(zip(committed.values, committed.ended, strict=True)):
            self.left[row] = 0 if ended else self.left[row] - len(values)
            self.committed[row] += len(values)
        if self.process is None:
            told = zip(self.before.values, committed.values, strict=True)
            self.before = RoundOutcome([[*old, *new] for old, new in told], committed.ended)
            return
        self.unread.append(committed.values)
        while self.process.waits():
            self._read(self.process)
        self.process.send(RoundOutcome(committed.values, committed.ended))
        if not any(self.left):
            self.close()

    def _open(self, pending: Draft, budget: Budget, noise: Noise) -> None:
        """Read what a later start needs."""
        if pending.roots > 1:
            raise ValueError("an asynchronous drafter drafts for the target itself: it cannot be a part of a cascade")
        if pending.nodes.dim() > 2:
            raise ValueError("an asynchronous drafter sends single ids, but steps here are frames of codes or vectors")
        self.left = [left * real for left, real in zip(budget.left.tolist(), pending.valid[:, 0].tolist(), strict=True)]
        prompt = {name: value.cpu() if isinstance(value, Tensor) else value for name, value in self.prompt.items()}
        values, self.committed = pending.nodes[:, 0].tolist(), [0] * len(self.left)
        self.opening = DraftingStart(prompt, noise.seeds.tolist(), noise.coupled, values, list(self.left), self.drafter.ahead)
        self.before, self.chains = RoundOutcome([[] for _ in values], [False] * len(values)), DraftedChains(len(values))

    def _start(self) -> None:
        """Take a process, and let it draft for this generation."""
        self.process = process = self.processes.take()
        self.close = finalize(self, self.processes.give_back, process)
        process.begin(replace(self.drafter.drafter, view=same_prompt), self.opening)  # type: ignore[arg-type]
        self.opening = None
        if any(self.before.values):
            self.unread.append(self.before.values)
            process.send(self.before)

    def _read(self, process: DraftProcess) -> None:
        """Receive one message."""
        found = process.receive()
        if found is None:
            return
        if isinstance(found, DrafterRoom):
            self.room = found.room
            return
        while self.observed < found.observed:
            self.chains.advance(self.unread.popleft())
            self.observed += 1
        self.chains.extend(found.values)

    def _waits(self, least: int) -> bool:
        """True if a row can take more draft tokens and has fewer than `least`."""
        most = [left - 1 for left in self.left]
        if self.room is not None:
            most = [min(own, have - used) for own, have, used in zip(most, self.room, self.committed, strict=True)]
        return any(len(row) < min(least, own) for row, own in zip(self._current().rows, most, strict=True))

    def _current(self) -> DraftedChains:
        """The draft tokens received that continue what is committed now."""
        chains = self.chains.copy()
        for values in self.unread:
            chains.advance(values)
        return chains
