"""Models with recurrent or convolution states, as small random models: two layers of each kind."""

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

from mmspec.models.compat.cache_name import cache_keyword, cache_of
from mmspec.models.recurrent.states import RecurrentStates
from tests.sizes import LLAMA, STATES, VOCAB, Case, build

__all__ = ["HYBRIDS", "LINEAR", "MAMBA2", "another", "build", "of_sizes", "prompts", "small", "uncached_states"]

EVERY_OTHER = ["linear_attention", "full_attention"] * 2
CONVS = ["conv", "full_attention"] * 2
SIZES = LLAMA | {"num_hidden_layers": 4}
LINEAR = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
SSM = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8, "mamba_expand": 2}
MAMBA = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "pad_token_id": 0}
MAMBA2 = MAMBA | {"num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8}
LATENT = {"kv_lora_rank": 16, "q_lora_rank": None, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
NEMOTRON = {
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe", "linear_attention", "full_attention"],
    **{"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 1, "chunk_size": 8, "head_dim": 8},
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 16},
}
RECURRENT_GEMMA = {
    **{name: size for name, size in SIZES.items() if name != "max_position_embeddings"},
    **{"head_dim": 8, "lru_width": 32, "attention_window_size": 8, "block_types": ["recurrent", "attention"]},
}
_LESS = ("num_hidden_layers",)


def _nemotron() -> Any:
    return hf.NemotronHForCausalLM(hf.NemotronHConfig(**{name: size for name, size in LLAMA.items() if name not in _LESS}, **NEMOTRON))


def _qwen3_5() -> Any:
    text = hf.models.qwen3_5.configuration_qwen3_5.Qwen3_5TextConfig
    return hf.Qwen3_5ForCausalLM(text(**SIZES, **LINEAR, head_dim=8, layer_types=EVERY_OTHER))


def _qwen3_5_moe() -> Any:
    text = hf.models.qwen3_5_moe.configuration_qwen3_5_moe.Qwen3_5MoeTextConfig
    return hf.Qwen3_5MoeForCausalLM(text(**SIZES, **LINEAR, **EXPERTS, head_dim=8, layer_types=EVERY_OTHER))


def _lfm3() -> Any:
    kinds = ["conv", "sliding_attention", "conv", "full_attention"]
    return hf.Lfm3ForCausalLM(hf.Lfm3Config(**SIZES, head_dim=8, layer_types=kinds, conv_L_cache=4, sliding_window=6))


def _kimi() -> Any:
    sizes = SIZES | {"num_key_value_heads": 4} | LATENT
    linear = {"linear_head_dim": 8, "linear_num_heads": 4, "layer_types": EVERY_OTHER}
    return hf.KimiLinearForCausalLM(
        hf.KimiLinearConfig(**sizes, **linear, num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
    )


def _bailing() -> Any:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1}
    sizes = SIZES | {"num_key_value_heads": 4} | LATENT
    return hf.BailingHybridForCausalLM(hf.BailingHybridConfig(**sizes, **experts, head_dim=8, layer_types=EVERY_OTHER))


def _zamba() -> Any:
    sizes = {"attention_hidden_size": 64, "attention_head_dim": 16, "mamba_d_state": 8, "mamba_dt_rank": 4, "n_mamba_heads": 2}
    return hf.ZambaForCausalLM(
        hf.ZambaConfig(**SIZES, **sizes, tie_word_embeddings=False, layers_block_type=["linear_attention", "hybrid"] * 2)
    )


def _zamba2() -> Any:
    sizes = {"mamba_d_state": 8, "n_mamba_heads": 4, "chunk_size": 8, "adapter_rank": 4, "num_mem_blocks": 1, "use_mem_rope": True}
    config = hf.Zamba2Config(**SIZES, **sizes, layers_block_type=["linear_attention", "hybrid"] * 2)
    return hf.Zamba2ForCausalLM(config)


MAKERS: dict[str, Callable[[], Any]] = {
    "Qwen3-Next": lambda: hf.Qwen3NextForCausalLM(hf.Qwen3NextConfig(**SIZES, **LINEAR, **EXPERTS, head_dim=8, layer_types=EVERY_OTHER)),
    "Qwen3.5": _qwen3_5,
    "Qwen3.5-MoE": _qwen3_5_moe,
    "Mamba-2": lambda: hf.Mamba2ForCausalLM(hf.Mamba2Config(**MAMBA2)),
    "Falcon-H1": lambda: hf.FalconH1ForCausalLM(hf.FalconH1Config(**LLAMA, **SSM, mamba_d_ssm=64)),
    "Bamba": lambda: hf.BambaForCausalLM(hf.BambaConfig(**SIZES, **SSM, attn_layer_indices=[1, 3])),
    "Granite-MoE-hybrid": lambda: hf.GraniteMoeHybridForCausalLM(
        hf.GraniteMoeHybridConfig(
            **SIZES, **SSM, layer_types=EVERY_OTHER, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=32
        )
    ),
    "LFM2": lambda: hf.Lfm2ForCausalLM(hf.Lfm2Config(**SIZES, layer_types=CONVS, conv_L_cache=3)),
    "LFM3": _lfm3,
    "LFM2-MoE": lambda: hf.Lfm2MoeForCausalLM(
        hf.Lfm2MoeConfig(**SIZES, layer_types=CONVS, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2, num_dense_layers=1)
    ),
    "Jamba": lambda: hf.JambaForCausalLM(
        hf.JambaConfig(
            **SIZES, attn_layer_period=2, attn_layer_offset=1, mamba_d_state=8, mamba_dt_rank=4, num_experts=4, num_experts_per_tok=2
        )
    ),
    "Nemotron-H": _nemotron,
    "Mamba": lambda: hf.MambaForCausalLM(hf.MambaConfig(**MAMBA)),
    "Falcon-Mamba": lambda: hf.FalconMambaForCausalLM(hf.FalconMambaConfig(**MAMBA)),
    "Zamba": _zamba,
    "Zamba2": _zamba2,
    "Kimi-Linear": _kimi,
    "Bailing-hybrid": _bailing,
    "MiniMax": lambda: hf.MiniMaxForCausalLM(
        hf.MiniMaxConfig(**SIZES, head_dim=8, block_size=4, layer_types=EVERY_OTHER, num_local_experts=4, num_experts_per_tok=2)
    ),
    "RecurrentGemma": lambda: hf.RecurrentGemmaForCausalLM(hf.RecurrentGemmaConfig(**RECURRENT_GEMMA)),
    "OLMo-hybrid": lambda: hf.OlmoHybridForCausalLM(hf.OlmoHybridConfig(**SIZES, **LINEAR, layer_types=EVERY_OTHER)),
}
HYBRIDS = {name: Case(make, "hybrid") for name, make in MAKERS.items() if STATES}


def small(name: str) -> Any:
    """The small model of a family; its rows never end early."""
    model = build(HYBRIDS[name])
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model.requires_grad_(False)


def of_sizes(name: str, vocabulary: int, layers: int) -> Any:
    """As `small`, with another number of values, and its last layers only."""
    first = small(name)
    first.config.vocab_size = vocabulary
    if layers != first.config.num_hidden_layers:
        first.config.num_hidden_layers, first.config.layer_types = layers, first.config.layer_types[-layers:]
    model = build(Case(lambda: type(first)(first.config), "hybrid"))
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    return model.requires_grad_(False)


def another(name: str, by: float = 0.01) -> Any:
    """A model of the same family that often disagrees with `small`, to draft for it."""
    model = small(name)
    torch.manual_seed(5)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * by)
    return model


def prompts(lengths: tuple[int, ...], seed: int = 1) -> dict[str, torch.Tensor]:
    """Prompts of the given lengths, padded on the left."""
    generator = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    ids, mask = torch.zeros(len(lengths), longest, dtype=torch.long), torch.zeros(len(lengths), longest, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, longest - length :] = torch.randint(3, VOCAB, (length,), generator=generator)
        mask[row, longest - length :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def row_of(inputs: dict[str, torch.Tensor], row: int) -> dict[str, torch.Tensor]:
    """One prompt alone, without padding."""
    real = inputs["attention_mask"][row].bool()
    return {name: value[row][real][None] for name, value in inputs.items()}


@torch.no_grad()
def uncached_states(
    model: Any, states: RecurrentStates, ids: list[int], prompt: int
) -> list[tuple[torch.Tensor | None, torch.Tensor | None]]:
    """Convolution and recurrent state of every mixer after `ids`, as the model's own forward from an empty cache leaves them.

    Where a mixer limits the time steps of several columns, only the first `prompt` ids are run at once, as `generate` runs them.
    """
    at_once = prompt if any(layer.mixer.limited for layer in states.layers) else len(ids)
    out = model(input_ids=torch.tensor([ids[:at_once]]), use_cache=True)
    for token in ids[at_once:]:
        out = model(input_ids=torch.tensor([[token]]), use_cache=True, **cache_keyword(model, cache_of(out)))
    cache = cache_of(out)
    found = []
    for layer in states.layers:
        module = model.get_submodule(layer.mixer.path)
        if layer.mixer.holds:
            found.append((module.conv1d_state, module.rg_lru.recurrent_states))
        elif layer.mixer.pair:
            found.append((None, cache.linear_cache[module.layer_idx]))
        else:
            kept = cache.layers[module.layer_idx]
            found.append((kept.conv_states[0], kept.recurrent_states[0]))
    return found
