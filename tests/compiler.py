"""A clean state of torch.compile between tests."""

import gc

import torch
from torch._dynamo import eval_frame


def reset_compiler() -> None:
    """`torch._dynamo.reset`, which fails if resetting a compiled function changes the table of them that it iterates over."""
    gc.collect()
    for backend in list(eval_frame.cached_backends.values()):
        if hasattr(backend, "reset"):
            backend.reset()
    eval_frame.cached_backends.clear()
    torch._dynamo.reset()
