"""Requests that arrive while others run, counted in rounds, and the static batches they are compared with."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import mmspec
from mmspec.run.request import Request
from mmspec.serving.handle import RequestHandle
from mmspec.serving.models.base import EngineModel, may_begin, options_of
from mmspec.serving.models.choose import engine_model
from mmspec.serving.scheduler import Scheduler


@dataclass(frozen=True)
class Asked:
    """A request: the ids of its prompt or its text, its options, and the step before which it arrives."""

    ids: Any
    options: dict[str, Any] = field(default_factory=dict)
    arrives: int = 0
    priority: int = 0

    @property
    def inputs(self) -> Any:
        return {"input_ids": torch.tensor([self.ids])} if isinstance(self.ids, list) else self.ids

    def alone(self, model: Any) -> list[int]:
        """Its tokens by plain decoding, on its own."""
        return mmspec.text.generate(model, self.inputs, **self.options).tokens[0].tolist()


def scheduler_for(model: Any, drafter: Any = None, max_rows: int = 8, piece: int = 64, **shared: Any) -> tuple[Scheduler, deque]:
    """A scheduler of texts, and the queue that it takes requests from, in order."""
    return scheduler_of(engine_model(model, Request.of(drafter=drafter, **shared), None), max_rows, piece)


def scheduler_of(model: EngineModel, max_rows: int = 8, piece: int = 64) -> tuple[Scheduler, deque]:
    """A scheduler of an engine's model, and the queue that it takes requests from, in order."""
    waiting: deque[RequestHandle] = deque()

    def take(most: int | None) -> RequestHandle | None:
        return waiting.popleft() if waiting and may_begin(waiting[0].work, most) else None

    return Scheduler(model, max_rows, piece, take), waiting


@torch.no_grad()
def serve(scheduler: Scheduler, waiting: deque, asked: Sequence[Any], most: int = 100_000) -> list[RequestHandle]:
    """Submit every request before the step in which it arrives, and run until all have ended."""
    handles: list[RequestHandle] = []
    coming = deque(sorted(asked, key=lambda each: each.arrives))
    for step in range(most):
        while coming and coming[0].arrives <= step:
            each = coming.popleft()
            work = scheduler.model.read(each.inputs, options_of(scheduler.model.options, each.options, "option"))
            handles.append(RequestHandle(work, each.priority, scheduler.model.rule.exactness))
            waiting.append(handles[-1])
        if not coming and not waiting and scheduler.idle:
            return handles
        scheduler.step()
        if not coming and all(handle.done for handle in handles):
            return handles
    raise AssertionError(f"{most} steps were not enough")


def poisson_traffic(count: int, seed: int, between: float, longest: int = 64) -> list[Asked]:
    """`count` requests of mixed lengths, temperatures and truncations; the steps between arrivals are exponential."""
    draw = torch.Generator().manual_seed(seed)
    found, now = [], 0.0
    for number in range(count):
        now += float(torch.empty(1).exponential_(1 / between, generator=draw))
        prompt = torch.randint(3, 48, (int(torch.randint(1, 40, (), generator=draw)),), generator=draw).tolist()
        new = min(longest, 1 + int(torch.empty(1).exponential_(1 / 10, generator=draw)))
        options: dict[str, Any] = {"max_new_tokens": new, "seed": number, "temperature": (0.0, 1.0, 0.6)[number % 3]}
        options |= {"top_k": 20} if number % 4 == 1 else {"top_p": 0.9} if number % 4 == 2 else {}
        found.append(Asked(prompt, options, int(now)))
    return found
