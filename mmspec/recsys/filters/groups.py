"""Business rules on finished lists: boosts, quotas and caps for groups of items."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from mmspec.utils.strict import strict


@strict
@dataclass(frozen=True)
class GroupRules:
    """Rules by which a list of k items is chosen from all items that a search found.

    The list has the largest sum of scores among those that keep the rules: a boost is added to the score of every item of a group, a cap is
    the most items of a group in a list, a quota the fewest, as far as the search found so many. Items without a group are free. Beam search
    itself is not changed, so ask for more `beams` than items.

    Example:
        >>> rules = GroupRules({"tent": "camping", "lamp": "camping", "rope": "climbing"}, caps={"camping": 1})
        >>> rules.choose([("tent", -1.0), ("lamp", -1.5), ("rope", -2.0)], 2)
        [('tent', -1.0), ('rope', -2.0)]

    Args:
        groups: the group of each item.
        boosts: added to the scores of a group's items.
        quotas: the fewest items of a group in a list.
        caps: the most items of a group in a list.
        cap: the most items of every group that `caps` does not name; None for no bound.

    Raises:
        ValueError: for numbers out of range, groups without an item, and a quota above its cap.
    """

    groups: Mapping[Hashable, Hashable]
    boosts: Mapping[Hashable, float] = field(default_factory=dict)
    quotas: Mapping[Hashable, int] = field(default_factory=dict)
    caps: Mapping[Hashable, int] = field(default_factory=dict)
    cap: int | None = None

    def __post_init__(self) -> None:
        known = set(self.groups.values())
        for name in ("boosts", "quotas", "caps"):
            for group, value in getattr(self, name).items():
                if group not in known:
                    raise ValueError(f"{name} names group {group!r}, which no item has: give one of the {len(known)} groups")
                whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
                if name != "boosts" and not whole:
                    raise ValueError(f"{name} of {group!r} is {value!r}: give a whole number from 0")
                if name == "boosts" and (not isinstance(value, int | float) or value != value or abs(value) == float("inf")):
                    raise ValueError(f"boost of {group!r} is {value!r}: give a finite number")
        if self.cap is not None and (not isinstance(self.cap, int) or self.cap < 1):
            raise ValueError(f"cap is {self.cap!r}: give at least 1")
        for group, quota in self.quotas.items():
            if quota > (most := self._most(group)):
                raise ValueError(f"quota of {group!r} is {quota} and its cap {most}: give a quota up to the cap")

    def choose(self, ranked: Sequence[tuple[Hashable, float]], k: int) -> list[tuple[Hashable, float]]:
        """Choose a list.

        Args:
            ranked: items with their scores, best first.
            k: the most items of the list.

        Returns:
            At most k items with their boosted scores, best first; of equal scores the one ranked first comes first.

        Raises:
            ValueError: if the quotas add up to more than k.
        """
        if sum(self.quotas.values()) > k:
            raise ValueError(
                f"quotas add up to {sum(self.quotas.values())}, and lists have {k} items: ask for more items or smaller quotas"
            )
        boosted = [(item, score + self.boosts.get(self._group(item), 0.0)) for item, score in ranked]
        order = sorted(range(len(boosted)), key=lambda place: -boosted[place][1])
        counts: dict[Hashable, int] = {}
        due = self._taken(order, boosted, len(order), counts, lambda group: self.quotas.get(group, 0))
        rest = [place for place in order if place not in set(due)]
        free = self._taken(rest, boosted, k - len(due), counts, self._most)
        kept = set(due) | set(free)
        return [boosted[place] for place in order if place in kept]

    def _taken(
        self,
        order: Sequence[int],
        boosted: Sequence[tuple[Hashable, float]],
        room: int,
        counts: dict[Hashable, int],
        most: Callable[[Hashable], float],
    ) -> list[int]:
        """The first `room` places of `order` whose groups have fewer than `most` items in `counts`, which is brought up to date."""
        found: list[int] = []
        for place in order:
            group = self._group(boosted[place][0])
            if len(found) < room and counts.get(group, 0) < most(group):
                counts[group] = counts.get(group, 0) + 1
                found.append(place)
        return found

    def _group(self, item: Hashable) -> Hashable:
        return self.groups.get(item)

    def _most(self, group: Hashable) -> float:
        if group is None:
            return float("inf")
        return self.caps.get(group, float("inf") if self.cap is None else self.cap)
