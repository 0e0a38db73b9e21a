"""The models of a server: what each needs to answer requests, and finding one by its id."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from threading import Lock
from time import time
from typing import Any, Protocol

from mmspec.loading.recsys import Recommender
from mmspec.loading.speech import Speaker
from mmspec.loading.text import Pair
from mmspec.loading.vision import Loaded
from mmspec.recsys.cost import CostModel
from mmspec.serving.engine import Engine
from mmspec.serving.http.errors import ApiError
from mmspec.serving.http.worker import ModelWorker

PIECE = 2**14
"""Characters that are tokenized at a time to find out whether a long text fits."""


class ServedModel(Protocol):
    """A model that answers requests."""

    @property
    def id(self) -> str:
        """The name that requests give."""
        ...

    @property
    def queued(self) -> int:
        """Requests that wait."""
        ...

    @property
    def running(self) -> int:
        """Requests that run."""
        ...

    @property
    def alive(self) -> bool:
        """False once it can answer no more."""
        ...

    def close(self) -> None:
        """Cancel all requests and end its thread."""
        ...


@dataclass(frozen=True)
class EngineServed:
    """A model whose requests run in an engine.

    Args:
        id: the name that requests give.
        engine: what generates.
    """

    id: str
    engine: Engine

    @property
    def queued(self) -> int:
        """Requests that wait for a row."""
        return self.engine.queued

    @property
    def running(self) -> int:
        """Requests that have a row."""
        return self.engine.rows

    @property
    def alive(self) -> bool:
        """False once the engine has ended."""
        return self.engine.open

    def close(self) -> None:
        """Cancel all requests and end the engine."""
        self.engine.close(cancel=True)


@dataclass(frozen=True)
class TextServed(EngineServed):
    """A language model.

    Args:
        id, engine: as in `EngineServed`.
        pair: target, drafter and tokenizer.
    """

    pair: Pair
    lock: Lock = field(default_factory=Lock, repr=False)  # of the tokenizer, whose padding state is shared

    @cached_property
    def token_bytes(self) -> int:
        """Most bytes of text that one token can stand for."""
        return max(len(token.encode()) for token in self.pair.tokenizer.get_vocab())

    def check_fits(self, text: str, check: Callable[[], None], name: str) -> None:
        """Refuse a text that has more tokens than the model has positions, without tokenizing all of it.

        Args:
            text: the text.
            check: called between pieces; raises where the work is to be abandoned.
            name: the field.

        Raises:
            ApiError: 400, for such a text.
        """
        room, size = self.engine.model.max_length, len(text.encode())
        if room is None or size <= room:
            return
        if size > room * self.token_bytes:
            most = f"at most {room * self.token_bytes} bytes fit in the model's {room} positions"
            raise ApiError(400, f"{name} has {size} bytes: {most}", name, "context_length_exceeded")
        count = 0
        for start in range(0, len(text) - PIECE, PIECE):  # what is not longer than a piece is tokenized once
            check()
            with self.lock:
                count += len(self.pair.tokenizer(text[start : start + PIECE], add_special_tokens=False)["input_ids"])
            count -= self.token_bytes  # a token that the end of the piece cuts
            if count > room:
                raise ApiError(400, f"{name} has more tokens than the model's {room} positions", name, "context_length_exceeded")

    def ids_of(self, text: str, check: Callable[[], None], name: str, special: bool = True) -> list[int]:
        """Return the token ids of a text that fits the model.

        Args:
            text: the text.
            check, name: as in `check_fits`.
            special: add the tokens that the tokenizer puts around a text.

        Raises:
            ApiError: 400, for a text with more tokens than the model has positions.
        """
        self.check_fits(text, check, name)
        check()
        with self.lock:
            return self.pair.tokenizer(text, add_special_tokens=special)["input_ids"]


@dataclass(frozen=True)
class SpeechServed(EngineServed):
    """A text-to-speech model.

    Args:
        id, engine: as in `EngineServed`.
        loaded: the model with what goes with it.
    """

    loaded: Speaker


@dataclass(frozen=True)
class WorkerServed:
    """A model whose requests run in a worker.

    Args:
        id: the name that requests give.
        loaded: the model with what goes with it: `Loaded` (images), `Speaker`, `Pair` (a recogniser) or `Recommender`.
        worker: runs its requests.
    """

    id: str
    loaded: Any
    worker: ModelWorker

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return self.worker.queued

    @property
    def running(self) -> int:
        """Requests that run."""
        return self.worker.busy

    @property
    def alive(self) -> bool:
        """False once the worker has ended."""
        return self.worker.alive

    def close(self) -> None:
        """Cancel all requests and end the worker."""
        self.worker.close()


@dataclass(frozen=True)
class ImageServed(WorkerServed):
    """An image model.

    Args:
        method: the method of `mmspec.vision.generate`.
        engine: draws the pictures of all requests in one generation, but those of other sizes than the model's own, which run in the
            worker; None where rows of the method or the model cannot join a running generation.
    """

    loaded: Loaded
    method: str = "plain"
    engine: Engine | None = None

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return self.worker.queued + (0 if self.engine is None else self.engine.queued)

    @property
    def running(self) -> int:
        """Requests that run."""
        return self.worker.busy + (0 if self.engine is None else self.engine.rows)

    @property
    def alive(self) -> bool:
        """False once the worker or the engine has ended."""
        return self.worker.alive and (self.engine is None or self.engine.open)

    def close(self) -> None:
        """Cancel all requests and end the worker and the engine."""
        self.worker.close()
        if self.engine is not None:
            self.engine.close(cancel=True)


@dataclass(frozen=True)
class SpeechWorkerServed(WorkerServed):
    """A text-to-speech model whose rows cannot join a running generation."""

    loaded: Speaker


@dataclass(frozen=True)
class RecognizerServed(WorkerServed):
    """A speech recogniser."""

    loaded: Pair


@dataclass(frozen=True)
class RecommenderServed(WorkerServed):
    """A recommender, whose requests of equal options share calls.

    Args:
        cost: chooses plain or drafted search, whichever is faster; the items are the same.
    """

    loaded: Recommender
    cost: CostModel = field(default_factory=CostModel, repr=False)


@dataclass(frozen=True)
class ServedModels:
    """The models of a server, at most one a kind.

    Args:
        text, image, speech, recognizer, recommender: the models; None for those that are not served.
        created: when they were loaded, in seconds since 1970.

    Raises:
        ValueError: for no model, and for two models of one id.
    """

    text: TextServed | None = None
    image: ImageServed | None = None
    speech: SpeechServed | SpeechWorkerServed | None = None
    recognizer: RecognizerServed | None = None
    recommender: RecommenderServed | None = None
    created: int = field(default_factory=lambda: int(time()))

    def __post_init__(self) -> None:
        ids = [served.id for served in self.all.values()]
        if not ids:
            raise ValueError("no model: give at least one of " + ", ".join(KINDS))
        if twice := [name for name in ids if ids.count(name) > 1]:
            raise ValueError(f"two models have the id {twice[0]!r}: rename one of the folders")

    @property
    def all(self) -> dict[str, ServedModel]:
        """The models by kind."""
        found = {kind: getattr(self, kind) for kind in KINDS}
        return {kind: served for kind, served in found.items() if served is not None}

    @property
    def alive(self) -> bool:
        """True while all models can answer."""
        return all(served.alive for served in self.all.values())

    def find(self, kind: str, name: str | None) -> Any:
        """Return the model of an endpoint.

        Args:
            kind: one of `KINDS`.
            name: the id in the request; None for the endpoint's model.

        Returns:
            The model.

        Raises:
            ApiError: 404, for another id, and for a kind that is not served.
        """
        served = getattr(self, kind)
        if served is None:
            raise ApiError(404, f"this server has no {kind} model", "model", "model_not_found")
        if name not in (None, served.id):
            raise ApiError(404, f"the model {name[:100]!r} does not exist: this endpoint has {served.id!r}", "model", "model_not_found")
        return served

    def close(self) -> None:
        """Cancel all requests and end all threads."""
        for served in self.all.values():
            served.close()


KINDS = tuple(each.name for each in fields(ServedModels) if each.name != "created")
"""Kinds of models: options of `mmspec serve`, and attributes of `ServedModels`."""
