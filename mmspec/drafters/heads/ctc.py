"""CTC drafting (Wen et al. 2024): several frames over the values and a blank; drafts are obtained by collapsing paths.

A path names a value or the blank in every frame. Merging repeats and dropping blanks makes a draft of it, and many paths give the same
draft. The probability that a draft begins with a prefix, summed over all paths, follows from the forward variables of CTC (Graves et al.
2006), and the ratio of two such probabilities is the distribution of the next value. A greedy chain is prefix search, a tree grown by path
probability is prefix beam search, and samples have a known distribution.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rows.changes import RowState
from mmspec.drafters.guided import Fresh, check_width, head_of, pick
from mmspec.models.target import HFSession

_NEVER = -1e6  # as a log-chance: far below any path's, and finite, so that what cannot be still has a distribution and a gradient


class CTC(nn.Module):
    """CTC drafter (Wen et al. 2024): frames that attend to one another, from the target's last hidden state and the newest value.

    The target's output embedding maps frames to values.

    Args:
        hidden: width of the target's hidden states.
        heads: largest number of draft tokens.
        frames: number of frames; 0 for two per draft token.
        attention_heads: attention heads between frames.

    Raises:
        ValueError: for sizes out of range.
    """

    kind = "ctc"
    reads: tuple[int, ...] = (-1,)

    def __init__(self, hidden: int, heads: int = 4, frames: int = 0, attention_heads: int = 4):
        super().__init__()
        frames = frames or 2 * heads
        if heads < 1 or frames < heads:
            raise ValueError(f"heads is {heads} and frames {frames}: at least 1 draft token, and a frame for each, are needed")
        self.config = {"hidden": hidden, "heads": heads, "frames": frames, "attention_heads": attention_heads}
        self.hidden, self.most, self.frames = hidden, heads, frames
        self.enter = nn.Linear(2 * hidden, frames * hidden)
        self.mix = nn.TransformerEncoderLayer(
            hidden, attention_heads, dim_feedforward=2 * hidden, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.leave, self.blank = nn.Linear(hidden, hidden), nn.Linear(hidden, 1)

    @classmethod
    def fit(cls, config: Any) -> dict[str, Any]:
        """Return options for a target of transformers' `config`."""
        return {"hidden": config.hidden_size}

    def forward(self, hidden: Tensor, value: Tensor, head: Any) -> "CtcFrames":
        """Return the frames after the newest values.

        Args:
            hidden: [B, H] the target's hidden states before the values.
            value: [B, H] embeddings of the values.
            head: the target's output embedding.
        """
        return self._frames(self.features(hidden, value), head)

    def features(self, hidden: Tensor, value: Tensor) -> Tensor:
        """Return what the frames' distributions are made of [B, T, H], of states and embeddings as `forward` takes them."""
        x = self.enter(torch.cat([hidden, value], -1)).unflatten(-1, (self.frames, self.hidden))  # [B, T, H]
        return hidden[:, None] + self.leave(self.mix(x))

    def prefix_logits(self, features: Tensor, prefix: Tensor, head: Any) -> Iterator[Tensor]:
        """Yield logits [N, V] of the value after the empty prefix, then after the first value of `prefix`, its first two, and so on.

        Args:
            features: [N, T * H] from `features`, frame after frame.
            prefix: LongTensor [N, D] values.
            head: the target's output embedding.
        """
        frames = self._frames(features.unflatten(-1, (self.frames, self.hidden)), head)
        state, last = frames.empty(), prefix.new_full((len(prefix), 1), -1)
        yield frames.next_logits(state, last)[:, 0]
        for value in prefix.unbind(1):
            state, last = frames.advance(state, last, value[:, None]), value[:, None]
            yield frames.next_logits(state, last)[:, 0]

    def _frames(self, features: Tensor, head: Any) -> "CtcFrames":
        log_probs = torch.cat([head(features), self.blank(features)], -1).float().log_softmax(-1)
        return CtcFrames(log_probs, features)

    def guide(self, session: HFSession) -> "CTCGuide":
        """Return the guide of one generation on the target session `session`."""
        return CTCGuide(self, session)


