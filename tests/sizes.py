"""How small the random models of the tests are."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mmspec.models.compat.mixers import drives_states

STATES = drives_states()
"""Whether models with states are supported under this transformers."""
VOCAB = 60
SMALL = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 128}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {**SMALL, **IDS, "intermediate_size": 64, "num_key_value_heads": 2}
GEMMA_LAYERS = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]


@dataclass(frozen=True)
class Case:
    make: Callable[[], Any]
    kind: str
    note: str = ""


def build(case: Case, seed: int = 0) -> Any:
    """The model in eval mode, its weights spread so that greedy decoding does not sit in a loop."""
    torch.manual_seed(seed)
    model = case.make().eval()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.15)
    model.generation_config.max_length = None
    return model
