"""An image model seen as a target whose vocabulary is its codes and controls: what drafter nets are made for, trained on and loaded for."""

from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.models.stack import stack
from mmspec.vision.families.base import ImageModel

_PROBED = 16  # codes that a fingerprint reads
_ALIKE = 0.05  # of the largest number of a fingerprint: bfloat16 and float16 round by less


class CodeHead(nn.Module):
    """The output head of an image model over its codes and controls; nothing of it is trained.

    Args:
        model: the adapter.
    """

    def __init__(self, model: ImageModel):
        super().__init__()
        self._own = (model,)  # in a tuple: the network is no part of this module

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits [..., values] of `hidden` [..., H], of any dtype."""
        (model,) = self._own
        return model.logits(hidden.to(model.model.dtype))

    @torch.no_grad()
    def rows(self) -> Tensor | None:
        """Return the head as one matrix [values, H] in the network's dtype; None for a head that is not linear (Janus)."""
        (model,) = self._own
        width = text_config(model.model).hidden_size
        one = torch.eye(width + 1, width, dtype=model.model.dtype, device=model.model.device)
        one[-1] = 1.0  # the sum of all others
        found = model.logits(one[None])[0]
        whole, total = found[-1].float(), found[:-1].float().sum(0)
        return found[:-1].T.contiguous() if torch.allclose(total, whole, atol=_ALIKE * whole.abs().max().item()) else None


class CodeTarget(nn.Module):
    """An image model as drafter nets read a target: its values are the codes and controls of its raster.

    Args:
        model: the adapter. Its network is neither trained nor saved with this module.

    Attributes:
        config: the decoder's config with the number of codes and controls as its vocabulary.
    """

    def __init__(self, model: ImageModel):
        super().__init__()
        self._own, self.head = (model,), CodeHead(model)
        self.config = copy(text_config(model.model))
        self.config.vocab_size = model.values

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self._own[0].model.device

    @property
    def dtype(self) -> torch.dtype:
        """The network's dtype."""
        return self._own[0].model.dtype

    def get_input_embeddings(self) -> Any:
        """Return the map from values [B, M] to embeddings [B, M, H]."""
        return self._own[0].embed

    def get_output_embeddings(self) -> CodeHead:
        """Return the head over codes and controls."""
        return self.head


def text_config(network: Any) -> Any:
    """Return the config of a network's decoder."""
    return network.config.get_text_config(decoder=True)


@torch.no_grad()
def fingerprint(model: ImageModel) -> dict[str, Any]:
    """Return what tells a target of drafters from others: class, sizes, and numbers made of its codes' embeddings and output rows.

    The numbers are the same in every dtype up to rounding.

    Args:
        model: the adapter of the target.

    Returns:
        Names and values, ready for JSON.
    """
    network, codes = model.model, model.raster.codes
    values = torch.arange(0, codes, -(-codes // _PROBED), device=network.device)
    width = text_config(network).hidden_size
    wave = torch.cos(torch.arange(width, device=network.device, dtype=torch.float32) ** 1.5)
    embeds = model.embed(values[None])[0].float() @ wave
    logits = model.logits(wave.to(network.dtype)[None, None])[0, 0, values].float()
    sizes = {"model": type(network).__name__, "codes": codes, "values": model.values, "hidden_size": width, "layers": len(stack(network))}
    return sizes | {"embeddings": _rounded(embeds), "logits": _rounded(logits)}


def check_fingerprint(found: dict[str, Any], model: ImageModel, source: Any) -> None:
    """Check that a drafter is for a target.

    Args:
        found: `fingerprint` of the target that it was trained for.
        model: the adapter of the target that it is to draft for.
        source: what is being loaded, for messages.

    Raises:
        ValueError: naming the first entry that differs.
    """
    own = fingerprint(model)
    for name, value in own.items():
        before = found.get(name)
        if isinstance(value, list):
            fits = isinstance(before, list) and len(before) == len(value) and _alike(before, value)
        else:
            fits = before == value
        if not fits:
            shown = "others" if isinstance(value, list) else f"{before}, and this one's {value}"
            raise ValueError(f"{source} is for another target, whose {name.replace('_', ' ')} are {shown}: give a drafter of this model")


def _rounded(numbers: Tensor) -> list[float]:
    return [float(f"{number:.4g}") for number in numbers.tolist()]


def _alike(first: list[float], second: list[float]) -> bool:
    bound = _ALIKE * max(map(abs, second))
    return all(abs(a - b) <= bound for a, b in zip(first, second, strict=True))
