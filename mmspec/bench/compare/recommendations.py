"""The baseline of item beams: transformers' constrained beam search, and the bytes that each keeps in its cache."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.beams.search import TopKBeams
from mmspec.core.beams.stopping import BeamStopping
from mmspec.core.control import Fixed
from mmspec.core.decode import decode
from mmspec.core.noise import Noise
from mmspec.drafters.none import NoDraft
from mmspec.models.beam_target import BeamTarget
from mmspec.models.compat.cache_name import cache_of
from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget
from mmspec.recsys.catalogue import Catalogue


@dataclass(frozen=True)
class Beams:
    """Result of transformers: paths [B, K, L], scores [B, K] if it returns them, and the bytes in its cache at the end."""

    paths: Tensor
    scores: Tensor | None
    cache_bytes: int


class Prefixes:
    """A dict from each prefix of a catalogue's paths to the tokens that may follow, for `prefix_allowed_tokens_fn`."""

    def __init__(self, catalogue: Catalogue):
        found: dict[tuple[int, ...], set[int]] = {}
        for path in catalogue.distinct.tolist():
            for level in range(len(path)):
                found.setdefault(tuple(path[:level]), set()).add(path[level])
        self.levels = catalogue.levels
        self.after = {prefix: sorted(tokens) for prefix, tokens in found.items()}

    def function(self, prompt: int) -> Any:
        """Return the function for prompts of `prompt` tokens, padding included."""
        return lambda row, ids: self.after[tuple(ids[prompt:].tolist())]


@torch.no_grad()
def beam_search_baseline(model: Any, inputs: Mapping[str, Tensor], prefixes: Prefixes, k: int) -> Beams:
    """Run `generate(num_beams=k, num_return_sequences=k, prefix_allowed_tokens_fn=...)` in one batch."""
    start = 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    out = model.generate(
        **inputs,
        num_beams=k,
        num_return_sequences=k,
        max_new_tokens=prefixes.levels,
        do_sample=False,
        prefix_allowed_tokens_fn=prefixes.function(start),
        return_dict_in_generate=True,
        output_scores=k > 1,
    )
    rows = len(inputs["input_ids"])
    scores = out.sequences_scores.view(rows, k) if k > 1 else None
    layers = getattr(cache_of(out), "layers", ())
    return Beams(out.sequences[:, start:].view(rows, k, -1), scores, sum(_bytes(layer.keys, layer.values) for layer in layers))


@torch.no_grad()
def shared_bytes(model: Any, inputs: Mapping[str, Tensor], catalogue: Catalogue, k: int) -> int:
    """Return the bytes that plain search keeps in its cache at the end, for all rows: prompts once, and beams.

    Only slots in use count, as transformers' cache holds no others.
    """
    rows, trie = len(inputs["input_ids"]), catalogue.trie.to(model.device)
    target = _Kept(HFTarget(model, family_of(model)), trie)
    stopping = BeamStopping(rows, trie.levels, k, model.device)
    noise = Noise.from_seed(0, rows, model.device)
    for _ in decode(target, NoDraft(), TopKBeams(trie, k), inputs, stopping=stopping, noise=noise, control=Fixed(0)):
        pass
    (session,) = target.sessions  # pyright: ignore[reportAttributeAccessIssue]
    used = session.bound + session.scored
    return sum(_bytes(layer.keys[:, :, :used], layer.values[:, :, :used]) for layer in session.cache.slot_layers)


@dataclass(frozen=True)
class _Kept(BeamTarget):
    """A target that keeps references to its sessions."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sessions", [])

    def begin(self, prompt: Mapping[str, Tensor]) -> Any:
        session, root = super().begin(prompt)
        self.sessions.append(session)  # pyright: ignore[reportAttributeAccessIssue]
        return session, root


def _bytes(*tensors: Tensor | None) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def overlap(found: Sequence[Sequence[Any]], wanted: Sequence[Sequence[Any]]) -> float:
    """Return the share of `wanted` items that are in `found`, over all users."""
    hits = sum(len(set(a) & set(b)) for a, b in zip(found, wanted, strict=True))
    return hits / max(1, sum(map(len, wanted)))
