"""`mmspec.text.generate`: a transformers model, faster, saying the same."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.config import ACCEPT, DRAFTERS, build
from mmspec.core.accept import Accept, Coupled, Greedy
from mmspec.core.control import Control, Fixed, Thompson, Throughput
from mmspec.core.decode import Drafter, Generation
from mmspec.core.decode import generate as run
from mmspec.core.families import family_of, positions_of
from mmspec.core.hf import HFTarget
from mmspec.core.limits import Limits, Stop
from mmspec.core.lossy import Rollback, TopKFloor, TopKGap, Typical
from mmspec.core.noise import Noise
from mmspec.core.processors import Pipeline, Processor, Temperature, pipeline
from mmspec.core.records import Step
from mmspec.core.siblings import Hybrid, KSeq, Walk, WithReplacement
from mmspec.drafters import shapes
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.model import ModelDrafter
from mmspec.drafters.none import NoDraft
from mmspec.drafters.search import DynamicDepth, ExpandRerank, OptTree
from mmspec.drafters.stops import Confidence
from mmspec.drafters.trees import StaticTree, Template
from mmspec.drafters.vocabulary import Overlap, Translated
from mmspec.text.processors import constraints, end_ids

_READS_RAW_LAW = (Greedy, Typical, TopKGap, TopKFloor, Rollback)  # rules that look at the argmax or the untempered law
Tree = Sequence[int] | str | Path | Template | shapes.Shape | None
"""What `tree=` takes."""
_SEARCHES = {"expand": ExpandRerank(), "opt": ExpandRerank(depth=8, stop=OptTree()), "dynamic": ExpandRerank(depth=8, stop=DynamicDepth())}
_DRAWING = ("jacobi", "lookahead")  # they draw their guesses from laws, and so as the rule wants them drawn
_PADDING = 0.05  # one tokenizer's embedding tables differ by padding only: at most this share


@torch.no_grad()
def generate(
    model: Any,
    inputs: Mapping[str, Tensor],
    drafter: Any = None,
    accept: str | Accept = "exact",
    max_new_tokens: int = 128,
    temperature: float | Sequence[float] = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float | None = None,
    seed: int | Sequence[int] = 0,
    draft_length: int | str | Control = "auto",
    tree: Tree = None,
    streamer: Any = None,
    *,
    stop_below: float | None = None,
    processors: Sequence[Processor] = (),
    stops: Sequence[Stop] = (),
    on_step: Callable[[Step], None] | None = None,
    capture: bool = False,
) -> Generation:
    """Generate text with `model`, drafting with `drafter`.

    Args:
        model: a transformers causal, encoder-decoder or speech-recognition model, in eval mode, on any one device.
        inputs: what its tokenizer or processor returned: ids or features [B, ...], `attention_mask` [B, P]; padded on either side.
        drafter: None (plain decoding, same engine), a transformers model, "lookup", "suffix", "jacobi" or another name of
            `mmspec.config.DRAFTERS`, a Drafter object, or a source of laws such as `EarlyExit(4)` or a trained net.
        accept: "exact" (greedy at temperature 0, else "coupled"), a name of `mmspec.config.ACCEPT`, or a rule object.
        max_new_tokens: the most a row may settle, at least 1.
        temperature: 0 for the most likely token; a number, or one per row.
        top_k, top_p, repetition_penalty: applied to the target's and the drafter's law alike; 0, 1 and 1 mean none.
        seed: an int (row r gets seed + r) or one per row. Under exact rules a row's output depends on its own seed only.
        draft_length: guesses a round; "auto" for the number that maximises measured throughput, zero included; "thompson" for
            one drawn by Thompson sampling; or a Control object.
        tree: the form a model's guesses take. None for a chain, "comb" for a chain with siblings; a static tree as children per
            level such as (4, 2, 1), a Template, or the path of a template's JSON; a search of the likeliest paths: "expand"
            (EAGLE-2), "opt" (OPT-Tree), "dynamic" (dynamic depth); or a shape object. When sampling, the siblings of combs and
            static trees are drawn without replacement (Gumbel top-k) unless the rule needs other ones.
        streamer: a transformers streamer; batch 1 only.
        stop_below: a chain of a model's guesses ends where its best probability falls below this.
        processors, stops: extra law processors and host-side stops; `on_step` sees every round.
        capture: fix all shapes and compile the scoring step (CUDA graphs on a GPU); pays where many tokens share one shape.

    Returns:
        `sequences` LongTensor [B, S], new tokens only, right-padded; `lengths` [B]; `stats`. The model's generation config is
        honoured where it bans or forces tokens and where it names end tokens; its sampling settings are not.

    Raises:
        ValueError: for anything the request gets wrong, in one line that says how to mend it.
        FloatingPointError: when the target's logits hold NaN or infinity, naming the row and the output position.
    """
    family = family_of(model)
    inputs = {key: value for key, value in inputs.items() if isinstance(value, Tensor)}
    ids, _ = family.prompt(model, inputs)
    rows = ids.shape[0]
    if streamer is not None and rows != 1:
        raise ValueError(f"streamer serves one prompt, but the batch has {rows}: stream rows one at a time, or pass on_step")
    rule = rule_of(accept, temperature)
    limit = positions_of(model)
    _check_length(ids, inputs, limit, max_new_tokens)
    laws = laws_for(
        rule,
        temperature,
        top_k,
        top_p,
        repetition_penalty,
        (*constraints(model.generation_config, ids.shape[1], max_new_tokens), *processors),
    )
    target = HFTarget(model, family, laws, reserve=min(max_new_tokens + 32, 1024), limit=limit)
    guesser = stopping(drafter_of(drafter, target, rule, tree), stop_below)
    target = target.capture(max_new_tokens + 64) if capture else target
    control = control_of(draft_length, guesser)
    limits = Limits(rows, max_new_tokens, end_ids(model.generation_config), stops, ids.device)
    pad = model.generation_config.pad_token_id
    with Stream(streamer, ids) as stream:
        return run(
            target,
            guesser,
            rule,
            inputs,
            limits=limits,
            noise=Noise.from_seed(seed, rows, ids.device),
            control=control,
            pad=0 if pad is None else pad,
            on_step=_both(stream, on_step),
        )


def rule_of(accept: str | Accept, temperature: float | Sequence[float]) -> Accept:
    """The rule a name stands for. "exact" is greedy where nothing is sampled, else coupled: plain sampling's very tokens."""
    if not isinstance(accept, str):
        return accept
    if accept == "exact":
        return Greedy() if temperature == 0 else Coupled()
    return build(accept, {"exact": "", **ACCEPT}, "accept rule")


