"""A text model in an engine: what all requests share, and what is read of each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmspec.core.control import Control, Fixed
from mmspec.core.decode import Rounds
from mmspec.core.draft_length.by_rows import ByRows
from mmspec.core.noise import Noise
from mmspec.core.processors.by_row import RowPipelines
from mmspec.core.processors.history import Processor
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.processors.reported import ReportingPipeline
from mmspec.core.protocols import Drafter
from mmspec.core.rules.base import TOKEN_EXACT, Accept
from mmspec.core.stopping import DefaultStopping, Stop
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.none import NoDraft
from mmspec.models.families.base import DecoderOnly
from mmspec.models.families.multimodal import Multimodal
from mmspec.models.families.registry import family_of, positions_of
from mmspec.models.model_checks import check_model_ready
from mmspec.models.proof.require import require, require_reach
from mmspec.models.target import HFTarget
from mmspec.run.arguments import check
from mmspec.run.request import Request
from mmspec.serving.models.base import RequestOutput
from mmspec.serving.models.pieces import text_pieces
from mmspec.text.inputs.prompt import TextPrompt
from mmspec.text.settings.generation_config import settings
from mmspec.text.settings.processors import end_ids

_FIRST = 2  # draft tokens of the rounds before a drafter has run its prompt, where the draft length is adaptive


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
        ids: token ids of its prompt, LongTensor [P].
        pipeline: forms its distributions.
        options: its options.
    """

    ids: Tensor
    pipeline: Pipeline
    options: TextOptions

    @property
    def columns(self) -> int:
        """Tokens of its prompt."""
        return len(self.ids)

    def output(self) -> RequestOutput:
        """Return what takes in its tokens."""
        return TextOutput(self.ids.device)


class TextOutput(RequestOutput):
    """The tokens of a text."""

    def stream(self, pieces: Iterator[Any], decode: Callable[[list[int]], str] | None) -> Iterator[Any]:
        """Return an iterator over tokens, or over pieces of their text; see `RequestOutput.stream`."""
        return pieces if decode is None else text_pieces(pieces, decode)


