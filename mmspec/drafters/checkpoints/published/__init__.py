"""Published layouts of drafters, detected by their config and tensor names; each has its own reader module.

docs/formats.md lists every name. A reader turns a config and tensors into a `Reading`: the kind of net, its options, and the name of each
of its tensors in the file.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from mmspec.drafters.checkpoints.published.block import read_dflash
from mmspec.drafters.checkpoints.published.eagle import read_eagle
from mmspec.drafters.checkpoints.published.medusa import is_medusa_name, read_medusa
from mmspec.drafters.checkpoints.published.records import Hints, Reading
from mmspec.drafters.checkpoints.published.speculators import export_speculators, read_speculators

__all__ = ["Hints", "Reading", "export_speculators", "layout_of", "read_published"]


def _no_hydra(config: Mapping[str, Any], weights: Mapping[str, Tensor], hints: Hints) -> Reading:
    arch = config.get("hydra_head_arch", "mlp")
    raise ValueError(
        f"hydra_head_arch {arch!r} is not supported: published Hydra heads have parts that mmspec's hydra lacks; train one here"
    )


_READERS = {"speculators": read_speculators, "dflash": read_dflash, "hydra": _no_hydra, "medusa": read_medusa, "eagle": read_eagle}
_SIGNS = {  # keys that only configs of this layout have
    "speculators": ("speculators_model_type",),
    "dflash": ("dflash_config", "target_layer_ids"),
    "hydra": ("hydra_num_heads", "hydra_head_arch"),
    "medusa": ("medusa_num_heads", "medusa_num_layers"),
    "eagle": ("draft_vocab_size", "eagle_config"),
}


def layout_of(config: Mapping[str, Any], names: Callable[[], set[str]]) -> str | None:
    """Return the published layout of a config, or None. The tensors' `names` are read only where the config is not sufficient, as in
    EAGLE's own files.
    """
    for layout, keys in _SIGNS.items():
        if any(key in config for key in keys):
            return layout
    listed = config.get("architectures")
    for name in map(str.lower, [str(config.get("model_type")), *(map(str, listed) if isinstance(listed, list) else ())]):
        if "medusa" in name:
            return "medusa"
        if name == "eagle" or ("eagle" in name and "causallm" in name):  # vision-language models called Eagle are something else
            return "eagle"
    if config.get("num_hidden_layers", 1) != 1:
        return None
    found = names()
    return "eagle" if found & {"fc.weight", "model.fc.weight"} else "medusa" if any(map(is_medusa_name, found)) else None


def read_published(config: Mapping[str, Any], weights: Mapping[str, Tensor], hints: Hints, source: Path) -> Reading:
    """Return what the config and tensors in folder `source` describe. ValueError for an unknown or unsupported layout."""
    layout = layout_of(config, lambda: set(weights))
    if layout is None:
        raise ValueError(
            f"{source} holds no drafter of a known layout: mmspec's own, speculators, DFlash, EAGLE-1, EAGLE-3 or Medusa (docs/formats.md)"
        )
    try:
        return _READERS[layout](config, weights, hints)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    except (TypeError, AttributeError, IndexError, RuntimeError) as error:  # values of a kind that no such file has
        raise ValueError(f"{source}: config.json and tensors make no {layout} drafter: {' '.join(str(error).split())}") from None
