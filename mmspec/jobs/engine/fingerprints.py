"""Fingerprint of a model's weights."""

import hashlib
from typing import Any


def weights(module: Any) -> str:
    """Return the SHA-256 over the name, dtype, shape and bytes of every parameter and buffer in a module's state dict.

    Reads all weights once, about a second a gigabyte.

    Args:
        module: a torch module.

    Returns:
        The hexadecimal digest.
    """
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
