"""A drafter with another vocabulary: token-level intersection (TLI, Timor et al. 2025), lossless for any overlap.

Guesses are drawn from the drafter's law restricted to the values both vocabularies have; that restricted law is q. Padded
embedding rows are the simplest case: one vocabulary is a prefix of the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.decode import Target, TargetSession
from mmspec.core.laws import Categorical
from mmspec.core.records import Draft, Scored

_IDS = ("input_ids", "decoder_input_ids")  # what a prompt may hold of a vocabulary


@dataclass(frozen=True)
class Overlap:
    """Which ids of two vocabularies mean the same."""

    to_drafter: Tensor  # [Vt] the drafter's id of each target id; `unknown` where it has none
    to_target: Tensor  # [S] target ids of the shared values
    shared: Tensor  # [S] the drafter's ids of the same values
    size: int  # Vt

    @staticmethod
    def of_sizes(target: int, drafter: int) -> "Overlap":
        """One tokenizer, embedding tables padded to different sizes."""
        ids = torch.arange(min(target, drafter))
        return Overlap(torch.arange(target).clamp(max=drafter - 1), ids, ids, target)

    @staticmethod
    def of_tokenizers(target: Any, drafter: Any, size: int, least: float = 0.5) -> "Overlap":
        """By the tokens' spelling. ValueError when less than `least` of the target's tokens are known to the drafter."""
        ours, theirs = target.get_vocab(), drafter.get_vocab()
        both = [(i, theirs[token]) for token, i in sorted(ours.items(), key=lambda item: item[1]) if token in theirs and i < size]
        if len(both) < least * len(ours):
            raise ValueError(
                f"mismatched vocabularies: the drafter knows {len(both)} of the target's {len(ours)} tokens "
                f"({len(both) / len(ours):.0%}); choose a drafter with the same tokenizer"
            )
        to_target, shared = torch.tensor(both).T
        unknown = drafter.unk_token_id if drafter.unk_token_id is not None else 0
        return Overlap(torch.full((size,), unknown).scatter_(0, to_target, shared), to_target, shared, size)

    def to(self, device: torch.device) -> "Overlap":
        return Overlap(self.to_drafter.to(device), self.to_target.to(device), self.shared.to(device), self.size)


@dataclass(frozen=True)
class Translated:
    """A target seen through another vocabulary: a drafter's model that speaks the target's ids."""

    target: Target
    overlap: Overlap

    def begin(self, prompt: Mapping[str, Tensor]) -> tuple["TranslatedSession", Draft]:
        given = [prompt[name] for name in _IDS if name in prompt]
        overlap = self.overlap.to(given[0].device)
        own = {name: overlap.to_drafter[prompt[name]] for name in _IDS if name in prompt}
        session, frontier = self.target.begin({**prompt, **own})
        return TranslatedSession(session, overlap), frontier


class TranslatedSession:
    """Ids go in through `to_drafter`, laws come out over the target's values."""

    def __init__(self, session: TargetSession, overlap: Overlap):
        self.session, self.overlap = session, overlap

    @property
    def scored(self) -> int:
        return self.session.scored

    def score(self, draft: Draft) -> Scored:
        found = self.session.score(replace(draft, nodes=self.overlap.to_drafter[draft.nodes]))
        own = found.p.scores
        scores = torch.full((*own.shape[:-1], self.overlap.size), -torch.inf, dtype=own.dtype, device=own.device)
        scores[..., self.overlap.to_target] = own[..., self.overlap.shared]
        return replace(found, p=Categorical(scores))

    def commit(self, keep: Tensor, most: int) -> None:
        self.session.commit(keep, most)
