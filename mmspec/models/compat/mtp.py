"""Multi-token prediction modules in checkpoints, as transformers' `MtpModel` loads them."""

import copy
from typing import Any

from transformers.modeling_layers import MtpModel

from mmspec.utils.weights import own_memory

_QWEN = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
_EXPERTS = {"mtp_mlp_layer_types": ["sparse"]}
UNDECLARED: dict[str, dict[str, Any]] = {**{kind: {} for kind in _QWEN}, "glm4_moe_lite": _EXPERTS}
"""Families whose checkpoints hold one module of full attention, named as `MtpModel` reads it, and whose configs do not declare it; with
what the config would say besides."""
_NAMED = r"^mtp\."


def declares_modules(config: Any) -> bool:
    """Whether the checkpoints of a model with this config can hold modules that `MtpModel` reads.

    Relies on `num_mtp_layers` of the decoder's config (since 5.17), and for `UNDECLARED` on `MtpModel` reading the names of Qwen's modules,
    which Mellum's share, and those of GLM-4.7-Flash's, which DeepSeek's share (since 5.23).
    """
    decoder = config.get_text_config(decoder=True)
    return bool(getattr(decoder, "num_mtp_layers", None)) or decoder.model_type in UNDECLARED


def shipped_modules(model: Any) -> MtpModel:
    """The modules in the checkpoint that `model` was loaded from.

    Relies on `MtpModel.from_pretrained(main_model)` reading `main_model.config` (where it was loaded from, and the number and the kinds of
    its modules) and `_keys_to_ignore_on_load_unexpected` (their names), so that a shallow copy can declare what the config does not.

    Args:
        model: a model for which `declares_modules` is True.

    Raises:
        RuntimeError, OSError, ValueError: where there are none.
    """
    if getattr(model.config.get_text_config(decoder=True), "num_mtp_layers", None):
        return own_memory(MtpModel.from_pretrained(model))
    declaring = copy.copy(model)
    declaring.config = copy.deepcopy(model.config)
    decoder = declaring.config.get_text_config(decoder=True)
    for name, value in {"num_mtp_layers": 1, "mtp_layer_types": ["full_attention"], **UNDECLARED[decoder.model_type]}.items():
        setattr(decoder, name, value)
    if decoder.model_type in _QWEN:  # others know the number of their module's layer
        declaring._keys_to_ignore_on_load_unexpected = [_NAMED]
    return own_memory(MtpModel.from_pretrained(declaring))
