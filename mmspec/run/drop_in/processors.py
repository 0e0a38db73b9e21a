"""transformers' logits processors in a drop-in request: which have a form that is exact at every node of a draft, and that form.

A form receives what transformers passes to a processor: the row's padded prompt and its outputs. Processors without a form (stateful ones,
ones that read the whole batch, unknown ones) are run by transformers' own loop, without drafting.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.generation import logits_process as known

from mmspec.core.processors import pipeline as native
from mmspec.core.processors import sequence as whole
from mmspec.core.processors.history import History, Processor
from mmspec.models.compat import prefix_function, weighs_timestamps
from mmspec.models.families.whisper import Timestamps


@dataclass(frozen=True, eq=False)
class ProcessorContext:
    """Properties of a request that are needed to translate its processors."""

    prompt: Tensor  # [B, P] as transformers has it, padding included
    ends: tuple[int, ...] = ()
    stateless: tuple[type, ...] = ()  # classes the caller vouches for

    @property
    def length(self) -> int:
        """Number of tokens of the prompt, padding included."""
        return self.prompt.shape[1]


@dataclass(frozen=True)
class Unchanged:
    """Leaves scores as they are."""

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        return scores


@dataclass(frozen=True)
class RowWise:
    """A transformers processor that reads scores only, called once for all rows and nodes."""

    processor: Any

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        flat = scores.flatten(0, 1)
        usable = flat.isfinite().any(-1, keepdim=True) & ~flat.isnan().any(-1, keepdim=True)  # nodes that are not there may hold neither
        safe = torch.where(usable, flat, 0.0)
        return torch.where(usable, self.processor(history.ids[:1, :1].expand(len(flat), -1), safe), flat).view_as(scores)


@dataclass(frozen=True)
class NodeColumns:
    """A transformers processor that reads scores only but distinguishes rows, called with the whole batch for one node of every row."""

    processor: Any

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        ids = history.ids[:, :1]
        return torch.stack([self.processor(ids, scores[:, node].clone()) for node in range(scores.shape[1])], 1)


@dataclass(frozen=True, eq=False)
class NodeByNode:
    """A transformers processor that is a function of one row's padded ids and scores, called for one node at a time."""

    processor: Any
    prompt: Tensor

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        ids, lengths = whole.sequences(history, self.prompt)
        out = scores.clone()
        for row, line in enumerate(lengths.tolist()):
            for node, length in enumerate(line):
                out[row, node] = self.processor(ids[row, node, None, :length], scores[row, node][None].clone())[0]
        return out


@dataclass(slots=True)
class _Prefix:
    """One output sequence of a row: its allowed tokens, once computed, and its continuations."""

    allowed: dict[int, None] | None = None  # in order, and quick to search
    error: Exception | None = None
    after: "dict[int, _Prefix]" = field(default_factory=dict)


