"""A recurrent head that searches item paths (NEZHA, Wang et al. 2026), used as a drafter.

logits_l = W_l (r_l + h) over the codes of level l, and r_{l+1} = cell(embedding of the code, r_l), where h is the target's last hidden
state and r begins as h. NEZHA returns what the head finds; here a strict rule verifies it, so the result is the target's. The head needs
no cache, and drafting costs a few small products a level.

A round reads the hidden state of the parent of a beam's newest token, run in the round before. The prompt's round has no such state and is
not drafted. The next round starts from the prompt's end, as NEZHA does, and later ones from the parents of the beams. So a round drafts
from level 2 on, and a search takes at least two calls.
"""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from mmspec.core.beams.search import Forest
from mmspec.core.beams.trie import Children, Trie
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rows.changes import RowState
from mmspec.drafters.guided import check_width, pick
from mmspec.models.target import HFSession

_NONE = 2**31 - 1
"""Stands in `tokens` where a level has fewer codes than others."""


class RecurrentHead(nn.Module):
    """Recurrent head over item paths (NEZHA, Wang et al. 2026).

    Args:
        hidden: width of the target's hidden states.
        levels: tokens per path, at least 2.
        codes: largest number of different tokens of a level.

    Raises:
        ValueError: for sizes out of range.
    """

    kind: ClassVar[str] = "recurrent-head"
    reads: ClassVar[tuple[int, ...]] = (-1,)
    tokens: Tensor  # [levels - 1, codes] sorted token ids of every level but the first, whose distribution is always the target's

    def __init__(self, hidden: int, levels: int, codes: int):
        super().__init__()
        if hidden < 1 or levels < 2 or codes < 1:
            raise ValueError(f"hidden, levels and codes are {hidden}, {levels} and {codes}: a head needs at least 1, 2 and 1")
        self.config = {"hidden": hidden, "levels": levels, "codes": codes}
        self.hidden, self.levels = hidden, levels
        self.cell = nn.RNNCell(hidden, hidden)
        self.weight = nn.Parameter(torch.randn(levels - 1, codes, hidden) * hidden**-0.5)
        self.register_buffer("tokens", torch.arange(codes).repeat(levels - 1, 1))

    @staticmethod
    def of(target: Any, paths: Tensor) -> "RecurrentHead":
        """Return a new head for `target` over `paths` [P, L], initialised with the rows of the target's own head."""
        config = target.config.get_text_config(decoder=True)
        own = [column.unique() for column in paths.cpu().unbind(1)][1:]
        net = RecurrentHead(config.hidden_size, paths.shape[1], max(map(len, own)))
        net.tokens = torch.stack([torch.nn.functional.pad(ids, (0, net.tokens.shape[1] - len(ids)), value=_NONE) for ids in own])
        rows = target.get_output_embeddings().weight.detach().float().cpu()
        scale = config.hidden_size**-0.5 if getattr(config, "scale_decoder_outputs", False) else 1.0
        net.weight.data = scale * rows[net.tokens.clamp_max(len(rows) - 1)]
        return net.to(target.device)

    def check(self, weights: dict[str, Tensor]) -> None:
        """Raise ValueError unless the ids in `tokens` are distinct and ascending."""
        ids = weights["tokens"]
        rising = (ids[:, 1:] > ids[:, :-1]) | (ids[:, 1:] == _NONE)
        if not bool(rising.all()) or int(ids.min()) < 0:
            raise ValueError("tensor tokens must hold each level's token ids in rising order: make the head by RecurrentHead.of")

    def step(self, state: Tensor, value: Tensor) -> Tensor:
        """Return r after a token with embedding `value`, both [..., H]."""
        return self.cell(value.flatten(0, -2), state.flatten(0, -2)).view_as(state)

    def distribution(self, feature: Tensor, level: Tensor) -> Tensor:
        """Return log q [B, M, S] over the codes of `level` [B] (from 0, at least 1), from r + h [B, M, H]."""
        own = level - 1
        logits = feature @ self.weight[own].transpose(1, 2)
        return log_softmax(logits.float().masked_fill((self.tokens[own] == _NONE)[:, None], -torch.inf), -1)

    def of_tokens(self, log_q: Tensor, token: Tensor, level: Tensor) -> Tensor:
        """Return `log_q` [B, M, S] at `token` [B, M, C]; -inf for a token that is no code of the level."""
        ids = self.tokens[level - 1]
        flat = token.flatten(1)
        place = torch.searchsorted(ids, flat).clamp_max(ids.shape[1] - 1)
        known = (ids.gather(1, place) == flat).view_as(token)
        return torch.where(known, log_q.gather(2, place.view_as(token)), -torch.inf)

    # --- learning -----------------------------------------------------------------------------------------------------

    def unroll(self, hidden: Tensor, tokens: Tensor, embed: Callable[[Tensor], Tensor], every: bool = True) -> Iterator[tuple[int, Tensor]]:
        """What the head says along items `tokens` [N, L] as a draft would: (level, log q [N, S]) of each level behind each beginning.

        hidden [N, L, H]: the target's last hidden states that tell the tokens; `every` False: drafts from the prompt's end alone.
        """
        with torch.no_grad():
            values = embed(tokens).to(self.weight.dtype)
        hidden = hidden.to(self.weight.dtype)
        for start in range(self.levels - 1 if every else 1):
            state = hidden[:, start]
            for level in range(start + 1, self.levels):
                state = self.step(state, values[:, level - 1])
                yield level, self.distribution((state + hidden[:, start])[:, None], torch.full_like(tokens[:, 0], level))[:, 0]

    def loss(
        self,
        hidden: Tensor,
        tokens: Tensor,
        embed: Callable[[Tensor], Tensor],
        log_p: Tensor | None = None,
        mix: float = 0.5,
        every: bool = True,
    ) -> Tensor:
        """The mean cross-entropy of the tokens that came; with the target's distributions `log_p` [N, L, V], `mix` of it and the rest KL(p
        | q), both over the level's codes."""
        terms: list[Tensor] = []
        for level, log_q in self.unroll(hidden, tokens, embed, every):
            ids = self.tokens[level - 1]
            place = torch.searchsorted(ids, tokens[:, level].contiguous()).clamp_max(len(ids) - 1)
            term = -log_q.gather(1, place[:, None]).mean()
            if log_p is not None:
                real = ids != _NONE
                wanted, said = log_softmax(log_p[:, level, ids[real]].float(), -1), log_q[:, real]
                term = mix * term + (1 - mix) * (wanted.exp() * (wanted - said)).sum(-1).mean()
            terms.append(term)
        return torch.stack(terms).mean()

    # --- drafting -----------------------------------------------------------------------------------------------------

    def beam_guide(self, prompt: Any, session: Any, trie: Trie) -> "RecurrentGuide":
        """Return the guide of one beam search; see `BeamSource.beam_guide`."""
        if trie.levels != self.levels:
            raise ValueError(f"this head drafts paths of {self.levels} tokens, but the catalogue's have {trie.levels}: train one for it")
        return RecurrentGuide(self, session)


