"""Proof by self-test on a request's own prompt, for targets that no prompt can be made up for: pictures, frames of codes, latents.

`require_columns` is called by the decoding loop before anything is drafted. A class of transformers or of mmspec, as its class defines it,
passes at once: the test suite covers it. Any other model scores a chain of values together and one by one, with other values behind and
beside it. The result holds as long as the model stays as it is, and in this process: what alters a model has no fingerprint.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from mmspec.core.distributions.frame import FrameDistribution
from mmspec.core.distributions.thinning import ImplicitDistribution
from mmspec.core.noise import Noise
from mmspec.models import alterations as proof_alterations
from mmspec.models.alterations import Alteration
from mmspec.models.columns import COLUMNS, EXACT, REPEATED, REPEATED_ROUGHLY, ROUGHEST, ColumnProbe, chain_scores, dependence, difference
from mmspec.models.module_copy import own_copy, refresh, uncompiled

_ROUGH = 0.25  # in lower precision, between forwards of different shapes
_PLAUSIBLE = 64  # of the likeliest values, one is drafted
_SETS = 8  # of values, at which a density is compared
_ALTERED = "altered"
_REMEDY = "decode plainly: no drafter, and for pictures method='plain'"

_lock = threading.RLock()
_known: "WeakKeyDictionary[nn.Module, tuple[tuple[Any, ...], dict[Any, Any]]]" = WeakKeyDictionary()
"""The state of a model, what is altered in it, and the line that refuses it, by kind of family and whether there are several rows."""


def require_columns(target: Any, model: Any, family: Any, prompt: Any, rows: Callable[[], int]) -> None:
    """Test a target, unless the result is known. Neither the model nor any global random state is changed.

    Args:
        target: what decodes, without processors of its distributions.
        model: the network that it runs.
        family: what drives the network.
        prompt: what `target.begin` takes.
        rows: returns the number of rows of the prompt.

    Raises:
        ValueError: where a value's distribution depends on what is drafted behind it or beside it; in one line.
    """
    _require(model, family, lambda: (type(family), rows() > 1), lambda: TargetProbe(target, model, prompt))


def require_rows(model: Any, head: Callable[[Tensor], Tensor], width: Callable[[], int]) -> None:
    """Test a part of a model that runs rows of a batch, as `require_columns` tests a target.

    Args:
        model: the network.
        head: makes outputs [M, F] of values [M, D].
        width: returns D.

    Raises:
        ValueError: where the output of a row depends on the other rows, or on their number; in one line.
    """
    _require(model, model, lambda: "rows", lambda: _RowsProbe(model, head, width()))


def _require(model: Any, family: Any, kind: Callable[[], Any], probe: Callable[[], ColumnProbe]) -> None:
    if not isinstance(model, nn.Module):
        return
    model = uncompiled(model)
    refresh(model)
    with _lock:
        known = _results(model)
        if _ALTERED not in known:
            known[_ALTERED] = tuple(proof_alterations.alterations(model))
        if not known[_ALTERED] and _covered(model) and _covered(family):
            return
        if (key := kind()) not in known:
            known[key] = _tested(probe, model, known[_ALTERED])
    if known[key]:
        raise ValueError(f"{known[key]}: {_REMEDY}")


def note_proven(model: Any, family: Any) -> None:
    """Record that another self-test has shown a model to be exact as it is now.

    Args:
        model: the network.
        family: what drives it.
    """
    with _lock:
        _results(uncompiled(model)).update({(type(family), several): "" for several in (False, True)})


def _results(model: nn.Module) -> dict[Any, Any]:
    """What is known of a model as it is now."""
    state = proof_alterations.state(model)
    if model not in _known or _known[model][0] != state:
        _known[model] = state, {}
    return _known[model][1]


def _covered(part: Any) -> bool:
    return type(part).__module__.startswith(("mmspec.", "transformers.", "diffusers."))


@torch.no_grad()
def _tested(make: Callable[[], ColumnProbe], model: nn.Module, altered: Sequence[Alteration]) -> str:
    """The line that describes a dependence; empty if there is none."""
    name, dtype = type(model).__name__, next((each.dtype for each in model.parameters() if each.is_floating_point()), torch.float32)
    exact, coarse = dtype is torch.float32, any(each.arithmetic for each in altered)
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            probe = make()
            tokens = probe.draw(len(probe.single), COLUMNS)
            first, second = (probe.scores(probe.single, tokens) for _ in range(2))
            equal = REPEATED if exact else REPEATED_ROUGHLY
            if first.isnan().any():
                return ""  # the decoding loop names the row and the position
            if (away := difference(second, first)) > equal:
                return f"{name}: two identical forwards differ by {away:.2g} of the logits' spread, so that something in it is random"
            allowed = ROUGHEST if coarse else EXACT if exact else _ROUGH
            found = dependence(probe, equal, allowed, coarse or not exact)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            return f"{name}: its self-test stopped with {type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
    return "" if found is None else found.line(name)


class TargetProbe:
    """The columns of a target, behind the prompts of a request.

    Args:
        target: what decodes.
        model: the network that it runs.
        prompt: what `target.begin` takes.
    """

    def __init__(self, target: Any, model: nn.Module, prompt: Any):
        self.target, self.prompt, self.model = target, prompt, own_copy(model)
        session, self._pending = target.begin(prompt)
        self._first = session.score(self._pending).p
        self.single = tuple(range(len(self._pending.start)))
        self.batches = (self.single,) * (1 if len(self.single) == 1 else 3)
        self._generator, self._draws = torch.Generator().manual_seed(17), 0
        self._sets = None if _has_table(self._first) else [self._drawn() for _ in range(_SETS)]

    def draw(self, rows: int, columns: int) -> Tensor:
        """Draw values [rows, columns, *value] that the target may write; see `ColumnProbe.draw`."""
        return torch.cat([self._drawn() for _ in range(columns)], 1)[len(self.single) - rows :]

    def scores(self, rows: tuple[int, ...], *parts: Tensor) -> Tensor:
        """Return logits of chains, or densities at some values; see `ColumnProbe.scores`. All rows of the prompt are scored."""
        session, pending = self.target.begin(self.prompt)
        return chain_scores(session, pending, parts, self._read)

    def _drawn(self) -> Tensor:
        """Values [B, 1, *value] of the first place: likely ones, or for values without a table drawn ones."""
        self._draws += 1
        if not _has_table(self._first):
            noise = Noise.from_seed(self._draws, len(self.single), self._pending.start.device)
            return self._first.sample(noise.value(self._pending.start[:, None] + 1))
        likely = self._first.scores.topk(min(_PLAUSIBLE, self._first.scores.shape[-1])).indices
        picks = torch.randint(likely.shape[-1], (*likely.shape[:2], 1), generator=self._generator)
        return likely.gather(-1, picks.to(likely.device))[..., 0]

    def _read(self, p: Any, columns: int) -> Tensor:
        if self._sets is None:
            return p.scores.float()
        sets = [each.expand(-1, columns, *each.shape[2:]).contiguous() for each in self._sets]
        if isinstance(p, FrameDistribution):
            return torch.cat([p.codes(each).scores.flatten(2) for each in sets], -1).float().nan_to_num(neginf=0.0)
        return torch.stack([p.log_prob(each) for each in sets], -1).double().nan_to_num(0.0, 1e4, -1e4)  # a step without noise has none


class _RowsProbe:
    """The rows of a part of a model, as the columns of one row."""

    batches, single = ((0,),), (0,)

    def __init__(self, model: nn.Module, head: Callable[[Tensor], Tensor], width: int):
        self.model, self._head, self._width = own_copy(model), head, width
        self._place = next(model.parameters(), torch.zeros(()))
        self._generator = torch.Generator().manual_seed(17)

    def draw(self, rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, self._width, generator=self._generator).to(self._place)

    def scores(self, rows: tuple[int, ...], *parts: Tensor) -> Tensor:
        return torch.cat([self._head(part[0]) for part in parts])[None].float()


def _has_table(p: Any) -> bool:
    return not isinstance(p, ImplicitDistribution)