def laws_for(
    rule: Accept,
    temperature: float | Sequence[float],
    top_k: int | None,
    top_p: float | None,
    repetition_penalty: float | None,
    first: Sequence[Processor],
) -> Pipeline:
    """The processors of p and q. Rules that take the argmax skip what cannot change it."""
    if isinstance(rule, _READS_RAW_LAW) and temperature == 0:
        return pipeline(repetition_penalty=repetition_penalty, first=first)
    return pipeline(temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty, first=first)


def drafter_of(drafter: Any, target: HFTarget, rule: Accept, tree: Tree) -> Drafter:
    """The drafter that `drafter` stands for, drawing its guesses the way `rule` judges them."""
    if drafter is None:
        return NoDraft()
    if isinstance(drafter, str):
        drafter = build(drafter, DRAFTERS, "drafter", {"draw": draw_for(rule)} if drafter in _DRAWING else None)
    if hasattr(drafter, "guide"):  # a source of laws: heads, feature nets, the target itself run short
        return GuidedDrafter(drafter, shape_of(tree, rule))
    if hasattr(drafter, "begin"):
        return drafter
    return ModelDrafter(_as_target(drafter, target), shape_of(tree, rule))


def stopping(drafter: Drafter, stop_below: float | None) -> Drafter:
    """`drafter`, its chains ended where its best probability falls below `stop_below`. ValueError for one that drafts no such chains."""
    if stop_below is None:
        return drafter
    if not (isinstance(drafter, (ModelDrafter, GuidedDrafter)) and isinstance(drafter.shape, shapes.Chain)):
        raise ValueError("stop_below ends a model's chains of guesses: draft with a model and leave tree out, or leave stop_below out")
    return replace(drafter, shape=replace(drafter.shape, stop=Confidence(stop_below)))


def _as_target(model: Any, target: HFTarget) -> HFTarget | Translated:
    """A drafter's model behind the target's own processors, its vocabulary cut or padded to the target's."""
    mine, theirs = (m.config.get_text_config(decoder=True).vocab_size for m in (target.model, model))
    own = replace(target, model=model, family=family_of(model), limit=None)
    if mine == theirs:
        return own
    if abs(mine - theirs) > _PADDING * max(mine, theirs):
        raise ValueError(
            f"mismatched vocabularies: the target has {mine} tokens, the drafter {theirs}; choose a drafter with the same tokenizer, "
            "or pass mmspec.text.aligned_drafter(model, tokenizer, drafter_model, drafter_tokenizer)"
        )
    return Translated(replace(own, processors=_untruncated(own.processors)), Overlap.of_sizes(mine, theirs))


def _untruncated(laws: Pipeline) -> Pipeline:
    """Temperature alone: truncation could leave a law nothing that both vocabularies have."""
    return Pipeline(tuple(step for step in laws.steps if isinstance(step, Temperature)))


def aligned_drafter(
    model: Any, tokenizer: Any, drafter: Any, drafter_tokenizer: Any, temperature: float = 0.0, accept: str | Accept = "exact"
) -> ModelDrafter:
    """A drafter whose tokenizer differs from the target's: guesses come from the tokens both have, losslessly.

    `temperature` and `accept` are those of the request it will serve. ValueError when fewer than half of the tokens are shared.
    """
    rule = rule_of(accept, temperature)
    laws = laws_for(rule, temperature, None, None, None, ())
    overlap = Overlap.of_tokenizers(tokenizer, drafter_tokenizer, model.config.get_text_config(decoder=True).vocab_size)
    return ModelDrafter(Translated(HFTarget(drafter, family_of(drafter), laws), overlap), shape_of(None, rule))


