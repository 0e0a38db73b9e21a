"""GGUF files: dense weights on request, and configs that still name the file their weights once came from."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mmspec.utils.screen import track_waiting

_lock = threading.RLock()


@contextmanager
def gguf_progress(name: str) -> Iterator[None]:
    """Show the progress of reading a GGUF file, tensor by tensor, as our other bars are shown while something is waited for.

    Relies on `modeling_gguf_pytorch_utils.tqdm` (since 4.41), which does not read the setting of `transformers.utils.logging`. One thread
    at a time.

    Args:
        name: of the file.
    """
    from transformers import modeling_gguf_pytorch_utils as reader

    with _lock:
        before, reader.tqdm = reader.tqdm, lambda tensors, desc="": track_waiting(tensors, f"reading {name}")
        try:
            yield
        finally:
            reader.tqdm = before


def gguf_options(name: str) -> dict[str, Any]:
    """Options of a model's `from_pretrained` that read the GGUF file `name` of the folder given to it, as dense weights.

    Relies on `GgufConfig(dequantize=True)` (since 5.22). Without it the model keeps its quantizer: `save_pretrained`, `half` and `float`
    are refused, a config.json saved with it names the file for good, and where the package `kernels` is installed the weights of some
    architectures stay in blocks. Releases before know no `GgufConfig` and always return dense weights.
    """
    try:
        from transformers import GgufConfig
    except ImportError:
        return {"gguf_file": name}
    return {"gguf_file": name, "quantization_config": GgufConfig(dequantize=True)}


def forget_gguf(config: Any) -> None:
    """Remove a note from `config` that its weights are the blocks of a GGUF file. For checkpoints that hold them as dense tensors.

    Relies on `config.quantization_config["quant_method"]` (since 4.30), which dense weights that were read from a GGUF file, put into a
    fresh model and saved still have.
    """
    found = getattr(config, "quantization_config", None)
    if isinstance(found, dict) and found.get("quant_method") == "gguf":
        del config.quantization_config
