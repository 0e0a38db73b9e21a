"""A request of a recommender in an engine: its options, what is read of it, and its items."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mmspec.core.beams.listed import ListedNodes
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.records import Committed
from mmspec.core.stats import Stats
from mmspec.recsys.catalogue import SHOWN, Catalogue, Item
from mmspec.recsys.filters.groups import GroupRules
from mmspec.recsys.filters.item_filter import ItemFilter
from mmspec.recsys.generation import Recommendations, beams_of, recommendations
from mmspec.run.arguments import public_call
from mmspec.serving.models.base import RequestOutput


@dataclass(frozen=True)
class RecommendSettings:
    """What all requests of a recommender share, beside its drafter, as in `mmspec.recsys.recommend`.

    Args:
        catalogue: the items and their paths.
        method: "strict", "plain" or "coupled".
        beams: the most beams that a request may keep.
        width: beams drafted a level; 4 * `beams` by default.
    """

    catalogue: Catalogue
    method: str = "strict"
    beams: int = 10
    width: int | None = None


@public_call
@dataclass(frozen=True)
class RecommendOptions:
    """The options of one request, as in `mmspec.recsys.recommend` for one user.

    Args:
        k: the most items.
        beams: beams kept on every level, at least k; k by default.
        seed: of the methods that sample.
        temperature: of the methods that sample, by default 1.
        allowed: which items may be recommended, bool [items]; all by default.
        allow: the only items that may be recommended, or None.
        deny: items that may not be recommended, or None.
        unseen: leave out the items of the history.
        rules: boosts, quotas and caps of groups.
    """

    k: int = 10
    beams: int | None = None
    seed: int = 0
    temperature: float | None = None
    allowed: Tensor | None = None
    allow: Sequence[Item] | None = None
    deny: Sequence[Item] | None = None
    unseen: bool = False
    rules: GroupRules | None = None


@dataclass(frozen=True)
class RecommendWork:
    """One request, checked.

    Args:
        inputs: its prompt, of one row, with the items it shows where it is a history.
        filters: the items that may be recommended, as lists.
        listed: the same as nodes of the trie.
        options: its options.
        catalogue: the items.
        pipeline: the processors of the model's generation config for this prompt.
    """

    inputs: Mapping[str, Tensor]
    filters: ItemFilter
    listed: ListedNodes
    options: RecommendOptions
    catalogue: Catalogue
    pipeline: Pipeline

    @property
    def columns(self) -> int:
        """Tokens of its prompt."""
        return self.inputs["input_ids"].shape[1]

    @property
    def size(self) -> int:
        """How long it may run; see `EngineWork.size`."""
        return self.catalogue.paths.shape[1]

    @property
    def together(self) -> bool:
        """True for histories: prompts of another form do not tell drafters their items."""
        return SHOWN in self.inputs

    @property
    def beams(self) -> int:
        """Beams kept on every level."""
        return beams_of(self.options.beams, self.options.k)

    def output(self) -> "RecommendOutput":
        """Return what takes in its beams."""
        return RecommendOutput(self)


class RecommendOutput(RequestOutput):
    """The beams of a request.

    Args:
        work: the request.
    """

    def __init__(self, work: RecommendWork):
        super().__init__(work.inputs["input_ids"].device)
        self.work = work
        self.beams: tuple[Tensor, Tensor] | None = None  # trie nodes [K] and their scores [K], once the search has ended

    def add(self, values: Sequence[int], ended: bool) -> Sequence[int]:
        """Nothing: levels are no items."""
        return ()

    def end(self, committed: Committed) -> None:
        """Keep the beams; see `RequestOutput.end`."""
        assert committed.found is not None
        self.beams = committed.found[0]

    def stream(self, pieces: Iterator[Any], decode: Callable[[list[int]], str] | None) -> Iterator[Any]:
        """ValueError: a search has no items before its end."""
        raise ValueError("a search has no items before its end: use result()")

    def result(self, tokens: Sequence[int], stats: Stats) -> Recommendations:
        """Return the items; see `RequestOutput.result`."""
        assert self.beams is not None
        own, kept = self.work.options, slice(self.work.beams)
        state, score = (part[None, kept] for part in self.beams)
        return recommendations(self.work.catalogue, state, score, own.k, stats, self.work.filters, own.rules)