def shape_of(tree: Tree, rule: Accept) -> shapes.Shape:
    """The shape a model drafter grows for `rule`. ValueError for a tree that is unknown, cannot be read or does not suit the rule."""
    if tree is None:
        return shapes.Chain(draw_for(rule))
    if not rule.trees:
        raise ValueError(
            f"accept rule {type(rule).__name__} judges chains only: leave tree out, or accept with coupled, match or without-replacement"
        )
    if tree == "comb":
        return shapes.Comb(pick=pick_for(rule))
    if isinstance(tree, str) and tree in _SEARCHES:
        if rule.uses_q:
            raise ValueError(f"tree {tree!r} takes the likeliest nodes, but {type(rule).__name__} needs drawn ones: use 'comb' or numbers")
        return _SEARCHES[tree]
    return tree if hasattr(tree, "grow") else StaticTree(_template(tree), pick_for(rule))  # type: ignore[return-value]


def _template(tree: Any) -> Template:
    if isinstance(tree, Template):
        return tree
    if isinstance(tree, Path) or (isinstance(tree, str) and tree.endswith(".json")):
        return Template.read(tree)
    if isinstance(tree, str):
        names = ", ".join(map(repr, ("comb", *_SEARCHES)))
        raise ValueError(f"unknown tree {tree!r}; valid: {names}, children per level such as (4, 2, 1), a template's JSON file, or a shape")
    return Template.branching(tree)


def draw_for(rule: Accept) -> shapes.Draw:
    """How chain guesses are drawn for `rule`: with q recorded where it is read, with the shared noise where coupled, else the best."""
    if rule.uses_q:
        return shapes.sampled
    return shapes.drawn if rule.coupled else shapes.best


def pick_for(rule: Accept) -> shapes.Pick:
    """How siblings are chosen for `rule`."""
    if isinstance(rule, Walk):
        if isinstance(rule.siblings, (WithReplacement, KSeq)):
            return shapes.with_replacement
        if isinstance(rule.siblings, Hybrid):
            return shapes.top_and_one
        return shapes.without_replacement if rule.uses_q else shapes.top
    return shapes.without_replacement if rule.coupled else shapes.top


def control_of(draft_length: int | str | Control, drafter: Drafter) -> Control:
    """How many guesses a round. "auto" maximises measured throughput and may choose none: up to a tree's own depth, and starting
    from more guesses where they come without a model and so cost nothing."""
    if isinstance(drafter, NoDraft):
        return Fixed(0)
    if isinstance(draft_length, int) and not isinstance(draft_length, bool):
        return Fixed(draft_length)
    if not isinstance(draft_length, (str, int)) and hasattr(draft_length, "begin"):
        return draft_length
    if draft_length == "thompson":
        return Thompson()
    if draft_length != "auto":
        raise ValueError(f"draft_length is {draft_length!r}: give a number of guesses, 'auto', 'thompson' or a Control object")
    depth = getattr(getattr(drafter, "shape", None), "depth", None)
    if depth is not None:
        return Throughput(lengths=tuple(range(depth + 1)), first=depth)
    return Throughput() if isinstance(drafter, (ModelDrafter, GuidedDrafter)) else Throughput(first=8)


def _check_length(ids: Tensor, inputs: Mapping[str, Tensor], limit: int | None, max_new_tokens: int) -> None:
    if not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}: ask for at least 1")
    if limit is None or ids.shape[0] == 0:
        return
    mask = inputs.get("attention_mask")
    longest = int(mask.sum(1).max()) if mask is not None and mask.shape == ids.shape else ids.shape[1]
    if longest + max_new_tokens > limit:
        room = limit - longest
        mend = f"ask for at most {room}" if room > 0 else "shorten the prompt"
        raise ValueError(f"a prompt of {longest} tokens and max_new_tokens {max_new_tokens} exceed the model's {limit} positions: {mend}")


class Stream:
    """Feeds a transformers streamer every settled run, after the prompt where `prompt` [1, P] is given."""

    def __init__(self, streamer: Any, prompt: Tensor | None = None):
        self.streamer, self.prompt = streamer, prompt

    def __enter__(self) -> "Stream":
        if self.streamer is not None and self.prompt is not None:
            self.streamer.put(self.prompt.cpu())
        return self

    def __call__(self, step: Step) -> None:
        if self.streamer is not None and step.settled.values[0]:
            self.streamer.put(torch.tensor(step.settled.values[0]))

    def __exit__(self, *error: object) -> None:
        if self.streamer is not None:
            self.streamer.end()


def _both(first: Callable[[Step], None], second: Callable[[Step], None] | None) -> Callable[[Step], None]:
    if second is None:
        return first

    def call(step: Step) -> None:
        first(step)
        second(step)

    return call
