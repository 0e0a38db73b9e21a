"""Undocumented facts of models and configs: their attention, their state, where they were loaded from, offloaded weights."""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor
from torch.nn.modules import module as torch_modules
from transformers import PreTrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


def eager_configs(configs: Sequence[Any]) -> dict[int, Any]:
    """For each config its id, and a copy of it that asks for attention computed step by step. Configs within configs are copied too.

    Relies on `PreTrainedConfig._attn_implementation` being read in every forward (since 4.48) and setting those of the configs within.
    """
    found: dict[int, Any] = {}
    for config in configs:
        if id(config) not in found:
            found[id(config)] = copy.deepcopy(config)
            found[id(config)]._attn_implementation = "eager"
    return found


def attention_of(config: Any) -> str:
    """The attention that modules with this config run: "sdpa", "eager", ...

    Relies on `PreTrainedConfig._attn_implementation` (since 4.48): the public argument `attn_implementation` can only be set.
    """
    return config._attn_implementation


def ask_attention(config: Any, name: str) -> None:
    """Modules made from `config` run attention `name`. For layers made by hand, which `from_pretrained` has not dispatched.

    Relies on `PreTrainedConfig._attn_implementation` (since 4.48).
    """
    config._attn_implementation = name


def is_stateful(model: Any) -> bool:
    """Whether `model` keeps a recurrent state besides keys and values. Relies on `PreTrainedModel._is_stateful` (since 4.45)."""
    return bool(getattr(model, "_is_stateful", False))


def tensor_parallel_group(model: Any) -> Any:
    """The process group over which the layers of `model` are split; None for a model that this process holds whole.

    Relies on `PreTrainedModel._device_mesh` (since 4.50), a `DeviceMesh` with a dimension "tp" (5.23) or of one dimension (5.17).
    """
    mesh = getattr(model, "_device_mesh", None)
    if mesh is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    group = mesh.get_group("tp" if "tp" in (mesh.mesh_dim_names or ()) else None)
    return group if distributed.get_world_size(group) > 1 else None


def config_path(config: Any) -> str:
    """Where a model was loaded from. Relies on `PreTrainedConfig._name_or_path` (since 3.5; empty for models built in code)."""
    return getattr(config, "_name_or_path", "")


def has_weights(module: Any) -> bool:
    """Whether the parameters of `module` itself hold data, or accelerate's hook (`_hf_hook`) brings it in for each forward."""
    return hasattr(module, "_hf_hook") or not any(weight.is_meta for weight in module.parameters(recurse=False))


def execution_device(model: Any) -> torch.device:
    """Where the forwards of `model` run: its own device, or for weights kept elsewhere (meta) the one that accelerate brings them to.

    Relies on `AlignDevicesHook.execution_device` of accelerate (0.20 to 1.x), alone or in a `SequentialHook.hooks`.
    """
    if model.device.type != "meta":
        return model.device
    for module in model.modules():
        hook = getattr(module, "_hf_hook", None)
        for each in getattr(hook, "hooks", (hook,)):
            device = getattr(each, "execution_device", None)
            if device is not None:
                return torch.device(device)
    return model.device


def bring_weights(module: Any) -> None:
    """Move a model that accelerate keeps elsewhere between its forwards to where it runs, as a call of its forward would.

    Relies on `_hf_hook.pre_forward(module)` of accelerate (0.20 to 1.x), by which diffusers' `enable_model_cpu_offload` moves whole models.
    Hooks of the parts of a model are left to those parts' forwards.
    """
    hook = getattr(module, "_hf_hook", None)
    if hook is not None:
        hook.pre_forward(module)


def hooks_of(module: Any) -> dict[int, Any]:
    """Forward hooks and forward pre-hooks of a module, by their numbers, which are never given twice.

    Relies on torch keeping them in `_forward_hooks` and `_forward_pre_hooks`.
    """
    return {**module._forward_hooks, **module._forward_pre_hooks}


def global_hooks() -> dict[int, Any]:
    """Hooks of the forwards of all modules (`torch.nn.modules.module.register_module_forward_hook`), by their numbers.

    Relies on torch keeping them in `_global_forward_hooks` and `_global_forward_pre_hooks`.
    """
    return {**torch_modules._global_forward_hooks, **torch_modules._global_forward_pre_hooks}


