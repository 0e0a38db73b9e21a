"""The drop-in of image models: `model.generate(**inputs, custom_generate=mmspec.vision.speculate())`.

As in `mmspec.text.speculate`, a request whose processors, criteria and inputs have forms that are exact at each node of a draft is decoded
by mmspec, and any other by transformers' own loop, with a warning that gives the reason.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.control import Control
from mmspec.core.decode import OnStep
from mmspec.core.processors.history import Processor
from mmspec.core.processors.pipeline import Temperature
from mmspec.core.rules.base import Accept
from mmspec.core.stats import Stats
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.jacobi.couplers import Coupler
from mmspec.drafters.jacobi.initialisers import Initialiser
from mmspec.models import compat
from mmspec.models.model_checks import check_model_ready
from mmspec.run.arguments import public_call
from mmspec.run.drop_in.arguments import cache_reason, own_inputs, refuse
from mmspec.run.drop_in.plain_decoding import decode_plainly, pad_of, request_noise, returned
from mmspec.run.drop_in.processors import PrefixAllowed, ProcessorContext, form_of
from mmspec.run.drop_in.stops import HostStops, end_values, ends_of, without_form
from mmspec.vision.codes.methods import Method
from mmspec.vision.drop_in.glm_image import READ, GlmImageTokens, grids_of
from mmspec.vision.drop_in.windows import WindowDecoding


@public_call
def speculate(
    *,
    method: str | Method = "jacobi",
    window: int | str | Control | None = None,
    couple: Coupler | None = None,
    init: str | Initialiser | None = None,
    accept: Accept | None = None,
    seed: int | Sequence[int] | None = None,
    stateless: Sequence[type] = (),
    on_step: OnStep = None,
    report: Callable[[Stats], None] | None = None,
) -> Callable[..., Any]:
    """Return a decoding function for transformers' `custom_generate`, for image models: GLM-Image.

    It returns what `generate` would: prompt and new tokens, padded. Settings of `generate` are treated as in `mmspec.text.speculate`
    (docs/drop-in.md). Beam search, per-step scores and similar outputs are refused; requests that cannot be drafted for are decoded by
    transformers' own loop, with a warning.

    Args:
        method: a name of `mmspec.vision.METHODS`, or a `Method`, that drafts by a window or not at all. "jacobi" and "plain" give the same
            tokens for the same seed.
        window: tokens a forward, as in `mmspec.vision.generate`.
        couple, init, accept: in place of the method's own.
        seed: seed of sampled output. None draws one from torch's global generator, so that `torch.manual_seed` makes calls reproducible;
            an int gives row r the seed `seed + r`; a sequence gives one seed a row.
        stateless: your own classes of logits processors and stopping criteria that keep no state and read one row only; see
            `mmspec.text.speculate`.
        on_step: called with every round, for progress bars.
        report: called with the counts of each request that mmspec decoded.

    Returns:
        A callable for `custom_generate`. It raises ValueError, in one line, for refused settings and for other models.

    Raises:
        ValueError: for an invalid argument.
    """
    decoding = WindowDecoding.of(method, window, couple, init, accept, seed, on_step, report)
    return _Speculation(decoding, tuple(stateless))


@dataclass(frozen=True)
class _Speculation:
    decoding: WindowDecoding
    stateless: tuple[type, ...]

    @torch.no_grad()
    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        name = type(model).__name__
        if name != "GlmImageForConditionalGeneration":
            raise ValueError(f"{name} is not an image model that vision.speculate knows: GlmImageForConditionalGeneration{_instead(name)}")
        check_model_ready(model)
        call = compat.generate_call()
        if call is not None and call.assistant_model is not None:
            raise ValueError("assistant_model is set: vision.speculate drafts from the model itself, leave it out")
        refuse(generation_config, call)
        if (generation_config.num_return_sequences or 1) > 1:
            raise ValueError("num_return_sequences is above 1, which mixes the grids of GLM-Image's prompts: repeat the prompts instead")
        streamer = streamer if streamer is not None or call is None else call.streamer
        context = ProcessorContext(input_ids, end_values(stopping_criteria), self.stateless)
        forms = [form_of(one, context) for one in logits_processor]
        given = own_inputs(generation_config, call, model_kwargs)
        reason = self._unformed(logits_processor, forms, stopping_criteria) or _plain_reason(generation_config, given, streamer)
        noise = request_noise(self.decoding.seed, generation_config, len(input_ids), model.device)
        if reason is not None:
            if self.decoding.plan.windowed:
                warnings.warn(f"speculate decodes this request as transformers does, without drafting: {reason}", stacklevel=5)
            sampled = replace(noise, seeds=noise.seeds.to(input_ids.device)) if generation_config.do_sample else None
            return decode_plainly(model, input_ids, logits_processor, stopping_criteria, generation_config, streamer, sampled, model_kwargs)
        steps: list[Processor] = [form for form in forms if form is not None]
        if not generation_config.do_sample:
            steps.append(Temperature(0.0))
        checks = [form.check for form in steps if isinstance(form, PrefixAllowed)]
        ends = ends_of(stopping_criteria, input_ids, self.stateless, checks)
        compat.bring_weights(model)
        new = self._decoded(model, input_ids.to(model.device), steps, ends, noise, pad_of(generation_config, ends), model_kwargs)
        new = new if ends.together is None else new[:, : ends.together.length]
        return returned(model, generation_config, torch.cat([input_ids, new.to(input_ids.device)], 1))

    def _unformed(self, processors: Any, forms: Sequence[Any], criteria: Any) -> str | None:
        found = [one for one, form in zip(processors, forms, strict=True) if form is None] + without_form(criteria, self.stateless)
        names = ", ".join(dict.fromkeys(getattr(one, "__name__", type(one).__name__) for one in found))
        return f"{names} may keep a state or read the whole batch (if not, say so: mmspec_stateless = True)" if found else None

    def _decoded(
        self, model: Any, ids: Tensor, steps: list[Processor], ends: HostStops, noise: Any, pad: int, inputs: Mapping[str, Any]
    ) -> Tensor:
        """Return the new tokens [B, T]."""
        grids = grids_of(inputs["image_grid_thw"], inputs.get("images_per_sample"), ids, model.config.image_end_token_id)
        adapter: Any = GlmImageTokens(model, grids, ends.most)
        stopping = DefaultStopping(len(ids), ends.most, ends.values, ends.stops, ids.device)
        return self.decoding.run(adapter, adapter.encode_prepared(ids, inputs), steps, stopping, noise, pad=pad).sequences


def _instead(name: str) -> str:
    """What to call for a class whose `generate` takes no decoding function."""
    return "; for Janus, mmspec.vision.accelerate(model)" if "Janus" in name else ""


def _plain_reason(config: Any, given: Mapping[str, Any], streamer: Any) -> str | None:
    """Return why the inputs need transformers' own loop; None if they do not."""
    if (reason := cache_reason(config)) is not None:
        return reason
    if streamer is not None:
        return "a streamer is fed one token at a time"
    if given.get("image_grid_thw") is None:
        return "image_grid_thw is not given"
    unread = [name for name in given if name not in READ]
    return f"{unread[0]} is given" if unread else None