class RecurrentGuide(RowState):
    """The head at work in one generation: the hidden states its drafts begin from, and the newest layer of the draft under way."""

    by_row = ("begin",)

    def __init__(self, net: RecurrentHead, session: HFSession):
        check_width(net.kind, net.hidden, session.target.model)
        session.watch(net.reads)
        self.net, self.embed = net, session.target.model.get_input_embeddings()
        self.begin: Tensor | None = None  # [B, K, H] the target's state that told each beam's newest token
        self.hidden = self.state = torch.empty(0)  # h and r [B, M, H] of the newest layer
        self.first = 0  # its first column

    @property
    def ready(self) -> bool:
        """True once the target has run the prompt."""
        return self.begin is not None

    @torch.no_grad()
    def weigh(self, draft: Draft, children: Children) -> Tensor:
        """Return log q [B, M, C] of the children; see `BeamGuide.weigh`."""
        forest: Forest = draft.aux
        count = children.state.shape[1]
        first = draft.size - count
        if not forest.layers:
            assert self.begin is not None
            self.hidden = self.state = self.begin
        else:
            parents = draft.parents[:, first:] - self.first
            self.hidden, self.state = pick(self.hidden, parents), pick(self.state, parents)
        values = self.embed(draft.nodes[:, first:]).to(self.net.weight.dtype)
        self.state, self.first = self.net.step(self.state, values), first
        level = (draft.start + len(forest.layers)).clamp(1, self.net.levels - 1)
        return self.net.of_tokens(self.net.distribution(self.state + self.hidden, level), children.token, level)

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Take in the verdict of the round; see `Guide.observe`."""
        assert scored.hidden is not None
        pending = verdict.pending
        parents = pending.parents[:, -pending.aux.beams :]
        column = verdict.keep.gather(1, parents.clamp_min(0))
        fresh = draft.size - scored.hidden.shape[1]  # beams were committed in this round: their parents were run in it
        self.begin = pick(scored.hidden, column - fresh).to(self.net.weight.dtype)
