"""A two-layer Llama with a tokenizer of letters, as a GGUF file."""

from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
TOKENS = ["<unk>", "<s>", "</s>", "▁", *"abcdefghijklmnopqrstuvwxyz.,?!", "th", "he", "▁a", "in", "er"]
_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def model(seed: int = 0, layers: int = 2) -> LlamaForCausalLM:
    """Random weights, sharp enough that greedy decoding has no ties, that never write the end token."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(TOKENS), num_hidden_layers=layers, max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=False, **SIZES
    )
    config.bos_token_id, config.eos_token_id, config.pad_token_id = 1, 2, 0
    found = LlamaForCausalLM(config).eval()
    for parameter in found.parameters():
        parameter.data.mul_(6)
    found.lm_head.weight.data[config.eos_token_id] = 0
    return found


def write(path: Path, source: LlamaForCausalLM, quantized: bool = False, leave_out: str | None = None) -> Path:
    """`source` as a GGUF file: float32, or matrices as Q8_0; without the tensor `leave_out`."""
    import gguf

    config, writer = source.config, gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([-float(index) for index in range(len(TOKENS))])
    writer.add_token_types([2, 3, 3, *[1] * (len(TOKENS) - 3)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    for name, tensor in source.state_dict().items():
        if name != leave_out:
            values = _as_stored(name, tensor.numpy(), config)
            matrix = quantized and values.ndim == 2
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(_name(name), gguf.quants.quantize(values, kind) if matrix else values, raw_dtype=kind if matrix else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _name(name: str) -> str:
    bare = name.removesuffix(".weight")
    if bare in _TOP:
        return f"{_TOP[bare]}.weight"
    _, _, layer, part = bare.split(".", 3)
    return f"blk.{layer}.{_NAMES[part]}.weight"


def _as_stored(name: str, values: np.ndarray, config: LlamaConfig) -> np.ndarray:
    """GGUF keeps the rows of queries and keys in the order of interleaved rotary embeddings."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if heads is None:
        return values
    return np.ascontiguousarray(values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape))
