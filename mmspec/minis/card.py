"""Writing a mini: weights in half precision, tokenizer, example prompts and a card, all to temporary names first."""

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file


def write_text_mini(folder: Path, target: Any, drafter: Any, tokenizer: Any, *, prompts: list[str], card: str) -> None:
    """Write mini text to `folder`: it appears whole or not at all."""
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    tokenizer.save_pretrained(temporary)
    for name, model in (("target", target), ("drafter", drafter)):
        model.config.save_pretrained(temporary / name)
        state = {key: value.detach().to(torch.float16).contiguous() for key, value in model.state_dict().items() if key != "lm_head.weight"}
        save_file(state, temporary / name / "model.safetensors", metadata={"format": "pt"})
    (temporary / "prompts.txt").write_text("\n---\n".join(prompts), encoding="utf-8")
    (temporary / "card.md").write_text(card, encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(temporary, folder)
