"""The drop-in: `model.generate(**inputs, custom_generate=mmspec.text.speculate(drafter=...))`."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput, GenerationMixin

from mmspec.core import compat
from mmspec.core.accept import Accept
from mmspec.core.control import Control
from mmspec.core.decode import generate
from mmspec.core.families import family_of, positions_of
from mmspec.core.hf import HFTarget
from mmspec.core.limits import Limits
from mmspec.core.model_checks import check_model
from mmspec.core.noise import Noise
from mmspec.core.processors import Pipeline, Temperature
from mmspec.core.proof import require, require_reach
from mmspec.options import Tree, control_of, drafter_of, rule_of
from mmspec.text.generation import Stream
from mmspec.text.processors import split_criteria, translate_all


def speculate(
    drafter: Any = None,
    accept: str | Accept = "exact",
    draft_length: int | str | Control = "auto",
    tree: Tree = None,
    seed: int | Sequence[int] = 0,
) -> Callable[..., Any]:
    """A decoding function for transformers' `custom_generate`.

    It honours the generation config, logits processors, stopping criteria and streamer that `generate` was given, and returns
    what `generate` would: prompt and new tokens, padded. `accept="exact"` means greedy when `do_sample` is off and coupled
    sampling, by `seed`, when it is on. ValueError for beam search and for per-step scores, which have no speculative form here.
    """

    @torch.no_grad()
    def decode(
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        _refuse(generation_config)
        check_model(model)
        prompt, rows = input_ids.shape[1], input_ids.shape[0]
        rule = rule_of(accept, 1.0 if generation_config.do_sample else 0.0)
        steps = translate_all(logits_processor, prompt)
        if not generation_config.do_sample and rule.exactness == "law-exact":
            steps = (*steps, Temperature(0.0))  # an explicit sampling rule without sampling: a point mass
        inputs = _inputs(model, input_ids, model_kwargs)
        family = family_of(model)
        proof = require(model, family, trees=tree is not None)
        target = HFTarget(model, family, Pipeline(steps), limit=positions_of(model), trees=proof.trees)
        room, ends, stops = split_criteria(stopping_criteria, prompt, _unpadded(input_ids, inputs))
        require_reach(proof, prompt + room)
        guesser = drafter_of(drafter, target, rule, tree)
        pad = generation_config.pad_token_id
        with Stream(streamer or _callers_streamer()) as stream:
            out = generate(
                target,
                guesser,
                rule,
                inputs,
                limits=Limits(rows, room, ends, stops, input_ids.device),
                noise=Noise.from_seed(seed, rows, input_ids.device),
                control=control_of(draft_length, guesser),
                pad=(ends[0] if ends else 0) if pad is None else pad,
                on_step=stream,
            )
        sequences = torch.cat([input_ids, out.sequences], 1)
        if not generation_config.return_dict_in_generate:
            return sequences
        kind = GenerateEncoderDecoderOutput if model.config.is_encoder_decoder else GenerateDecoderOnlyOutput
        return kind(sequences=sequences)  # pyright: ignore[reportArgumentType]

    return decode


def _callers_streamer() -> Any:
    """The streamer that `generate` was given.

    transformers (5.17 to 5.23) hands it the prompt but drops it on the way to a custom decoding function, and a streamer that
    stays silent after the prompt would be worse than this look at `generate`'s own variables.
    """
    code, frame = inspect.unwrap(vars(GenerationMixin)["generate"]).__code__, inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return None if frame is None else frame.f_locals.get("streamer")


def _refuse(config: Any) -> None:
    if (config.num_beams or 1) > 1:
        raise ValueError(f"num_beams is {config.num_beams}: speculate decodes one path a row; leave num_beams at 1")
    for name in ("output_scores", "output_logits", "output_attentions", "output_hidden_states"):
        if getattr(config, name, False):
            raise ValueError(f"{name} is on: speculate returns sequences only; turn it off")


def _inputs(model: Any, input_ids: Tensor, model_kwargs: dict[str, Any]) -> dict[str, Any]:
    """What `HFTarget.begin` reads, from what `generate` prepared."""
    if not model.config.is_encoder_decoder:
        mask = model_kwargs.get("attention_mask")
        return {"input_ids": input_ids} | ({} if mask is None else {"attention_mask": mask})
    kept = {key: model_kwargs[key] for key in ("encoder_outputs", "attention_mask") if model_kwargs.get(key) is not None}
    return {**compat.encoder_source(len(input_ids)), "decoder_input_ids": input_ids, **kept}


def _unpadded(input_ids: Tensor, inputs: dict[str, Any]) -> list[list[int]]:
    mask = inputs.get("attention_mask")
    if mask is None or mask.shape != input_ids.shape:
        return input_ids.tolist()
    return [ids[keep.bool()].tolist() for ids, keep in zip(input_ids, mask, strict=True)]
