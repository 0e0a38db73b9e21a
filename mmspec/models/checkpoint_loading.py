"""Strict loading of checkpoints: a missing tensor would be random, and an unused one indicates another model."""

import re
from collections.abc import Iterable
from typing import Any

from mmspec.utils.weights import own_memory

_HARMLESS = re.compile(r"(rotary_emb\.inv_freq|\.masked_bias|attn\.bias|position_ids|num_batches_tracked)$|(^|\.)mtp\.")
"""Unexpected tensors that no output depends on: buffers of old releases, and layers for multi-token prediction."""


def loaded(kind: Any, where: Any, *, extras: bool = False, **options: Any) -> Any:
    """`kind.from_pretrained(where, **options)`, once its checkpoint holds every tensor of the model and no other.

    The weights are in memory of their own, not mapped to the checkpoint, which may then be written over.

    Tied weights and tensors that the model's class lists as ignorable count as neither missing nor unexpected.

    Args:
        kind: a transformers model class or Auto class.
        where: a folder or hub name.
        extras: accept tensors that nothing reads (a codec's training state).
        options: passed on.

    Raises:
        ValueError: naming the first tensor that is missing, has another shape, or is unexpected.
    """
    model, info = kind.from_pretrained(where, output_loading_info=True, ignore_mismatched_sizes=True, **options)
    odd = [] if extras else [name for name in info["unexpected_keys"] if not _HARMLESS.search(name)]
    shapes = [each[0] if isinstance(each, tuple) else each for each in info["mismatched_keys"]]
    for names, why in (
        (info["missing_keys"], "are not in the checkpoint and would be random"),
        (shapes, "have another shape in the checkpoint than in the model"),
        (odd, f"are in the checkpoint but not in {type(model).__name__}"),
    ):
        if names:
            raise ValueError(f"{_listed(names)} {why}: the checkpoint is incomplete, or its config.json belongs to another model")
    return own_memory(model)


def _listed(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"weights {found[0]}{more}"
