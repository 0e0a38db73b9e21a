"""Every reach into transformers' internals: private methods, frames, replaced classes, and names that are not documented.

Each function says what it relies on and since which release; `tests/core/test_compat.py` holds a canary for each, which fails when a new
release of transformers no longer works as assumed here. No other module of mmspec may reach below transformers' documented interface.
"""

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

# --- attention --------------------------------------------------------------------------------------------------------


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


# --- torch's compiler -------------------------------------------------------------------------------------------------


def many_shapes(count: int) -> AbstractContextManager[Any]:
    """Inside, torch may compile one function for `count` shapes: transformers wraps the forwards of all models in the same function.

    Relies on `torch._dynamo.config.patch` and the two limits (torch 2.11).
    """
    now = torch._dynamo.config
    limits = {"recompile_limit": count, "accumulated_recompile_limit": 4 * count}
    return now.patch({name: max(limit, getattr(now, name)) for name, limit in limits.items()})
