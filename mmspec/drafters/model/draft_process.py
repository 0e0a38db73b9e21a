"""A process that drafts: how it is started, given a model and generations, and ended.

The process is spawned, so that it shares no threads and no CUDA context with its parent, and is given the model once, by value. It ends
when the other end of its pipe is closed: with the drafter object, or with the parent, however that ends.
"""

import io
import os
import pickle
import signal
from multiprocessing.connection import Connection
from types import FunctionType
from typing import Any
from weakref import finalize

import torch
from torch import multiprocessing, nn

from mmspec.drafters.model.ahead import DraftedTokens, DrafterFailed, DraftingAhead, DraftingBegun, DraftingEnd, DraftingStart, RoundOutcome
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.models.compat.models import writes_of
from mmspec.models.model_checks import model_name

_RAISED = {error.__name__: error for error in (ValueError, FloatingPointError)}
_GUARD = 'a script that starts it needs `if __name__ == "__main__":` around what it runs'


def own_model(drafter: ModelDrafter) -> Any:
    """Return the transformers model of a drafter, also of one that translates ids.

    Args:
        drafter: drafts with an `HFTarget`.

    Raises:
        ValueError: for drafters of another kind.
    """
    model = getattr(getattr(drafter.target, "target", drafter.target), "model", None)
    if not isinstance(model, nn.Module):
        raise ValueError(f"an asynchronous drafter needs one transformers model, but {type(drafter.target).__name__} has none")
    return model


class DraftProcess:
    """A process that drafts for one generation at a time, as its parent sees it.

    Args:
        device: where the model is run; None for where it is.
        threads: threads of the process.
    """

    def __init__(self, device: str | None, threads: int):
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, device, threads), daemon=True, name="mmspec-drafter")
        self.process.start()
        other.close()
        self.model: tuple[Any, ...] | None = None  # the state of the model that the process has
        self.begun = False  # it has said so of the generation that was begun last
        self.parent = os.getpid()
        self.close = finalize(self, _close, self.connection, self.process, self.parent)

    def begin(self, drafter: ModelDrafter, opening: DraftingStart) -> None:
        """Begin a generation.

        Args:
            drafter: drafts chains.
            opening: what the generation begins with.

        Raises:
            ValueError: if the model or the prompt cannot be sent.
            RuntimeError: if the process has ended.
        """
        model = own_model(drafter)
        state = (id(model), *((weight.data_ptr(), writes_of(weight)) for weight in model.parameters()))
        changed, self.model, self.begun = state != self.model, state, False
        try:
            parts = _pickled((drafter, opening), model), _pickled_model(model) if changed else None
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self.model = None
            raise ValueError(f"the drafter ({model_name(model)}) cannot be sent to another process: {error}") from None
        self.send(parts)

    def send(self, message: Any) -> None:
        """Send a message. RuntimeError if the process has ended."""
        try:
            self.connection.send(message)
        except OSError:
            raise self._ended() from None

    def receive(self) -> DraftedTokens | None:
        """Wait for one message.

        Returns:
            A draft token a row; None for a message without any for the generation that was begun last.

        Raises:
            RuntimeError: if the process has ended, or failed otherwise.
            ValueError: if the prompt does not suit the model.
            FloatingPointError: if the model's logits hold NaN or +inf.
        """
        try:
            found = self.connection.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if self.begun and isinstance(found, DrafterFailed):
            raise _RAISED.get(found.kind, RuntimeError)(found.message)
        if isinstance(found, DraftingBegun):
            self.begun = True
            return None
        return found if self.begun else None

    def waits(self) -> bool:
        """True if a message can be received without waiting."""
        return self.connection.poll()

    def _ended(self) -> RuntimeError:
        self.process.join(5)
        code = self.process.exitcode
        self.close()
        reason = f"; {_GUARD}" if self.model is not None and not self.begun and code == 1 else ""
        return RuntimeError(f"the drafter's process has ended (exit code {code}){reason}: generate again, or decode without it")


class DraftProcesses:
    """The processes of one drafter object: one for each generation that is under way, kept for later ones.

    Args:
        device: where the model is run; None for where it is.
        threads: threads of a process.
    """

    def __init__(self, device: str | None = None, threads: int = 1):
        self.device, self.threads = device, threads
        self.idle: list[DraftProcess] = []

    def take(self) -> DraftProcess:
        """Return a process that no generation uses; a new one if there is none."""
        while self.idle:
            found = self.idle.pop()
            if found.parent == os.getpid() and found.process.is_alive():  # a forked process starts its own
                return found
            found.close()
        return DraftProcess(self.device, self.threads)

    def give_back(self, process: DraftProcess) -> None:
        """End the generation of a process, which may then be taken for another one.

        Args:
            process: of `take`.
        """
        try:
            process.send(DraftingEnd())
        except RuntimeError:
            return
        self.idle.append(process)

    def close(self) -> None:
        """End the processes that no generation uses."""
        while self.idle:
            self.idle.pop().close()


def _close(connection: Connection, process: Any, parent: int) -> None:
    connection.close()
    if os.getpid() != parent:  # a forked process, whose parent goes on drafting with it
        return
    process.join(5)
    if process.is_alive():
        process.kill()
        process.join()


def _pickled(found: Any, model: nn.Module) -> bytes:
    """`found` without the weights of `model`: its modules are named."""
    names = {id(module): name for name, module in model.named_modules()}

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> str | None:
            return names.get(id(obj)) if isinstance(obj, nn.Module) else None

    file = io.BytesIO()
    Pickler(file).dump(found)
    return file.getvalue()


def _pickled_model(model: nn.Module) -> bytes:
    """A model without the hooks by which transformers captures outputs, local functions that no drafter needs."""

    class Pickler(pickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            local = isinstance(obj, FunctionType) and "<locals>" in obj.__qualname__ and obj.__module__.startswith("transformers.")
            return (_empty_hook, ()) if local else NotImplemented

    file = io.BytesIO()
    Pickler(file).dump(model)
    return file.getvalue()


def _empty_hook() -> Any:
    return _leave_output


def _leave_output(module: nn.Module, args: Any, output: Any) -> None:
    """A forward hook that does nothing."""


def _unpickled(data: bytes, model: nn.Module) -> tuple[ModelDrafter, DraftingStart]:
    class Unpickler(pickle.Unpickler):
        def persistent_load(self, pid: str) -> nn.Module:
            return model.get_submodule(pid)

    return Unpickler(io.BytesIO(data)).load()


def _serve(connection: Connection, device: str | None, threads: int) -> None:
    """The process: one generation after the other, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process when it ends
    torch.set_num_threads(threads)
    model: Any = None
    try:
        while True:
            message = connection.recv()
            if isinstance(message, (RoundOutcome, DraftingEnd)):  # of a generation that has failed
                continue
            connection.send(DraftingBegun())
            try:
                parts, weights = message
                if weights is not None:
                    model = pickle.loads(weights)
                    model = model if device is None else model.to(device)
                drafter, opening = _unpickled(parts, model)
                DraftingAhead(drafter, opening, connection).run()
            except (EOFError, OSError):
                raise
            except Exception as error:
                connection.send(DrafterFailed(type(error).__name__, f"{error}" if type(error).__name__ in _RAISED else _told(error)))
    except (EOFError, OSError):
        return


def _told(error: Exception) -> str:
    return f"the drafter's process failed: {type(error).__name__}: {' '.join(str(error).split())}"
