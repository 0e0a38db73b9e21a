"""Models and drafters of continuous tokens on disk, as vision/train_continuous.py writes them: matrices as bytes, run in float32."""

import json
from pathlib import Path
from typing import Any

from mmspec.utils.packing import read_bytes, save_bytes
from mmspec.vision.continuous.ar import ContinuousAR, ContinuousARConfig
from mmspec.vision.continuous.mar import MaskedAR, MaskedARConfig
from mmspec.vision.continuous.state_draft import StateDraft, StateDraftConfig

_KINDS: dict[str, tuple[Any, Any]] = {
    config.model_type: (config, model)
    for config, model in ((ContinuousARConfig, ContinuousAR), (MaskedARConfig, MaskedAR), (StateDraftConfig, StateDraft))
}


def save_model(model: Any, folder: Path) -> None:
    """Write a model or a state draft of continuous tokens.

    Args:
        model: a `ContinuousAR`, a `MaskedAR` or a `StateDraft`.
        folder: the folder to write.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    save_bytes(model.state_dict(), folder / "model.safetensors")


def load_continuous_model(folder: Path) -> Any:
    """Load a model or a state draft of continuous tokens.

    Args:
        folder: its folder.

    Returns:
        A `ContinuousAR`, a `MaskedAR` or a `StateDraft`, in float32.

    Raises:
        FileNotFoundError: if the folder holds no weights, naming the recipe.
        ValueError: if it holds a model of another kind.
    """
    if not (folder / "model.safetensors").is_file():
        raise FileNotFoundError(
            f"no model of continuous tokens in {folder}: make it with mmspec recipe vision/train_continuous.py -- --head HEAD"
        )
    kind = _kind(folder)
    if kind not in _KINDS:
        raise ValueError(f"{folder} holds no model of continuous tokens: model_type is {kind!r}, not {', '.join(_KINDS)}")
    config, model = _KINDS[kind]
    found = model(config.from_pretrained(folder)).float()
    found.load_state_dict(read_bytes(folder / "model.safetensors"))
    return found.eval()


def load_latent_drafter(folder: str | Path, target: Any) -> Any:
    """Load a drafter of continuous tokens.

    Args:
        folder: a folder that `vision/train_continuous.py --draft` wrote.
        target: the adapter of the model that it is to draft for.

    Returns:
        A smaller model or a `StateDraft`, on the target's device; `mmspec.vision.generate` takes it as `drafter`.

    Raises:
        ValueError: for a folder that holds no drafter.
    """
    folder = Path(folder).expanduser()
    if not (folder / "model.safetensors").is_file() or _kind(folder) not in _KINDS:
        raise ValueError(
            f"drafter is {str(folder)!r}, which is no folder with a drafter of continuous tokens: give one that "
            "vision/train_continuous.py --draft wrote"
        )
    return load_continuous_model(folder).to(target.model.device)


def _kind(folder: Path) -> Any:
    """Return the model_type in a folder's config; None where there is none."""
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found.get("model_type") if isinstance(found, dict) else None
