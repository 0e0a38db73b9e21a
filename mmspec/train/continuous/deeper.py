"""Deepening a trained causal model of continuous tokens: new layers begin as the identity (Net2Net, Chen et al. 2016, 1511.05641)."""

from typing import Any

import torch
from torch import Tensor

from mmspec.vision.continuous.ar import ContinuousAR, ContinuousARConfig

_INNER = ("w1", "w3", "w2")


@torch.no_grad()
def deepened(model: ContinuousAR, layers: int, inner: int | None = None) -> ContinuousAR:
    """Return a deeper copy of a model, with the outputs of the model where its feed-forward layers keep their width.

    Layer i of the new model begins as the layer of the model at the same share of its depth. Of the new layers that begin as one layer,
    the first has its output; the others start with output matrices of zeros, so that they add nothing before training.

    Args:
        model: the trained model.
        layers: layers of the new one, at least as many as the model's.
        inner: width of its feed-forward layers; the units with the smallest products of norms are dropped. By default the model's.

    Returns:
        The new model, on the CPU.

    Raises:
        ValueError: for fewer layers, and for wider feed-forward layers.
    """
    config, old = model.config, model.config.num_hidden_layers
    inner = config.intermediate_size if inner is None else inner
    if layers < old:
        raise ValueError(f"layers is {layers}, but the model has {old}: give as many or more")
    if not 1 <= inner <= config.intermediate_size:
        raise ValueError(f"inner is {inner}, but the model's feed-forward layers have {config.intermediate_size} units: give 1 to that")
    sizes: dict[str, Any] = config.to_dict() | {"num_hidden_layers": layers, "intermediate_size": inner}
    new, state = ContinuousAR(ContinuousARConfig(**sizes)), model.state_dict()
    sources = [layer * old // layers for layer in range(layers)]
    found = {name: tensor for name, tensor in state.items() if not name.startswith("layers.")}
    for layer, source in enumerate(sources):
        first = layer == 0 or sources[layer - 1] != source
        part = {name.split(".", 2)[2]: tensor for name, tensor in state.items() if name.startswith(f"layers.{source}.")}
        for name, tensor in _narrowed(part, inner).items():
            output = name in ("attention.wo.weight", "feed_forward.w2.weight")
            found[f"layers.{layer}.{name}"] = tensor if first or not output else torch.zeros_like(tensor)
    new.load_state_dict(found)
    return new


def _narrowed(layer: dict[str, Tensor], inner: int) -> dict[str, Tensor]:
    """Return a layer's tensors with the `inner` strongest units of its feed-forward layer, in their order."""
    w1, w3, w2 = (layer[f"feed_forward.{name}.weight"] for name in _INNER)
    if inner == len(w1):
        return layer
    keep = (w1.norm(dim=1) * w3.norm(dim=1) * w2.norm(dim=0)).topk(inner).indices.sort().values
    return layer | {f"feed_forward.{name}.weight": each for name, each in zip(_INNER, (w1[keep], w3[keep], w2[:, keep]), strict=True)}
