"""Hooks at the call of the language model inside a model that reads pictures or sound.

They stand on this thread's own copy of the model (`mmspec.models.module_copy`) and last for one forward: the caller's model is never
changed.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch import nn

from mmspec.models.compat import rope_deltas_kept
from mmspec.models.module_copy import own_copy, refresh, uncompiled


class _Intercepted(Exception):
    """Raised in front of the language model, so that it does not run; `given` is what it was handed."""

    def __init__(self, given: dict[str, Any]):
        super().__init__()
        self.given = given


def intercept_decoder_inputs(model: Any, inputs: Mapping[str, Any], unit: str, encoder: bool = False) -> dict[str, Any]:
    """The keyword arguments with which `model`, run on `inputs`, calls its language model, which does not run.

    Where the language model itself puts pictures among its embeddings (Chameleon), these alone, as its first layer is given them.

    Args:
        model: a transformers model with `get_decoder`.
        inputs: what its `forward` takes.
        noun: what the inputs hold besides text, for the message: "pictures" or "sound".
        encoder: stop at the encoder of the language model (`get_encoder`), not at its decoder.

    Raises:
        ValueError: pictures or sound and prompt do not fit together.
    """
    copy = _copy_of(model)

    place = copy.get_encoder() if encoder else copy.get_decoder()
    reads_pictures = not encoder and "pixel_values" in signature(place.forward).parameters

    def stop(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        raise _Intercepted({"inputs_embeds": args[0]} if reads_pictures else kwargs)

    handle = (place.layers[0] if reads_pictures else place).register_forward_pre_hook(stop, with_kwargs=True)
    try:
        with rope_deltas_kept(copy):
            copy(**inputs, use_cache=False)
    except _Intercepted as found:
        return found.given
    except torch.OutOfMemoryError:
        raise
    except (ValueError, RuntimeError, IndexError, TypeError, StopIteration) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"prompt and {unit} do not fit together ({why}): pass what the processor returned") from None
    finally:
        handle.remove()
    raise AssertionError(f"{type(model).__name__} ran without its language model")


@contextmanager
def handing(model: Any, more: Mapping[str, Any]) -> Iterator[Any]:
    """The model to run inside, whose language model is handed `more` besides; `model` itself where there is nothing more.

    A compiled model is run uncompiled where there is: a hook would be baked into its graph.
    """
    if not more:
        yield model
        return
    copy = _copy_of(model)
    handle = copy.get_decoder().register_forward_pre_hook(lambda module, args, kwargs: (args, kwargs | more), with_kwargs=True)
    try:
        yield copy
    finally:
        handle.remove()


def _copy_of(model: Any) -> Any:
    """This thread's copy of `model`, without torch.compile's wrapper, with the hooks `model` has now."""
    plain = uncompiled(model)
    refresh(plain)
    return own_copy(plain)
