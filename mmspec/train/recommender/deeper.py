"""Deeper targets: a trained model with new layers that pass their input on (ReZero, 2003.04887; LLaMA Pro, 2401.02415).

A new layer's two output projections are zero, so that the deeper model begins with the scores of the one that was trained.
"""

from pathlib import Path
from typing import Any

import torch


def deepened_model(folder: Path, layers: int, shape: Any) -> Any:
    """Read a model, with new layers spread between its own, each of which returns what it is given.

    Args:
        folder: what `save_pretrained` wrote.
        layers: layers in all.
        shape: a model of that many layers, whose weights are replaced.

    Returns:
        `shape`, in float32.

    Raises:
        ValueError: for a folder with as many layers or more, or with other sizes.
    """
    from transformers import LlamaForCausalLM

    small: Any = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    count = small.config.num_hidden_layers
    if layers <= count:
        raise ValueError(f"layers is {layers}, and {folder} has {count}: give more")
    places = [round((number + 1) * layers / count) - 1 for number in range(count)]  # of the folder's layers: the last stays the last
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
        raise ValueError(f"{folder} has other sizes than this data set's model: {str(error).splitlines()[-1].strip()}") from None
    return shape
