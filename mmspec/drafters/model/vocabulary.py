"""A drafter with another vocabulary: token-level intersection (TLI, Timor et al. 2025), lossless for any overlap.

Draft tokens are drawn from the drafter's distribution restricted to the shared values; that restricted distribution is q. Padded embedding
tables are the simplest case: one vocabulary is a prefix of the other. Where tokenizers are given, their tokens are compared by text: a
drafter of 49,000 tokens can know nearly every token that a target of 150,000 writes.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.protocols import Target, TargetSession
from mmspec.core.records import Draft, Scored
from mmspec.core.rows.changes import refuse_fixed_rows

_IDS = ("input_ids", "decoder_input_ids")  # what a prompt may hold of a vocabulary


@dataclass(frozen=True)
class Overlap:
    """The ids that two vocabularies share."""

    to_drafter: Tensor  # [Vt or more] what the drafter reads for each target id
    to_target: Tensor  # [S] target ids of the shared values
    shared: Tensor  # [S] the drafter's ids of the same values
    size: int  # Vt

    @staticmethod
    def of_sizes(target: int, drafter: int) -> "Overlap":
        """Return the overlap of one tokenizer with embedding tables padded to different sizes."""
        ids = torch.arange(min(target, drafter))
        return Overlap(torch.arange(target).clamp(max=drafter - 1), ids, ids, target)

    @staticmethod
    def of_tokenizers(
        target: Any,
        drafter: Any,
        size: int,
        *,
        own: int | None = None,
        never_generated_ids: Sequence[int] = (),
        also: Sequence[tuple[int, int]] = (),
    ) -> "Overlap":
        """Return the overlap of two tokenizers by the text of their tokens.

        For a token that it lacks, the drafter reads its unknown token, or the longest beginning of the token that it knows if that would
        be the end of the text (GPT-2, Whisper), after which it would draft nothing.

        Args:
            target: the target's tokenizer.
            drafter: the drafter's tokenizer.
            size: number of values of the target.
            own: number of values of the drafter; that of its tokenizer by default.
            never_generated_ids: target ids that are read but never drafted.
            also: pairs of ids that correspond whatever their spelling, such as picture placeholders.

        Raises:
            ValueError: if the drafter knows no token of the target but special ones, so that nothing it drafts could be accepted.
        """
        # SentencePiece numbers its bytes first, and a token goes before the byte of the same text
        ours, theirs = token_texts(target), {text: j for j, text in sorted(token_texts(drafter).items())}
        known = {i: theirs[text] for i, text in ours.items() if text in theirs} | dict(also)
        both = [(i, j) for i, j in sorted(known.items()) if i < size and (own is None or j < own)]
        special = {*target.all_special_ids, *(i for i, _ in also), *never_generated_ids}
        if all(i in special for i, _ in both):
            raise ValueError(
                f"mismatched vocabularies: the drafter knows {len(both)} of the target's {len(ours)} tokens, and none of text, so that "
                "nothing it drafts could be accepted; choose a drafter with the same tokenizer"
            )
        unknown = drafter.unk_token_id if drafter.unk_token_id is not None else 0
        to_drafter = torch.full((max(size, 1 + max(known)),), unknown)
        read = known if drafter.unk_token_id not in (None, drafter.eos_token_id) else known | _beginnings(ours, target, known, theirs)
        to_drafter[list(read)] = torch.tensor(list(read.values()))
        to_target, shared = torch.tensor([pair for pair in both if pair[0] not in never_generated_ids]).T
        return Overlap(to_drafter, to_target, shared, size)

    def read(self, ids: Tensor) -> Tensor:
        """Map target ids [...] to the drafter's. Placeholders beyond the table are allowed."""
        return self.to_drafter[ids.clamp(max=len(self.to_drafter) - 1)]

    def said(self, p: Categorical, size: int) -> Categorical:
        """Map the target's distributions `p` to the drafter's `size` values, restricted to shared ones."""
        scores = torch.full((*p.scores.shape[:-1], size), -torch.inf, dtype=p.scores.dtype, device=p.scores.device)
        scores[..., self.shared] = p.scores[..., self.to_target]
        return Categorical(scores)

    def to(self, device: torch.device) -> "Overlap":
        """Return this object with its tensors on `device`."""
        return Overlap(self.to_drafter.to(device), self.to_target.to(device), self.shared.to(device), self.size)


_SPACE = "\u2581"  # what SentencePiece writes for a space
_BYTE = re.compile("<0x([0-9A-F]{2})>")  # what it writes for a byte without a token


