"""A retriever as drafter: popularity and co-occurrence with a user's newest items, without a model call.

Item-to-item co-occurrence is the oldest recommender at scale (Linden et al. 2003). Here it only drafts; the target decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.recsys.catalogue import Catalogue, Item
from mmspec.recsys.item_distribution import Flat, Followers, ItemDistribution, path_checksum, sum_counts
from mmspec.utils.strict import strict


@dataclass(frozen=True, eq=False)
class Retriever(ItemDistribution):
    """Co-occurrence counts as a drafter of `recommend`.

    A path's score is `popular` times its share of all events; the rest is shared among the newest `within` items with weights 1, 1/2, 1/3,
    ..., each by how often the path followed it. Paths that the history contains are weighted by `again`. Make one with `Retriever.of`,
    `save` it and `load` it.

    Args:
        popularity: [P] share of each path of all events.
        near: the paths that follow each path.
        within: number of newest items that count.
        popular: weight of popularity, above 0 and at most 1.
        again: share of repeated events.
        mark: checksum of the catalogue's paths.
    """

    popularity: Tensor  # [P]
    near: Followers  # what follows each path
    within: int
    popular: float
    again: float
    mark: int
    kind: ClassVar[str] = "retriever"

    @staticmethod
    @strict
    def of(
        catalogue: Catalogue, histories: Sequence[Sequence[Item]], neighbours: int = 64, within: int = 5, popular: float = 0.1
    ) -> "Retriever":
        """Count `histories`.

        Args:
            catalogue: the catalogue.
            histories: lists of items.
            neighbours: followers kept per path.
            within: an event 1 to `within` places after another counts 1, 1/2, 1/3, ...
            popular: weight of popularity.

        Returns:
            The model.

        Raises:
            ValueError: for values out of range, unknown items or no items.
        """
        if neighbours < 1 or within < 1 or not 0 < popular <= 1:
            raise ValueError(
                f"neighbours is {neighbours}, within {within} and popular {popular}: give 1 or more of the first two, and 0 < popular <= 1"
            )
        events = Flat.of(catalogue, histories)
        pairs = [_apart(events, gap) for gap in range(1, min(within, len(events.path)) + 1)]
        context, follower, share = (torch.cat(column) for column in zip(*pairs, strict=True))
        before, path, weight = sum_counts(context, follower, share, events.paths)
        whole = torch.zeros(events.paths, dtype=torch.float64).index_add_(0, before, weight)
        near = Followers.of(before, path, weight / whole[before], events.paths, neighbours)
        return Retriever(events.popularity, near, within, popular, _again(events), path_checksum(catalogue))

    def scores(self, shown: Tensor) -> Tensor:
        """Return scores [B, P] of all paths; see `ItemDistribution.scores`."""
        newest = shown[:, -self.within :]
        share = 1 / torch.arange(newest.shape[1], 0, -1, device=shown.device) * (newest >= 0)
        share = (1 - self.popular) * share / share.sum(1, keepdim=True).clamp_min(1e-9)
        scores = self.near.added(self.popular * self.popularity.expand(len(shown), -1), newest, share)
        place = torch.where(shown >= 0, shown, scores.shape[1])
        padded = pad(scores, (0, 1))
        return padded.scatter(1, place, self.again * padded.gather(1, place))[:, :-1]

    def state(self) -> dict[str, Any]:
        """Return the tensors and settings to save."""
        own = {name: getattr(self, name) for name in ("popularity", "within", "popular", "again", "mark")}
        return own | {name: getattr(self.near, name) for name in ("start", "path", "weight", "most")}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> "Retriever":
        """Rebuild the object from the `state` that was saved."""
        near = Followers(state["start"], state["path"], state["weight"], state["most"])
        return cls(state["popularity"], near, state["within"], state["popular"], state["again"], state["mark"])


def _apart(events: Flat, gap: int) -> tuple[Tensor, Tensor, Tensor]:
    """What came `gap` places after what, and how much that counts."""
    same = events.after(gap)
    before = events.path[: len(events.path) - gap][same]
    return before, events.path[gap:][same], torch.full((len(before),), 1 / gap)


def _again(events: Flat) -> float:
    """The share of events that repeat an earlier one of their user, never quite 0."""
    distinct = len(torch.unique(events.user * events.paths + events.path))
    return max(1e-3, (len(events.path) - distinct) / len(events.path))
