"""A text model in an engine: what all requests share, and what is read of each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmspec.core.noise import Noise
from mmspec.core.processors.by_row import RowPipelines
from mmspec.core.processors.history import Processor
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.processors.reported import ReportingPipeline
from mmspec.core.stopping import Stop
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.views.base import own_pixels, same_prompt, shared_modalities, text_alone
from mmspec.models.families.base import DecoderOnly
from mmspec.models.families.multimodal import ENCODED, PROMPTS, TOKEN_TYPES, Multimodal
from mmspec.models.families.registry import family_of, positions_of
from mmspec.models.model_checks import check_model_ready
from mmspec.models.proof.require import require, require_reach
from mmspec.models.target import HFTarget
from mmspec.run.arguments import check, public_call
from mmspec.run.drop_in.processors import ProcessorContext, checks_of, with_forms
from mmspec.run.request import Request
from mmspec.run.settings.generation_config import settings
from mmspec.run.settings.processors import end_ids
from mmspec.serving.models.base import PROMPT_COLUMNS, RequestOutput
from mmspec.serving.models.rows import RowsModel, by_rows, check_greedy, check_one_row, shared_rule
from mmspec.text.inputs.prompt import TextPrompt
from mmspec.text.pieces import text_pieces

_TEXT = ("input_ids", "attention_mask")
_VIEWS = (same_prompt, own_pixels, shared_modalities, text_alone)


@public_call
@dataclass(frozen=True)
class TextOptions:
    """The options of one request, as in `mmspec.text.generate`.

    Args:
        max_new_tokens: largest number of new tokens.
        seed: seed of the request.
        temperature, top_k, top_p, repetition_penalty: how the distribution is formed.
        processors: further distribution processors.
        stops: functions of (0, ids committed so far) that return True where the request should end.
        logprobs: keep the log-probability of every token, and those of this many most likely tokens beside it, in `handle.logprobs`. They
            are of the distribution that the token was drawn from; at temperature 0 of that before the temperature. None keeps none.
    """

    max_new_tokens: int = 128
    seed: int = 0
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    processors: Sequence[Processor] = ()
    stops: Sequence[Stop] = ()
    logprobs: int | None = None


@dataclass(frozen=True)
class TextWork:
    """One request, checked.

    Args:
        inputs: its prompt, without padding, as the target takes it for one row.
        pipeline: forms its distributions.
        options: its options.
        together: its prompt can be padded to those of others.
    """

    inputs: Mapping[str, Any]
    pipeline: Pipeline
    options: TextOptions
    together: bool = True

    @property
    def seed(self) -> int:
        """The seed of its noise."""
        return self.options.seed

    @property
    def most(self) -> int:
        """Largest number of new tokens."""
        return self.options.max_new_tokens

    @property
    def stops(self) -> Sequence[Stop]:
        """Functions that end it."""
        return self.options.stops

    @property
    def ids(self) -> Tensor:
        """Token ids of its prompt, LongTensor [P]."""
        return self.inputs["input_ids"][0]

    @property
    def columns(self) -> int:
        """Tokens of its prompt."""
        return len(self.ids)

    @property
    def size(self) -> int:
        """How long it may run; see `EngineWork.size`."""
        return self.most + self.columns // PROMPT_COLUMNS

    def output(self) -> RequestOutput:
        """Return what takes in its tokens."""
        return TextOutput(self.ids.device)


class TextOutput(RequestOutput):
    """The tokens of a text."""

    def stream(self, pieces: Iterator[Any], decode: Callable[[list[int]], str] | None) -> Iterator[Any]:
        """Return an iterator over tokens, or over pieces of their text; see `RequestOutput.stream`."""
        return pieces if decode is None else text_pieces(pieces, decode)


@dataclass(frozen=True, kw_only=True)
class TextModel(RowsModel):
    """A language model, one that reads pictures or sound included, and a drafter that serve many requests.

    Args:
        model: a transformers causal language model.
        family: its family.
        proof: what its self-test found.
        request, rule, control, max_length, drafter: as in `RowsModel`.
    """

    options: ClassVar[type] = TextOptions
    model: Any
    family: Any
    proof: Any = field(repr=False)

    @staticmethod
    def of(model: Any, request: Request, max_length: int | None) -> "TextModel":
        """Check a target and a drafter, and open a session of both.

        Args:
            model: a transformers causal language model.
            request: what all requests share.
            max_length: most tokens of a prompt and its output; None for the model's positions.

        Returns:
            The model.

        Raises:
            ValueError: for models, drafters and rules whose rows cannot join a running generation.
        """
        family = family_of(model)
        check_model_ready(model)
        _refuse_other_kinds(model, family)
        rule = shared_rule(request)
        proof = require(model, family, trees=request.tree is not None)
        positions = positions_of(model)
        most = positions if max_length is None else max_length if positions is None else min(max_length, positions)
        resolved = request.resolve(HFTarget(model, family, limit=positions, trees=proof.trees), rule, rows=1)
        found = TextModel(
            model=model,
            family=family,
            proof=proof,
            request=request,
            rule=rule,
            control=by_rows(resolved.control),
            max_length=most,
            drafter=resolved.drafter,
        )
        one = torch.ones(1, 1).long()
        found.open([found.read({"input_ids": one, "attention_mask": one}, TextOptions(max_new_tokens=1))]).refuse_fixed_rows()
        return found

    @property
    def pad(self) -> int:
        """The id that fills rows in results."""
        pad, ends = self.model.generation_config.pad_token_id, self.ends
        return (ends[0] if ends else 0) if pad is None else pad

    @property
    def ends(self) -> Sequence[int]:
        """Ids that end a row."""
        return end_ids(self.model.generation_config)

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.model.device

    def read(self, inputs: Mapping[str, Any], options: TextOptions) -> TextWork:
        """Check a request.

        Args:
            inputs: what the model's tokenizer or processor returned for one prompt.
            options: its options.

        Returns:
            The request, checked.

        Raises:
            ValueError: for invalid arguments, in one line.
        """
        check_one_row(options)
        named = ("temperature", "top_k", "top_p", "repetition_penalty", "max_new_tokens", "processors", "stops", "logprobs")
        check(**{name: getattr(options, name) for name in named})
        Noise.from_seed([options.seed], 1)  # checks it
        prompt = TextPrompt.of(self.model, self.family, inputs)
        if len(prompt.ids) != 1:
            raise ValueError(f"a request of an engine is one prompt, but input_ids has {len(prompt.ids)} rows: submit them one by one")
        own, ids = self._unpadded(prompt), prompt.ids[0][prompt.mask[0]]
        if len(ids) == 0:
            raise ValueError("the prompt is empty: it needs at least one token that is not padding")
        prompt.check_length(positions_of(self.model), options.max_new_tokens)
        prompt.check_length(self.max_length, options.max_new_tokens, "the engine's")
        require_reach(self.proof, len(ids) + options.max_new_tokens)
        check_greedy(self.rule, options.temperature)
        shared = Request.of(temperature=options.temperature, top_k=options.top_k, top_p=options.top_p)
        fixed = settings(self.model, self.family, prompt.inputs, (ids[None], prompt.mask[:, prompt.mask[0]]), *_lengths(options))
        forms = with_forms(options.processors, ProcessorContext(ids[None], tuple(end_ids(self.model.generation_config))))
        options = replace(options, stops=(*options.stops, *checks_of(forms)))
        formed = shared.distributions(self.rule, (*fixed, *forms))
        reported = formed if options.logprobs is None else ReportingPipeline(formed.steps, options.logprobs)
        return TextWork(own, reported, options, own.keys() == set(_TEXT) or (self._reads_prompts and ENCODED not in own))

    def target(self, works: Sequence[TextWork], reserve: int) -> HFTarget:
        """Return the target with the processors of some requests; see `RowsModel.target`."""
        pipelines: Any = RowPipelines(tuple(work.pipeline for work in works))
        return HFTarget(self.model, self.family, pipelines, reserve, limit=positions_of(self.model), trees=self.proof.trees)

    def prompt(self, works: Sequence[TextWork]) -> dict[str, Any]:
        """Return the prompts of some requests as one batch, padded on the left; see `RowsModel.prompt`."""
        if len(works) == 1:
            return dict(works[0].inputs)
        longest, rows = max(len(work.ids) for work in works), len(works)
        ids = torch.zeros(rows, longest, dtype=torch.long, device=works[0].ids.device)
        mask = torch.zeros_like(ids)
        for row, work in enumerate(works):
            ids[row, longest - len(work.ids) :], mask[row, longest - len(work.ids) :] = work.ids, 1
        found: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
        if any(work.inputs.keys() != set(_TEXT) for work in works):
            found[PROMPTS] = [work.inputs for work in works]
        return found

    @property
    def _reads_prompts(self) -> bool:
        """True if the drafter can read prompts with pictures that are given one by one."""
        drafter = self.drafter
        return not isinstance(drafter, ModelDrafter) or (isinstance(drafter.target, HFTarget) and drafter.view in _VIEWS)

    def _unpadded(self, prompt: TextPrompt) -> dict[str, Any]:
        """The inputs of a prompt of one row as the target takes them, without padding. ValueError for pictures that do not fit it."""
        kept = prompt.mask[0]
        found = {"input_ids": prompt.ids[:, kept], "attention_mask": prompt.mask[:, kept].long()}
        if not isinstance(self.family, Multimodal):
            return found
        self.family.check(self.model, prompt.inputs)
        types = {name: prompt.inputs[name][:, kept] for name in TOKEN_TYPES if name in prompt.inputs}
        return {**prompt.inputs, **found, **types}


def _lengths(options: TextOptions) -> tuple[int, float | None]:
    return options.max_new_tokens, options.repetition_penalty


def _refuse_other_kinds(model: Any, family: Any) -> None:
    """ValueError for models of other kinds, whose rows cannot join."""
    if not isinstance(family, DecoderOnly):
        raise ValueError(f"{type(model).__name__} has an encoder, and an engine serves decoder-only models: use mmspec.text.generate")
