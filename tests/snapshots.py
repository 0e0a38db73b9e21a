"""What a call may leave behind: the state of a model, and of the process. Two snapshots are compared by `differences`."""

import gc
import linecache
import locale
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

State = dict[str, Any]


def model_state(model: nn.Module) -> State:
    """Tensors, hooks, attributes and modes of every module, and the configs."""
    found: State = {"modules": [name for name, _ in model.named_modules()]}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            found[f"{name}.{key}"] = _described(key, value)
    for name in ("config", "generation_config"):
        if hasattr(model, name):
            found[name] = getattr(model, name).to_dict()
            found[f"{name}.attributes"] = {key: str(value) for key, value in vars(getattr(model, name)).items()}
    for module in model.modules():
        if "config" in vars(module):
            found[f"{id(module)}.attention"] = (id(module.config), getattr(module.config, "_attn_implementation", None))
    found["class"], found["generate"] = type(model), getattr(type(model), "generate", None)
    return found


def _described(key: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, nn.Module):
        return id(value)
    if isinstance(value, Mapping):
        return {str(name): _described(str(name), part) for name, part in list(value.items())}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_described(key, part) for part in value]
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    return repr(type(value)) if hasattr(value, "__self__") else id(value)


def process_state() -> State:
    """What all code of a process shares."""
    return {
        "random": random.getstate(),
        "numpy": str(np.random.get_state()),
        "torch": torch.get_rng_state(),
        "threads of torch": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "deterministic": (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark),
        "precision": (torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
        "attention": (torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()),
        "dynamo": _dynamo(),
        "warnings": list(warnings.filters),
        "logging": (logging.getLogger().level, list(logging.getLogger().handlers), logging.root.manager.disable),
        "verbosity": transformers.utils.logging.get_verbosity(),
        "locale": locale.setlocale(locale.LC_ALL),
        "signals": {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)},
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "path": list(sys.path),
        "recursion": sys.getrecursionlimit(),
        "hooks of all modules": _all_modules_hooks(),
        "streams": (id(sys.stdout), id(sys.stderr), id(sys.excepthook)),
    }


def _dynamo() -> Any:
    config = torch._dynamo.config
    names = ("recompile_limit", "accumulated_recompile_limit", "suppress_errors", "capture_scalar_outputs", "dynamic_shapes")
    return {name: getattr(config, name) for name in names}


def _all_modules_hooks() -> list[int]:
    return [len(value) for name, value in vars(nn.modules.module).items() if name.startswith("_global") and hasattr(value, "__len__")]


def resources() -> State:
    """What is alive: tensors and their bytes, threads, open files, temporary files. After a collection."""
    gc.collect()
    linecache.clearcache()
    tensors = [found for found in gc.get_objects() if type(found) in (torch.Tensor, nn.Parameter)]
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t.layout == torch.strided and not t.is_meta
    }
    return {
        "tensors": len(tensors),
        "bytes": sum(storages.values()),
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),
        "temporary": sorted(name for name in os.listdir(tempfile.gettempdir()) if name.startswith(("tmp", "mmspec"))),
    }


def differences(before: Any, after: Any, where: str = "") -> list[str]:
    """Where two snapshots differ; [] if they do not."""
    if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
        same = before.shape == after.shape and before.dtype == after.dtype and torch.equal(before, after)
        return [] if same else [where]
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        keys = [f"{where}.{key} ({'gone' if key in before else 'new'})" for key in before.keys() ^ after.keys()]
        return keys + [line for key in before.keys() & after.keys() for line in differences(before[key], after[key], f"{where}.{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [line for number, pair in enumerate(zip(before, after, strict=True)) for line in differences(*pair, f"{where}[{number}]")]
    return [] if before == after else [f"{where}: {str(before)[:80]} -> {str(after)[:80]}"]