class PrefixAllowed:
    """transformers' `prefix_allowed_tokens_fn` at every node, called once for each sequence that the constraint allows.

    Drafts may violate the constraint; behind such a node nothing can be kept, so the function is not called there. If the function raised
    an exception for a sequence, `check`, a stop, raises it once a value drawn after that sequence is committed. It is told the number of
    the row, or of the prompt where the processor is made for several rows a prompt, as `generate` does with `num_return_sequences` since
    5.24.
    """

    def __init__(self, processor: Any, request: ProcessorContext):
        self.ask, self.copies = prefix_function(processor)
        rows = len(request.prompt)
        if rows % self.copies:
            raise ValueError(f"prefix_allowed_tokens_fn is made for {self.copies} sequences a prompt, and there are {rows} rows")
        self.kind, self.request = type(processor), request
        self.rows = [_Prefix() for _ in request.prompt]

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        ids, lengths = whole.sequences(history, self.request.prompt)
        flat = scores.flatten(0, 1)
        found = [self.at(row, line[start:end]) for row, line, start, end in self._outputs(ids, lengths)]
        chosen = [index for index, prefix in enumerate(found) if prefix is not None and prefix.allowed is not None]
        if not chosen:
            return scores
        own = self.kind(lambda place, _: list(found[chosen[place]].allowed), 1)  # type: ignore[union-attr]
        index = torch.tensor(chosen, device=flat.device)
        return flat.index_copy(0, index, own(ids.flatten(0, 1)[index], flat[index])).view_as(scores)

    def _outputs(self, ids: Tensor, lengths: Tensor) -> list[tuple[int, list[int], int, int]]:
        start, ends = self.request.length, lengths.tolist()
        return [(row, line, start, ends[row][node]) for row, lines in enumerate(ids.tolist()) for node, line in enumerate(lines)]

    def at(self, row: int, outputs: Sequence[int]) -> _Prefix | None:
        """Return the sequence `outputs` of a row; None if the constraint does not allow it."""
        prefix = self.rows[row]
        for place, value in enumerate(outputs):
            self._open(row, prefix, outputs[:place])
            if prefix.allowed is None or value not in prefix.allowed or value in self.request.ends:
                return None
            prefix = prefix.after.setdefault(value, _Prefix())
        self._open(row, prefix, outputs)
        return prefix

    def check(self, row: int, outputs: list[int]) -> bool:
        """A stop that returns False. Raises the function's exception for the sequence that the last of `outputs` was drawn after."""
        prefix = self.at(row, outputs[:-1])
        if prefix is not None and prefix.error is not None:
            raise prefix.error
        return False

    def _open(self, row: int, prefix: _Prefix, outputs: Sequence[int]) -> None:
        if prefix.allowed is not None or prefix.error is not None:
            return
        prompt = self.request.prompt[row]
        try:
            allowed = list(
                self.ask(row // self.copies, torch.cat([prompt, torch.tensor(outputs, dtype=prompt.dtype, device=prompt.device)]))
            )
            if not allowed:
                raise ValueError(f"prefix_allowed_tokens_fn returned an empty list for row {row}: it must allow at least one token")
            prefix.allowed = dict.fromkeys(int(value) for value in allowed)
        except Exception as error:  # raised again by `check`, if a row ever gets here
            prefix.error = error


Form = Callable[[Any, ProcessorContext], Processor]


def _penalty(processor: Any, request: ProcessorContext) -> Processor:
    ignored = processor.prompt_ignore_length
    return whole.SequencePenalty(processor.penalty, request.prompt, 0 if ignored is None else ignored)


def _encoder_ngrams(processor: Any, request: ProcessorContext) -> Processor:
    """Return the form for n-grams of the encoder's input: transformers keeps a mapping from the start of an n-gram to its continuations."""
    lines = [[(*start, end) for start, ends in line.items() for end in ends] for line in processor.generated_ngrams]
    size = max(map(len, lines), default=0)
    filled = [line + [(0,) * processor.ngram_size] * (size - len(line)) for line in lines]
    real = [[place < len(line) for place in range(size)] for line in lines]
    grams = torch.tensor(filled, dtype=torch.long).view(len(lines), size, processor.ngram_size)
    return whole.EncoderNoRepeatNGram(grams, torch.tensor(real, dtype=torch.bool).view(len(lines), size), request.prompt)


def _warper(own: Callable[[Any], Processor]) -> Form:
    """Return mmspec's own form of a truncation with default settings, else transformers' class."""

    def form(processor: Any, request: ProcessorContext) -> Processor:
        usual = processor.filter_value == -float("inf") and processor.min_tokens_to_keep == 1
        return own(processor) if usual else RowWise(processor)

    return form


def _row_wise(processor: Any, request: ProcessorContext) -> Processor:
    return RowWise(processor)


def _node_by_node(processor: Any, request: ProcessorContext) -> Processor:
    return NodeByNode(processor, request.prompt)


def _bias(processor: Any, request: ProcessorContext) -> Processor:
    return whole.SequenceBias(whole.biases_of(processor.sequence_bias), request.prompt)


def _begin(processor: Any, request: ProcessorContext) -> Processor:
    first = processor.begin_index - request.length
    return native.SuppressAt(_ids(processor.begin_suppress_tokens), first, first + 1)


def _timestamps(processor: Any, request: ProcessorContext) -> Processor:
    """Return the grammar of timestamps; its outputs begin where the prompt ends, or transformers' class runs node by node."""
    if processor.begin_index != request.length or not isinstance(processor.eos_token_id, int):
        return NodeByNode(processor, request.prompt)
    weighs = weighs_timestamps(processor)
    return Timestamps(processor.timestamp_begin, processor.eos_token_id, processor.max_initial_timestamp_index, weighs)


def _least(end: Callable[[Any], int]) -> Form:
    return lambda processor, request: native.SuppressAt(_ids(processor.eos_token_id), 0, end(processor) - request.length)


FORMS: dict[type, Form] = {
    known.TemperatureLogitsWarper: lambda p, r: native.Temperature(p.temperature),
    known.TopKLogitsWarper: _warper(lambda p: native.TopK(p.top_k)),
    known.TopPLogitsWarper: _warper(lambda p: native.TopP(p.top_p)),
    known.MinPLogitsWarper: _warper(lambda p: native.MinP(p.min_p)),
    known.TopHLogitsWarper: _row_wise,
    known.TypicalLogitsWarper: _row_wise,
    known.EpsilonLogitsWarper: _row_wise,
    known.EtaLogitsWarper: _row_wise,
    known.BarkEosPrioritizerLogitsProcessor: _row_wise,
    known.LogitNormalization: _row_wise,
    known.InfNanRemoveLogitsProcessor: lambda p, r: whole.ReplaceInvalid(),
    known.RepetitionPenaltyLogitsProcessor: _penalty,
    known.NoRepeatNGramLogitsProcessor: lambda p, r: whole.NoRepeatNGram(p.ngram_size, r.prompt),
    known.EncoderRepetitionPenaltyLogitsProcessor: lambda p, r: NodeColumns(p),
    known.EncoderNoRepeatNGramLogitsProcessor: _encoder_ngrams,
    known.SequenceBiasLogitsProcessor: _bias,
    known.NoBadWordsLogitsProcessor: _bias,
    known.SuppressTokensLogitsProcessor: lambda p, r: native.Suppress(_ids(p.suppress_tokens)),
    known.SuppressTokensAtBeginLogitsProcessor: _begin,
    known.MinLengthLogitsProcessor: _least(lambda p: p.min_length),
    known.MinNewTokensLengthLogitsProcessor: _least(lambda p: p.min_new_tokens + p.prompt_length_to_skip),
    known.ForcedBOSTokenLogitsProcessor: lambda p, r: native.ForceAt((p.bos_token_id,), 1 - r.length),
    known.ForcedEOSTokenLogitsProcessor: lambda p, r: native.ForceAt(_ids(p.eos_token_id), p.max_length - r.length - 1),
    known.ExponentialDecayLengthPenalty: lambda p, r: whole.LengthPenalty(
        _ids(p.eos_token_id), p.regulation_start - r.length, p.regulation_factor
    ),
    known.PrefixConstrainedLogitsProcessor: PrefixAllowed,
    known.WatermarkLogitsProcessor: _node_by_node,
    known.AlternatingCodebooksLogitsProcessor: _node_by_node,
    known.WhisperTimeStampLogitsProcessor: _timestamps,
}
"""The exact class of a processor -> its form. Subclasses may do anything, and have none."""

WITHOUT_DRAFTING: dict[type, str] = {
    known.UnbatchedClassifierFreeGuidanceLogitsProcessor: "runs the model on a prompt of its own and keeps that cache",
    known.SynthIDTextWatermarkLogitsProcessor: "keeps the contexts it has seen",
    known.WhisperNoSpeechDetection: "reads the first step's scores, where the prompt is a single token; drafted for where it is longer",
    known.ClassifierFreeGuidanceLogitsProcessor: "reads two rows of scores for each sequence",
    known.DiaClassifierFreeGuidanceLogitsProcessor: "reads two rows of scores for each sequence",
    known.DiaEOSChannelFilterLogitsProcessor: "reads the channels of a sequence together",
    known.DiaEOSDelayPatternLogitsProcessor: "keeps which sequences have ended",
}


def form_of(processor: Any, request: ProcessorContext) -> Processor | None:
    """Return the form of `processor` that is exact at every node of a draft; None without one.

    A processor of an unknown class has one if its attribute `mmspec_stateless` is true or its class is among `request.stateless`: its
    scores must then be a function of one row's padded ids [1, L] and scores [1, V], for any ids.
    """
    if notes_first_step(processor):
        return Unchanged()
    if type(processor) in FORMS:
        return FORMS[type(processor)](processor, request)
    return NodeByNode(processor, request.prompt) if vouched_for(processor, request.stateless) else None


def with_forms(processors: Sequence[Any], request: ProcessorContext) -> tuple[Processor, ...]:
    """Return processors as mmspec's: its own as they are, and those of transformers by their forms.

    Args:
        processors: of either kind; transformers' own are instances of `LogitsProcessor`.
        request: the prompt, and what else the forms need.

    Returns:
        Processors that are exact at every node of a draft.

    Raises:
        ValueError: for a processor of transformers without such a form.
    """
    found = []
    for processor in processors:
        theirs = isinstance(processor, known.LogitsProcessor)
        form = form_of(processor, request) if theirs else processor
        if form is None:
            name, why = type(processor).__name__, WITHOUT_DRAFTING.get(type(processor), "may keep a state or read the whole batch")
            raise ValueError(
                f"processors holds a {name}, which {why}: leave it out, or, if it is a function of one row's ids and scores alone, "
                "set mmspec_stateless = True on its class"
            )
        found.append(form)
    return tuple(found)


def checks_of(forms: Sequence[Processor]) -> list[Callable[[int, list[int]], bool]]:
    """Return the stops that raise what a caller's function raised, once a row gets there."""
    return [form.check for form in forms if isinstance(form, PrefixAllowed)]


def notes_first_step(processor: Any) -> bool:
    """Return True for Whisper's detection of silence where it runs the model itself: called once, with the prompt alone, it is complete."""
    return type(processor) is known.WhisperNoSpeechDetection and processor.start_of_trans_offset > 1


def vouched_for(thing: Any, stateless: tuple[type, ...]) -> bool:
    """Return True if the caller declared that a processor or criterion is stateless and reads one row only."""
    return bool(getattr(thing, "mmspec_stateless", False)) or type(thing) in stateless


def _ids(tensor: Any) -> tuple[int, ...]:
    return tuple(int(i) for i in (tensor.flatten().tolist() if isinstance(tensor, Tensor) else tensor))
