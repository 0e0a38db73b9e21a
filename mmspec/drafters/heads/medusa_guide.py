"""The guide of heads on the target's last hidden state."""

from typing import Any

import torch
from torch import Tensor

from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rows.changes import RowState
from mmspec.drafters.guided import Fresh, check_width, head_of, pick
from mmspec.models.target import HFSession


class HeadsGuide(RowState):
    """Guide of heads: the newest hidden state of every row, and the states of the current draft."""

    by_row = ("hidden",)

    def __init__(self, net: Any, session: HFSession):
        check_width(net.kind, net.hidden, session.target.model)
        session.watch(net.reads)
        if getattr(net, "shared_head", False):
            net.attach(session.target.model)
        self.net, self.session, self.most = net, session, net.most
        self.embed, self.head = session.target.model.get_input_embeddings(), head_of(session.target.model)
        self.hidden: Tensor | None = None  # [B, 1, H] before each row's newest value
        self.states: Tensor | None = None  # [B, N, S] of the draft under way
        self.level = 0

    def root(self, pending: Draft) -> Draft | None:
        """Return the roots that the draft grows from; see `Guide.root`."""
        return None if self.hidden is None else pending

    @torch.no_grad()
    def score(self, draft: Draft) -> Scored:
        """Score the new columns of the draft; see `Guide.score`."""
        first = 0 if self.states is None else self.states.shape[1]
        values = self.embed(draft.nodes[:, first:])
        assert self.hidden is not None
        if self.states is None:
            state = self.states = self.net.start(self.hidden, values)
        else:
            self.level += 1
            state = self.net.advance(pick(self.states, draft.parents[:, first:]), values, self.level)
            self.states = torch.cat([self.states, state], 1)
        feature = self.net.read(state, self.level)
        return Scored(self.session.distribution(self.net.logits(feature, self.level, self.head), draft, first), feature)

    def close(self) -> None:
        """End the draft of this round; see `Guide.close`."""
        self.states, self.level = None, 0

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Take in the verdict of the round; see `Guide.observe`."""
        self.hidden = Fresh.of(draft, scored, verdict).packed().features[:, -1:]
