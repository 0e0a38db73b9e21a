"""Fingerprint of a catalogue, the same for every way in which it is kept."""

import hashlib
import json
from collections.abc import Hashable, Sequence
from typing import Any

from torch import Tensor

_PART = 65_536


def fields_digest(items: Sequence[Hashable], paths: Tensor, settings: Sequence[Any]) -> str:
    """Compute the SHA-256 of a catalogue's fields, part by part.

    Args:
        items: the items.
        paths: whole numbers [items, L].
        settings: "before", "after" and "most".

    Returns:
        The digest, in hexadecimal.
    """
    found = hashlib.sha256()
    for first in range(0, len(items), _PART):
        found.update(("[" if first == 0 else ", ").encode())
        found.update(json.dumps(list(items[first : first + _PART]), default=str)[1:-1].encode())
    found.update(b"]")
    found.update(f"torch.int64 {tuple(paths.shape)}\n".encode())
    for part in paths.split(_PART):
        found.update(part.detach().cpu().long().contiguous().numpy().tobytes())
    found.update(json.dumps(settings, sort_keys=True, default=str).encode())
    return found.hexdigest()
