"""`mmspec.Engine`: many requests, each submitted on its own, in one running generation."""

import queue
from collections.abc import Collection, Hashable
from threading import Condition
from time import monotonic
from typing import Any

import torch

from mmspec.core.control import Control
from mmspec.core.rules.base import Accept
from mmspec.drafters.stops import Stop
from mmspec.run.arguments import check
from mmspec.run.request import Request
from mmspec.run.shapes import Tree
from mmspec.serving.admission import RequestQueue
from mmspec.serving.handle import RequestHandle
from mmspec.serving.model_thread import EngineClosed, ModelThread, check_process, check_wait
from mmspec.serving.models.base import options_of
from mmspec.serving.models.choose import engine_model
from mmspec.serving.openmp import release_threads
from mmspec.serving.scheduler import EngineCounts, Scheduler


class Engine:
    """Serves requests with continuous batching: each starts when a row is free and leaves when it ends (Orca, Yu et al. 2022).

    A request's tokens are those that the modality's own call gives for it alone (`mmspec.text.generate`, `mmspec.speech.synthesize`,
    `mmspec.vision.generate` with accept="exact", `mmspec.recsys.recommend`), with the same seed, whatever runs beside it. One thread drives
    the model. Use it as a context manager: leaving it waits for all requests, or cancels them after an exception.

    Args:
        target: a transformers causal language model, one that reads pictures or sound included, in eval mode, on one device; with
            `catalogue`, one that writes items; a speech model as `mmspec.speech.synthesize` takes it, of one network; or an image model of
            codes: an adapter (`mmspec.vision.ImageModel`), or a model that makes pictures only.
        drafter: as in `mmspec.text.generate`. Drafters whose sessions cannot change their rows are refused.
        accept: "exact", which is "coupled" for requests of any temperature; "greedy" for requests of temperature 0 only, which spares the
            drawing of noise; or another token-exact rule.
        draft_length: as in `mmspec.text.generate`; "auto" is measured at every number of rows.
        tree: as in `mmspec.text.generate`.
        stop_below: as in `mmspec.text.generate`.
        max_rows: most requests that run at a time.
        max_length: most tokens of a prompt and its output together; None for the model's positions.
        max_queue: most requests that wait for a row: at most `max_rows` + `max_queue` requests are in the engine.
        short_rows: further rows, which are kept for short requests: of at most 64 new tokens, 8 columns of a prompt counted as one. So a
            short request need not wait for the end of a long one.
        clients: names of clients that half of the places are kept for, the same number for each; see `client` of `submit`.
        piece: columns of prompts that are run between two rounds: longer prompts are run in pieces, so that they do not hold up the rows
            that generate.
        settings: what else all requests share: of image models `method`, `size`, `couple` and `init`, as in `mmspec.vision.generate`; of
            recommenders `catalogue`, `method`, `beams` and `width`: see `serving.models.searches.RecommendSettings`.

    Raises:
        ValueError: for models, drafters and rules that an engine cannot serve, and for numbers out of range.
    """

    def __init__(
        self,
        target: Any,
        drafter: Any = None,
        *,
        accept: str | Accept = "exact",
        draft_length: int | str | Control = "auto",
        tree: Tree = None,
        stop_below: float | str | Stop | None = None,
        max_rows: int = 8,
        max_length: int | None = None,
        max_queue: int = 256,
        short_rows: int = 0,
        clients: Collection[Hashable] = (),
        piece: int = 256,
        **settings: Any,
    ):
        check(max_rows=max_rows, max_queue=max_queue, short_rows=short_rows, clients=clients, piece=piece, max_length=max_length)
        if draft_length == 0:
            drafter = None
        request = Request.of(drafter=drafter, accept=accept, draft_length=draft_length, tree=tree, stop_below=stop_below)
        self.model = engine_model(target, request, max_length, settings)
        self._queue = RequestQueue(max_rows, max_queue, short_rows, clients)
        self._changed = Condition()
        self._closed = self._cancelling = False
        self._broken: BaseException | None = None
        self._scheduler = Scheduler(self.model, max_rows + short_rows, piece, self._next)
        release_threads()
        self._thread = ModelThread("mmspec-engine", self._serve, self._cancel_all)

    def submit(self, inputs: Any, *, priority: int = 0, wait: float | None = 0.0, client: Hashable = None, **options: Any) -> RequestHandle:
        """Submit a request. Safe under threads.

        Args:
            inputs: what the model's tokenizer or processor returned for one prompt: `input_ids` [1, P], `attention_mask` if there is
                padding, and what stands for its pictures; for a speech model a text, for an image model what to draw (a text, a class), or
                what its processor returned for one; for a recommender the items of one user, oldest first.
            priority: requests of larger ones start first. Of equal ones short requests and those of clients with few requests overtake
                others, which do not wait without end; see `serving.admission.RequestQueue`.
            wait: seconds to wait for a place if as many requests wait as may; None waits without limit.
            client: who asks, such as a name.
            options: those of the request, as of the modality's own call: see `serving.models.text.TextOptions`,
                `serving.models.speech.SpeechOptions`, `serving.models.pictures.PictureOptions` and
                `serving.models.searches.RecommendOptions`.

        Returns:
            The handle.

        Raises:
            ValueError: for invalid arguments, in one line.
            Full: of `queue`, if there is no place after `wait` seconds.
            RuntimeError: if the engine is closed, its thread has ended, or it runs in a process from which this one was forked.
        """
        check_process(self._thread.process, "engine")
        check(priority=priority)
        wait = check_wait("wait", wait)
        with torch.no_grad():
            work = self.model.read(inputs, options_of(self.model.options, options, "option of this engine's requests"))
        handle = RequestHandle(work, priority, self.model.rule.exactness, client)
        until = None if wait is None else monotonic() + wait
        with self._changed:
            self._check_open()
            self._drop_cancelled()
            while not self._queue.free(client):
                left = None if until is None else until - monotonic()
                if left is not None and left <= 0:
                    raise queue.Full(f"{len(self._queue)} requests are waiting: submit again later, or raise max_queue")
                self._changed.wait(left)
                self._check_open()
            self.counts.submitted += 1
            self._queue.add(handle, self.counts.tokens / self._queue.rows)
            self._changed.notify_all()
        return handle

    @property
    def counts(self) -> EngineCounts:
        """Forwards, columns, tokens and requests so far."""
        return self._scheduler.counts

    @property
    def rows(self) -> int:
        """Requests that have a row."""
        return self._scheduler.rows

    @property
    def queued(self) -> int:
        """Requests that wait for a row."""
        with self._changed:
            return self._queue.active

    @property
    def open(self) -> bool:
        """True while requests are taken."""
        return not self._closed

    def close(self, cancel: bool = False) -> None:
        """End the engine; no request is lost: each is finished, or cancelled.

        Args:
            cancel: cancel all requests; by default they are finished first.

        Raises:
            RuntimeError: in a process that was forked from the engine's.
        """
        check_process(self._thread.process, "engine")
        with self._changed:
            self._closed, self._cancelling = True, self._cancelling or cancel
            self._changed.notify_all()
        self._thread.join()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.close(cancel=kind is not None)

    def _cancel_all(self) -> int:
        """Have the thread cancel all requests and end. Returns how many have not ended."""
        with self._changed:
            self._closed = self._cancelling = True
            self._changed.notify_all()
            counts = self.counts
            return counts.submitted - counts.finished - counts.failed - counts.cancelled

    # --- the engine's thread ------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._broken is not None:
            raise RuntimeError(f"the engine's thread has ended: {self._broken}")
        if self._closed:
            raise EngineClosed("the engine is closed: make another one")

    def _drop_cancelled(self) -> None:
        """Let cancelled requests leave the queue."""
        if gone := self._queue.drop_cancelled():
            for handle in gone:
                handle.drop()
            self.counts.cancelled += len(gone)
            self._changed.notify_all()

    def _next(self, most: int | None) -> RequestHandle | None:
        """The request that starts next, if it may; see `may_begin`."""
        with self._changed:
            self._drop_cancelled()
            return self._queue.take(most)

    def _serve(self) -> None:
        try:
            with torch.no_grad():
                while self._due():
                    self._scheduler.step()
        except BaseException as error:
            self._broken = error
        finally:
            with self._changed:
                self._closed = True
                handles = self._queue.clear()
                self._changed.notify_all()
            self._scheduler.end_all(self._broken)
            for handle in handles:
                handle.drop() if self._broken is None else handle.end(self._broken)

    def _due(self) -> bool:
        """Wait for work. False at the end."""
        with self._changed:
            while True:
                if self._cancelling:
                    return False
                self._drop_cancelled()
                if self._queue.settle():
                    self._changed.notify_all()  # for those that wait for a place
                if len(self._queue) or not self._scheduler.idle:
                    return True
                if self._closed:
                    return False
                release_threads()
                self._changed.wait()
