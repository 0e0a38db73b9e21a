"""MusicGen Melody (Copet et al. 2023): text and the pitches of a melody stand before the codes, in the decoder's own sequence.

The class attends to the padding of texts in a batch; here each row is what the class gives for it alone. A row has as many steps as it is
given room for, as with MusicGen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.core.distributions.frame import Frame
from mmspec.core.processors.history import History, Processor
from mmspec.core.processors.pipeline import Pipeline
from mmspec.models.compat.cache_name import cache_keyword
from mmspec.models.families.base import attention_mask, refuse_unsupported
from mmspec.models.layout import Layout
from mmspec.models.module_copy import own_copy
from mmspec.models.slot_cache import SlotCache
from mmspec.speech.codecs.transformers import HFCodec
from mmspec.speech.families.base import DRAWS, sampling_of
from mmspec.speech.families.delayed_codebooks import letters_of
from mmspec.speech.families.frames import FrameModel, FramePrompt, FrameRows
from mmspec.speech.families.musicgen import music_stream, own_positions
from mmspec.speech.sampling.delay import NoMore, NotYet, frame_distribution
from mmspec.speech.sound.stream import SoundStream

Inputs = Mapping[str, Tensor]
"""One prompt as MusicgenMelodyProcessor returns it: input_ids [1, P], attention_mask, and for a melody input_features [1, T, C]."""


@dataclass(frozen=True)
class MelodyParts:
    """The rows of a prompt and the model that encoded them, so that a drafter can encode them itself."""

    rows: tuple[Inputs, ...]  # one prompt each
    model: Any
    paired: bool = False  # unconditional rows stand behind


class MusicgenMelody(FrameModel):
    """A `MusicgenMelodyForConditionalGeneration`, mono or stereo; its processor or tokenizer for prompts that are texts.

    A prompt is a text, or what the processor returned for one: with a melody as sound, its `input_features`.

    Args:
        model: the model.
        processor: its processor, or a tokenizer.
        codec: what decodes codes, with `stream`, `rate` and `pace`, or a codec of transformers; by default the model's own.

    Raises:
        ValueError: for a model that cannot be driven.
    """

    capturable = False

    def __init__(self, model: Any, processor: Any = None, codec: Any = None):
        config, generation = model.config.decoder, model.generation_config
        refuse_unsupported(model.decoder)
        given = (generation.decoder_start_token_id, generation.bos_token_id, config.bos_token_id)
        self.model, self.start = model.eval(), next(token for token in given if token is not None)
        self.channels, self.books, self.codes = config.audio_channels, config.num_codebooks, config.vocab_size
        self.delays = tuple(book // self.channels for book in range(self.books))
        self.size, self.layers, self.lead = self.codes + 1, config.num_hidden_layers, max(self.delays)
        self.letters = letters_of(processor)
        self.sampling = sampling_of(generation, (*DRAWS, "guidance_scale"))
        codec = model.audio_encoder if codec is None else codec
        self.codec = codec if hasattr(codec, "stream") else HFCodec(codec)
        self.rate, self.pace = self.codec.rate, self.codec.pace

    # --- prompts ------------------------------------------------------------------------------------------------------

    def encode(self, texts: Sequence[str | Inputs], voices: Sequence[Any]) -> FramePrompt:
        """Return prompts from texts, or from the processor's output for one each. ValueError for an invalid one."""
        if isinstance(texts, (str, Mapping)) or not texts:
            raise ValueError("texts must be a list of texts, or of inputs for one prompt each: give at least one")
        return self._prompt(MelodyParts(tuple(self._inputs(number, text) for number, text in enumerate(texts)), self.model))

    def _inputs(self, number: int, text: Any) -> Inputs:
        if not isinstance(text, Mapping):
            if self.letters is None:
                raise ValueError(
                    f"text {text!r} needs a tokenizer: make MusicgenMelody with one, or give what the class's processor returned"
                )
            return self.letters([text], [None])
        if "input_ids" not in text or len(text["input_ids"]) != 1 or not text["input_ids"].numel():
            raise ValueError(f"prompt {number} must hold input_ids [1, length]: give what the processor returned for one text")
        known, pitches = self.model.config.text_encoder.vocab_size, self.model.config.num_chroma
        if int(text["input_ids"].max()) >= known:
            raise ValueError(f"prompt {number} holds id {int(text['input_ids'].max())}, but the text encoder knows {known}")
        if "input_features" in text and (text["input_features"].dim() != 3 or text["input_features"].shape[-1] != pitches):
            shape = list(text["input_features"].shape)
            raise ValueError(f"prompt {number} has input_features {shape}, but the model takes [1, frames, {pitches}]")
        return text

    @torch.no_grad()
    def _prompt(self, parts: MelodyParts) -> FramePrompt:
        """Embeddings of prompts, each followed by the frame that starts the codes."""
        rows = [self._states(row) for row in parts.rows]
        rows += [self._states(row, told=False) for row in parts.rows if parts.paired]
        start = self.embed(torch.full((1, 1, self.books), self.start, device=self.model.device))[0]
        most = max(len(row) for row in rows)
        embeds = torch.stack([torch.cat([F.pad(row, (0, 0, most - len(row), 0)), start.to(row)]) for row in rows])
        real = torch.tensor([[column >= most - len(row) for column in range(most + 1)] for row in rows], device=embeds.device)
        return FramePrompt(embeds, real, parts)

    def _states(self, row: Inputs, told: bool = True) -> Tensor:
        """States [P, D] of a melody and a text; of nothing in their place where they are not `told`."""
        model, config = self.model, self.model.config
        ids, mask = row["input_ids"].to(model.device), row.get("attention_mask")
        ids = ids if mask is None else ids[:, mask[0].bool().to(ids.device)]
        text = model.text_encoder(ids).last_hidden_state[0]
        text = model.enc_to_dec_proj(text) if hasattr(model, "enc_to_dec_proj") else text
        chroma = row["input_features"][0].to(text) if "input_features" in row else text.new_zeros(0, config.num_chroma)
        if not told or not len(chroma):
            chroma = F.one_hot(torch.zeros(max(1, len(chroma)), dtype=torch.long, device=text.device), config.num_chroma).to(text)
        sound = model.audio_enc_to_dec_proj(chroma) if hasattr(model, "audio_enc_to_dec_proj") else chroma
        sound = sound.repeat(-(-config.chroma_length // len(sound)), 1)[: config.chroma_length]
        return torch.cat([sound, text if told else torch.zeros_like(text)])

    def paired(self, prompt: FramePrompt) -> FramePrompt:
        """Return the prompts with unconditional rows behind; see `SpeechModel.paired`."""
        return self._prompt(replace(prompt.extra, paired=True))

    def begin(self, model: Any, inputs: FramePrompt, capacity: int) -> tuple[SlotCache, FrameRows]:
        """As every family; a prompt that another model encoded is encoded anew, so that a small one can draft for a large one."""
        theirs = inputs.extra.model.config.decoder
        if (theirs.num_codebooks, theirs.vocab_size, theirs.audio_channels) != (self.books, self.codes, self.channels):
            raise ValueError(
                f"the drafter writes {self.books} books of {self.codes} codes, the target {theirs.num_codebooks} of {theirs.vocab_size}: "
                "draft with a model of the same codec"
            )
        own = inputs if inputs.extra.model is self.model else self._prompt(replace(inputs.extra, model=self.model))
        return SlotCache(self.layers, capacity), FrameRows(own)

    # --- the network --------------------------------------------------------------------------------------------------

    def embed(self, frames: Tensor) -> Tensor:
        """Return embeddings [R, M, D] of frames [R, M, K]."""
        tables = self.model.decoder.model.decoder.embed_tokens
        return torch.stack([table(frames[..., book]) for book, table in enumerate(tables)]).sum(0)

    def run(self, embeds: Tensor, layout: Layout, cache: SlotCache, prompt: FrameRows) -> Tensor:
        """Return scores [R, M, K, V] after every column."""
        decoder = own_copy(self.model.decoder)
        with own_positions(decoder.model.decoder.embed_positions, layout):
            hidden = decoder.model.decoder(
                inputs_embeds=embeds,
                attention_mask=attention_mask(layout.visible, self.model.decoder),
                **cache_keyword(decoder.model.decoder, cache),
                use_cache=True,
            ).last_hidden_state
        return torch.stack([head(hidden) for head in self.model.decoder.lm_heads], 2)

    def distribution(self, raw: Tensor, history: History, processors: Pipeline) -> Frame:
        """Return the distribution of the frame after each column."""
        return frame_distribution(raw, history, processors)

    def rules(self, prompt: Any) -> tuple[Processor, ...]:
        """Return the constraints; see `SpeechModel.rules`."""
        return (NotYet(self.delays, self.start),)

    def closing(self, steps: int) -> tuple[Processor, ...]:
        """Return the constraints of the last steps; see `SpeechModel.closing`."""
        return (NoMore(self.delays, self.start, max(steps - self.lead, 0)),)

    @property
    def ends(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """No id ends a row."""
        return ()

    def stream(self) -> SoundStream:
        """Open a stream that decodes codes to sound piece by piece."""
        return music_stream(self)
