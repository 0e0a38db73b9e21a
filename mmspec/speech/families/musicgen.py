"""MusicGen (Copet et al. 2023): a T5 encoder, and a decoder of EnCodec codes in K books, each a step behind the one before it.

A row never ends by itself: it has as many steps as it is given room for, of which the books that are done early sit out the last ones.
"""

from functools import lru_cache
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from mmspec.core.processors.history import Processor
from mmspec.models.families.base import attention_mask, refuse_unsupported
from mmspec.models.layout import Layout
from mmspec.models.module_copy import own_copy
from mmspec.speech.families.base import SpeechSampling, sampling_defaults
from mmspec.speech.families.delayed_codebooks import DelayModel, EncodedText, Texts, letters_of
from mmspec.speech.sampling.delay import NoMore, NotYet


class Musicgen(DelayModel):
    """A `MusicgenForConditionalGeneration` of one channel; its processor or tokenizer for prompts that are texts.

    `codec`, anything with `stream`, `rate` and `pace`, takes the place of its own.
    """

    capturable = False

    def __init__(self, model: Any, processor: Any = None, codec: Any = None):
        self.model, config, generation = model, model.config.decoder, model.generation_config
        if config.audio_channels != 1:
            raise ValueError(f"this MusicGen writes {config.audio_channels} channels: only models of one channel are supported")
        refuse_unsupported(model.decoder)
        given = (generation.decoder_start_token_id, generation.bos_token_id, config.bos_token_id)
        self.start = next(token for token in given if token is not None)
        self.delays, self.codes = tuple(range(config.num_codebooks)), config.vocab_size
        self.size, self.layers, self.lead = config.vocab_size + 1, config.num_hidden_layers, config.num_codebooks - 1
        self.letters = letters_of(processor)
        self.sampling = SpeechSampling(**sampling_defaults(generation), guidance=generation.guidance_scale)
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

        def own(module: Any, args: tuple, output: Tensor) -> Tensor:
            """Each column's own position: the class derives one from a shared length."""
            slots = layout.view
            if slots <= len(module.weights):
                table = module.weights.to(output)
            else:
                table = _longer(type(module), slots, module.embedding_dim, output.device, output.dtype)
            return nn.functional.embedding(layout.positions, table)

        decoder = own_copy(self.decoder)
        with decoder.model.decoder.embed_positions.register_forward_hook(own):
            hidden = decoder.model(
                input_ids=rearrange(layout.ids, "b n k -> (b k) n"),
                attention_mask=attention_mask(layout.visible, self.decoder),
                encoder_hidden_states=heard.states,
                encoder_attention_mask=heard.mask,
                past_key_values=heard.cache,
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


@lru_cache(maxsize=16)
def _longer(kind: Any, slots: int, width: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """[slots, width] sinusoidal positions of the class, which makes them on the host; cached, since every forward reads them."""
    return kind.get_embedding(slots, width).to(device, dtype)
