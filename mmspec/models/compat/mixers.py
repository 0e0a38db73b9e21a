"""Mixers: the modules that keep recurrent or convolution states, and how one continues a state.

Relies on the mixers of transformers 5.23 and 5.24, by class name: they read and write states through the cache they are given, and write to
the states in place where they run a single column only. They differ in what several columns do:

- most continue a cached state over several columns at once;
- Mamba's and its kin's (`mamba_selective_scan`) begin several columns at zero whatever the cache holds. Their scan is linear in the state,
  so the state's own part is added to what the scan returns;
- Zamba's runs such a scan for every head, and RecurrentGemma's convolution begins at zero: their columns are run one by one.

RecurrentGemma keeps its states on its modules, in `conv1d_state` and `rg_lru.recurrent_states`. It knows the beginning of a sequence by
position 0, and single columns by the shape of `position_ids`.

`time_step_limit` is applied to several columns at once but not to a single one, as `generate` runs them: it is lifted for all but the
prompt.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from types import FunctionType, MethodType
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from mmspec.models.compat.mixer_cache import MixerCache, States
from mmspec.models.compat.models import is_stateful
from mmspec.models.compat.positions import mask_makers

STATES_SINCE = (5, 23)
"""The first transformers whose mixers read and write states as described above."""
CONTINUES, FROM_ZERO, SINGLE = "continues", "from zero", "single"
"""What a mixer does with several columns behind a cached state."""
MIXERS = {
    **dict.fromkeys(("Qwen3NextGatedDeltaNet", "Qwen3_5GatedDeltaNet", "Qwen3_5MoeGatedDeltaNet", "OlmoHybridGatedDeltaNet"), CONTINUES),
    **dict.fromkeys(("Mamba2Mixer", "BambaMixer", "GraniteMoeHybridMambaLayer", "FalconH1Mixer", "NemotronHMamba2Mixer"), CONTINUES),
    **dict.fromkeys(("Zamba2MambaMixer", "KimiLinearDeltaAttention", "BailingHybridDeltaAttention"), CONTINUES),
    "MiniMaxLightningAttention": CONTINUES,
    **dict.fromkeys(("Lfm2ShortConv", "Lfm2MoeShortConv", "Lfm3ShortConv"), CONTINUES),
    **dict.fromkeys(("MambaMixer", "FalconMambaMixer", "JambaMambaMixer"), FROM_ZERO),
    **dict.fromkeys(("ZambaMambaMixer", "RecurrentGemmaRecurrentBlock"), SINGLE),
}
"""By class name."""
STATEFUL_LAYERS = ("linear_attention", "conv", "hybrid")
"""Kinds of layers with a mixer, as `layer_types` names them."""
ATTENTION_LAYERS = ("full_attention", "sliding_attention", "hybrid")
"""Kinds of layers with keys and values in models that have mixers."""
_OTHER_LAYERS = ("moe", "mlp")
_HOLDS = "RecurrentGemmaRecurrentBlock"
_PAIRS = ("MiniMaxLightningAttention", _HOLDS)
_SCAN = "mamba_selective_scan"
_NO_LIMIT = (0.0, float("inf"))


@dataclass(frozen=True)
class Mixer:
    """One mixer of a model.

    Args:
        path: of the module inside the model.
        form: `CONTINUES`, `FROM_ZERO` or `SINGLE`.
        pair: its forward returns a pair whose first part is the output.
        holds: it keeps its states itself, not in a cache.
        limited: several columns at once are computed with limits that a single column does not have.
    """

    path: str
    form: str
    pair: bool = False
    holds: bool = False
    limited: bool = False


def drives_states() -> bool:
    """Whether the mixers of this transformers read and write states as described above."""
    return tuple(int(part) for part in transformers.__version__.split(".")[:2]) >= STATES_SINCE


def mixers_of(model: Any) -> tuple[Mixer, ...]:
    """Return the mixers of a language model, in order; none unless every layer is of a known kind and every stateful one has a mixer.

    Args:
        model: a transformers model.

    Returns:
        The mixers.

    Raises:
        ValueError: for a model with such layers under transformers before `STATES_SINCE`.
    """
    config = model.config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or ())
    if not kinds & set(STATEFUL_LAYERS) or kinds - {*STATEFUL_LAYERS, *ATTENTION_LAYERS, *_OTHER_LAYERS}:
        return ()
    if not drives_states():
        raise ValueError(
            f"{type(model).__name__} has recurrent or convolution states, which need transformers {'.'.join(map(str, STATES_SINCE))} or "
            f"newer; this is {transformers.__version__}: upgrade transformers"
        )
    window = getattr(config, "sliding_window", None) is not None and "sliding_attention" not in kinds
    if window:
        return ()
    found = tuple(
        Mixer(path, MIXERS[name], pair=name in _PAIRS, holds=name == _HOLDS, limited=bool(limit_changes(module)))
        for path, module in model.named_modules()
        if (name := type(module).__name__) in MIXERS
    )
    return found if len(found) == sum(kind in STATEFUL_LAYERS for kind in config.layer_types) else ()


def without_attention(model: Any) -> bool:
    """Return True if all layers of `model` keep states, as Mamba's do: its forward makes no attention masks."""
    return is_stateful(model) and mask_makers(model) <= {"create_recurrent_attention_mask"}


