"""Jobs with continuous batching: a record starts when a row is free, so that no row waits for the longest one of a batch."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from mmspec.core.decode import OnStep
from mmspec.serving.handle import RequestHandle
from mmspec.serving.models.base import EngineModel, EngineWork, may_begin
from mmspec.serving.scheduler import Scheduler

BATCHING = ("continuous", "static")
"""Ways to run the records of a job: they join as others end, or batches begin and end together."""
_PIECE = 2048  # columns of prompts that are run between two rounds: nobody waits for a single token of a job


def continued(model: EngineModel, works: Iterator[EngineWork], rows: int, on_step: OnStep = None) -> Iterator[Any]:
    """Run requests, each in a row of its own, at most `rows` at a time.

    Args:
        model: target and drafter.
        works: the requests, read as rows become free.
        rows: most rows.
        on_step: called with every round.

    Yields:
        The result of every request, in the order of `works`.

    Raises:
        Exception: what a request ended with, once it is its turn.
    """
    pending: deque[RequestHandle] = deque()
    read: deque[EngineWork] = deque()  # at most one, which cannot begin together with others

    def take(most: int | None) -> RequestHandle | None:
        if not read:
            read.extend(work for work in [next(works, None)] if work is not None)
        if not read or not may_begin(read[0], most):
            return None
        pending.append(RequestHandle(read.popleft(), 0, model.rule.exactness))
        return pending[-1]

    scheduler = Scheduler(model, rows, _PIECE, take, on_step)
    while True:
        with torch.no_grad():  # not across a yield
            scheduler.step()
        while pending and pending[0].done:
            yield pending.popleft().result(0)
        if not pending and not read and scheduler.idle:
            return
