"""Proof by self-test: an architecture is run once its logits are shown to equal those of its own plain forwards.

`prove` is called before the first generation. Classes and settings that the test suite covers pass at once. Any other model is tested for
about a second: on a small random twin with its attention settings (a ragged batch, branching trees, chains across the attention window and
the rope switch, each with rollbacks) and, briefly, itself. The result holds for the process and, by fingerprint, on disk.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch

from mmspec.models import alterations as proof_alterations
from mmspec.models.alterations import Alteration
from mmspec.models.compat import execution_device
from mmspec.models.families.registry import family_of
from mmspec.models.prompt_proof import note_proven
from mmspec.models.proof import facts as proof_facts
from mmspec.models.proof import store as proof_store
from mmspec.models.proof.cases import Failed, check_itself, check_repeats, check_twin


@dataclass(frozen=True)
class Proof:
    """The result of a self-test.

    Attributes:
        exact: sessions give the logits of the model's own plain forwards.
        trees: branching drafts do, too.
        seen: the difference found, in one line; empty if there is none.
        reach: positions up to which this is known; None for all.
    """

    exact: bool
    trees: bool
    seen: str = ""
    reach: int | None = None


_lock = threading.RLock()
_known: dict[tuple[type, str], Proof] = {}
_seen: "WeakKeyDictionary[Any, tuple[tuple[Any, ...], Proof]]" = WeakKeyDictionary()


def require(model: Any, family: Any = None, *, trees: bool = False) -> Proof:
    """Return the proof of a model, running a self-test if none is known.

    Args:
        model: a transformers model in eval mode. Neither it nor any global random state is changed.
        family: what drives it; by default `family_of(model)`.
        trees: the caller will draft trees.

    Returns:
        The proof.

    Raises:
        ValueError: when the model cannot be run exactly, or not with trees if these are needed; the message gives the difference found.
    """
    proof = prove(model, family)
    if not proof.exact:
        raise ValueError(f"{proof.seen}: use plain transformers generation for this model")
    if trees and not proof.trees:
        raise ValueError(f"{proof.seen}: only chains can be drafted for it, so leave tree out")
    return proof


def require_reach(proof: Proof, longest: int) -> None:
    """Check that a generation stays within what a proof covers.

    Args:
        proof: the model's proof.
        longest: positions of prompt and output together.

    Raises:
        ValueError: when they exceed `proof.reach`.
    """
    if proof.reach is not None and longest > proof.reach:
        raise ValueError(
            f"{proof.seen}: prompt and max_new_tokens may take {proof.reach} positions together, but take {longest}; "
            "ask for fewer, or use plain transformers generation for this model"
        )


def prove(model: Any, family: Any = None) -> Proof:
    """Look up the proof of a model, or run a self-test.

    The test compares with uncached forwards. A family whose `cached_reference` is true is not tested: the output of `generate` for its
    models depends on keys cached earlier, so that uncached forwards differ from it (dynamic rope, windows that only the cache has).

    Args:
        model: a transformers model in eval mode. Neither it nor any global random state is changed.
        family: what drives it; by default `family_of(model)`.

    Returns:
        The proof, exact or not.
    """
    family = family_of(model) if family is None else family
    proof = _looked_up(model, family)
    if getattr(family, "trees", True) or not proof.trees:
        return proof
    return replace(proof, trees=False, seen=f"{type(model).__name__} cannot score branching drafts")


@torch.no_grad()
def _looked_up(model: Any, family: Any) -> Proof:
    covered = proof_facts.tested(model) or getattr(family, "cached_reference", False)
    digest = "" if covered else proof_facts.proof_fingerprint(model, family)
    state = (covered, digest, *proof_alterations.state(model))
    if (before := _seen.get(model)) is not None and before[0] == state:
        return before[1]
    with _lock:
        if model in _seen and _seen[model][0] == state:
            return _seen[model][1]
        with _random_state_kept(model):
            altered = tuple(proof_alterations.alterations(model))
            if covered:
                proof = _tested_alone(model, family, altered) if altered else Proof(True, True)
            else:
                proof = _kept(model, family, digest, altered)
        _seen[model] = (state, proof)
        if proof.exact:
            note_proven(model, family)
        return proof


def _kept(model: Any, family: Any, digest: str, altered: Sequence[Alteration]) -> Proof:
    """The proof of a model whose class is not covered; kept for all models of its fingerprint, of which alterations are no part."""
    known = None if altered else _known.get((type(model), digest)) or _read(digest)
    proof, lasting = _tested(model, family, known, altered)
    if lasting and not altered:
        _known[type(model), digest] = proof
        if known is None:
            proof_store.write_proof(digest, asdict(proof))
    return proof


def _tested_alone(model: Any, family: Any, altered: Sequence[Alteration]) -> Proof:
    """The proof of an altered model of a covered class: its twin would not be altered, and is known to be right."""
    try:
        check_itself(model, family, None, altered)
    except Failed as failure:
        return Proof(failure.trees_only, False, str(failure))
    return Proof(True, True)


def _tested(model: Any, family: Any, known: Proof | None, altered: Sequence[Alteration]) -> tuple[Proof, bool]:
    """The result of a self-test, and whether it holds for every model of the same fingerprint. For a `known` one only what depends on
    weights.
    """
    try:
        if known is not None:
            if known.exact:
                check_repeats(model, family)
            return known, True
    except Failed as failure:
        return Proof(False, False, str(failure)), False
    try:
        twin = check_twin(model)
    except Failed as failure:
        if not failure.trees_only:
            return Proof(False, False, str(failure)), True
        twin = failure
    try:
        reach, note = check_itself(model, family, twin if isinstance(twin, str) else None, altered)
    except Failed as failure:
        if not failure.trees_only:
            return Proof(False, False, str(failure)), False
        return Proof(True, False, str(failure)), False
    if isinstance(twin, Failed):
        return Proof(True, False, str(twin)), True
    return Proof(True, True, note, reach), True


def _read(digest: str) -> Proof | None:
    found = proof_store.read_proof(digest)
    try:
        return None if found is None else Proof(**found)
    except TypeError:
        return None


@contextmanager
def _random_state_kept(model: Any) -> Iterator[None]:
    device = execution_device(model)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield
