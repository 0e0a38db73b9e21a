"""Scores of whole items as distributions over a trie, so that counts of histories can draft for a beam search without a model.

A score for every path gives every node a mass, the sum over the paths below it, and the distribution after a node is its children's share
of its mass. So popularity, co-occurrence or any other retriever drafts levels as a language model does, and a strict rule keeps the result
exact. LASER (Xi et al. 2025) drafts texts from what it retrieves; this does so for items.
"""

import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.beams.search import Forest
from mmspec.core.beams.trie import Children, Trie
from mmspec.core.protocols import TargetSession
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rows.changes import RowState
from mmspec.recsys.catalogue import SHOWN, Catalogue, Item

_KEY = "mmspec.items"


class ItemGuide(RowState):
    """Guide of one beam search from scores [B, P] >= 0 of the distinct paths. Nodes without mass are uniform over the paths below them."""

    by_row = ("mass", "count")

    def __init__(self, trie: Trie, scores: Tensor):
        self.span, allowed = trie.span, trie.open_paths()
        self.mass = _running(scores.double() * allowed)
        self.count = _running(allowed.double()).expand(len(scores), -1)

    def weigh(self, draft: Draft, children: Children) -> Tensor:
        """Return log q [B, M, C] of the children; see `BeamGuide.weigh`."""
        forest: Forest = draft.aux
        parents = forest.state[:, -children.state.shape[1] :, None]
        above, mass = self._below(self.mass, parents), self._below(self.mass, children.state)
        bare = above <= 0
        above, mass = (
            torch.where(bare, self._below(self.count, state), found) for state, found in ((parents, above), (children.state, mass))
        )
        return torch.where(children.valid, mass.log() - above.clamp_min(1e-300).log(), -torch.inf).float()

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Take in the verdict of the round; see `Guide.observe`."""
        pass

    def _below(self, running: Tensor, state: Tensor) -> Tensor:
        """What the paths below nodes `state` [B, M, C] add up to, by their running sums [B, P + 1]."""
        ends = running.gather(1, self.span[state.clamp_min(0)].long().flatten(1)).view(*state.shape, 2)
        return (ends[..., 1] - ends[..., 0]).clamp_min(0)


def _running(values: Tensor) -> Tensor:
    return pad(values.cumsum(1), (1, 0))


class ItemDistribution(ABC):
    """A source of item scores counted in histories over one catalogue. Subclasses are frozen dataclasses without slots; tensors may be on
    any device.
    """

    kind: ClassVar[str]
    mark: int  # `path_checksum` of the catalogue's paths

    @abstractmethod
    def scores(self, shown: Tensor) -> Tensor:
        """Return scores >= 0 [B, P] of all paths for histories `shown` [B, H]: numbers of paths, newest last, -1 before the first."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return all that `restored` needs: tensors and plain numbers."""

    @classmethod
    @abstractmethod
    def restored(cls, state: Mapping[str, Any]) -> Self:
        """Rebuild the object from the `state` that was saved."""

    def beam_guide(self, prompt: Any, session: TargetSession, trie: Trie) -> ItemGuide:
        """Return the guide of one beam search; see `BeamSource.beam_guide`."""
        if SHOWN not in prompt:
            raise ValueError(
                f"the prompt does not contain the items of the history: pass histories, or add {SHOWN!r} as Catalogue.shown returns it"
            )
        scores = self.to(trie.token.device).scores(prompt[SHOWN].to(trie.token.device))
        if scores.shape[1] != trie.size:
            raise ValueError(f"the {self.kind} knows {scores.shape[1]} paths, but the catalogue has {trie.size}: build it for this one")
        return ItemGuide(trie, scores)

    def to(self, device: torch.device | str) -> Self:
        """Return this object on `device`; cached per device."""
        places = vars(self).setdefault("_places", {})
        if str(device) not in places:
            state = self.state()
            there = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in state.items()}
            same = all(there[name] is value for name, value in state.items())
            places[str(device)] = self if same else self.restored(there)
        return places[str(device)]

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, atomically."""
        from safetensors.torch import save

        from mmspec.utils.files import whole

        state = self.state()
        tensors = {name: value.cpu().contiguous() for name, value in state.items() if isinstance(value, Tensor)}
        told = {name: value for name, value in state.items() if name not in tensors}
        with whole(path, binary=True) as file:
            file.write(save(tensors, {_KEY: json.dumps({"kind": self.kind, **told})}))

    @classmethod
    def load(cls, path: str | Path, catalogue: Catalogue) -> Self:
        """Read what `save` wrote for `catalogue`. ValueError for broken files and other catalogues."""
        told, tensors = _read(Path(path))
        if told.pop("kind", None) != cls.kind:
            raise ValueError(f"{path} holds no {cls.kind}: give a file that {cls.__name__}.save wrote")
        try:
            found = cls.restored(told | tensors)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is no whole {cls.kind}: {error} is missing or wrong; build it again") from None
        if found.mark != path_checksum(catalogue):
            raise ValueError(f"{path} is of another catalogue: build the {cls.kind} from this one's histories")
        return found


def path_checksum(catalogue: Catalogue) -> int:
    """Return a checksum of the catalogue's paths."""
    return zlib.crc32(catalogue.distinct.contiguous().numpy().tobytes())


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            told = json.loads((file.metadata() or {}).get(_KEY, "{}"))
            return told, {name: file.get_tensor(name).clone() for name in file.keys()}
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist: give a file of item counts") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as safetensors: {str(error).splitlines()[0]}") from None


