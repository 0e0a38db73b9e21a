"""A transformers decoder as a stack: its layers, and the hidden states between them.

Hidden states are numbered as in transformers: 0 enters the first of L layers, i enters layer i, L leaves the final norm. Negative numbers
count from there: -1 is what the head reads.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from mmspec.models.module_copy import is_copy


def stack(model: Any) -> nn.ModuleList:
    """The decoder layers of `model`, in order. ValueError where they cannot be determined."""
    decoder = model.get_decoder()
    decoder = decoder.decoder if hasattr(decoder, "encoder") and hasattr(decoder, "decoder") else decoder  # a whole language model
    found = [child for child in decoder.children() if isinstance(child, nn.ModuleList)]
    if len(found) != 1:
        raise ValueError(f"{type(model).__name__} keeps its decoder in {len(found)} lists of layers: one was expected; use another drafter")
    return found[0]


def numbered(states: Sequence[int], layers: int) -> tuple[int, ...]:
    """Numbers of hidden states in a stack of `layers`, none negative. ValueError where there is no such state."""
    for state in states:
        if not -layers - 1 <= state <= layers:
            raise ValueError(f"hidden state {state} does not exist: the model has {layers} layers, so 0 to {layers}, or -1 for the last")
    return tuple(state % (layers + 1) for state in states)


def check_copy(module: Any) -> None:
    """ValueError unless `module` belongs to a copy of a model and may be hooked."""
    if not is_copy(module):
        raise ValueError(f"this {type(module).__name__} belongs to no copy of a model: take it from own_copy(model)")


@contextmanager
def tapped(model: Any, states: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """During a forward inside, put hidden states `states` [B, M, H] into the mapping that is yielded; no others are kept.

    `model` is a copy (`models.module_copy.own_copy`): hooks on a shared model would be called by other threads, too.
    """
    if not states:
        yield {}
        return
    check_copy(model)
    layers, found = stack(model), {}

    def entering(state: int):
        def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            found[state] = args[0] if args else kwargs["hidden_states"]

        return hook

    def leaving(module: nn.Module, args: tuple, output: Any) -> None:
        found[len(layers)] = output[0]

    with ExitStack() as hooks:
        for state in set(states):
            if state == len(layers):
                handle = model.get_decoder().register_forward_hook(leaving)
            else:
                handle = layers[state].register_forward_pre_hook(entering(state), with_kwargs=True)
            hooks.callback(handle.remove)
        yield found
