"""Multi-token prediction by chained modules, as in DeepSeek-V3 (Liu et al. 2024), GLM-4.5, Qwen3-Next and MiMo.

There is either one module that is applied repeatedly, or several, each for one draft token further ahead. Every column pairs a value with
a state of the value before it: module 0 reads the target's last hidden state there, module k the output of module k - 1. So module k
predicts the value after its column from the target's state k + 1 values back, and has no input in the first k columns. A draft token on a
node of depth d comes from module d; past the last module, that one is applied to its own output, as in a feature drafter.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers.modeling_layers import MtpLayer

from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rows.changes import RowState
from mmspec.drafters.features.blocks import Blocks, llama_layer
from mmspec.drafters.guided import Fresh, check_width, head_of, pick, prompt_pairs
from mmspec.models.compat.cache_name import CACHE
from mmspec.models.compat.mtp import declares_modules, shipped_modules
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache
from mmspec.models.target import HFSession, HFTarget

_RESERVE = 192


class ChainedMTP(nn.Module):
    """Chained multi-token prediction modules (DeepSeek-V3, Liu et al. 2024).

    Each is transformers' `MtpLayer`: norms of the value's embedding and of the state, a projection of both, a decoder layer, a norm. The
    output of that norm is read by the target's head and by the next module.

    Args:
        layer: transformers config, with its `model_type`, of the decoder layer.
        modules: number of modules.
        hidden_first: the projection reads the state before the embedding, as in MiMo.
        blocks: the parts, if they are known; by default those of `layer`.

    Raises:
        ValueError: for layers whose attention the slot cache does not support, and for no modules.
    """

    kind = "mtp"
    reads: tuple[int, ...] = (-1,)

    def __init__(self, layer: Mapping[str, Any], modules: int = 1, hidden_first: bool = False, blocks: Blocks | None = None):
        super().__init__()
        if modules < 1:
            raise ValueError(f"modules is {modules}: multi-token prediction needs at least 1")
        self.config = {"layer": dict(layer), "modules": modules, "hidden_first": hidden_first}
        self.blocks = blocks or Blocks.of({**layer, "mtp_hidden_states_first": hidden_first}, modules, many_ropes=True)
        config = self.blocks.config
        self.hidden = config.hidden_size
        self.layers = nn.ModuleList(MtpLayer(config, self.blocks.block, self.blocks.norm, k) for k in range(modules))
        self.rotary = self.blocks.rope(config)

    @classmethod
    def fit(cls, config: Any) -> dict[str, Any]:
        """Return options for a target of transformers' `config`: one Llama layer of its sizes."""
        return {"layer": llama_layer(config)}

    @classmethod
    def from_pretrained(cls, target: Any) -> "ChainedMTP":
        """Load the modules in the checkpoint that `target` was loaded from, by transformers' `MtpModel`.

        Args:
            target: a transformers model loaded by `from_pretrained`.

        Raises:
            ValueError: if the family declares no modules, the checkpoint holds none, or they are chained in an unsupported way.
        """
        name = type(target).__name__
        if not hasattr(target, "get_decoder") or not declares_modules(target.config):
            raise ValueError(
                f"{name} declares no multi-token prediction modules that transformers can read: train a drafter for it instead"
            )
        path = target.config.name_or_path
        if not path:
            raise ValueError(f"no multi-token prediction modules for {name}: it was not loaded from a checkpoint")
        try:
            found = shipped_modules(target)
        except RuntimeError:  # it lists every weight that is missing
            raise ValueError(f"{path} holds no multi-token prediction modules of {name}, or not all: use another drafter") from None
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"no multi-token prediction modules for {name}: {' '.join(str(error).split())}") from None
        if hasattr(found.config, "chain_hidden_post_norm"):
            raise ValueError(f"{name} chains its modules before their norm, which is not supported here: use another drafter")
        options = {**found.config.to_diff_dict(), "model_type": found.config.model_type}
        blocks = Blocks.like(found.config, found.layers[0].mtp_block, found.layers[0].enorm, found.rotary_emb)  # type: ignore[arg-type]
        with torch.device("meta"):
            net = cls(options, found.num_mtp_layers, bool(getattr(found.config, "mtp_hidden_states_first", False)), blocks)
        net.layers, net.rotary = found.layers, copy.deepcopy(found.rotary_emb)
        return net.eval()

    def forward(self, k: int, state: Tensor, value: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """Return the output [B, M, H] of module `k`.

        Args:
            k: number of the module.
            state: [B, M, H] states before each value.
            value: [B, M, H] embeddings of the values.
            positions: [B, M] positions of the states.
            mask: [B, 1, M, S] bool.
            cache: the module's cache.
        """
        own = positions + 1  # a column stands where its value does, one place after the state it was paired with
        rope = self.rotary(value, position_ids=own, **self.blocks.rope_options(k))
        return self.layers[k](value, state, position_embeddings=rope, attention_mask=mask, position_ids=own, **{CACHE: cache})

    def sees(self, k: int, visible: Tensor, positions: Tensor, slot_positions: Tensor) -> Tensor:
        """Return what of `visible` [B, M, S] module `k` attends to: not the first `k` columns, and only its sliding window if it has one.

        The first columns attend to everything visible; their output is not used.
        """
        seen = self.blocks.visible(k, visible, positions, slot_positions) & (slot_positions >= k)[:, None]
        return seen | (visible & (positions < k)[..., None])

    def guide(self, session: HFSession) -> "ChainGuide":
        """Return the guide of one generation on the target session `session`."""
        return ChainGuide(self, session)


@dataclass(eq=False)
class ModuleSession(RowState):
    """One module in one generation: its session, the input of its next forward, and its outputs of this round."""

    by_row = ("lengths", "last")

    lengths: Tensor  # [B] of the prompt
    session: Any = None  # HFSession
    going_in: Any = None  # [B, M, H]
    prompt: Any = None  # [B, P, H] outputs, in the round that runs it
    out: Any = None  # [B, N, H] outputs for the draft under way
    last: Any = None  # [B, 1, H] output at each row's last committed column

    def take(self, out: Tensor, keep: int) -> None:
        """Store the outputs `out` of a forward; `keep` is the number of its columns."""
        if self.out is not None:
            self.out = torch.cat([self.out, out], 1)
            return
        self.prompt, self.out = out[:, : out.shape[1] - keep], out[:, out.shape[1] - keep :]
        if self.last is None:
            self.last = pick(_shifted(self.prompt), self.lengths[:, None])

    def before(self, parents: Tensor) -> Tensor:
        """Return the outputs one column before the prompt's columns and before draft columns with parents `parents` [B, N]."""
        known = torch.cat([self.last, self.out], 1)
        return torch.cat([_shifted(self.prompt)[:, :-1], pick(known, parents + 1)], 1)  # CONTEXT is -1: the last committed column

    def commit(self, keep: Tensor) -> None:
        """Keep the roots `keep` [B, R] and forget the draft tokens."""
        roots = keep.shape[1]
        self.last = torch.where((keep[:, -1:] >= 0)[..., None], self.out[:, roots - 1 : roots], self.last)
        self.session.commit(keep, roots)
        self.going_in = self.prompt = self.out = None


def _shifted(x: Tensor) -> Tensor:
    """`x` [B, P, H] with zeros in front, [B, P + 1, H]."""
    return nn.functional.pad(x, (0, 0, 1, 0))


@dataclass(frozen=True)
class Module:
    """Family of module `k`: lets an `HFSession` run it like any model."""

    k: int
    embed: Any
    head: Any

    def forward(
        self, model: ChainedMTP, layout: Layout, cache: SlotCache, state: ModuleSession, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Run `model` on the columns of `layout`; see the family protocol."""
        mask = model.sees(self.k, layout.visible, layout.positions, layout.slot_positions)
        out = model(self.k, state.going_in, self.embed(layout.ids), layout.positions, mask[:, None], cache)
        state.take(out, keep)
        return self.head(out[:, -keep:]), None


class ChainGuide(RowState):
    """Guide of chained modules. Level d of a draft is module d's, which then runs the whole draft in one forward.

    `close` runs the committed columns through the modules that the draft did not reach, so that all modules have the same cache.
    """

    by_row = ("fresh",)

    most = None

    def __init__(self, net: ChainedMTP, session: HFSession):
        model = session.target.model
        check_width(net.kind, net.hidden, model)
        session.watch(net.reads)
        self.net, self.processors = net, session.target.processors
        self.embed, self.head = model.get_input_embeddings(), head_of(model)
        self.lanes: list[ModuleSession] = []
        self.fresh: Fresh | None = None
        self.prompt: Tensor | None = None  # [B, P, H] the target's states there, until they are run
        self.roots: Draft | None = None
        self.level = self.scored = 0

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Take in the verdict of the round; see `Guide.observe`."""
        if not self.lanes:
            values, lengths, self.prompt = prompt_pairs(draft, scored)
            self.lanes = [self._lane(k, values, lengths) for k in range(len(self.net.layers))]
        self.fresh = Fresh.of(draft, scored, verdict).behind(self.fresh)

    def root(self, pending: Draft) -> Draft | None:
        """Return the roots that the draft grows from; see `Guide.root`."""
        if self.fresh is None:
            return None
        self.fresh = self.fresh.packed()
        self.roots, self.level, self.scored = self.fresh.rooted(pending), 0, 0
        return self.roots

    @torch.no_grad()
    def score(self, draft: Draft) -> Scored:
        """Score the new columns of the draft; see `Guide.score`."""
        k, fresh = min(self.level, len(self.lanes) - 1), draft.size - self.scored
        lane = self.lanes[k]
        lane.going_in = self._into(k, draft) if self.level == k else pick(lane.out, draft.parents[:, self.scored :])
        p = lane.session.score(draft).p.last(fresh)
        self.level, self.scored = self.level + 1, draft.size
        return Scored(p, lane.out[:, draft.size - fresh :])

    @torch.no_grad()
    def close(self) -> None:
        """End the draft of this round; see `Guide.close`."""
        assert self.fresh is not None
        assert self.roots is not None
        for k in range(self.level, len(self.lanes)):
            self.lanes[k].going_in = self._into(k, self.roots)
            self.lanes[k].session.score(self.roots)
        columns = torch.arange(self.roots.size, device=self.roots.start.device)
        keep = torch.where(self.fresh.real, columns, -1)
        for lane in self.lanes:
            lane.commit(keep)
        self.fresh = self.prompt = self.roots = None

    @property
    def joinable(self) -> bool:
        """True once every module has run the prompt; see `core.rows.changes.ChangesRows`."""
        return bool(self.lanes) and all(lane.session.joinable for lane in self.lanes) and super().joinable

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows; see `core.rows.changes.ChangesRows`."""
        super().take_rows(rows)
        for lane in self.lanes:
            lane.session.take_rows(rows)

    def join_rows(self, other: Self) -> None:
        """Append the rows of another guide; see `core.rows.changes.ChangesRows`."""
        super().join_rows(other)
        for mine, theirs in zip(self.lanes, other.lanes, strict=True):
            mine.session.join_rows(theirs.session)

    def _lane(self, k: int, values: Tensor, lengths: Tensor) -> ModuleSession:
        lane, target = ModuleSession(lengths), HFTarget(self.net, Module(k, self.embed, self.head), self.processors)  # type: ignore[arg-type]
        cache = SlotCache(len(self.net.layers), -(-(values.shape[1] + _RESERVE) // 64) * 64)  # layers are numbered, k alone is filled
        lane.session = HFSession(target, cache, lane, values, lengths)
        return lane

    def _into(self, k: int, draft: Draft) -> Tensor:
        """What module `k` takes at the prompt, in the round that runs it, and at every column of `draft`."""
        assert self.fresh is not None
        if k:
            return self.lanes[k - 1].before(draft.parents)
        return self.fresh.features if self.prompt is None else torch.cat([self.prompt, self.fresh.features], 1)
