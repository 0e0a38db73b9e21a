"""Small targets whose checkpoints hold multi-token prediction modules, named as the published ones are."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from tests.hybrids import EVERY_OTHER, EXPERTS, LINEAR, SIZES
from tests.sizes import VOCAB
from tests.sweep.image import make as small_vlm

DEEPSEEK = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": 2}
DEEPSEEK |= {"num_attention_heads": 2, "num_key_value_heads": 2, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8}
DEEPSEEK |= {"qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2}
MOE = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
GLM = SIZES | MOE | {"head_dim": 8, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}


def _qwen3_next() -> Any:
    return hf.Qwen3NextForCausalLM(hf.Qwen3NextConfig(**SIZES, **LINEAR, **EXPERTS, head_dim=8, layer_types=EVERY_OTHER))


def _qwen3_5() -> Any:
    return hf.Qwen3_5ForCausalLM(hf.Qwen3_5TextConfig(**SIZES, **LINEAR, head_dim=8, layer_types=EVERY_OTHER))


def _mellum() -> Any:
    kinds = ["sliding_attention", "full_attention"] * 2
    config = hf.MellumConfig(**SIZES, **MOE, head_dim=8, num_experts=4, layer_types=kinds, sliding_window=6, num_nextn_predict_layers=1)
    return hf.MellumForCausalLM(config)


def _deepseek(modules: int) -> Any:
    return hf.DeepseekV3ForCausalLM(hf.DeepseekV3Config(**DEEPSEEK, first_k_dense_replace=1, num_nextn_predict_layers=modules))


def _glm(modules: int) -> Any:
    return hf.Glm4MoeForCausalLM(hf.Glm4MoeConfig(**GLM, first_k_dense_replace=1, num_nextn_predict_layers=modules))


def _glm_lite() -> Any:
    latent = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "num_key_value_heads": 4}
    return hf.Glm4MoeLiteForCausalLM(hf.Glm4MoeLiteConfig(**SIZES | MOE | latent, n_routed_experts=4, n_group=1, topk_group=1))


def _step() -> Any:
    config = small_vlm("step3p7", "Step3p7ForConditionalGeneration").config
    modules = {"num_nextn_predict_layers": 1, "mtp_layer_types": ["full_attention"], "mtp_mlp_layer_types": ["dense"]}
    config.text_config = type(config.text_config)(**config.text_config.to_dict() | modules)
    config.image_token_id = config.text_config.vocab_size - 1  # whatever configs were made before: the model does not write it
    return hf.Step3p7ForConditionalGeneration(config)


SHIPPED: dict[str, Callable[[], Any]] = {
    "DeepSeek-V3": lambda: _deepseek(1),
    "DeepSeek-V3 two": lambda: _deepseek(2),
    "GLM-4.5": lambda: _glm(1),
    "GLM-4.7-Flash": _glm_lite,
    "Mellum": _mellum,
    "Step-3.7": _step,
    "Qwen3-Next": _qwen3_next,
    "Qwen3.5": _qwen3_5,
}
OTHER_NAMES = ("Mellum", "Qwen3-Next", "Qwen3.5")
"""Those whose module is named mtp. and has its projection and its norms beside its layer."""
BESIDE = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "fc")
WITHIN = ("enorm", "hnorm", "shared_head.norm", "eh_proj")
"""Names of a module's norms and its projection."""


def folder_of(name: str, root: Path, strength: float = 1.0) -> Path:
    """Write the small model of a family, with modules, to a folder under `root`, and return that.

    The outputs of attention and of MLPs are multiplied by `strength`, in the model and in its modules. With 0 the next token depends on the
    token before it alone, and the modules predict it without error.
    """
    folder = root / f"{name.replace(' ', '-')}-{strength}"
    torch.manual_seed(0)
    model = SHIPPED[name]().eval()
    for parameter_name, parameter in model.named_parameters():
        parameter.data.mul_(strength if any(part in parameter_name for part in ("o_proj", "out_proj", "down_proj")) else 3)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)
    add_modules(model, folder, beside=name in OTHER_NAMES)
    return folder


def add_modules(model: Any, folder: Path, beside: bool) -> None:
    """Add modules to the weights of `model` in `folder`: other attention, other experts, and a projection near to the embedding."""
    config, weights = model.config.get_text_config(), load_file(folder / "model.safetensors")
    layers, width = config.num_hidden_layers, config.hidden_size
    last = next(name.partition(f".{layers - 1}.")[0] for name in weights if f"layers.{layers - 1}." in name)
    for k in range(getattr(config, "num_mtp_layers", None) or 1):
        own = f"mtp.layers.{k}." if beside else f"{last}.{layers + k}."
        for name in list(weights):
            start = f"{last}.{layers - 1}."
            if name.startswith(start):
                weights[own + name.removeprefix(start)] = weights[name][torch.randperm(len(weights[name]))]
        names = BESIDE if beside else WITHIN
        own, norm = "mtp." if beside else own, weights[last.removesuffix("layers") + "norm.weight"]
        weights |= {f"{own}{name}.weight": norm.clone() for name in names[:3]}
        weights[f"{own}{names[3]}.weight"] = torch.cat([torch.eye(width), torch.randn(width, width) * 0.05 * _layers_matter(weights)], 1)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _layers_matter(weights: dict[str, torch.Tensor]) -> bool:
    return any(bool(weight.any()) for name, weight in weights.items() if "o_proj" in name)


def loaded(folder: Path) -> Any:
    """The model in a folder of `folder_of`. Families whose modules follow the layers know only the numbers of the published models."""
    model = getattr(hf, hf.AutoConfig.from_pretrained(folder).architectures[0]).from_pretrained(folder).eval()
    config = model.config.get_text_config()
    own = (f"model.layers.{config.num_hidden_layers}.", "mtp.")
    if not any(re.search(pattern, name) for pattern in model._keys_to_ignore_on_load_unexpected for name in own):
        many = getattr(config, "num_mtp_layers", None) or 1
        model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{config.num_hidden_layers + k}\." for k in range(many)]
    return model.requires_grad_(False)
