"""The methods for mini vlm in tables and in the demo, and the corresponding options of transformers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from mmspec import text
from mmspec.bench.compare.peers import Outcome, constant_draft_tokens, new_tokens, synchronize
from mmspec.core.stats import Stats
from mmspec.drafters.trees.planners import sparse_tree
from mmspec.minis import Mini
from mmspec.minis import vlm_model as sights

DRAFT_TOKENS, MORE, PLAIN = 5, 12, "transformers"
_NODES = 16


@dataclass(frozen=True)
class Captioner:
    """Captions from a vision-language model. Its cost is included in that of the caption view."""

    model: Any
    processor: Any
    question: str = "describe the picture."
    max_new_tokens: int = 64

    def __call__(self, prompt: Any) -> list[str]:
        """Return one caption for every picture of a request."""
        pictures = prompt["pixel_values"]
        ids = self.processor.tokenizer([self._asked()] * len(pictures), return_tensors="pt")["input_ids"]
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pictures}
        out = text.generate(self.model, inputs, max_new_tokens=self.max_new_tokens)
        return self.processor.batch_decode(
            [row[:size] for row, size in zip(out.sequences, out.lengths, strict=True)], skip_special_tokens=True
        )

    def _asked(self) -> str:
        tokens = self.model.config.image_seq_length
        return sights.prompt(self.question).replace(sights.IMAGE, sights.IMAGE * tokens)


def vlm_methods(mini: Mini) -> dict[str, dict[str, Any]]:
    """Return arguments of `generate` by name. All draft lengths are fixed, so results do not depend on measured times."""
    reader, small, view = mini.drafters["text"], mini.drafters["vlm"], _views(mini)
    chain = {"draft_length": DRAFT_TOKENS}
    tree = sparse_tree([[0.6 * 0.4**rank for rank in range(8)]] * DRAFT_TOKENS, _NODES)
    found: dict[str, dict[str, Any]] = {"plain": {}, "lookup": {"drafter": "lookup", **chain}}
    found |= {f"text, {name}": {"drafter": reader, "view": view[name], **chain} for name in ("drop", "newline", "caption")}
    found |= {f"vlm, {name}": {"drafter": small, "view": each, **chain} for name, each in view.items()}
    mixed = {
        "own + newline": ("own", "newline"),
        "own + pooled + newline": ("own", "pooled", "newline"),
        "newline + drop": ("newline", "drop"),
    }
    for weights in ("uniform", "adaptive"):
        for name, parts in mixed.items():
            blend = text.ensemble(*(view[part] for part in parts), weights=weights)
            found[f"vlm, {name}, {weights}"] = {"drafter": small, "view": blend, **chain}
    for name, drafter in mini.drafters.items():
        if name not in ("text", "vlm"):
            found[name] = {"drafter": drafter, **chain}
            found[f"{name}, comb"] = {"drafter": drafter, "tree": "comb", **chain}
            found[f"{name}, tree"] = {"drafter": drafter, "tree": tree, "draft_length": tree.depth}
    found[f"vlm, own, {MORE} draft tokens"] = {"drafter": small, "view": "own", "draft_length": MORE}
    found["vlm, own, tree"] = {"drafter": small, "view": "own", "tree": tree, "draft_length": tree.depth}
    return found


def captured(ways: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return some of `ways` with their forwards compiled."""
    chosen = ("plain", "text, newline", "vlm, own", f"vlm, own, {MORE} draft tokens", "vlm, own + newline, adaptive", "hivis", "vispec")
    return {f"{name}, captured": {**ways[name], "capture": True} for name in chosen if name in ways}


def _views(mini: Mini) -> dict[str, Any]:
    caption_view = text.view("caption", mini.processor, captioner=Captioner(mini.drafters["vlm"], mini.processor))
    return {
        "own": "own",
        "pooled": "pooled",
        "pruned": "pruned",
        "newline": text.view("newline", mini.processor),
        "drop": "drop",
        "caption": caption_view,
    }


