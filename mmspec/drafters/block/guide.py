"""The guide of block drafters: one forward of the net behind the pending token, whose states serve all levels of a draft.

The net's cache holds one column for every state that the target has cached, so its columns stand in the target's slots: their number is
the target session's, and nothing is counted twice. The columns of a block are written behind them and overwritten by the next round.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rows.changes import RowState
from mmspec.drafters.guided import Fresh, check_width, pick, prompt_pairs, words_of
from mmspec.models.slot_cache import SlotCache
from mmspec.models.target import HFSession

_RESERVE = 192


@dataclass(frozen=True, slots=True)
class BlockColumns:
    """Where the M new context columns and the Q columns of a block stand."""

    slots: Tensor  # [B, M + Q]; the scratch slot for PAD columns
    positions: Tensor  # [B, M + Q]; 0 for PAD columns
    lengths: Tensor  # [B] context columns of each row, the new ones included
    view: int  # slots in view


class BlockNet(Protocol):
    """What the guide asks of a net. `most` is the number of draft tokens in a block, `extra` the number of its columns."""

    kind: str
    width: int
    reads: tuple[int, ...]
    most: int
    extra: int
    cached: int  # layers with keys and values
    blind: bool  # the draft tokens of a block do not depend on one another

    def run(self, fresh: Fresh, embed: Any, columns: BlockColumns, cache: SlotCache, /) -> Tensor:
        """Return the states [B, most, H] of a block behind each row's newest value.

        Args:
            fresh: newly committed values with the target's states before them, packed: M columns that `cache` does not hold yet.
            embed: the target's input embedding.
            columns: where the columns stand. `cache` is pointed at them.
            cache: the net's cache.
        """
        ...

    def feature(self, state: Tensor, previous: Tensor, memory: Tensor | None, /) -> tuple[Tensor, Tensor | None]:
        """Return what the output embedding reads for nodes, and their memory for their children.

        Args:
            state: [..., H] states of the block at the nodes' level.
            previous: [...] the nodes' values.
            memory: [..., R] of the nodes' parents; None at the first level.
        """
        ...

    def logits(self, feature: Tensor, head: Any, size: int, /) -> Tensor:
        """Return logits over the target's `size` values; `head` is the target's."""
        ...

    def confidence(self, feature: Tensor, /) -> Tensor | None:
        """Return logits [...] of the probability that the target accepts the next draft token; None if the net does not estimate it."""
        ...

    def attach(self, target: Any, /) -> None:
        """Take what is shared with `target`."""
        ...

    def embedding(self, target: Any, usual: Any, /) -> Any:
        """Return the embedding that the net reads values by, `usual` being the target's."""
        ...


class BlockGuide(RowState):
    """Guide of a block drafter. Every level's distribution is exact: it depends on the context and, with a Markov head, on the node's path.

    Args:
        net: the drafter net.
        session: the target's session.
    """

    by_row = ("fresh",)

    def __init__(self, net: BlockNet, session: HFSession):
        model = session.target.model
        check_width(net.kind, net.width, model)
        session.watch(net.reads)
        net.attach(model)
        usual, self.head, self.size = words_of(session)
        self.net, self.session, self.most, self.embed = net, session, net.most, net.embedding(model, usual)
        self.cache: SlotCache | None = None
        self.fresh: Fresh | None = None  # committed, and not in the cache yet
        self.filled = False  # the cache holds the prompt
        self.states: Tensor | None = None  # [B, most, H] of the block under way
        self.memory: Tensor | None = None  # [B, N, R] of the draft under way
        self.level = self.known = 0  # levels and columns of the draft that are scored

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Take in the verdict of the round; see `Guide.observe`."""
        fresh = Fresh.of(draft, scored, verdict)
        if self.cache is None:
            values, lengths, features = prompt_pairs(draft, scored)
            real = torch.arange(values.shape[1], device=values.device) < lengths[:, None]
            fresh = fresh.behind(Fresh(values, features, real))
            self.cache = SlotCache(self.net.cached, -(-(values.shape[1] + _RESERVE) // 64) * 64)
        self.fresh = fresh.behind(self.fresh)

    def root(self, pending: Draft) -> Draft | None:
        """Return the roots that the draft grows from; see `Guide.root`."""
        return None if self.fresh is None else pending

    @torch.no_grad()
    def score(self, draft: Draft) -> Scored:
        """Score the new columns of the draft; see `Guide.score`."""
        net, first, level = self.net, self.known, self.level
        if self.states is None:
            self.states = self._filled()
        count = draft.size - first
        previous = draft.nodes[:, first : first + (1 if net.blind else count)]
        state = self.states[:, level : level + 1].expand(-1, previous.shape[1], -1)
        feature, memory = net.feature(state, previous, None if self.memory is None else pick(self.memory, draft.parents[:, first:]))
        self.memory = memory if self.memory is None or memory is None else torch.cat([self.memory, memory], 1)
        self.level, self.known = level + 1, draft.size
        logits, sure = net.logits(feature, self.head, self.size), net.confidence(feature)
        p = self.session.distribution(logits.expand(-1, count, -1), draft, first)
        return Scored(p, feature.expand(-1, count, -1), confidence=None if sure is None else sure.sigmoid().expand(-1, count))

    def close(self) -> None:
        """End the draft of this round; see `Guide.close`."""
        self.states = self.memory = None
        self.level = self.known = 0

    @property
    def joinable(self) -> bool:
        """True once the prompt is in the cache; see `core.rows.changes.ChangesRows`."""
        return self.filled and super().joinable

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows; see `core.rows.changes.ChangesRows`."""
        assert self.cache is not None
        self.cache.take_rows(rows)
        super().take_rows(rows)

    def join_rows(self, other: Self) -> None:
        """Append the rows of another guide; see `core.rows.changes.ChangesRows`."""
        assert self.cache is not None
        assert other.cache is not None
        self.cache.join_rows(other.cache)
        super().join_rows(other)

    def _filled(self) -> Tensor:
        """The states of a block behind the pending token; afterwards the cache holds the context up to there."""
        assert self.fresh is not None
        assert self.cache is not None
        net, fresh, lengths, cache = self.net, self.fresh.packed(), self.session.lengths, self.cache
        view = self.session.bound + net.extra
        if view >= cache.capacity:
            cache.reserve(-(-(view + 1) // 64) * 64)
        order = fresh.real.cumsum(1)
        own = lengths[:, None] - order[:, -1:] + order - 1
        ahead = lengths[:, None] + torch.arange(net.extra, device=lengths.device)
        slots = torch.cat([torch.where(fresh.real, own, cache.capacity - 1), ahead], 1)
        columns = BlockColumns(slots, torch.cat([torch.where(fresh.real, own, 0), ahead], 1), lengths, view)
        cache.point(slots, view)
        self.fresh, self.filled = None, True
        return net.run(fresh, self.embed, columns, cache)
