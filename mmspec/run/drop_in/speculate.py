"""The drop-in: `model.generate(**inputs, custom_generate=mmspec.text.speculate(drafter=...))`.

If every processor, criterion and input has a form that is exact at each node of a draft, mmspec decodes the request. Otherwise
transformers' own loop decodes it without drafting, with a warning that gives the reason. Settings without a speculative form are refused.
All are listed in `mmspec.run.drop_in.arguments`.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.core.control import Control
from mmspec.core.decode import OnStep, generate
from mmspec.core.decode import each as together
from mmspec.core.noise import Noise
from mmspec.core.processors.history import Processor
from mmspec.core.processors.pipeline import MinP, Pipeline, Temperature, TopK, TopP
from mmspec.core.records import Step
from mmspec.core.rules.base import Accept
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.transform import Transformed
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.stops import Stop
from mmspec.models import compat
from mmspec.models.families.registry import family_of, positions_of
from mmspec.models.model_checks import check_model_ready
from mmspec.models.proof.require import require, require_reach
from mmspec.models.target import HFTarget
from mmspec.run.arguments import public_call, shown
from mmspec.run.drop_in.arguments import own_inputs, refuse
from mmspec.run.drop_in.inputs import inputs_for, plain_reason
from mmspec.run.drop_in.plain_decoding import decode_plainly, pad_of, request_noise, returned
from mmspec.run.drop_in.processors import ProcessorContext, checks_of, form_of, notes_first_step
from mmspec.run.drop_in.stops import end_values, ends_of, without_form
from mmspec.run.request import Request
from mmspec.run.rules import reads_raw, rule_of
from mmspec.run.shapes import Tree
from mmspec.run.streamer import StreamerFeed


@public_call
def speculate(
    drafter: Any = None,
    accept: str | Accept = "exact",
    draft_length: int | str | Control = "auto",
    tree: Tree = None,
    seed: int | Sequence[int] | None = None,
    stateless: Sequence[type] = (),
    *,
    view: Any = None,
    stop_below: float | str | Stop | None = None,
) -> Callable[..., Any]:
    """Return a decoding function for transformers' `custom_generate`.

    It supports every argument of `generate` and returns what `generate` would: prompt and new tokens, padded. Requests that cannot be
    drafted for (stateful or unknown logits processors and stopping criteria, caches and embeddings of the caller, PEFT's virtual tokens)
    are decoded by transformers' own loop, with a warning; beam search, per-step scores and similar outputs are refused. docs/drop-in.md
    lists every argument.

    Args:
        drafter, accept, draft_length, tree: as in `mmspec.text.generate`. `accept="exact"` is greedy if `do_sample` is off and coupled
            sampling if it is on.
        seed: seed of sampled output. None draws one from torch's global generator, so that calls differ and `torch.manual_seed` makes them
            reproducible; an int gives row r the seed `seed + r`; a sequence gives one seed a row.
        stateless: your own classes of logits processors and stopping criteria that keep no state and read one row only: functions
            of padded ids LongTensor [1, L] and scores float [1, V], for any ids. Requests with them are drafted for. Equivalent to an
            attribute `mmspec_stateless = True` on the class.
        view, stop_below: as in `mmspec.text.generate`.

    Returns:
        A callable for `custom_generate`. It raises ValueError, in one line, for refused settings.

    Raises:
        ValueError: for an invalid argument.
    """
    if not isinstance(stateless, (list, tuple)) or not all(isinstance(each, type) for each in stateless):
        raise ValueError(f"stateless is {shown(stateless)}: give a list of classes")
    request = Request.of(drafter=drafter, accept=accept, draft_length=draft_length, tree=tree, seed=seed, view=view, stop_below=stop_below)
    return Speculation(request, tuple(stateless))


@dataclass(frozen=True)
class Speculation:
    """The decoding function that `speculate` returns.

    Args:
        request: how to draft and judge.
        stateless: classes of processors and criteria that the caller vouches for.
    """

    request: Request
    stateless: tuple[type, ...] = field(default=())

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature that `generate` reads to select this function's keywords; it includes the tokenizer only where it is needed."""
        compat.keep_tokenizer()
        return inspect.signature(type(self).__call__)

    @torch.no_grad()
    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        streamer: Any = None,
        tokenizer: Any = None,
        assistant_tokenizer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """Decode one request; the arguments are those that `generate` passes to a custom decoding function.

        Args:
            model: the target.
            input_ids: LongTensor [B, P], the prompt, left-padded.
            logits_processor, stopping_criteria: those of the request.
            generation_config: its settings.
            streamer: receives tokens as they are accepted.
            tokenizer: for stop strings; read only where they are given.
            assistant_tokenizer: refused; a drafter with another tokenizer is passed to `speculate`.
            model_kwargs: the other inputs of the model.

        Returns:
            What `generate` returns: LongTensor [B, P + T], or a record with it.

        Raises:
            ValueError: for a setting that this function does not read.
        """
        check_model_ready(model)
        call = compat.generate_call()
        refuse(generation_config, call)
        if assistant_tokenizer is not None:
            raise ValueError("assistant_tokenizer is set: leave it out and pass speculate(drafter=mmspec.text.aligned_drafter(...))")
        streamer = streamer if streamer is not None or call is None else call.streamer
        work = DropInCall(self, model, input_ids, logits_processor, stopping_criteria, generation_config, streamer)
        given = own_inputs(generation_config, call, model_kwargs)
        reason = work.unformed() or plain_reason(model, work.family, input_ids, generation_config, given, model_kwargs, streamer)
        if reason is None:
            return returned(model, generation_config, work.drafted(inputs_for(model, input_ids, given, model_kwargs)))
        if self.request.drafter is not None:
            warnings.warn(f"speculate decodes this request as transformers does, without drafting: {reason}", stacklevel=5)  # the caller's
        return work.plain(model_kwargs)


class DropInCall:
    """One request, as `generate` hands it to a custom decoding function.

    Args:
        asked: how to draft and judge.
        model: the target.
        ids: LongTensor [B, P], the prompt as prepared by `generate`.
        processors, criteria: logits processors and stopping criteria.
        config: the generation config, defaults filled in.
        streamer: the caller's streamer, or None.
    """

    def __init__(self, asked: Speculation, model: Any, ids: Tensor, processors: Any, criteria: Any, config: Any, streamer: Any = None):
        self.asked, self.model, self.ids, self.config, self.streamer = asked, model, ids, config, streamer
        self.processors, self.criteria = processors, criteria
        self.family = family_of(model)
        self.rule = rule_of(asked.request.accept, 1.0 if config.do_sample else 0.0)
        self.request = ProcessorContext(ids, end_values(criteria), asked.stateless)
        self.forms = [form_of(one, self.request) for one in processors]

    def unformed(self) -> str | None:
        """Return the processors and criteria that cannot be drafted for, as text; None if there are none."""
        found = [one for one, form in zip(self.processors, self.forms, strict=True) if form is None]
        found += without_form(self.criteria, self.asked.stateless)
        names = ", ".join(dict.fromkeys(getattr(one, "__name__", type(one).__name__) for one in found))
        return f"{names} may keep a state or read the whole batch (if not, say so: mmspec_stateless = True)" if found else None

    def drafted(self, inputs: Mapping[str, Any], on_step: OnStep = None) -> Tensor:
        """Decode by mmspec.

        Args:
            inputs: of `inputs_for`.
            on_step: called with every round.

        Returns:
            LongTensor [B, P + T], prompts and new tokens, padded.
        """
        for each in self.processors:
            if notes_first_step(each):
                each(self.ids, None)
        steps: list[Processor] = [form for form in self.forms if form is not None]
        if not self.config.do_sample and not reads_raw(self.rule):
            steps.append(Temperature(0.0))  # an explicit sampling rule without sampling: a point mass
        rule, steps = _warped(self.rule, steps)
        ids = self.ids.to(compat.execution_device(self.model))
        checks = checks_of(steps)
        ends = ends_of(self.criteria, self.ids, self.asked.stateless, checks)
        proof = require(self.model, self.family, trees=self.asked.request.tree is not None)
        require_reach(proof, ids.shape[1] + ends.most)
        target = HFTarget(self.model, self.family, Pipeline(tuple(steps)), limit=positions_of(self.model), trees=proof.trees)
        resolved = self.asked.request.resolve(target, rule)
        with TokenStream(self.streamer) as stream:
            out = generate(
                target,
                resolved.drafter,
                rule,
                inputs,
                stopping=DefaultStopping(len(ids), ends.most, ends.values, ends.stops, ids.device),
                noise=self.noise(ids.device),
                control=resolved.control,
                pad=pad_of(self.config, ends),
                on_step=together(stream, on_step),
            )
        new = out.sequences if ends.together is None else out.sequences[:, : ends.together.length]
        return torch.cat([self.ids, new.to(self.ids.device)], 1)

    def plain(self, model_kwargs: Mapping[str, Any]) -> Any:
        """Decode by transformers' own loop. Sampled tokens use the same noise as in mmspec."""
        noise = self.noise(self.ids.device) if self.config.do_sample and not isinstance(self.rule, Greedy) else None
        return decode_plainly(self.model, self.ids, self.processors, self.criteria, self.config, self.streamer, noise, model_kwargs)

    def noise(self, device: torch.device) -> Noise:
        """Return the request's noise. Greedy requests do not advance torch's generator."""
        return request_noise(self.asked.request.seed, self.config, len(self.ids), device)


class TokenStream(StreamerFeed):
    """Feeds a streamer one token at a time, as transformers does."""

    def __call__(self, step: Step) -> None:
        """Pass every token that a round committed in row 0."""
        if self.streamer is not None:
            for value in step.committed.values[0]:
                self.streamer.put(torch.tensor([value]))


_WARPS = (Temperature, TopK, TopP, MinP)


def _warped(rule: Accept, steps: list[Processor]) -> tuple[Accept, list[Processor]]:
    """Remove temperature and truncation from the target's `steps` for transforms, which apply them after their own operation."""
    if not isinstance(rule, Transformed):
        return rule, steps
    first = next((place for place, step in enumerate(steps) if isinstance(step, _WARPS)), len(steps))
    for step in steps[first:]:
        if not isinstance(step, _WARPS):
            name = type(getattr(step, "processor", step)).__name__
            raise ValueError(f"{type(rule.transform).__name__} cannot be combined with {name}, which acts behind temperature: leave it out")
    return rule.warped_by(Pipeline(tuple(steps[first:]))), steps[:first]
