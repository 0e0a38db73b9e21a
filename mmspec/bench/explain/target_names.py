"""What files and configs say about a pair: how the target is quantised, and which target the drafter was trained for."""

from pathlib import Path
from typing import Any

from mmspec.loading.text import Pair
from mmspec.models.model_checks import model_name
from mmspec.utils.weights import read_config

_NAMES = ("base_model_name_or_path", "target_model", "verifier_name_or_path")
"""Keys of drafters' configs that hold the target's name."""


def quantisation_of(pair: Pair) -> str:
    """Return how the target's weights are quantised, in a few words; empty if nothing says so."""
    found = getattr(pair.target.config, "quantization_config", None)
    if found is not None:
        settings = found if isinstance(found, dict) else found.to_dict()
        method, bits = settings.get("quant_method", "quantised"), settings.get("bits") or settings.get("weight_bits")
        return f"{getattr(method, 'value', method)}{f', {bits} bits' if bits else ''}"
    name = pair.name.lower()
    return "GGUF" if name.endswith(".gguf") and not any(full in name for full in ("f16", "f32", "bf16")) else ""


def trained_for(pair: Pair) -> str:
    """Return the target that the drafter's config names, if it is another one than the pair's; empty otherwise.

    Names are compared by their last part, since the same model may stand in a folder or under a hub name.
    """
    path = pair.config.drafter.path
    if path is None or not hasattr(pair.drafter, "guide"):
        return ""
    try:
        config = read_config(Path(path).expanduser())
    except ValueError:
        return ""
    named, own = _named_target(config), _last(pair.name)
    return named if named and own and _last(named) not in (own, _last(model_name(pair.target))) else ""


def _named_target(config: dict[str, Any]) -> str:
    speculators = config.get("speculators_config")
    verifier = speculators.get("verifier") if isinstance(speculators, dict) else None
    found = verifier.get("name_or_path") if isinstance(verifier, dict) else next((config[key] for key in _NAMES if config.get(key)), "")
    return found if isinstance(found, str) else ""


def _last(name: str) -> str:
    """The last part of a path or hub name, in lower case."""
    return name.rstrip("/").rpartition("/")[2].rpartition(" ")[2].lower()