@dataclass(frozen=True)
class Peer:
    """Options of transformers' `generate` for drafting with the same models, and the draft length."""

    options: dict[str, Any] = field(default_factory=dict)
    draft_tokens: int = DRAFT_TOKENS


def peers(mini: Mini) -> dict[str, Peer]:
    """Return the options of transformers by name."""
    text, small = {"assistant_model": mini.drafters["text"]}, {"assistant_model": mini.drafters["vlm"]}
    found = {f"{PLAIN}, assisted by {name}": Peer(each) for name, each in (("text", text), ("vlm", small))}
    found |= {f"{name}, {MORE} draft tokens": Peer(peer.options, MORE) for name, peer in found.items()}
    return {PLAIN: Peer(), **found, f"{PLAIN}, lookup": Peer({"prompt_lookup_num_tokens": DRAFT_TOKENS})}


def peers_of(way: str) -> list[str]:
    """Return the peers with the same kind of drafter as `way`; for heads, those with transformers' best drafter."""
    kind = "lookup" if way == "lookup" else f"assisted by {'text' if way.startswith('text') else 'vlm'}"
    return [f"{PLAIN}, {kind}"] + ([] if way == "lookup" else [f"{PLAIN}, {kind}, {MORE} draft tokens"])


@dataclass
class AnswerTally:
    """Measurements of one method over many requests."""

    stats: Stats = field(default_factory=Stats)
    tokens: int = 0
    calls: int = 0
    same: int = 0
    asked: int = 0
    seconds: list[float] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)

    def add(self, outcome: Outcome, wanted: Sequence[Sequence[int]]) -> None:
        """Add one outcome; `wanted` holds the token ids to compare its rows with."""
        self.tokens, self.calls = self.tokens + outcome.count, self.calls + outcome.row_calls
        self.same += sum(own == other for own, other in zip(outcome.tokens, wanted, strict=True))
        self.asked += len(wanted)
        self.seconds.append(outcome.seconds)
        for phase, seconds in (outcome.phases or {}).items():
            self.phases[phase] = self.phases.get(phase, 0.0) + seconds


def answered(
    mini: Mini, inputs: Mapping[str, Tensor], options: Mapping[str, Any], max_new_tokens: int, tally: AnswerTally, seed: int = 0
) -> Outcome:
    """Answer one request, or a batch of them."""
    synchronize(mini.target.device)
    begun = perf_counter()
    out = text.generate(mini.target, inputs, max_new_tokens=max_new_tokens, seed=seed, on_step=tally.stats.add, **options)
    synchronize(mini.target.device)
    seconds = perf_counter() - begun
    rows = [ids[:length].tolist() for ids, length in zip(out.sequences, out.lengths, strict=True)]
    return Outcome(rows, out.stats.target_calls, out.stats.row_calls, seconds, dict(out.stats.seconds))


def by_transformers(mini: Mini, inputs: Mapping[str, Tensor], peer: Peer, max_new_tokens: int) -> Outcome:
    """Answer the same request with transformers' own `generate`, assisted or not. Batch 1 if assisted."""
    calls, model, options = 0, mini.target, peer.options

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    handle = model.register_forward_pre_hook(count)
    try:
        with constant_draft_tokens(options.get("assistant_model"), peer.draft_tokens):
            begun = perf_counter()
            out = model.generate(**inputs, **options, do_sample=False, max_new_tokens=max_new_tokens)
            seconds = perf_counter() - begun
    finally:
        handle.remove()
    tokens = new_tokens(model, dict(inputs), out)
    return Outcome(tokens, calls, calls * len(tokens), seconds)


def in_turns(names: Iterable[str], turn: int) -> list[str]:
    """Return the contenders, rotated by `turn`."""
    order = list(names)
    return order[turn % len(order) :] + order[: turn % len(order)]
