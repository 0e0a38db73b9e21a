"""torch's compiler: limits changed for a block."""

from contextlib import AbstractContextManager
from typing import Any

import torch


def many_shapes(count: int) -> AbstractContextManager[Any]:
    """Inside, torch may compile one function for `count` shapes: transformers wraps the forwards of all models in the same function.

    Relies on `torch._dynamo.config.patch` and the two limits (torch 2.11).
    """
    now = torch._dynamo.config
    limits = {"recompile_limit": count, "accumulated_recompile_limit": 4 * count}
    return now.patch({name: max(limit, getattr(now, name)) for name, limit in limits.items()})
