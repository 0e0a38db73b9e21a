"""Llamas as minis have them: weights as bytes on disk, float32 in memory."""

from pathlib import Path
from typing import Any

from mmspec.utils.packing import read_bytes, save_bytes


def save_llama(model: Any, folder: Path) -> None:
    """Write a Llama as `llama` reads it, its weights as bytes: half the size of half precision."""

    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    save_bytes({name: tensor for name, tensor in model.state_dict().items() if name not in tied}, folder / "model.safetensors")


def llama(folder: Path) -> Any:
    """A Llama whose weights are stored in half precision or as bytes, and run in float32. FileNotFoundError where there is none."""
    from transformers import LlamaConfig, LlamaForCausalLM

    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} holds no model: it has no config.json")
    config = LlamaConfig.from_pretrained(folder)
    model = LlamaForCausalLM(config).float()
    model.load_state_dict(read_bytes(folder / "model.safetensors"), strict=False)
    model.tie_weights()
    return model.eval()