def only_brings_weights(module: Any) -> bool:
    """Whether the `forward` that a module has of its own is accelerate's, which moves weights and inputs and calls that of the class.

    Relies on `_hf_hook`, a hook of accelerate or a `SequentialHook` of some, and `_old_forward` (accelerate 0.20 to 1.x).
    """
    hook, forward, before = (vars(module).get(name) for name in ("_hf_hook", "forward", "_old_forward"))
    hooks = (hook, *getattr(hook, "hooks", ()))
    ours = all(type(each).__module__ == "accelerate.hooks" for each in hooks) and isinstance(forward, partial)
    return ours and forward.func.__module__ == "accelerate.hooks" and getattr(before, "__func__", None) is type(module).forward


def attention_function(config: Any) -> Any:
    """The function that computes attention in a model with this config; None where it is computed step by step, in the model's own file,
    and for configs that are not of transformers.

    Relies on `transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS` (since 4.48), a mapping by name.
    """
    return ALL_ATTENTION_FUNCTIONS.get(attention_of(config)) if isinstance(config, PreTrainedConfig) else None


def is_sharded(weight: Any) -> bool:
    """Whether a weight is a part of one that is split over processes. Relies on `torch.distributed.tensor.DTensor` (torch 2.5)."""
    return distributed.is_available() and type(weight) is DTensor


def is_block_assistant(model: Any) -> bool:
    """Whether `model` was made to draft blocks (DFlash). Relies on the keys that `DFlashTokenCandidateGenerator` reads (since 5.23)."""
    config = getattr(model, "config", None)
    keys = ("target_layer_ids", "mask_token_id", "block_size")
    return isinstance(model, torch.nn.Module) and all(hasattr(config, key) for key in keys)


def norms_embeddings(module: Any) -> bool:
    """Whether an input embedding norms what it looks up. Relies on `MuseGlimmerTextNormedEmbedding.embed_norm` (since 5.23), which
    `DFlashTokenCandidateGenerator` leaves out.
    """
    return getattr(module, "embed_norm", None) is not None


def own_children(module: nn.Module) -> nn.Module:
    """Return the same module, over the same weights, with children that can be replaced without changing `module`.

    Relies on `Module._modules`, a dict by name.
    """
    view = copy.copy(module)
    view._modules = dict(module._modules)
    return view


def writes_of(tensor: Tensor) -> int:
    """How often a tensor was written to in place; 0 for tensors of inference mode, which are not counted. Relies on `Tensor._version`."""
    return 0 if tensor.is_inference() else tensor._version


def per_layer_inputs(model: Any, ids: Tensor, placeholders: Sequence[int], fill: int) -> Tensor:
    """What each layer of Gemma-4 adds for `ids` [B, M], beside their embeddings: [B, M, layers, D]. Placeholders read as id `fill`.

    Relies on `Gemma4TextModel.get_per_layer_inputs(input_ids, inputs_embeds)` (since 5.17), which would look for ids by their embeddings
    where only those are given.
    """
    marked = torch.isin(ids, torch.tensor(placeholders, device=ids.device))
    return model.get_decoder().get_per_layer_inputs(ids.masked_fill(marked, fill), None)


def adapter_for_sound(model: Any) -> bool | None:
    """Whether the adapter is on that a model's `generate` turns on for sound and off for text alone; None for models without one.

    Relies on Granite Speech's `generate` doing so where `_hf_peft_config_loaded` is set (5.17 to 5.23), and on `disable_adapters` of peft's
    layers.
    """
    if getattr(model.config, "model_type", None) != "granite_speech" or not getattr(model, "_hf_peft_config_loaded", False):
        return None
    return not any(getattr(layer, "disable_adapters", None) is True for layer in model.modules())


def sampled_frames(video_processor: Any, metadata: Any) -> list[int]:
    """The numbers of the frames that `video_processor` takes of a clip with this `VideoMetadata`; all where it does not sample.

    Relies on `BaseVideoProcessor.preprocess` calling `sample_frames(metadata=, **settings)` where `do_sample_frames` is set, with the
    processor's own value of every name in `valid_kwargs` but the five left out here (5.17 to 5.24).
    """
    if not video_processor.do_sample_frames:
        return list(range(metadata.total_num_frames))
    apart = ("input_data_format", "do_convert_rgb", "do_sample_frames", "device", "video_metadata")
    settings = {name: getattr(video_processor, name, None) for name in video_processor.valid_kwargs.__annotations__ if name not in apart}
    return [int(index) for index in video_processor.sample_frames(metadata=metadata, **settings)]
