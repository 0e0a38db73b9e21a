"""A small Gemma-4 and an assistant that reads its keys and values, and often agrees with it."""

from typing import Any

import torch
import transformers as hf

from mmspec.models.compat.shared_states import buildable
from tests.sizes import VOCAB

TEXT = {
    **{"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"head_dim": 8, "global_head_dim": 16, "max_position_embeddings": 128, "pad_token_id": 0, "tie_word_embeddings": False},
}
DRAFTED = 4
KINDS = ["sliding_attention", "full_attention"] * 2
NARROW, WIDE = 6, 64
"""Windows: one that ends inside the prompts, and one that does not end."""


def target(shared: int = 2, window: int = NARROW) -> Any:
    config = hf.Gemma4TextConfig(
        **TEXT,
        sliding_window=window,
        num_hidden_layers=4,
        layer_types=list(KINDS),
        num_kv_shared_layers=shared,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCAB,
    )
    torch.manual_seed(0)
    return _finished(hf.Gemma4ForCausalLM(config))


def assistant(of: Any, window: int = NARROW, ordered: bool = False) -> Any:
    """An assistant of the target `of`; `ordered` with an output embedding in clusters."""
    config = assistant_config(window, ordered)
    torch.manual_seed(1)
    model = _finished(hf.Gemma4AssistantForCausalLM(buildable(config)))
    model.generation_config.num_assistant_tokens = DRAFTED
    model.pre_projection.weight.copy_(torch.cat([torch.eye(32), torch.randn(32, 32) * 0.003], 1))
    model.lm_head.weight.copy_(of.lm_head.weight)
    if ordered:
        model.masked_embedding.token_ordering.copy_(torch.randperm(VOCAB))
    return model


def assistant_config(window: int = NARROW, ordered: bool = False) -> Any:
    none = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "num_kv_shared_layers": 2}
    text = hf.Gemma4TextConfig(**TEXT, **none, sliding_window=window, num_hidden_layers=2, layer_types=KINDS[:2])
    centroids = {"use_ordered_embeddings": ordered, "num_centroids": 5, "centroid_intermediate_top_k": 3}
    return hf.Gemma4AssistantConfig(text_config=text, backbone_hidden_size=32, tie_word_embeddings=False, **centroids)


def _finished(model: Any) -> Any:
    """`model` with large weights, but small outputs of its layers, so that the next token depends most on the one before."""
    model.requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "post_" in name and "norm" in name:
            parameter.fill_(0.04)
        else:
            parameter.mul_(3)
    model.generation_config.eos_token_id = None
    return model.eval()
