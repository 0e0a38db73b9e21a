"""CSM (Sesame 2025): a backbone writes code 0 of every frame, a depth decoder the others, one given the ones before it.

What is applied where, as in the class's own generation: a call's temperature, top_k and the like, and all other processors, to code 0;
the depth decoder's own generation config to the codes behind it (greedy unless that says do_sample). `depth` replaces the latter.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.core.distributions.depth_frame import Choose, DepthFrame, FrameWriter, one_by_one
from mmspec.core.processors.history import History
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.stopping import EndTest
from mmspec.models.compat import csm_embeddings
from mmspec.models.compat.cache_name import cache_keyword, cache_of
from mmspec.models.families.base import attention_mask, refuse_unsupported
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache
from mmspec.speech.codecs.transformers import HFCodec
from mmspec.speech.families.base import DRAWS, sampling_of
from mmspec.speech.families.csm_prompts import CsmPrompts
from mmspec.speech.families.frames import FrameModel, FramePrompt, FrameRows, frame_history
from mmspec.speech.sound.stream import SoundStream

Inputs = Mapping[str, Tensor]
"""What a CsmProcessor returns: input_ids, attention_mask, and for sound in the prompt input_values and input_values_cutoffs."""


@dataclass(frozen=True)
class PromptParts:
    """The rows of a prompt and the model that embedded them, so that a drafter can embed them with its own tables."""

    rows: tuple[Inputs, ...]  # one prompt each
    model: Any  # that embedded them


class CsmModel(FrameModel):
    """A `CsmForConditionalGeneration`.

    Texts need `letters`: the model's CsmProcessor, which also takes a `VoiceSample`, or such as
    `letters.Letters(tokenizer, "[{voice}]{text}", ("0", "1"))`; a prompt may also be what the processor returned for one conversation,
    sound included. `writer` says how the depth decoder writes a frame
    (`core.distributions.depth_frame`). A frame whose codes but the last all are the end's ends a row, and is no sound: the class's own
    `output_audio` lets it sound.
    """

    def __init__(self, model: Any, letters: Any = None, *, writer: FrameWriter = one_by_one, depth: Pipeline | None = None):
        refuse_unsupported(model.backbone_model)
        config, self.codec = model.config, HFCodec(model.codec_model)
        letters = CsmPrompts(letters, self.codec.rate) if hasattr(letters, "feature_extractor") else letters
        self.clones = isinstance(letters, CsmPrompts)
        self.model, self.letters, self.writer = model, letters, writer
        self.books, self.size, self.layers = config.num_codebooks, config.vocab_size, config.num_hidden_layers
        self.rate, self.pace = self.codec.rate, self.codec.pace
        self.voices = tuple(getattr(letters, "voices", ()))
        self.longest = config.max_position_embeddings - (getattr(letters, "longest", None) or 1)
        self.sampling = sampling_of(model.generation_config)
        self.depth = CsmDepth(model, _depth_processors(model.depth_decoder.generation_config) if depth is None else depth)

    # --- prompts ------------------------------------------------------------------------------------------------------

    def encode(self, texts: Sequence[str | Inputs], voices: Sequence[Any]) -> FramePrompt:
        """Return prompts from texts, or from the class's processor output for one prompt each. ValueError for an invalid one."""
        if isinstance(texts, (str, Mapping)) or not texts:
            raise ValueError("texts must be a list of texts, or of inputs for one prompt each: give at least one")
        return self._prompt(tuple(self._inputs(text, voice) for text, voice in zip(texts, voices, strict=True)))

    def _inputs(self, text: str | Inputs, voice: Any) -> Inputs:
        if isinstance(text, Mapping):
            if "input_ids" not in text or len(text["input_ids"]) != 1:
                raise ValueError("a prompt's inputs must hold input_ids of one row: give a list of inputs, one a prompt")
            return text
        if self.letters is None:
            raise ValueError(f"text {text!r} needs a tokenizer: make CsmModel with letters, or give what the class's processor returned")
        return self.letters([text], [voice])

    @torch.no_grad()
    def _prompt(self, rows: tuple[Inputs, ...]) -> FramePrompt:
        parts = [self._embeds(row) for row in rows]
        most = max((len(part) for part in parts), default=0)
        if most >= self.model.config.max_position_embeddings:
            raise ValueError(f"a prompt of {most} steps is too long: the model has {self.model.config.max_position_embeddings} positions")
        embeds = torch.stack([F.pad(part, (0, 0, most - len(part), 0)) for part in parts])
        real = torch.tensor([[column >= most - len(part) for column in range(most)] for part in parts], device=embeds.device)
        return FramePrompt(embeds, real, PromptParts(rows, self.model))

    def _embeds(self, row: Inputs) -> Tensor:
        """Embeddings [P, D] of one prompt, its padding left out."""
        ids, *sound = (
            row[key].to(self.model.device) if key in row else None for key in ("input_ids", "input_values", "input_values_cutoffs")
        )
        embeds = csm_embeddings(self.model, ids, *sound)[0]  # pyright: ignore[reportArgumentType]
        return embeds if row.get("attention_mask") is None else embeds[row["attention_mask"][0].bool().to(embeds.device)]

    def begin(self, model: Any, inputs: FramePrompt, capacity: int) -> tuple[SlotCache, FrameRows]:
        """As every family; a prompt that another CSM embedded is embedded anew, so that a small one can draft for a large one."""
        heard = inputs.extra
        if isinstance(heard, PromptParts) and heard.model is not self.model:
            theirs = heard.model.config
            if (theirs.num_codebooks, theirs.vocab_size) != (self.books, self.size):
                raise ValueError(
                    f"the drafter writes {self.books} books of {self.size} codes, the target {theirs.num_codebooks} of "
                    f"{theirs.vocab_size}: draft with a model of the same codec"
                )
            inputs = self._prompt(heard.rows)
        return SlotCache(self.layers, capacity), FrameRows(inputs)

    # --- the backbone -------------------------------------------------------------------------------------------------

    def embed(self, frames: Tensor) -> Tensor:
        """Return embeddings [R, M, D] of frames [R, M, K]."""
        return self.model.backbone_model.embed_tokens(frames)

    def run(self, embeds: Tensor, layout: Layout, cache: SlotCache, prompt: FrameRows) -> Tensor:
        """Run the backbone; returns its last hidden states and the logits of code 0."""
        backbone = self.model.backbone_model
        return backbone(
            inputs_embeds=embeds,
            attention_mask=attention_mask(layout.visible, backbone),
            position_ids=layout.positions,
            **cache_keyword(backbone, cache),
            use_cache=True,
        ).last_hidden_state

    # --- the distribution of a frame -------------------------------------------------------------------------------------------

    def distribution(self, raw: Tensor, history: History, processors: Pipeline) -> DepthFrame:
        """Return the distribution of the frame after each column; see `FrameModel.distribution`."""
        scores = self.model.lm_head(raw.to(self.model.lm_head.weight.dtype)).float()
        return DepthFrame(torch.cat([raw, processors(scores, frame_history(history, 0))], -1), self.depth, self.writer)

    @cached_property
    def ends(self) -> EndTest:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Test for the frame that ends a row."""
        end = self.model.config.codebook_eos_token_id
        return lambda values: (values[..., :-1] == end).all(-1)

    # --- sound --------------------------------------------------------------------------------------------------------

    def stream(self) -> "FrameStream":
        """Open a stream that decodes codes to sound piece by piece."""
        return FrameStream(self.codec.stream(), self.model.config.codebook_eos_token_id)


@dataclass(frozen=True)
class CsmDepth:
    """The depth decoder with its processors. Its state is the backbone's last hidden state followed by the scores of code 0."""

    model: Any
    distributions: Pipeline

    @property
    def books(self) -> int:
        """Codes per frame."""
        return self.model.config.num_codebooks

    def scores(self, hidden: Tensor, codes: Tensor) -> Tensor:
        """Return the logits of every code given `codes` [M, K], in one run."""
        hidden, first = self._parts(hidden)
        out = self.model.depth_decoder(_placed(codes[:, :-1]), backbone_last_hidden_state=hidden, use_cache=True)  # fails without, M = 1
        return torch.cat([first[:, None], self._scores(out.logits)], 1)

    def write(self, hidden: Tensor, codes: Tensor, first: int, choose: Choose) -> Tensor:
        """Write the codes from number `first` on, each chosen by `choose`, in one run a code."""
        hidden, scores = self._parts(hidden)
        codes = codes.clone()
        if first == 0:
            codes[:, 0] = choose(scores, 0)
        start = max(first, 1)
        fresh, state, past = _placed(codes[:, :start]), hidden, None
        for book in range(start, self.books):
            out = self.model.depth_decoder(
                fresh, backbone_last_hidden_state=state, **cache_keyword(self.model.depth_decoder, past), use_cache=True, logits_to_keep=1
            )
            codes[:, book] = choose(self._scores(out.logits)[:, 0], book)
            fresh, state, past = codes[:, book : book + 1], None, cache_of(out)
        return codes

    def _parts(self, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden, first = state.split([self.model.config.hidden_size, self.model.config.vocab_size], -1)
        return hidden.to(self.model.lm_head.weight.dtype), first

    def _scores(self, logits: Tensor) -> Tensor:
        """`logits` [M, N, V] behind the processors, which read no history."""
        rows, count = logits.shape[:2]
        nothing = torch.zeros(rows, 0, dtype=torch.long, device=logits.device)
        none = History(nothing, nothing.bool()[:, None].expand(-1, count, -1), nothing.new_zeros(rows, count))
        return self.distributions(logits.float(), none)


def _placed(codes: Tensor) -> Tensor:
    """`codes` [M, N] behind the place that the depth decoder puts the backbone's state in."""
    return F.pad(codes, (1, 0))


class FrameStream:
    """The sound of frames up to the one that ends the row."""

    def __init__(self, sound: SoundStream, end: int):
        self.sound, self.end = sound, end

    def push(self, steps: list[list[int]]) -> Iterator[Tensor]:
        """Decode the next codes and return the sound they complete."""
        return self.sound.push([step for step in steps if any(code != self.end for code in step[:-1])])

    def close(self) -> Iterator[Tensor]:
        """Return what is left of the stream; see `SoundStream.close`."""
        return self.sound.close()


def _depth_processors(config: Any) -> Pipeline:
    """The processors that the depth decoder's generation config asks for. ValueError for settings that are not applied there."""
    try:
        return sampling_of(config, (*DRAWS, "min_new_tokens")).processors()  # a frame always has all of its codes
    except ValueError as error:
        raise ValueError(f"the depth decoder's {error}") from None
