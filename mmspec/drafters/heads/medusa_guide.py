"""The guide of heads on the target's last hidden state."""

from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.processors.history import History
from mmspec.core.processors.truncation import distribution_of
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rows.changes import RowState
from mmspec.drafters.guided import Fresh, check_width, head_of, pick
from mmspec.models.target import HFSession


class HeadsGuide(RowState):
    """Guide of heads: the newest hidden state of every row, and the states of the current draft.

    Heads that read no draft tokens, under processors that read no paths, say the same after every node of a level. Their levels are scored
    together, as many as the draft before had.
    """

    by_row = ("hidden",)

    def __init__(self, net: Any, session: HFSession):
        check_width(net.kind, net.hidden, session.target.model)
        session.watch(net.reads)
        if getattr(net, "shared_head", False):
            net.attach(session.target.model)
        self.net, self.session, self.most = net, session, net.most
        self.embed, self.head = session.target.model.get_input_embeddings(), head_of(session.target.model)
        self.hidden: Tensor | None = None  # [B, 1, H] before each row's newest value
        self.states: Tensor | None = None  # [B, N, S] of the draft under way; of its root alone for levels scored together
        self.level = 0
        self.usual = 1  # levels of the draft before
        self.ahead: list[Scored] = []  # levels scored together, the one under way first
        self.columns = 0  # scored ones of the draft under way

    def root(self, pending: Draft) -> Draft | None:
        """Return the roots that the draft grows from; see `Guide.root`."""
        return None if self.hidden is None else pending

    @torch.no_grad()
    def score(self, draft: Draft) -> Scored:
        """Score the new columns of the draft; see `Guide.score`."""
        if self.net.blind and not self.session.reads_paths:
            return self._score_level(draft)
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

    def _score_level(self, draft: Draft) -> Scored:
        if self.states is None:
            assert self.hidden is not None
            self.states = self.net.start(self.hidden, self.embed(draft.nodes[:, -1:]))
        else:
            self.level += 1
        if not self.ahead:
            self.ahead = self._score_levels(draft, range(self.level, max(self.usual, self.level + 1)))
        scored, count = self.ahead.pop(0), draft.size - self.columns
        self.columns = draft.size
        same = torch.zeros(len(draft.nodes), count, dtype=torch.long, device=draft.nodes.device)
        return Scored(scored.p.at(same), scored.hidden.expand(-1, count, -1)) if count > 1 else scored

    def _score_levels(self, draft: Draft, levels: range) -> list[Scored]:
        """Score levels without their nodes: distributions [B, 1] and features [B, 1, H] of each."""
        features = [self.net.read(self.states, level) for level in levels]
        logits = torch.cat([self.net.logits(feature, level, self.head) for feature, level in zip(features, levels, strict=True)], 1).float()
        processors, steps = self.session.target.processors, torch.arange(levels.start, levels.stop, device=logits.device)
        if processors.idle:
            p = Categorical(logits)
        else:
            position = draft.position()[:, draft.roots - 1 : draft.roots] + steps
            p = distribution_of(processors, logits, History(None, None, position))  # type: ignore[arg-type]
        index = (steps - levels.start).expand(len(logits), -1)
        return [Scored(p.at(index[:, number : number + 1]), feature) for number, feature in enumerate(features)]

    def close(self) -> None:
        """End the draft of this round; see `Guide.close`."""
        self.usual = min(self.level + 1, self.net.most) if self.states is not None else self.usual
        self.states, self.level, self.ahead, self.columns = None, 0, [], 0

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Take in the verdict of the round; see `Guide.observe`."""
        self.hidden = Fresh.of(draft, scored, verdict).packed().features[:, -1:]