@dataclass(frozen=True)
class TextModel:
    """A target and a drafter that serve many requests.

    Args:
        model: a transformers causal language model.
        family: its family.
        request: drafter, accept rule, tree and what else all requests share.
        rule: the accept rule.
        trees: False where the self-test found branching drafts inexact.
        control: chooses draft lengths.
        max_length: most tokens of a prompt and its output; None for the model's positions.
    """

    options: ClassVar[type] = TextOptions
    model: Any
    family: Any
    request: Request
    rule: Accept
    trees: bool
    control: Control
    max_length: int | None
    _proof: Any = field(repr=False)
    _drafter: Drafter = field(repr=False)

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
        _refuse_other_inputs(model, family)
        rule = replace_temperature(request, 1.0).rule() if request.accept == "exact" else request.rule()
        if rule.exactness != TOKEN_EXACT:
            raise ValueError(
                f"accept rule {type(rule).__name__} is {rule.exactness}, so that outputs would depend on the requests beside them: "
                "choose 'exact', 'greedy', 'coupled' or 'match'"
            )
        proof = require(model, family, trees=request.tree is not None)
        positions = positions_of(model)
        most = positions if max_length is None else max_length if positions is None else min(max_length, positions)
        target = HFTarget(model, family, limit=positions, trees=proof.trees)
        resolved = request.resolve(target, rule, rows=1)
        control = resolved.control if isinstance(resolved.control, Fixed) else ByRows(resolved.control)
        found, one = TextModel(model, family, request, rule, proof.trees, control, most, proof, resolved.drafter), torch.ones(1, 1).long()
        found.open([found.read({"input_ids": one, "attention_mask": one}, TextOptions(max_new_tokens=1))]).refuse_fixed_rows()
        return found

    @property
    def pad(self) -> int:
        """The id that fills rows in results."""
        pad, ends = self.model.generation_config.pad_token_id, end_ids(self.model.generation_config)
        return (ends[0] if ends else 0) if pad is None else pad

    def read(self, inputs: Mapping[str, Any], options: TextOptions) -> TextWork:
        """Check a request.

        Args:
            inputs: what the model's tokenizer returned for one prompt.
            options: its options.

        Returns:
            The request, checked.

        Raises:
            ValueError: for invalid arguments, in one line.
        """
        given = {name: getattr(options, name) for name in ("temperature", "top_k", "top_p", "repetition_penalty", "max_new_tokens")}
        for name, value in (given | {"seed": options.seed}).items():
            if isinstance(value, Sequence) and not isinstance(value, str):
                raise ValueError(f"{name} has {len(value)} values, but a request of an engine is one row: give one number")
        check(**given, processors=options.processors, stops=options.stops, logprobs=options.logprobs)
        Noise.from_seed([options.seed], 1)  # checks it
        prompt = TextPrompt.of(self.model, self.family, inputs)
        if len(prompt.ids) != 1:
            raise ValueError(f"a request of an engine is one prompt, but input_ids has {len(prompt.ids)} rows: submit them one by one")
        ids = prompt.ids[0][prompt.mask[0]]
        if len(ids) == 0:
            raise ValueError("the prompt is empty: it needs at least one token that is not padding")
        prompt.check_length(positions_of(self.model), options.max_new_tokens)
        prompt.check_length(self.max_length, options.max_new_tokens, "the engine's")
        require_reach(self._proof, len(ids) + options.max_new_tokens)
        shared = Request.of(temperature=options.temperature, top_k=options.top_k, top_p=options.top_p)
        if options.temperature != 0 and getattr(self.rule, "reads_raw", False):
            raise ValueError(f"temperature is {options.temperature}, but this engine accepts greedily: leave accept out")
        own = settings(self.model, self.family, prompt.inputs, (ids[None], prompt.mask[:, prompt.mask[0]]), *_lengths(options))
        formed = shared.distributions(self.rule, (*own, *options.processors))
        return TextWork(ids, formed if options.logprobs is None else ReportingPipeline(formed.steps, options.logprobs), options)

    def open(self, works: Sequence[TextWork], control: Control | None = None) -> Rounds:
        """Open a generation of some requests, one a row.

        Args:
            works: the requests.
            control: chooses draft lengths; by default those of the rounds before the rows join others.

        Returns:
            The generation. Nothing has run yet.
        """
        longest, rows = max(len(work.ids) for work in works), len(works)
        ids = torch.zeros(rows, longest, dtype=torch.long, device=works[0].ids.device)
        mask = torch.zeros_like(ids)
        for row, work in enumerate(works):
            ids[row, longest - len(work.ids) :], mask[row, longest - len(work.ids) :] = work.ids, 1
        reserve = min(max(work.options.max_new_tokens for work in works) + 32, 1024)
        pipelines: Any = RowPipelines(tuple(work.pipeline for work in works))
        target = HFTarget(self.model, self.family, pipelines, reserve, limit=positions_of(self.model), trees=self.trees)
        return Rounds(
            target,
            self._drafter_for(target),
            self.rule,
            {"input_ids": ids, "attention_mask": mask},
            stopping=self._stopping(works, ids.device),
            noise=Noise.from_seed([work.options.seed for work in works], rows, ids.device),
            control=self._first() if control is None else control,
        )

    def _drafter_for(self, target: HFTarget) -> Drafter:
        """The drafter with the requests' own processors, where it is a model; other drafters read them of the target's session."""
        if isinstance(self._drafter, ModelDrafter):
            own: Any = target.processors.silent  # type: ignore[attr-defined]
            return self.request.resolve(replace(target, processors=own), self.rule).drafter
        return self._drafter

    def _first(self) -> Control:
        """The draft length before rows join: at least 1, so that the drafter runs its prompt."""
        if isinstance(self._drafter, NoDraft):
            return Fixed(0)
        return self.control if isinstance(self.control, Fixed) else Fixed(_FIRST)

    def _stopping(self, works: Sequence[TextWork], device: torch.device) -> DefaultStopping:
        ends = end_ids(self.model.generation_config)
        first, *others = (DefaultStopping(1, work.options.max_new_tokens, ends, work.options.stops, device) for work in works)
        for other in others:
            first.join_rows(other)
        return first


def replace_temperature(request: Request, temperature: float) -> Request:
    """Return `request` with another temperature."""
    return request.model_copy(update={"temperature": temperature})


def _lengths(options: TextOptions) -> tuple[int, float | None]:
    return options.max_new_tokens, options.repetition_penalty


def _refuse_other_inputs(model: Any, family: Any) -> None:
    """ValueError for models that read more than a text, or keep more than keys and values of it."""
    if not isinstance(family, DecoderOnly) or isinstance(family, Multimodal):
        raise ValueError(
            f"{type(model).__name__} reads more than one text, and an engine serves decoder-only language models: use mmspec.text.generate"
        )
