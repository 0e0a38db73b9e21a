"""Hooks at the call of the language model inside a model that reads images or audio.

They are set on this thread's own copy of the model (`mmspec.models.module_copy`) for one forward: the caller's model is never changed.
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
    """Raised in place of running the language model; `given` holds its keyword arguments."""

    def __init__(self, given: dict[str, Any]):
        super().__init__()
        self.given = given


def intercept_decoder_inputs(model: Any, inputs: Mapping[str, Any], unit: str, encoder: bool = False) -> dict[str, Any]:
    """Run `model` on `inputs` up to the call of its language model, and return the arguments of that call.

    Where the language model itself inserts images into its embeddings (Chameleon), only these are returned, as its first layer gets them.

    Args:
        model: a transformers model with `get_decoder`.
        inputs: what its `forward` takes.
        unit: what the inputs hold besides text, for the message: "pictures" or "sound".
        encoder: stop at the encoder of the language model (`get_encoder`), not at its decoder.

    Returns:
        The keyword arguments of the call.

    Raises:
        ValueError: when images or audio and the prompt do not match.
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
    """Inside, the model to run, whose language model gets the keyword arguments `more` as well; `model` itself where there are none.

    With additional arguments a compiled model is run uncompiled: a hook would become part of its graph.
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
