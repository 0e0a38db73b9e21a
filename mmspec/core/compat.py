"""Every reach into transformers' internals: private methods, frames, replaced classes, and names that are not documented.

Each function says what it relies on and since which release; `tests/core/test_compat.py` holds a canary for each, which fails when a new
release of transformers no longer works as assumed here. No other module of mmspec may reach below transformers' documented interface.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def rope_deltas_kept(model: Any) -> Iterator[None]:
    """Puts back `rope_deltas`, which models with several position axes (Qwen2-VL and kin, since 4.45) note on their base module.

    Inside, `model` may run on the prompt of one request; the offset it notes belongs to that request alone.
    """
    base = getattr(model, "model", model)
    before = getattr(base, "rope_deltas", None)
    try:
        yield
    finally:
        if hasattr(base, "rope_deltas"):
            base.rope_deltas = before