@dataclass(frozen=True)
class CtcFrames:
    """Log-probabilities over V values and, last, the blank, one distribution a frame."""

    log_probs: Tensor  # [B, T, V + 1]
    feature: Tensor  # [B, T, H]

    def empty(self) -> Tensor:
        """Return the forward variables of the empty prefix [B, 1, 2, T + 1]; see `advance`."""
        alone = nn.functional.pad(self.log_probs[..., -1].cumsum(1), (1, 0))
        return torch.stack([torch.full_like(alone, _NEVER), alone], 1)[:, None]

    def advance(self, state: Tensor, last: Tensor, value: Tensor) -> Tensor:
        """Return the forward variables of prefixes extended by one value.

        Args:
            state: [B, N, 2, T + 1] forward variables. Entry t of the first half is the log-probability of the paths of t frames that
                collapse to the prefix and end in its last value; of the second half, in a blank.
            last: [B, N] last value of the prefixes, -1 for the empty one.
            value: [B, N] values to append.
        """
        spoken, silent = state.unbind(2)
        repeated = (value == last)[..., None]  # it needs a blank between
        begins = torch.logaddexp(silent, torch.where(repeated, _NEVER, spoken))[..., :-1]
        spoken = _runs(begins, self._of(value))
        return torch.stack([spoken, _runs(spoken[..., :-1], self.log_probs[:, None, :, -1])], 2)

    def next_logits(self, state: Tensor, last: Tensor) -> Tensor:
        """Return unnormalised log-probabilities [B, N, V] of the value after each prefix."""
        spoken, silent = state[..., :-1].unbind(2)  # [B, N, T]
        chance = (torch.logaddexp(spoken, silent)[..., None] + self.log_probs[:, None, :, :-1]).logsumexp(2)
        at = last.clamp_min(0)
        again = torch.where(last >= 0, (silent + self._of(at)).logsumexp(-1), chance.gather(-1, at[..., None])[..., 0])
        return chance.scatter(-1, at[..., None], again[..., None])

    def _of(self, value: Tensor) -> Tensor:
        """Log-probability of `value` [B, N] in every frame: [B, N, T]."""
        return self.log_probs.gather(2, value[:, None].expand(-1, self.log_probs.shape[1], -1)).transpose(1, 2)


def _runs(begins: Tensor, log_p: Tensor) -> Tensor:
    """Log-probabilities [..., T + 1] of the paths that switch to a symbol after any frame, by `begins` [..., T], and stay on it, by
    `log_p`.
    """
    size = log_p.shape[-1]
    total = nn.functional.pad(log_p.cumsum(-1), (1, 0))
    stay = total[..., 1:, None] - total[..., None, :-1]  # [..., to, from]
    below = torch.ones(size, size, dtype=torch.bool, device=log_p.device).tril()
    found = (stay + begins[..., None, :]).masked_fill(~below, -torch.inf).logsumexp(-1)
    return nn.functional.pad(found, (1, 0), value=_NEVER)


class CTCGuide(RowState):
    """Guide of CTC frames, computed once a round. A level of draft tokens costs a sum over T x V."""

    by_row = ("hidden",)

    def __init__(self, net: CTC, session: HFSession):
        check_width(net.kind, net.hidden, session.target.model)
        session.watch(net.reads)
        self.net, self.session, self.most = net, session, net.most
        self.embed, self.head = session.target.model.get_input_embeddings(), head_of(session.target.model)
        self.hidden: Tensor | None = None  # [B, H] before each row's newest value
        self.frames: CtcFrames | None = None
        self.states: Any = None  # [B, N, 2 * (T + 1)] of the draft under way
        self.level = 0

    def root(self, pending: Draft) -> Draft | None:
        """Return the roots that the draft grows from; see `Guide.root`."""
        return None if self.hidden is None else pending

    @torch.no_grad()
    def score(self, draft: Draft) -> Scored:
        """Score the new columns of the draft; see `Guide.score`."""
        first, last = 0, torch.full_like(draft.nodes[:, :1], -1)
        if self.frames is None:
            assert self.hidden is not None
            self.frames, self.level = self.net(self.hidden, self.embed(draft.nodes[:, 0]), self.head), 0
            state = self.frames.empty()
            self.states = state.flatten(2)
        else:
            first, self.level = self.states.shape[1], self.level + 1
            parents, value = draft.parents[:, first:], draft.nodes[:, first:]
            before = torch.cat([last, draft.nodes[:, 1:first]], 1).gather(1, parents.clamp_min(0))
            state, last = self.frames.advance(pick(self.states, parents).unflatten(-1, (2, -1)), before, value), value
            self.states = torch.cat([self.states, state.flatten(2)], 1)
        feature = self.frames.feature[:, self.level : self.level + 1].expand(-1, draft.size - first, -1)
        return Scored(self.session.distribution(self.frames.next_logits(state, last), draft, first), feature)

    def close(self) -> None:
        """End the draft of this round; see `Guide.close`."""
        self.frames = self.states = None

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Take in the verdict of the round; see `Guide.observe`."""
        self.hidden = Fresh.of(draft, scored, verdict).packed().features[:, -1]
