"""MusicGen (Copet et al. 2023): a T5 encoder, and a decoder of EnCodec codes in K books, each a step behind the one before it.

A row never ends by itself: it has as many steps as it is given room for, of which the books that are done early sit out the last ones. A
stereo model has the books of two channels in turn, each pair equally late; its waveforms are [samples, 2].
"""

from functools import lru_cache
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from mmspec.core.processors.history import Processor
from mmspec.models.compat.cache_name import cache_keyword
from mmspec.models.families.base import attention_mask, refuse_unsupported
from mmspec.models.layout import Layout
from mmspec.models.module_copy import own_copy
from mmspec.speech.families.base import DRAWS, sampling_of
from mmspec.speech.families.delayed_codebooks import DelayModel, DelayStream, EncodedText, Texts, letters_of
from mmspec.speech.sampling.delay import NoMore, NotYet
from mmspec.speech.sound.stream import SoundStream, StereoStream


class Musicgen(DelayModel):
    """A `MusicgenForConditionalGeneration`, mono or stereo; its processor or tokenizer for prompts that are texts.

    `codec`, anything with `stream`, `rate` and `pace`, takes the place of its own.
    """

    capturable = False

    def __init__(self, model: Any, processor: Any = None, codec: Any = None):
        self.model, config, generation = model, model.config.decoder, model.generation_config
        refuse_unsupported(model.decoder)
        given = (generation.decoder_start_token_id, generation.bos_token_id, config.bos_token_id)
        self.start = next(token for token in given if token is not None)
        self.channels, self.codes = config.audio_channels, config.vocab_size
        self.delays = tuple(book // self.channels for book in range(config.num_codebooks))
        self.size, self.layers, self.lead = config.vocab_size + 1, config.num_hidden_layers, max(self.delays)
        self.letters = letters_of(processor)
        self.sampling = sampling_of(generation, (*DRAWS, "guidance_scale"))
        self._sounding(model.audio_encoder if codec is None else codec)

    @property
    def decoder(self) -> Any:
        """The decoder, whose attention reads the slots."""
        return self.model.decoder

    @property
    def known(self) -> int:
        """Number of ids of the text encoder."""
        return self.model.config.text_encoder.vocab_size

    def hear(self, texts: Texts) -> tuple[Tensor, Tensor]:
        """Run the encoder; unconditional rows are not run, their states are 0."""
        told = len(texts.ids) - texts.untold
        mask = texts.mask[:told]
        states = self.model.text_encoder(texts.ids[:told], attention_mask=mask.long()).last_hidden_state
        if hasattr(self.model, "enc_to_dec_proj"):
            states = self.model.enc_to_dec_proj(states)
        states = states * mask[..., None]
        nothing = torch.zeros_like(states[: texts.untold])
        return torch.cat([states, nothing]), torch.cat([mask, torch.ones_like(mask[: texts.untold])])

    def scores(self, layout: Layout, heard: EncodedText, keep: int) -> Tensor:
        """Return scores after the last `keep` columns; see `DelayModel.scores`."""

        decoder = own_copy(self.decoder)
        with own_positions(decoder.model.decoder.embed_positions, layout):
            hidden = decoder.model(
                input_ids=rearrange(layout.ids, "b n k -> (b k) n"),
                attention_mask=attention_mask(layout.visible, self.decoder),
                encoder_hidden_states=heard.states,
                encoder_attention_mask=heard.mask,
                **cache_keyword(decoder.model, heard.cache),
                use_cache=True,
            ).last_hidden_state[:, -keep:]
        return torch.stack([head(hidden) for head in self.decoder.lm_heads], 2)

    def rules(self, prompt: Any) -> tuple[Processor, ...]:
        """Return the constraints; see `SpeechModel.rules`."""
        return (NotYet(self.delays, self.start),)

    def closing(self, steps: int) -> tuple[Processor, ...]:
        """Return the constraints of the last steps; see `SpeechModel.closing`."""
        return (NoMore(self.delays, self.start, max(steps - self.lead, 0)),)

    @property
    def ends(self) -> tuple[int, ...]:
        """No id ends a row."""
        return ()

    def stream(self) -> SoundStream:
        """Open a stream that decodes codes to sound piece by piece."""
        return music_stream(self)


def music_stream(model: Any) -> SoundStream:
    """The stream of a model with `codec`, `delays`, `codes` and `channels`."""
    sides = [DelayStream(model.codec.stream(), model.delays[side :: model.channels], model.codes) for side in range(model.channels)]
    return StereoStream(*sides) if model.channels == 2 else sides[0]


def own_positions(table: Any, layout: Layout) -> Any:
    """A hook by which each column has the embedding of its own position; the class derives one position from a shared length."""

    def own(module: Any, args: tuple, output: Tensor) -> Tensor:
        slots = layout.view
        if slots <= len(module.weights):
            weights = module.weights.to(output)
        else:
            weights = _longer(type(module), slots, module.embedding_dim, output.device, output.dtype)
        return nn.functional.embedding(layout.positions, weights)

    return table.register_forward_hook(own)


@lru_cache(maxsize=16)
def _longer(kind: Any, slots: int, width: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """[slots, width] sinusoidal positions of the class, which makes them on the host; cached, since every forward reads them."""
    return kind.get_embedding(slots, width).to(device, dtype)
