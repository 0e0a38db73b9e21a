"""Published slips in judging vectors, which the tests of distributions must find out."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rules.base import commit
from mmspec.core.rules.token import Token


class FromP(Token):
    """A published slip: a rejected draft token is replaced by a draw from p."""

    def replacement(self, p: Any, q: Any, x: Tensor) -> Any:
        return p


class NoRollback(Token):
    """Another: the draft tokens behind a rejected one are kept."""

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        judged, rows = super().__call__(draft, scored, noise), torch.arange(len(draft.start))
        leaf = draft.valid.sum(1).clamp_min(1) - 1
        more = scored.p.at(leaf[:, None]).sample(noise.value(draft.start[:, None] + leaf[:, None]))[:, 0]
        whole = commit(draft, leaf, more)
        values = whole.values.clone()
        values[rows, judged.accepted] = judged.values[rows, judged.accepted]
        return replace(whole, values=values)
