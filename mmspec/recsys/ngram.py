"""An n-gram model over whole items as drafter: P(next item | the last items), counted in histories.

Absolute discounting (Ney, Essen & Kneser 1994), interpolated as in Chen & Goodman (1999): every count gives up the same part of one event,
which goes to the context one item shorter and finally to popularity.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmspec.recsys.catalogue import Catalogue, Item
from mmspec.recsys.item_distribution import Flat, Followers, ItemDistribution, path_checksum, sum_counts
from mmspec.utils.strict import strict


@dataclass(frozen=True, slots=True)
class Order:
    """Contexts of one length. A context's key is (number of its newest items) * P + its oldest item."""

    keys: Tensor  # [C] sorted
    next: Followers  # their discounted probabilities
    rest: Tensor  # [C] what is left for the shorter context

    @staticmethod
    def of(keys: Tensor, context: Tensor, path: Tensor, paths: int, most: int) -> "Order":
        """Count events [E], given the number of the context of each and its path."""
        context, path, count = sum_counts(context, path, torch.ones(len(path)), paths)
        whole = torch.zeros(len(keys), dtype=torch.float64).index_add_(0, context, count)
        share = (count - _discount(count)) / whole[context]
        follow = Followers.of(context, path, share, len(keys), most)
        return Order(keys, follow, 1 - follow.total())


@dataclass(frozen=True, eq=False)
class ItemNGram(ItemDistribution):
    """N-gram model over items as a drafter of `recommend`: distribution of the next path given up to `len(orders)` paths before it.

    Make one with `ItemNGram.of`, `save` it and `load` it.

    Args:
        popularity: [P] probability of each path without context.
        orders: counts of contexts of one path, of two, ...
        mark: checksum of the catalogue's paths.
    """

    popularity: Tensor  # [P]
    orders: tuple[Order, ...]  # contexts of one path, of two, ...
    mark: int
    kind: ClassVar[str] = "n-gram"

    @staticmethod
    @strict
    def of(catalogue: Catalogue, histories: Sequence[Sequence[Item]], order: int = 3, most: int = 64) -> "ItemNGram":
        """Count contexts of up to `order` items.

        Args:
            catalogue: the catalogue.
            histories: lists of items.
            order: items of the longest context.
            most: followers kept per context, the most likely ones.

        Returns:
            The model.

        Raises:
            ValueError: for sizes below 1, unknown items or no items.
        """
        if order < 1 or most < 1:
            raise ValueError(f"order is {order} and most {most}: give a context of at least 1 item, and at least 1 follower")
        events = Flat.of(catalogue, histories)
        orders: list[Order] = []
        code, keys = events.path, torch.arange(events.paths)  # code [E]: the number of the context that ends with an event, -1 none
        for length in range(1, order + 1):
            if length > 1:
                code, keys = _longer(events, code, length)
            follow = events.after(1) & (code[:-1] >= 0)
            if not bool(follow.any()):
                break
            orders.append(Order.of(keys, code[:-1][follow], events.path[1:][follow], events.paths, most))
        return ItemNGram(events.popularity, tuple(orders), path_checksum(catalogue))

    def scores(self, shown: Tensor) -> Tensor:
        """Return scores [B, P] of all paths; see `ItemDistribution.scores`."""
        paths = len(self.popularity)
        scores, code = self.popularity.expand(len(shown), -1), shown[:, -1]
        for length, order in enumerate(self.orders[: shown.shape[1]], 1):
            if length > 1:
                code = _found(order.keys, code, shown[:, -length], paths)
            known = code >= 0
            scores = scores * torch.where(known, order.rest[code.clamp_min(0)], 1.0)[:, None]
            scores = order.next.added(scores, code[:, None], torch.ones_like(scores[:, :1]))
        return scores

    def state(self) -> dict[str, Any]:
        """Return the tensors and settings to save."""
        state: dict[str, Any] = {"popularity": self.popularity, "mark": self.mark, "orders": len(self.orders)}
        for number, order in enumerate(self.orders, 1):
            table = {name: getattr(order.next, name) for name in ("start", "path", "weight", "most")}
            state |= {f"{name}.{number}": value for name, value in ({"keys": order.keys, "rest": order.rest} | table).items()}
        return state

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> "ItemNGram":
        """Rebuild the object from the `state` that was saved."""
        orders = []
        for number in range(1, state["orders"] + 1):
            start, path, weight, most, keys, rest = (
                state[f"{name}.{number}"] for name in ("start", "path", "weight", "most", "keys", "rest")
            )
            orders.append(Order(keys, Followers(start, path, weight, most), rest))
        return cls(state["popularity"], tuple(orders), state["mark"])


def _longer(events: Flat, code: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The contexts of `length` paths: which one ends with each event [E], -1 where a user has had fewer, and their keys."""
    here = torch.zeros_like(code, dtype=torch.bool)
    here[length - 1 :] = events.after(length - 1)
    oldest = torch.cat([code.new_zeros(length - 1), events.path])[: len(code)]
    keys, place = torch.unique((code * events.paths + oldest)[here], return_inverse=True)
    return torch.full_like(code, -1).masked_scatter(here, place), keys


def _found(keys: Tensor, code: Tensor, oldest: Tensor, paths: int) -> Tensor:
    """The number of the context whose newest paths are context `code` [B]; -1 where it was never seen."""
    wanted = code * paths + oldest
    place = torch.searchsorted(keys, wanted).clamp_max(len(keys) - 1)
    return torch.where((keys[place] == wanted) & (code >= 0) & (oldest >= 0), place, -1)


def _discount(count: Tensor) -> float:
    """What every count gives up: n1 / (n1 + 2 n2), by how many are 1 and 2 (Ney et al. 1994), kept off the ends."""
    once, twice = float((count == 1).sum()), float((count == 2).sum())
    return min(0.9, max(0.1, once / max(1.0, once + 2 * twice)))