@lru_cache(1)
def _byte_letters() -> dict[str, int]:
    """The letters by which byte-level tokenizers (GPT-2's and its kin) write the bytes 0 to 255."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("\u00a1"), ord("\u00ac") + 1), *range(ord("\u00ae"), ord("\u00ff") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}


def token_texts(tokenizer: Any) -> dict[int, bytes]:
    """Return the text of every id of a tokenizer, whatever its way of writing spaces and bytes; the spelling where that is not known.

    Args:
        tokenizer: a transformers tokenizer.
    """
    vocabulary, letters = tokenizer.get_vocab(), _byte_letters()
    if "\u0120" in vocabulary:  # a space of byte-level tokenizers
        return {
            i: bytes(letters[letter] for letter in token) if letters.keys() >= set(token) else token.encode("utf-8", "replace")
            for token, i in vocabulary.items()
        }
    spaced = _SPACE in vocabulary
    found = {i: (token.replace(_SPACE, " ") if spaced else token).encode("utf-8", "replace") for token, i in vocabulary.items()}
    written = {i: _BYTE.fullmatch(token) for token, i in vocabulary.items()} if spaced else {}
    return found | {i: bytes([int(match[1], 16)]) for i, match in written.items() if match}


def _beginnings(ours: Mapping[int, bytes], target: Any, known: Mapping[int, int], theirs: Mapping[bytes, int]) -> dict[int, int]:
    """For each target id that is not `known` the drafter's id of the longest beginning of its token, where there is one."""
    found, special = {}, set(target.all_special_ids)
    for i, token in ours.items():
        if i not in known and i not in special:
            parts = (theirs[token[:end]] for end in range(len(token) - 1, 0, -1) if token[:end] in theirs)
            if (part := next(parts, None)) is not None:
                found[i] = part
    return found


@dataclass(frozen=True)
class Translated:
    """Presents a model of another vocabulary as a target over the target's ids."""

    target: Target
    overlap: Overlap

    def begin(self, prompt: Any) -> tuple["TranslatedSession", Draft]:
        """Open a session on one prompt, or on several where the model takes several (an ensemble of views)."""
        several = isinstance(prompt, tuple)
        session, pending = self.target.begin(tuple(map(self._own, prompt)) if several else self._own(prompt))
        return TranslatedSession(session, self.overlap.to(pending.nodes.device)), pending

    def capture(self, reserve: int) -> "Translated":
        """Return this object with its forwards captured; see `HFTarget.capture`."""
        capture = getattr(self.target, "capture", None)
        return self if capture is None else replace(self, target=capture(reserve))

    def _own(self, prompt: Mapping[str, Any]) -> dict[str, Any]:
        """`prompt` in the drafter's ids."""
        found = {name: prompt[name] for name in _IDS if name in prompt}
        return {**prompt, **{name: self.overlap.to(ids.device).read(ids) for name, ids in found.items()}}


class TranslatedSession:
    """Session whose inputs are mapped by `to_drafter` and whose distributions are over the target's values."""

    def __init__(self, session: TargetSession, overlap: Overlap):
        self.session, self.overlap = session, overlap
        self.size = 0  # of the drafter's own distributions

    @property
    def scored(self) -> int:
        """Number of columns of the draft that have been scored."""
        return self.session.scored

    @property
    def mixes_depths(self) -> bool:
        """True where one call may score nodes of several depths; see `drafters.shapes.for_source`."""
        return getattr(self.session, "mixes_depths", True)

    @property
    def room(self) -> list[int] | None:
        """By row, the positions behind the prompt; see `models.session.Room`."""
        return getattr(self.session, "room", None)

    def leave_out_long_prompts(self) -> None:
        """Leave out rows whose prompt is too long; see `HFSession.leave_out_long_prompts`."""
        self.session.leave_out_long_prompts()  # type: ignore[attr-defined]

    def score(self, draft: Draft) -> Scored:
        """Score the draft; see `TargetSession.score`."""
        found = self.session.score(replace(draft, nodes=self.overlap.read(draft.nodes)))
        own = found.p.scores
        self.size = own.shape[-1]
        scores = torch.full((*own.shape[:-1], self.overlap.size), -torch.inf, dtype=own.dtype, device=own.device)
        scores[..., self.overlap.to_target] = own[..., self.overlap.shared]
        return replace(found, p=Categorical(scores))

    def learn(self, p: Categorical, columns: Tensor, real: Tensor) -> None:
        """Pass the target's distributions on to a session that adapts to them, mapped to the drafter's values where those have
        probability.
        """
        if hasattr(self.session, "learn"):
            own = self.overlap.said(p, self.size)
            some = own.scores.amax(-1) > -torch.inf
            own = Categorical(torch.where(some[..., None], own.scores, 0.0))
            self.session.learn(own, columns, real & some)  # type: ignore[attr-defined]

    def commit(self, keep: Tensor, most: int) -> None:
        """Commit the kept columns; see `TargetSession.commit`."""
        self.session.commit(keep, most)

    @property
    def joinable(self) -> bool:
        """True once the model has run its prompt; see `core.rows.changes.ChangesRows`."""
        refuse_fixed_rows(self.session, "the drafter")
        return self.session.joinable  # type: ignore[attr-defined]

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows; see `core.rows.changes.ChangesRows`."""
        self.session.take_rows(rows)  # type: ignore[attr-defined]

    def join_rows(self, other: "TranslatedSession") -> None:
        """Append the rows of another session; see `core.rows.changes.ChangesRows`."""
        self.session.join_rows(other.session)  # type: ignore[attr-defined]