@contextmanager
def held_states(module: Any, cache: MixerCache, columns: int, rows: int) -> Iterator[dict[str, Any]]:
    """Lend a mixer that keeps its states itself those of a cache, which has the new ones afterwards.

    Args:
        module: the mixer's module, of a copy of the model.
        cache: the states.
        columns: that will be run.
        rows: that will be run.

    Yields:
        The arguments that make the mixer run so.
    """
    position_ids = torch.arange(columns, device=module.linear_x.weight.device).expand(rows, -1)
    if cache.recurrent is not None:
        position_ids = position_ids + (cache.recurrent != 0).any(-1, keepdim=True)  # zero states: the row begins here, others before it
    module.conv1d_state, module.rg_lru.recurrent_states = cache.conv, cache.recurrent
    try:
        yield {"position_ids": position_ids, "use_cache": True}
        cache.conv, cache.recurrent = module.conv1d_state, module.rg_lru.recurrent_states
    finally:
        module.conv1d_state = module.rg_lru.recurrent_states = None


def limit_changes(module: nn.Module) -> list[tuple[nn.Module, str, Any]]:
    """Return the change that lifts a mixer's limit of time steps, for `models.changed.replaced`; none where it has no limit.

    Args:
        module: the mixer's module, of a copy of the model.

    Returns:
        (module, attribute, value).
    """
    limit = getattr(module, "time_step_limit", None)
    return [] if limit is None or tuple(limit) == _NO_LIMIT else [(module, "time_step_limit", _NO_LIMIT)]


def continued_forward(module: Any, states: States) -> Callable[..., Any]:
    """Return the forward of a mixer of form `FROM_ZERO`, with a scan that begins at given states. The module is not changed.

    Args:
        module: the mixer's module.
        states: its states.

    Returns:
        The forward.
    """
    plain = _plain_forward(type(module))
    assert states.recurrent is not None
    names = {**plain.__globals__, _SCAN: partial(_scan_from, plain.__globals__[_SCAN], states.recurrent)}
    again = FunctionType(plain.__code__, names, plain.__name__, plain.__defaults__, plain.__closure__)
    return MethodType(again, module)


@lru_cache(maxsize=16)
def _plain_forward(kind: type) -> Any:
    """The forward of a class as its modelling module defines it, without decorators."""
    return inspect.unwrap(kind.forward)


def _scan_from(
    scan: Callable[..., tuple[Tensor, Tensor]],
    state: Tensor,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    **more: Any,
) -> tuple[Tensor, Tensor]:
    """`mamba_selective_scan` that begins at `state` [B, E, N] instead of zero. dt [B, E, M], A [E, N], C [B, N, M], z [B, E, M]."""
    out, last = scan(hidden_states, dt, A, B, C, z=z, delta_bias=delta_bias, delta_softplus=delta_softplus, **more)
    steps = dt if delta_bias is None else dt + delta_bias.to(dt.dtype)[..., None]
    steps = F.softplus(steps) if delta_softplus else steps
    carried = torch.exp(A[None, :, None, :] * steps.float().cumsum(-1)[..., None]) * state[:, :, None, :]
    seen = torch.einsum("bemn,bnm->bem", carried.to(C.dtype), C)
    seen = seen if z is None else seen * F.silu(z)
    return out + seen.to(out.dtype), last + carried[:, :, -1].to(last.dtype)
