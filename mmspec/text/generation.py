"""`mmspec.text.generate`: text generation by speculative decoding, with any transformers model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from mmspec.core.control import Control
from mmspec.core.decode import OnStep, each
from mmspec.core.decode import generate as run
from mmspec.core.noise import Noise
from mmspec.core.processors.history import Processor
from mmspec.core.result import Generation
from mmspec.core.rules.base import Accept
from mmspec.core.stopping import DefaultStopping, Stop
from mmspec.drafters.block.pard import by_masks, mask_token_of
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.model.lighter import drafted_part, lighter
from mmspec.drafters.model.vocabulary import Overlap, Translated
from mmspec.drafters.stops import Stop as Stopping
from mmspec.drafters.views.vision_inputs import looking
from mmspec.models.families.registry import family_of, positions_of
from mmspec.models.families.whisper import corresponding_ids
from mmspec.models.model_checks import check_model_ready
from mmspec.models.proof.require import require, require_reach
from mmspec.models.target import HFTarget
from mmspec.run.arguments import check, check_drafted, public_call
from mmspec.run.drop_in.processors import ProcessorContext, checks_of, with_forms
from mmspec.run.request import Request
from mmspec.run.rules import distributions_for, rule_of
from mmspec.run.settings.generation_config import settings
from mmspec.run.settings.processors import end_ids
from mmspec.run.shapes import Tree, longest_draft, shape_of
from mmspec.run.streamer import StreamerFeed
from mmspec.run.views import mixed, view_for
from mmspec.text.inputs.prompt import TextPrompt
from mmspec.utils.renamed import old_names, once_positional

_POSITIONS = ("drafter", "accept", "max_new_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "seed")


@once_positional((*_POSITIONS, "draft_length", "tree", "streamer"))
@public_call
@torch.no_grad()
def generate(
    model: Any,
    inputs: Mapping[str, Tensor],
    drafter: Any = None,
    *,
    accept: str | Accept = "exact",
    draft_length: int | str | Control = "auto",
    tree: Tree = None,
    seed: int | Sequence[int] = 0,
    temperature: float | Sequence[float] = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float | None = None,
    max_new_tokens: int = 128,
    view: Any = None,
    stop_below: float | str | Stopping | None = None,
    processors: Sequence[Processor | LogitsProcessor] = (),
    stops: Sequence[Stop] = (),
    streamer: Any = None,
    on_step: OnStep = None,
    capture: bool = False,
) -> Generation:
    """Generate text with `model`, drafting with `drafter`.

    Before the first generation with a class of model or attention settings that mmspec's tests do not cover, a self-test of about a
    second compares the engine's forwards with the model's own; see `mmspec.models.proof.require`.

    Args:
        model: a transformers causal, encoder-decoder or speech-recognition model or a speech language model, in eval mode, on
            one device.
        inputs: what its tokenizer or processor returned: ids LongTensor [B, P] or features [B, ...], `attention_mask` [B, P]; padded on
            either side. Lists and numpy arrays become tensors, and all are moved to the model's device. A missing mask is inferred as in
            `model.generate`: pad tokens are masked unless they are also end tokens.
        drafter: None (plain decoding, same engine), a transformers model, "lookup", "suffix", "jacobi" or another name of
            `mmspec.run.registry.DRAFTERS`, a Drafter object, or a source of distributions such as `EarlyExit(4)` or a trained net.
        accept: "exact" (greedy at temperature 0, else "coupled"), a name of `mmspec.run.registry.ACCEPT`, or a rule object.
        draft_length: draft tokens a round. "auto" maximises measured throughput, zero included; "thompson" draws the length by Thompson
            sampling; an int or a Control object.
        tree: form of a model's draft. None for a chain, "comb" for a chain with siblings, "cape" for fewer of them where the
            drafter is sure; a static tree as children per level such as (4, 2, 1), a Template, or the path of a template's JSON; a
            search of the likeliest paths: "expand" (EAGLE-2), "opt" (OPT-Tree), "dynamic" (dynamic depth), "beams" (ReDrafter),
            "best-first" (SpecExec, DySpec; `draft_length` is its number of nodes); or a shape object. When sampling, the siblings of
            combs and static trees are drawn without replacement (Gumbel top-k) unless the rule needs other ones, and so are those of
            "best-first" for rules that read the distributions they are drawn from ("without-replacement").
        seed: an int (row r gets seed + r) or one per row. Under exact rules a row's output depends on its own seed only.
        temperature: 0 for greedy decoding; a number, or one per row.
        top_k, top_p, repetition_penalty: applied to the target's and the drafter's distribution alike; 0, 1 and 1 mean none.
        max_new_tokens: largest number of new tokens per row, at least 1.
        view: what a drafter model reads of a prompt with pictures. None chooses: its own pixels for a model of the target's kind, the
            text alone otherwise. "drop", "own", "pooled" or "pruned"; what `mmspec.text.view` returns; or several of these, an ensemble
            that drafts in one batched forward with weights learned during decoding (`mmspec.text.ensemble` offers other weights).
            "cropped", for a Whisper drafter with an encoder of its own: the recording without the silence that pads its window.
        stop_below: a chain of a model's draft tokens ends where its largest probability falls below this; "adaptive": where the product of
            their probabilities falls below a threshold that follows the verdicts (LLMCad, Xu et al. 2023), and paths of a "best-first" tree
            alike; or a stop, such as `mmspec.drafters.stops.Learned(head)` with a trained acceptance head.
        processors: further distribution processors, of mmspec or of transformers. Of the latter those that are functions of one row's
            padded ids and scores: transformers' own, and classes with `mmspec_stateless = True`; others are refused.
        stops: functions of (row, ids committed so far) that return True where the row should end; called on the host.
        streamer: a transformers streamer; batch 1 only.
        on_step: called with every round.
        capture: fix all shapes and compile the target's scoring step and a drafter model's steps (CUDA graphs on a GPU, fused loops on
            a CPU with a C++ compiler). Compiling takes up to a minute per shape and process, so this suits many requests of one shape.

    Returns:
        `tokens` LongTensor [B, S], new tokens only, right-padded; `lengths` LongTensor [B]; `stats`. Settings of the model's generation
        config that change greedy output are applied (bans, forced ids, penalties, end tokens, Whisper's language, task and
        timestamps) or refused by name; its lengths and sampling settings are not read. With `return_timestamps` a window of sound
        is decoded once, as in `generate(force_unique_generate_call=True)`.

    Raises:
        ValueError: for an invalid argument; the message says what to give instead. Also for a model whose self-test fails.
        FloatingPointError: when the target's logits hold NaN or infinity, naming the row and the output position.
    """
    request = Request.of(
        drafter=drafter, accept=accept, draft_length=draft_length, tree=tree, view=view, stop_below=stop_below, seed=seed,
        temperature=temperature, top_k=top_k, top_p=top_p,
    )  # fmt: skip
    check(
        max_new_tokens=max_new_tokens, repetition_penalty=repetition_penalty, processors=processors, stops=stops, streamer=streamer,
        on_step=on_step, capture=capture,
    )  # fmt: skip
    check_drafted("draft_length", draft_length, longest_draft(tree, drafter, max_new_tokens))
    family = family_of(model)
    check_model_ready(model)
    prompt = TextPrompt.of(model, family, inputs)
    ids, rows = prompt.ids, prompt.ids.shape[0]
    if streamer is not None and rows != 1:
        raise ValueError(f"streamer serves one prompt, but the batch has {rows}: stream rows one at a time, or pass on_step")
    rule = request.rule()
    limit = positions_of(model)
    prompt.check_length(limit, max_new_tokens)
    proof = require(model, family, trees=tree is not None)
    require_reach(proof, ids.shape[1] + max_new_tokens)
    own = settings(model, family, prompt.inputs, (ids, prompt.mask), max_new_tokens, repetition_penalty)
    ends = end_ids(model.generation_config)
    forms = with_forms(processors, ProcessorContext(ids, tuple(ends)))
    distributions = request.distributions(rule, (*own, *forms))
    target = HFTarget(model, family, distributions, reserve=min(max_new_tokens + 32, 1024), limit=limit, trees=proof.trees)
    resolved = request.resolve(target, rule, rows=rows)
    if capture:
        target = target.capture(max_new_tokens + 64)
        resolved = resolved.capture(max_new_tokens + 64)
    pad = model.generation_config.pad_token_id
    stopping = DefaultStopping(rows, max_new_tokens, ends, (*stops, *checks_of(forms)), ids.device)
    with StreamerFeed(streamer, ids) as stream:
        out = run(
            target,
            resolved.drafter,
            rule,
            prompt.inputs,
            stopping=stopping,
            noise=Noise.from_seed(seed, rows, ids.device),
            control=resolved.control,
            pad=(ends[0] if ends else 0) if pad is None else pad,
            on_step=each(stream, on_step),
            encoded=prompt.seconds,
        )
    return out


@public_call
def aligned_drafter(
    model: Any,
    tokenizer: Any,
    drafter: Any,
    drafter_tokenizer: Any,
    temperature: float | Sequence[float] = 0.0,
    accept: str | Accept = "exact",
    view: Any = None,
    *,
    vocabulary: int | Sequence[int] | None = None,
    int8: bool = False,
) -> ModelDrafter:
    """Make a drafter of a model whose tokenizer differs from the target's, or of a lighter copy of a model.

    Draft tokens are those that both vocabularies have, by their text. Under exact rules the output distribution is unchanged, with lighter
    copies, too. The model itself is not changed; a copy shares what it does not replace.

    Args:
        model: the target.
        tokenizer: the target's tokenizer or processor.
        drafter: the drafter model.
        drafter_tokenizer: the drafter's tokenizer or processor.
        temperature: that of the requests.
        accept: that of the requests.
        view: as in `generate`.
        vocabulary: a copy of the drafter's output head for a part of the vocabulary (FR-Spec): target ids to draft, such as the most
            frequent ones; or how many, then the first ones of the drafter's vocabulary. End tokens are always among them.
        int8: a copy of the drafter with int8 linear layers, on a CPU.

    Returns:
        The drafter, for `generate(..., drafter=)`.

    Raises:
        ValueError: if no token of text is shared, and for a `vocabulary` or `int8` that this drafter does not support.
    """
    rule = rule_of(accept, temperature)
    distributions = distributions_for(rule, temperature, None, None, None, ())
    ours, theirs, config = family_of(model), family_of(drafter), model.generation_config
    sizes = [m.config.get_text_config(decoder=True).vocab_size for m in (model, drafter)]
    overlap = Overlap.of_tokenizers(
        getattr(tokenizer, "tokenizer", tokenizer),
        getattr(drafter_tokenizer, "tokenizer", drafter_tokenizer),
        sizes[0],
        own=sizes[1],
        never_generated_ids=(*getattr(ours, "never_generated_ids", ()), *(getattr(config, "suppress_tokens", None) or ())),
        also=(
            *zip(*(getattr(family, "placeholders", ()) for family in (ours, theirs)), strict=False),
            *corresponding_ids(model, drafter),
        ),
    )
    seen, ids = view_for(view, HFTarget(model, ours), drafter, translated=True), None
    if vocabulary is not None:
        overlap = drafted_part(overlap, vocabulary, end_ids(config))
        ids, overlap = overlap.shared, replace(overlap, shared=torch.arange(len(overlap.shared)))
    own = HFTarget(lighter(drafter, ids=ids, int8=int8), looking(theirs), distributions)
    made = ModelDrafter(Translated(mixed(own, seen), overlap), shape_of(None, rule), seen)
    return by_masks(made, mask_token_of(drafter))


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)  # names of 0.1
