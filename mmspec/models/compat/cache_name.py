"""What forwards, layers and outputs call the cache, of keys and values or of recurrent states.

transformers 5.24 calls it `cache` everywhere. Before it, models and layers have `past_key_values`, and Mamba's models and most mixers
`cache_params`. 5.24 still takes the old names from callers, with a warning; classes written for an older transformers keep them in their
signatures. No other module of mmspec names the argument of a model that it calls.
"""

from collections.abc import Collection, Mapping
from functools import lru_cache
from inspect import signature
from typing import Any

from transformers.masking_utils import create_causal_mask

from mmspec.models.compat.positions import argument_names

_OLD = ("past_key_values", "cache_params")
CACHE = "cache" if "cache" in signature(create_causal_mask).parameters else _OLD[0]
"""What the installed transformers calls it in its own models and layers."""
CACHE_NAMES = tuple(dict.fromkeys((CACHE, *_OLD)))
"""Every name that a module may have for it, the likeliest first. `cache` is something else in models before 5.24 (XLM, Flaubert)."""
CALLERS_NAMES = ("cache", *_OLD)
"""Every name under which a caller of `generate` may give one, whatever the release."""
_LENGTHS = ("cache_length", "past_key_values_length")


def cache_name_of(model: Any) -> str | None:
    """Return what the forward of `model` calls its cache, or that of its decoder, which gets the other arguments; None if it has none."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    names = [argument_names(module) for module in (model, decoder)]
    return next((name for found in names for name in CACHE_NAMES if name in found), None)


def cache_keyword(module: Any, cache: Any) -> dict[str, Any]:
    """Return `cache` as the keyword argument under which the forward of `module` takes it.

    Args:
        module: a model, a layer or an attention; one that names none passes its keywords on to transformers' own modules.
        cache: the cache, or None.
    """
    return {_name_in_class(type(module)): cache}


@lru_cache(maxsize=256)
def _name_in_class(kind: type) -> str:
    return cache_name_among(signature(kind.forward).parameters.keys())  # type: ignore[attr-defined]


def cache_name_among(names: Collection[str]) -> str:
    """Return which of some arguments is the cache; `CACHE` if none is."""
    return next((name for name in CACHE_NAMES if name in names), CACHE)


def cache_of(output: Any) -> Any:
    """Return the cache in a model's output; None if there is none."""
    held = dict(output.items()) if isinstance(output, Mapping) else getattr(output, "__dict__", {})
    return next((held[name] for name in CACHE_NAMES if held.get(name) is not None), None)


def counts_from_cache(table: Any) -> bool:
    """Return True if a table of positions is told how many tokens the cache holds: `cache_length`, `past_key_values_length` before 5.24."""
    return any(name in signature(table.forward).parameters for name in _LENGTHS)
