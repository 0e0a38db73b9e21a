"""The self-test's small copy of every architecture that docs/families.md calls exact, at the default values of its config: windows, ropes,
layers and what is counted by layer.

The sweep itself runs small configs of its own, whose windows are small already. A user's model has the published ones, and what is tested
of it across its window is its small copy (`mmspec.models.proof.twin`).
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from mmspec.models.families.registry import family_of
from mmspec.models.proof.cases import Failed, check_twin
from mmspec.models.proof.twin import twin_config
from tests.sweep.page import read
from tests.sweep.run import EXACT, one_line

PAGE = Path(__file__).parents[2] / "docs/families.md"
BY_LAYER = ("layer_types", "layers_block_type", "mlp_layer_types", "attention_layers", "no_rope_layers", "per_layer_config")
BY_LAYER += ("cross_attention_layers", "moe_layers", "num_kv_shared_layers", "activation_sparsity_pattern", "hybrid_layer_ids")
"""Fields that say what differs from layer to layer."""


def exact_classes(name: str | None = None) -> list[type]:
    """The classes that the page calls exact, with or without trees, whose model type matches a regular expression."""
    rows = [row for row in read(PAGE) if row.outcome.startswith(EXACT) and (name is None or re.search(name, row.name))]
    return [getattr(transformers, architecture) for architecture in dict.fromkeys(row.architecture for row in rows)]


def without_weights(kind: Any) -> Any:
    """A model of its default config, its tensors without data; None where transformers cannot build one."""
    try:
        with torch.device("meta"):
            return kind(kind.config_class()).eval()
    except Exception:
        return None


def text_config(config: Any) -> Any:
    """What a config says of the model that writes text."""
    return config.get_text_config(decoder=True)


def differing(config: Any) -> tuple[str, ...]:
    """Which fields say what differs from layer to layer."""
    found = text_config(config)
    return tuple(name for name in BY_LAYER if getattr(found, name, None))


def lost_kinds(config: Any, small: Any) -> list[str]:
    """Return the fields of which a small copy lacks a kind of layer that the config has."""
    names = ("layer_types", "layers_block_type", "mlp_layer_types", "attention_layers", "no_rope_layers")
    pairs = ((name, *(getattr(text_config(each), name, None) or () for each in (config, small))) for name in names)
    lost = [name for name, all_, kept in pairs if set(map(repr, all_)) != set(map(repr, kept))]
    flags = ("per_layer_config", "cross_attention_layers", "num_kv_shared_layers")
    return lost + [name for name in flags if getattr(text_config(config), name, None) and not getattr(text_config(small), name, None)]


def outcome(kind: type) -> str:
    """ "right", or in one line what is wrong with the small copy of a class's default config."""
    model = without_weights(kind)
    if model is None:
        return "transformers cannot build its default config"
    if getattr(family_of(model), "cached_reference", False):
        return "right, by its family: what generate gives depends on keys that were cached earlier, and no small copy is asked"
    try:
        lost = lost_kinds(model.config, twin_config(kind, model.config))
        reason = check_twin(model) or (f"lost {', '.join(lost)}" if lost else None)
    except (Failed, ValueError) as error:
        reason = one_line(error)
    return reason or "right"


def check_defaults(name: str | None, progress: Callable[[str], None]) -> int:
    """Test every class. Returns 1 if one is wrong."""
    wrong = 0
    for kind in exact_classes(name):
        found = outcome(kind)
        wrong += not found.startswith(("right", "transformers cannot"))
        progress(f"{kind.__name__:44} {found}")
    progress(f"{wrong} wrong")
    return int(wrong > 0)
