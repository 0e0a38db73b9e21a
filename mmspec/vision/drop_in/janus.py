"""Janus's `generate` with pictures decoded by mmspec: the class has a decoding loop of its own, which takes no `custom_generate`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.processors.history import Processor
from mmspec.core.processors.pipeline import Temperature
from mmspec.core.stopping import DefaultStopping
from mmspec.models import compat
from mmspec.models.model_checks import check_model_ready
from mmspec.run.arguments import shown
from mmspec.run.drop_in.arguments import cache_reason, refuse, unread_field
from mmspec.run.drop_in.plain_decoding import request_noise, returned
from mmspec.run.drop_in.processors import ProcessorContext, form_of
from mmspec.vision.drop_in.windows import WindowDecoding
from mmspec.vision.families.janus import Janus

CLASS = "JanusForConditionalGeneration"
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff", "renormalize_logits")
HONOURED = {*SAMPLING, "do_sample", "guidance_scale", "num_return_sequences", "return_dict_in_generate", "bos_token_id", "pad_token_id"}
"""Settings of the generation config that pictures are drawn by, with `generation_kwargs`."""
CHECKPOINTS = {"max_length", "max_new_tokens", "eos_token_id", "decoder_start_token_id", "cache_implementation"}
"""Settings for texts that a checkpoint may hold; the class's own loop ignores them. In a call of `generate` the lengths are refused."""
USUAL_SCALE = 5.0
"""Guidance of the class's own loop where none is set."""


@dataclass(frozen=True)
class JanusGenerate:
    """`generate` of one Janus model: texts by the class, pictures by a window.

    Args:
        model: a `JanusForConditionalGeneration`.
        decoding: method, window, seed and callbacks.
    """

    model: Any
    decoding: WindowDecoding

    def __call__(
        self, inputs: Tensor | None = None, attention_mask: Tensor | None = None, logits_processor: Any = None, **given: Any
    ) -> Any:
        """Generate a text, or pictures with `generation_mode="image"`; arguments are those of the class.

        Args:
            inputs: LongTensor [B, P], the prompts; also as `input_ids`.
            attention_mask: [B, P], nonzero where real; all by default.
            logits_processor: for texts only.
            given: settings of the generation config, and `generation_config` itself.

        Returns:
            For pictures codes LongTensor [B * num_return_sequences, codes of a picture], or an output that holds them as `sequences`.

        Raises:
            ValueError: for an argument or setting that pictures are not drawn by, in one line.
        """
        mode = given.get("generation_mode", "text")
        if mode == "text":
            return type(self.model).generate(
                self.model, inputs=inputs, attention_mask=attention_mask, logits_processor=logits_processor, **given
            )
        if mode != "image":
            raise ValueError(f"generation_mode is {mode!r}: Janus generates 'text' or 'image'")
        given = {name: value for name, value in given.items() if value is not None and name != "generation_mode"}
        if logits_processor:
            names = ", ".join(type(each).__name__ for each in logits_processor)
            raise ValueError(f"logits_processor holds {names}: Janus shows processors the prompt and not the codes, leave it out")
        return self._drawn(inputs, attention_mask, given)

    @torch.no_grad()
    def _drawn(self, inputs: Tensor | None, mask: Tensor | None, given: dict[str, Any]) -> Any:
        model = self.model
        check_model_ready(model)
        for name in ("max_length", "max_new_tokens"):
            if name in given:
                raise ValueError(f"{name} is {given[name]!r}: a picture of Janus has a fixed number of codes, leave it out")
        config, others = compat.generation_settings(model, given)
        ids = _prompt(inputs, others)
        _refuse_settings(config)
        copies = config.num_return_sequences or 1
        mask = torch.ones_like(ids) if mask is None else mask
        scale = USUAL_SCALE if config.guidance_scale is None else float(config.guidance_scale)
        guidance = scale if scale > 1 else None
        compat.bring_weights(model)
        prompts = {"input_ids": ids.repeat_interleave(copies, 0), "attention_mask": mask.repeat_interleave(copies, 0)}
        adapter = Janus(model, generation_config=config)
        prompt, rows = adapter.encode(prompts, guidance is not None), len(ids) * copies
        noise = request_noise(self.decoding.seed, config, rows, model.device)
        stopping = DefaultStopping(rows, adapter.raster.length, device=prompt.embeds.device)
        out = self.decoding.run(adapter, prompt, _steps(model, config, ids), stopping, noise, guidance)
        return returned(model, config, out.sequences.to(ids.device))


def _prompt(inputs: Tensor | None, others: Mapping[str, Any]) -> Tensor:
    """Return the prompts [B, P]. ValueError for what pictures are not drawn from."""
    unread = [name for name in others if name not in ("input_ids", "use_cache")]
    if unread:
        raise ValueError(f"{unread[0]} is given: mmspec draws Janus's pictures from input_ids and attention_mask, leave it out")
    both = [each for each in (inputs, others.get("input_ids")) if each is not None]
    if len(both) != 1:
        raise ValueError("give the prompts once, as input_ids: what the processor returns with generation_mode='image'")
    if both[0].dim() != 2:
        raise ValueError(f"input_ids is {shown(both[0])}: give ids [B, P], what the processor returns with generation_mode='image'")
    return both[0]


def _refuse_settings(config: Any) -> None:
    """Raise ValueError for a setting that pictures are not drawn by."""
    refuse(config, None)
    if (reason := cache_reason(config)) is not None:
        raise ValueError(f"{reason}: mmspec keeps its own cache, leave it out")
    if unread := unread_field(config, HONOURED | CHECKPOINTS):
        raise ValueError(f"{unread[0]} is {unread[1]!r}: it is for texts, and a picture of Janus is codes; leave it out")


def _steps(model: Any, config: Any, ids: Tensor) -> list[Processor]:
    """Return the processors of the codes' logits, behind guidance."""
    if not config.do_sample:
        return [Temperature(0.0)]
    forms = [form_of(each, ProcessorContext(ids)) for each in compat.sampling_processors(model, config, ids)]
    if None in forms:
        raise ValueError("the generation config asks for a processor without a form for drafts: leave it out")
    return [form for form in forms if form is not None]
