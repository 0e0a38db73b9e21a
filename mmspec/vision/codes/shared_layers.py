"""A small image model that has decoder layers of its own and shares everything else with its target: prompts, embeddings, output head.

It writes the target's own codes, so it drafts for any family. Its layers begin as copies of some of the target's.
"""

from collections.abc import Sequence
from copy import copy, deepcopy
from typing import Any

from torch import Tensor, nn

from mmspec.models import compat
from mmspec.models.stack import stack
from mmspec.vision.families.base import ImageModel

_NORMS = ("norm", "ln_f")
_NUMBERS = ("layer_idx", "layer")  # attributes by which attention finds its place in a cache


class SharedLayers(nn.Module):
    """Decoder layers and the final norm of a small image model; see `over`.

    Args:
        target: the adapter of the model to draft for.
        taken: numbers of the target's layers that are copied, in order.

    Raises:
        ValueError: for no layers, and for numbers that the target does not have.
    """

    kind = "model"

    def __init__(self, target: ImageModel, taken: Sequence[int]):
        super().__init__()
        decoder, layers = target.model.get_decoder(), stack(target.model)
        if not taken or not all(0 <= number < len(layers) for number in taken):
            raise ValueError(f"layers {list(taken)} are to be copied, and this target has 0 to {len(layers) - 1}: give some of these")
        self.taken = tuple(taken)
        self.layers = nn.ModuleList(_copied(layers[number], place) for place, number in enumerate(taken))
        self.norm = deepcopy(next(getattr(decoder, name) for name in _NORMS if hasattr(decoder, name)))
        self.requires_grad_(True)  # the target may be frozen

    @staticmethod
    def spread(target: ImageModel, layers: int) -> "SharedLayers":
        """Copy layers at equal distances, the first and, from two on, the last among them.

        Args:
            target: the adapter of the model to draft for.
            layers: their number, fewer than the target's.

        Raises:
            ValueError: unless there are 1 layer at least and fewer than the target has.
        """
        most = len(stack(target.model))
        if not 1 <= layers < most:
            raise ValueError(f"layers is {layers}: a drafter of this target has 1 to {most - 1} layers")
        return SharedLayers(target, [round(number * (most - 1) / max(1, layers - 1)) for number in range(layers)])

    @property
    def dtype(self) -> Any:
        """The dtype of the layers."""
        return next(self.parameters()).dtype

    def over(self, target: ImageModel) -> ImageModel:
        """Return the adapter of the small model: `target`, with its grid and prompts, over these layers.

        Args:
            target: the adapter of the model to draft for. It is not changed.
        """
        root, decoder = target.model, target.model.get_decoder()
        place = next(name for name, module in root.named_modules() if module is decoder)
        old, new = [root], [compat.own_children(root)]
        for name in place.split(".") if place else ():
            old.append(getattr(old[-1], name))
            new.append(compat.own_children(old[-1]))
            setattr(new[-2], name, new[-1])
        own = {id(stack(root)): self.layers} | {id(getattr(decoder, name)): self.norm for name in _NORMS if hasattr(decoder, name)}
        for name, child in decoder.named_children():
            setattr(new[-1], name, own.get(id(child), child))
        small, found = copy(target), {id(before): after for before, after in zip(old, new, strict=True)}
        vars(small).update({name: found.get(id(value), value) for name, value in vars(target).items()})
        small.layers, small.drafter, small.assistant = len(self.layers), None, None
        return small

    def forward(self, *parts: Tensor) -> Tensor:
        """Not run by itself: run `over(target)`."""
        raise NotImplementedError("the layers of a small model run inside its target: call over(target)")


def _copied(layer: nn.Module, place: int) -> nn.Module:
    """A layer of its own, at another place of the stack."""
    other = deepcopy(layer)
    for module in other.modules():
        for name in _NUMBERS:
            if isinstance(getattr(module, name, None), int):
                setattr(module, name, place)
    return other
