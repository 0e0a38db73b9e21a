"""A smaller LlamaGen that stands alone: copies of some of its target's layers, and embeddings and head of its own."""

from typing import Any

from mmspec.vision.families.llamagen_network import LlamaGen


def small_llamagen(target: LlamaGen, layers: int) -> LlamaGen:
    """Return a LlamaGen with `layers` layers copied from `target`, the first and the last among them, and its embeddings and head.

    The embedding of prompts is not to be trained: the target's prompts are read.

    Args:
        target: the model to draft for.
        layers: number of layers, fewer than the target's.

    Raises:
        ValueError: unless there are 1 layer at least and fewer than the target has.
    """
    most = target.config.num_hidden_layers
    if not 1 <= layers < most:
        raise ValueError(f"layers is {layers}: a drafter of this target has 1 to {most - 1} layers")
    config = type(target.config).from_dict(target.config.to_dict() | {"num_hidden_layers": layers, "dropout": 0.0})
    made: Any = LlamaGen(config)
    small = made.to(target.device, target.dtype)
    taken = [round(number * (most - 1) / max(1, layers - 1)) for number in range(layers)]
    weights = {name: tensor for name, tensor in target.state_dict().items() if not name.startswith("layers.")}
    for number, layer in enumerate(taken):
        weights |= {f"layers.{number}.{name}": tensor for name, tensor in target.layers[layer].state_dict().items()}
    small.load_state_dict(weights)
    small.cls_embedding.requires_grad_(False)
    return small
