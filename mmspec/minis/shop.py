"""A simulated shop: items with names people can read, embeddings of them, and the histories of any number of customers.

Everything is made up by this program and follows from seeds; no data is read. Customers have habits that a model can learn: they fit
out one department at a time, in the order in which its kinds of things are needed (a tent, then a sleeping bag), they have favourite
makers and colours and a price they like, they match what they have just bought, and they seldom buy a thing twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

DEPARTMENTS: dict[str, str] = {  # kinds in the order in which they are needed
    "camping": (
        "tent, sleeping bag, sleeping mat, camp stove, cooking pot, lantern, rucksack, water bottle, rain jacket, walking boots, map case, "
        "pocket telescope"
    ),
    "cycling": (
        "bicycle, helmet, bicycle lock, bicycle pump, front light, saddle bag, cycling gloves, bell, mudguard, cycling cape, child seat, "
        "repair kit"
    ),
    "garden": (
        "spade, garden fork, watering can, plant pot, flower bulbs, herb seeds, garden gloves, pruning shears, wheelbarrow, bird feeder, "
        "garden bench, parasol"
    ),
    "kitchen": (
        "frying pan, saucepan, kitchen knife, chopping board, mixing bowl, rolling pin, cake tin, teapot, mug, apron, spice rack, "
        "table runner"
    ),
    "wardrobe": "coat, scarf, hat, gloves, jumper, shirt, trousers, belt, socks, slippers, dressing gown, umbrella",
    "music": (
        "guitar, guitar strings, tuner, capo, guitar strap, music stand, song book, metronome, recorder, hand drum, piano stool, microphone"
    ),
    "painting": (
        "easel, canvas, brush set, oil paints, palette, palette knife, watercolours, sketch book, pencil set, ink set, picture frame, "
        "painting smock"
    ),
    "nursery": (
        "cot, cot blanket, night light, mobile, rattle, picture book, building blocks, toy train, stuffed bear, jigsaw, "
        "dolls' house, tricycle"
    ),
}
MAKERS = tuple(
    "Larchfold Brindlewick Oakhollow Ferndrift Pebblewick Mossgate Tidewhistle Amberfen Quillhaven Thistledown Copperdell Hazelmarch "
    "Winterlark Foxmere Saltbarrow Juniperley".split()
)
STYLES = ("plain", "striped", "dotted", "classic", "light", "sturdy", "small", "large")
COLOURS = ("moss green", "slate grey", "poppy red", "sky blue", "sand", "ivory", "plum", "mustard", "charcoal", "coral", "teal", "chestnut")
SIDE, LONGEST, WIDTH = 32, 40, 64
"""Items of a kind; items in the longest history; width of an embedding."""
PRICE, COLOUR, MAKER, SAME_COLOUR, SAME_MAKER, STYLE, FAME = 6.0, 2.5, 2.5, 0.6, 0.8, 1.0, 0.6
"""How much customers care: about a price they like, favourites, what matches the last thing bought, and what everyone buys."""
STAY, NEXT, AFTER = 0.83, 0.58, 0.22
"""Chances to stay in the department, and then to buy the next kind, or the one after it; otherwise any kind of the department."""


@dataclass(frozen=True, eq=False)
class Shop:
    """Item i is of kind i // SIDE; K kinds stand department by department."""

    names: tuple[str, ...]
    embeddings: NDArray[np.float32]  # [items, WIDTH]
    maker: NDArray[np.int64]  # [K, SIDE] and so are the others
    style: NDArray[np.int64]
    colour: NDArray[np.int64]
    price: NDArray[np.float64]  # 0 cheap to 1 dear
    fame: NDArray[np.float64]  # log popularity
    wanted: NDArray[np.float64]  # [departments, kinds of one] the running sums of how often a kind is bought first

    @staticmethod
    def of(seed: int = 0) -> "Shop":
        """Return the shop of a seed; other seeds give other items."""
        draw = np.random.default_rng(seed)
        kinds = [kind.strip() for line in DEPARTMENTS.values() for kind in line.split(",")]
        each = len(kinds) // len(DEPARTMENTS)
        sold = np.stack([_looks(draw) for _ in kinds])  # [K, SIDE, 3]
        maker, style, colour = np.moveaxis(sold, 2, 0)
        level = draw.random(len(MAKERS))
        price = np.clip(0.75 * level[maker] + 0.25 * draw.random(maker.shape), 0, 1)
        fame = FAME * (draw.gumbel(size=maker.shape) + draw.normal(size=len(MAKERS))[maker] * 0.5)
        first = draw.dirichlet(np.full(each, 1.5), len(DEPARTMENTS)).cumsum(1)
        parts = (
            ((np.arange(len(kinds)) // each)[:, None], 1.6),
            (np.arange(len(kinds))[:, None], 1.4),
            (maker, 0.9),
            (colour, 0.7),
            (style, 0.5),
        )
        vectors = draw.normal(size=(*maker.shape, WIDTH)) * 0.15 + price[..., None] * draw.normal(size=WIDTH)
        for which, weight in parts:
            vectors += weight * draw.normal(size=(int(which.max()) + 1, WIDTH))[which]
        names = [
            f"{MAKERS[m]} {STYLES[s]} {kinds[k]}, {COLOURS[c]}"
            for k in range(len(kinds))
            for m, s, c in zip(maker[k], style[k], colour[k], strict=True)
        ]
        return Shop(tuple(names), vectors.reshape(-1, WIDTH).astype(np.float32), maker, style, colour, price, fame, first)

    def __len__(self) -> int:
        return len(self.names)

    def histories(self, users: int | Sequence[int], seed: int = 0) -> list[list[int]]:
        """Return what customers bought, oldest first, 5 to LONGEST items each: the first `users` of them, or those of the given numbers.

        A history depends on (seed, number) only.
        """
        items, lengths = self.draw(users, seed)
        return [row[:length].tolist() for row, length in zip(items, lengths, strict=True)]

    def draw(self, users: int | Sequence[int], seed: int = 0) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
        """Return `histories` as one array [U, LONGEST], -1 after the end, and the lengths [U]."""
        who = np.arange(users) if isinstance(users, int) else np.asarray(users)
        if not len(who):
            return np.zeros((0, LONGEST), np.int16), np.zeros(0, np.int64)
        chance = _Chance(seed, who)
        lengths = np.clip(4 + np.exp(1.8 + 0.65 * chance.normal("length")), 5, LONGEST).astype(np.int64)
        order = np.argsort(-lengths, kind="stable")  # those still buying are always the first rows
        walk = _Walk(self, _Chance(seed, who[order]))
        found = np.full((len(who), LONGEST), -1, np.int16)
        for step in range(int(lengths.max())):
            buying = int((lengths > step).sum())
            found[order[:buying], step] = walk.buy(buying, step)
        return found, lengths


class _Walk:
    """State of customers in the simulation: their tastes, and what they have bought so far."""

    def __init__(self, shop: Shop, chance: "_Chance"):
        self.shop, self.chance = shop, chance
        count, (departments, self.each) = len(chance.users), shop.wanted.shape
        favourites = np.stack([chance.below(departments, f"department {n}") for n in range(3)], 1)
        self.interests = favourites  # [U, 3]; the first is visited most
        self.colours = _liked(chance, "colour", len(COLOURS), 2) * COLOUR
        self.makers = _liked(chance, "maker", len(MAKERS), 3) * MAKER
        self.styles = _liked(chance, "style", len(STYLES), 2) * STYLE
        self.budget = chance.uniform("budget")
        self.kind, self.last = np.full(count, -1), np.zeros((count, 2), np.int64)  # last: maker and colour
        self.bought = np.zeros((count, shop.maker.shape[0], SIDE), bool)

    def buy(self, count: int, step: int) -> NDArray[np.int64]:
        """Return what the first `count` customers buy at `step`, [count]."""
        some, shop, rows = self.chance.first(count), self.shop, np.arange(count)
        kind, fresh = self._next_kind(some, count, step)
        maker, colour = shop.maker[kind], shop.colour[kind]  # [count, SIDE]
        score = shop.fame[kind] - PRICE * np.abs(shop.price[kind] - self.budget[:count, None])
        score += np.take_along_axis(self.colours[:count], colour, 1) + np.take_along_axis(self.makers[:count], maker, 1)
        score += np.take_along_axis(self.styles[:count], shop.style[kind], 1)
        matches = SAME_MAKER * (maker == self.last[:count, :1]) + SAME_COLOUR * (colour == self.last[:count, 1:])
        score += np.where(fresh[:, None], 0, matches) - 6.0 * self.bought[rows, kind]
        mass = np.exp(score).cumsum(1)
        side = (mass < some.uniform(f"item {step}")[:, None] * mass[:, -1:]).sum(1).clip(max=SIDE - 1)
        self.bought[rows, kind, side] = True
        self.kind[:count], self.last[:count] = kind, np.stack([maker[rows, side], colour[rows, side]], 1)
        return kind * SIDE + side

    def _next_kind(self, some: "_Chance", count: int, step: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The kind each wants now, and whether it comes to a department anew."""
        last, each = self.kind[:count], self.each
        fresh = (last < 0) | (some.uniform(f"stay {step}") > STAY)
        visit = np.searchsorted((0.55, 0.85), some.uniform(f"visit {step}"))
        department = np.where(fresh, self.interests[np.arange(count), visit], last // each)
        first = (self.shop.wanted[department] < some.uniform(f"first {step}")[:, None]).sum(1).clip(max=each - 1)
        ahead, pick = last % each, some.uniform(f"next {step}")
        wanted = np.where(pick < NEXT, ahead + 1, np.where(pick < NEXT + AFTER, ahead + 2, first)) % each
        return department * each + np.where(fresh, first, wanted), fresh


class _Chance:
    """Random numbers that depend on (seed, user, role) only, by a hash of the three."""

    def __init__(self, seed: int, users: NDArray[np.integer]):
        self.seed, self.users = seed, users
        self._base = _mixed(users.astype(np.uint64) + _mixed(np.array([(seed + 1) % 2**64], np.uint64)))

    def first(self, count: int) -> "_Chance":
        some = object.__new__(_Chance)
        some.seed, some.users, some._base = self.seed, self.users[:count], self._base[:count]
        return some

    def uniform(self, role: str) -> NDArray[np.float64]:
        """One number in [0, 1) a user."""
        key = np.frombuffer(role.encode().ljust(24, b"\0"), np.uint64)
        value = self._base
        for word in key:
            value = _mixed(value ^ word)
        return (value >> np.uint64(11)) / float(1 << 53)

    def normal(self, role: str) -> NDArray[np.float64]:
        return np.sqrt(-2 * np.log1p(-self.uniform(role + " r"))) * np.cos(2 * np.pi * self.uniform(role + " a"))

    def below(self, count: int, role: str) -> NDArray[np.int64]:
        return (self.uniform(role) * count).astype(np.int64)


def _mixed(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64 (Steele et al. 2014): every bit of the result depends on every bit given."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _liked(chance: _Chance, role: str, choices: int, most: int) -> NDArray[np.float64]:
    """[U, choices]: 1 for up to `most` favourites, else 0."""
    liked = np.zeros((len(chance.users), choices))
    for number in range(most):
        liked[np.arange(len(liked)), chance.below(choices, f"{role} {number}")] = 1
    return liked


def _looks(draw: np.random.Generator) -> NDArray[np.int64]:
    """The maker, style and colour of SIDE different things of one kind, [SIDE, 3]."""
    shape = (len(MAKERS), len(STYLES), len(COLOURS))
    return np.stack(np.unravel_index(draw.choice(int(np.prod(shape)), SIDE, replace=False), shape), 1)


def examples(catalogue: Any, past: int = 50_000) -> Any:
    """Return a `mmspec.recsys.histories.Data` of a shop's customers: unlimited training ones (seed 0), others (1, 2) to measure on.

    `past` is the number of training customers whose purchases are counted.
    """
    from mmspec.recsys.histories import Data

    shop = Shop.of()
    return Data(
        catalogue,
        users=lambda first, end: shop.histories(range(first, end)),
        past=shop.histories(past),
        held=shop.histories(500, seed=1),
        test=shop.histories(2000, seed=2),
    )
