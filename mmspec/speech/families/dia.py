"""Dia (Nari Labs 2025): a byte encoder, and a decoder of DAC codes in 9 books behind a long delay.

As the class's own generation has it: only the first book may end a row, where the end is its likeliest code; the others follow by their
delays; a row that reaches its room is ended in time for that. Guidance is centred on the conditional scores, and `top_k` chooses by the
guided scores what is then drawn by the conditional ones. Unlike there, temperatures below 1 are taken as they are.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.processors.history import Processor, ban
from mmspec.core.stopping import EndTest
from mmspec.models.compat.cache_name import cache_keyword
from mmspec.models.families.base import attention_mask, refuse_unsupported
from mmspec.models.guidance import Guided
from mmspec.models.layout import Layout
from mmspec.speech.families.base import SpeechSampling, sampling_defaults
from mmspec.speech.families.delayed_codebooks import DelayModel, EncodedText, Texts, letters_of
from mmspec.speech.sampling.delay import EndAt, EndsInFirst, NotYet


@dataclass(frozen=True)
class DiaGuided(Guided):
    """Guidance of Dia: cond + scale (cond - uncond). With `top_k`, the conditional scores of the ids with the best guided scores."""

    top_k: int | None = None

    def mix(self, cond: Tensor, uncond: Tensor) -> Tensor:
        """Return the guided scores from conditional and unconditional ones."""
        assert isinstance(self.scale, (int, float))  # of all rows: the processor of Dia's model takes one number
        mixed = cond + (cond - uncond) * self.scale
        if not self.top_k:
            return mixed
        best = mixed.topk(min(self.top_k, mixed.shape[-1]), -1).indices
        return ban(cond, torch.ones_like(cond, dtype=torch.bool).scatter(-1, best, False))


class Dia(DelayModel):
    """A `DiaForConditionalGeneration` and its `DiaProcessor`, which brings the tokenizer and the codec.

    In its place a tokenizer, or nothing where prompts are ids, beside a `codec`: a `DacModel`, or anything with `stream`, `rate` and
    `pace`. A prompt is text only: voices to be cloned, given as sound, are not supported.
    """

    def __init__(self, model: Any, processor: Any = None, codec: Any = None):
        codec = getattr(processor, "audio_tokenizer", None) if codec is None else codec
        if codec is None:
            raise ValueError("Dia has no codec of its own: give its DiaProcessor, or codec=DacModel.from_pretrained(...)")
        self.model, config = model, model.config
        refuse_unsupported(self.decoder)
        decoder = config.decoder_config
        self.delays, self.codes, self.size = tuple(config.delay_pattern), decoder.eos_token_id, decoder.vocab_size
        self.start, self.end, self.pad = decoder.bos_token_id, decoder.eos_token_id, decoder.pad_token_id
        self.layers, self.longest, self.lead = decoder.num_hidden_layers, decoder.max_position_embeddings - 1, max(self.delays) + 1
        self.letters = letters_of(processor, config.encoder_config.max_position_embeddings)
        self.sampling = SpeechSampling(**sampling_defaults(model.generation_config), guidance=model.generation_config.guidance_scale)
        self._sounding(codec)

    @property
    def decoder(self) -> Any:
        """The decoder, whose attention reads the slots."""
        return self.model.model.decoder

    @property
    def known(self) -> int:
        """Number of ids of the text encoder."""
        return self.model.config.encoder_config.vocab_size

    def hear(self, texts: Texts) -> tuple[Tensor, Tensor]:
        """Run the encoder; see `DelayModel.hear`."""
        told = torch.arange(len(texts.ids), device=texts.ids.device) < len(texts.ids) - texts.untold
        ids = torch.where(told[:, None], texts.ids, 0)  # the text that tells nothing is as long, and padding
        return self.model.model.encoder(ids, attention_mask=texts.mask.long()).last_hidden_state, texts.mask

    def scores(self, layout: Layout, heard: EncodedText, keep: int) -> Tensor:
        """Return scores after the last `keep` columns; see `DelayModel.scores`."""
        hidden = self.decoder(
            input_ids=layout.ids,
            position_ids=layout.positions,
            attention_mask=attention_mask(layout.visible, self.decoder),
            encoder_hidden_states=heard.states,
            encoder_attention_mask=heard.mask,
            **cache_keyword(self.decoder, heard.cache),
            use_cache=True,
        ).last_hidden_state
        return self.model.logits_dense(hidden[:, -keep:]).unflatten(-1, (len(self.delays), self.size))

    def rules(self, prompt: Any) -> tuple[Processor, ...]:
        """Return the constraints; see `SpeechModel.rules`."""
        return (EndsInFirst(self.delays, self.end, self.pad), NotYet(self.delays, self.start))

    def closing(self, steps: int) -> tuple[Processor, ...]:
        """Return the constraints that end a row in time; see `SpeechModel.closing`."""
        return (EndAt(steps - self.lead, self.end),) if steps >= self.lead else ()

    def guided(self, steps: tuple[Processor, ...], sampling: SpeechSampling) -> DiaGuided:
        """Return the guidance; see `SpeechModel.guided`."""
        if sampling.guidance is None or not sampling.guidance > 1:
            raise ValueError(f"guidance is {sampling.guidance}: Dia takes scales above 1; None or 1 for no guidance, 3 is usual")
        return DiaGuided(steps, sampling.guidance, sampling.top_k)

    @property
    def ends(self) -> EndTest:
        """Test for the frame that ends a row."""
        slowest = self.delays.index(max(self.delays))
        return lambda frames: frames[..., slowest] == self.end
