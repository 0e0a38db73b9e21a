"""Deeper targets: a trained model with new layers that pass their input on (ReZero, 2003.04887; LLaMA Pro, 2401.02415).

A new layer's two output projections are zero, so that the deeper model begins with the scores of the one that was trained.
"""

from typing import Any

import torch


def deepened_model(small: Any, shape: Any) -> Any:
    """Put a model's layers into a deeper one, spread between new layers, each of which returns what it is given.

    Args:
        small: a `LlamaForCausalLM`.
        shape: one with more layers and the same sizes, whose weights are replaced.

    Returns:
        `shape`.

    Raises:
        ValueError: for a shape with as many layers or fewer, or with other sizes.
    """
    count, layers = small.config.num_hidden_layers, shape.config.num_hidden_layers
    if layers <= count:
        raise ValueError(f"layers is {layers}, and the model has {count}: give more")
    places = [round((number + 1) * layers / count) - 1 for number in range(count)]  # of the model's layers: the last stays the last
    state = {name: weight for name, weight in small.state_dict().items() if ".layers." not in name}
    for name, weight in shape.state_dict().items():
        if ".layers." in name and name.endswith(("self_attn.o_proj.weight", "mlp.down_proj.weight")):
            state[name] = torch.zeros_like(weight)
        elif ".layers." in name:
            state[name] = weight
    for number, place in enumerate(places):
        state |= {
            name.replace(f".layers.{number}.", f".layers.{place}."): weight
            for name, weight in small.state_dict().items()
            if f".layers.{number}." in name
        }
    try:
        shape.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"the models have different sizes: {str(error).splitlines()[-1].strip()}") from None
    return shape
