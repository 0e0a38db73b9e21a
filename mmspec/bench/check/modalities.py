"""Checks of the other modalities: pictures, continuous tokens, speech and recommendations, with drafting against plain decoding.

Token-exact methods must give the same codes, steps or items as plain decoding with the same seeds. Methods for continuous tokens are exact
in distribution and are tested by projection (`mmspec.bench.check.projection`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmspec.bench.check.findings import Finding
from mmspec.core.rules.base import DISTRIBUTION_EXACT, LOSSY, TOKEN_EXACT, UNMETERED

LEAST = 1e-4
"""p-values of the projection test below this fail."""
_DRAFTING = "the method, the drafter or the rule: the target alone gives another output for the same seeds"
_BATCH = "the batch: a row's output depends on its neighbours"
_DISTRIBUTION = "too much of the draft is accepted: the rule, or a q that draft tokens were not drawn from"
_PLAIN = "the beams: plain search does not give what transformers' constrained beam search gives"


def check_pictures(model: Any, prompts: Sequence[Any], method: str | None = None, *, seed: int = 0, **options: Any) -> list[Finding]:
    """Compare pictures of codes by `method` with plain decoding for the same seeds, and a batch with each picture alone.

    Args:
        model, prompts, method, options: as in `mmspec.vision.generate`.
        seed: seed of the first picture.
    """
    from mmspec.vision import generate

    seeds = [seed + row for row in range(len(prompts))]
    drafted = generate(model, list(prompts), method=method, seed=seeds, **options)
    exactness = drafted.stats.exactness
    name = f"pictures by {method or 'the default method'}"
    if exactness in (LOSSY, UNMETERED):
        return [Finding("the method is lossless", False, len(seeds), f"it is lossy by design: drift {drafted.stats.drift or 0:.3g}")]
    found = []
    if exactness == TOKEN_EXACT:
        drafting = ("drafter", "draft_length", "tree", "window", "init")
        plain = generate(model, list(prompts), method="plain", seed=seeds, **{k: v for k, v in options.items() if k not in drafting})
        found.append(_equal(f"{name}: the codes of plain decoding", drafted.tokens, plain.tokens, _DRAFTING))
    else:
        found.append(Finding(f"{name}: the codes of plain decoding", True, 0, f"it is {exactness}: another sample, not compared"))
    alone = torch.cat(
        [generate(model, [prompt], method=method, seed=[own], **options).tokens for prompt, own in zip(prompts, seeds, strict=True)]
    )
    return [*found, _equal(f"{name}, a batch of {len(seeds)}: as alone", drafted.tokens, alone, _BATCH)]


def check_continuous(
    model: Any, prompts: Sequence[Any], method: str | None = None, *, pictures: int = 48, seed: int = 0, **options: Any
) -> list[Finding]:
    """Test continuous tokens by `method` against the target's distribution, by `mmspec.bench.check.projection`.

    Args:
        model, prompts, method, options: as in `mmspec.bench.check.projection.project`.
        pictures: number of pictures, over the prompts in turn.
        seed: seed of the first picture.
    """
    from mmspec.bench.check.projection import project

    found = project(model, [prompts[n % len(prompts)] for n in range(pictures)], method, seed=seed, **options)
    name = f"continuous tokens by {method or 'the default method'}: draws from the target's distribution"
    if found.stats.exactness in (LOSSY, UNMETERED):
        return [Finding("the method is lossless", False, found.tokens, "it is lossy by design")]
    detail = f"{len(found.values)} values: mean {found.mean:.3f} (0 expected), deviation {found.deviation:.3f} (1), p = {found.p_value:.2g}"
    passed = found.p_value > LEAST
    return [Finding(name, passed, len(found.values), f"{detail}; below {LEAST:g} fails", "rule", "" if passed else _DISTRIBUTION)]


def check_speech(model: Any, texts: Sequence[str], drafter: Any, *, accept: Any = "exact", seed: int = 0, **options: Any) -> list[Finding]:
    """Compare speech with and without `drafter` for the same seeds, and a batch with each utterance alone.

    Args:
        model, texts, drafter, accept, options: as in `mmspec.speech.synthesize`.
        seed: seed of the first utterance.
    """
    from mmspec.speech import synthesize

    seeds = [seed + row for row in range(len(texts))]
    drafted = synthesize(model, list(texts), drafter, accept=accept, seed=seeds, **options)
    exactness = drafted.stats.exactness
    if exactness in (LOSSY, UNMETERED):
        return [Finding("the rule is lossless", False, len(seeds), f"it is lossy by design: drift {drafted.stats.drift or 0:.3g}")]
    found = []
    if exactness == TOKEN_EXACT:
        plain = synthesize(model, list(texts), None, accept=accept, seed=seeds, **{k: v for k, v in options.items() if k != "tree"})
        found.append(_equal_rows("speech: the steps of plain decoding", _steps(drafted), _steps(plain), _DRAFTING))
    else:
        found.append(Finding("speech: the steps of plain decoding", True, 0, f"it is {exactness}: another sample, not compared"))
    alone = [
        _steps(synthesize(model, [text], drafter, accept=accept, seed=[own], **options))[0] for text, own in zip(texts, seeds, strict=True)
    ]
    return [*found, _equal_rows(f"speech, a batch of {len(seeds)}: as alone", _steps(drafted), alone, _BATCH)]


def check_recommendations(
    model: Any, histories: Sequence[Sequence[Any]], catalogue: Any, drafter: Any, *, k: int = 10, mode: str | None = None, seed: int = 0
) -> list[Finding]:
    """Compare recommendations with `drafter` to plain search, and plain search to transformers' constrained beam search.

    Args:
        model, histories, catalogue, drafter, k, mode: as in `mmspec.recsys.recommend`.
        seed: seed of sampling modes.
    """
    from mmspec.recsys import recommend

    mode = mode or "strict"
    drafted = recommend(model, histories, k=k, catalogue=catalogue, drafter=drafter, method=mode, seed=seed)
    if drafted.stats.exactness in (LOSSY, UNMETERED):
        return [Finding("the mode is lossless", False, len(histories), f"{mode} is lossy by design")]
    found = []
    if mode in ("strict", "plain"):
        plain = recommend(model, histories, k=k, catalogue=catalogue, method="plain")
        found.append(_equal_rows(f"items by {mode}: those of plain search", drafted.items, plain.items, _DRAFTING))
        beams = [_transformers_beams(model, catalogue, history, k) for history in histories]
        paths = [[tuple(path) for path in row[: int(count)].tolist()] for row, count in zip(plain.paths, plain.counts, strict=True)]
        found.append(_equal_rows("plain search: the paths of transformers' constrained beam search", paths, beams, _PLAIN))
    elif drafted.stats.exactness != DISTRIBUTION_EXACT:
        plain = recommend(model, histories, k=k, catalogue=catalogue, method=mode, seed=seed)
        found.append(_equal_rows(f"items by {mode}: those without drafting", drafted.items, plain.items, _DRAFTING))
    else:
        found.append(Finding(f"items by {mode}: those without drafting", True, 0, "it is exact in distribution: not compared"))
    alone = [
        recommend(model, [history], k=k, catalogue=catalogue, drafter=drafter, method=mode, seed=[seed + row]).items[0]
        for row, history in enumerate(histories)
    ]
    return [*found, _equal_rows(f"items by {mode}, a batch of {len(alone)}: as alone", drafted.items, alone, _BATCH)]


@torch.no_grad()
def _transformers_beams(model: Any, catalogue: Any, history: Sequence[Any], k: int) -> list[tuple[int, ...]]:
    """Return the paths of one user's beams by `generate(num_beams=k, prefix_allowed_tokens_fn=...)`, best first."""
    inputs = catalogue.inputs([history], model.device)
    paths, length = [tuple(path) for path in catalogue.distinct.tolist()], catalogue.levels
    after: dict[tuple[int, ...], set[int]] = {}
    for path in paths:
        for level in range(length):
            after.setdefault(path[:level], set()).add(path[level])
    first = 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]

    def allowed(row: int, ids: Tensor) -> list[int]:
        return sorted(after.get(tuple(ids[first:].tolist()), {0}))

    beams = min(k, len(paths))
    settings = {"num_beams": beams, "num_return_sequences": beams, "min_new_tokens": length, "max_new_tokens": length, "do_sample": False}
    out = model.generate(**inputs, **settings, prefix_allowed_tokens_fn=allowed, length_penalty=0.0, return_dict_in_generate=True)
    rows = [tuple(row[first : first + length].tolist()) for row in out.sequences]
    return [row for row in rows if row in set(paths)]


def _steps(out: Any) -> list[list[Any]]:
    return [ids[:length].tolist() for ids, length in zip(out.tokens, out.lengths, strict=True)]


def _equal(name: str, own: Tensor, other: Tensor, cause: str) -> Finding:
    return _equal_rows(name, own.flatten(1).tolist(), other.flatten(1).tolist(), cause)


def _equal_rows(name: str, own: Sequence[Any], other: Sequence[Any], cause: str) -> Finding:
    differs = [row for row, (a, b) in enumerate(zip(own, other, strict=True)) if a != b]
    detail = f"{len(own) - len(differs)} of {len(own)} identical"
    if differs:
        a, b = own[differs[0]], other[differs[0]]
        place = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        detail += f"; row {differs[0]} differs at {place}"
    finding = Finding(name, not differs, len(own), detail, "tokens")
    return finding if not differs else replace(finding, cause=cause)