# --- counting -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Flat:
    """Concatenated histories, as numbers of paths."""

    path: Tensor  # [E]
    user: Tensor  # [E]
    paths: int  # P

    @staticmethod
    def of(catalogue: Catalogue, histories: Sequence[Sequence[Item]]) -> "Flat":
        """Return the events of `histories`. ValueError, naming the history, for an unknown item."""
        rows: list[int] = []
        for number, history in enumerate(histories):
            try:
                rows += map(catalogue.row, history)
            except ValueError as error:
                raise ValueError(f"history {number}: {error}") from None
        if not rows:
            raise ValueError("histories hold no item: there is nothing to count")
        lengths = torch.tensor([len(history) for history in histories])
        user = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        return Flat(catalogue.leaf[torch.tensor(rows)].long(), user, catalogue.trie.size)

    def after(self, gap: int) -> Tensor:
        """Return [E - gap] bool: True where an event and the one `gap` places later belong to one user."""
        return self.user[gap:] == self.user[: len(self.user) - gap]

    @property
    def popularity(self) -> Tensor:
        """Return [P] the probability of each path, with one event added for each."""
        counts = torch.bincount(self.path, minlength=self.paths) + 1.0
        return (counts / counts.sum()).float()


@dataclass(frozen=True, slots=True)
class Followers:
    """The paths that follow each of C contexts, by descending weight, as sparse rows."""

    start: Tensor  # [C + 1] where a context's entries begin
    path: Tensor  # [E] int32
    weight: Tensor  # [E] float32
    most: int  # entries that any context has

    @staticmethod
    def of(context: Tensor, path: Tensor, weight: Tensor, contexts: int, most: int) -> "Followers":
        """Return the `most` heaviest entries of each context, from entries [E] sorted by context and path."""
        order = torch.argsort(weight, descending=True, stable=True)
        order = order[torch.argsort(context[order], stable=True)]
        begin = torch.searchsorted(context, torch.arange(contexts))
        kept = order[torch.arange(len(order)) - begin[context] < most]  # `context` is sorted: the order leaves it as it is
        start = torch.searchsorted(context[kept], torch.arange(contexts + 1))
        return Followers(start, path[kept].int(), weight[kept].float(), int((start[1:] - start[:-1]).max()))

    def total(self) -> Tensor:
        """Return [C] the summed weight of a context's entries."""
        sums = pad(self.weight.double().cumsum(0), (1, 0))
        return (sums[self.start[1:]] - sums[self.start[:-1]]).float()

    def added(self, scores: Tensor, context: Tensor, share: Tensor) -> Tensor:
        """Return `scores` [B, P] plus `share` [B, R] times the followers of `context` [B, R]; -1 is none."""
        row = context.clamp_min(0)
        found = self.start[row][..., None] + torch.arange(self.most, device=row.device)
        valid = (found < self.start[row + 1][..., None]) & (context >= 0)[..., None]
        found = torch.where(valid, found, 0)
        more = torch.where(valid, self.weight[found] * share[..., None], 0.0)
        return scores.scatter_add(1, self.path[found].long().flatten(1), more.flatten(1))


def sum_counts(context: Tensor, path: Tensor, weight: Tensor, paths: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sum the weights of entries with the same context and path; returns contexts, paths and sums, sorted."""
    key, place = torch.unique(context * paths + path, return_inverse=True)
    return key // paths, key % paths, torch.zeros(len(key), dtype=torch.float64).index_add_(0, place, weight.double())
