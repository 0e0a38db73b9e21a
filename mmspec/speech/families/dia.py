"""Dia (Nari Labs 2025): a byte encoder, and a decoder of DAC codes in 9 books behind a long delay.

As the class's own generation has it: only the first book may end a row, where the end is its likeliest code; the others follow by their
delays; a row that reaches its room is ended in time for that. Guidance is centred on the conditional scores, and `top_k` chooses by the
guided scores what is then drawn by the conditional ones. Unlike there, temperatures below 1 are taken as they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.core.processors.history import Processor, ban
from mmspec.core.stopping import EndTest
from mmspec.models.compat.cache_name import cache_keyword
from mmspec.models.families.base import attention_mask, refuse_unsupported
from mmspec.models.guidance import Guided
from mmspec.models.layout import Layout
from mmspec.speech.codecs.transformers import HFCodec
from mmspec.speech.families.base import DRAWS, SpeechSampling, sampling_of
from mmspec.speech.families.delayed_codebooks import DelayModel, EncodedText, Inputs, Texts, letters_of
from mmspec.speech.sampling.delay import EndAt, EndsInFirst, NotYet
from mmspec.speech.sampling.recorded import RecordedFrames, StillToCome, delayed
from mmspec.speech.sound.voice_sample import VoiceSample


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
    `pace`. A prompt is a text, or what the processor returned for one, recording included. The frames of a `VoiceSample` begin the
    decoder's, its words the text; sound begins after it. A `DacModel` reads recordings, other codecs do not.
    """

    forced = True

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
        self.room = decoder.max_position_embeddings - 1 - self.lead  # frames up to the last of book 0, a recording's included
        self.letters = letters_of(processor, config.encoder_config.max_position_embeddings)
        found = sampling_of(model.generation_config, (*DRAWS, "guidance_scale"))
        # as the class does with a temperature of its generation config; 0 is greedy decoding
        self.sampling = replace(found, temperature=found.temperature and max(1.0, found.temperature))
        self._sounding(codec)
        self.clones = isinstance(self.codec, HFCodec) and self.codec.model.config.model_type == "dac"

    # --- prompts ------------------------------------------------------------------------------------------------------

    def encode(self, texts: Sequence[str | Inputs], voices: Sequence[Any]) -> Texts:
        """Return prompts from texts and recordings, or from what the processor returned for one each; see `DelayModel.encode`."""
        found = super().encode(texts, voices)
        heard = {id(voice): self._codes(voice) for voice in {id(voice): voice for voice in voices}.values() if voice is not None}
        rows = [self._steps(number, *each, heard) for number, each in enumerate(zip(texts, voices, strict=True))]
        nothing = delayed(torch.zeros(0, len(self.delays), dtype=torch.long), self.delays, self.start)
        if all(torch.equal(row, nothing) for row in rows):
            return found
        return replace(found, recorded=RecordedFrames.of(rows, max(self.delays)).to(self.model.device))

    def _row(self, text: Any, voice: VoiceSample | None, number: int) -> tuple[Tensor, Tensor]:
        if voice is None:
            return super()._row(text, None, number)
        if isinstance(text, Mapping):
            raise ValueError(f"prompt {number} is the processor's: give it the recording as audio, and leave voice out")
        return super()._row(f"{voice.said()} {text}" if isinstance(text, str) and text.strip() else text, None, number)

    @torch.no_grad()
    def _codes(self, voice: VoiceSample) -> Tensor:
        """The frames [T, K] of a recording, which is padded to whole frames."""
        codec, wave = self.codec.model, voice.at(self.rate)
        wave = F.pad(wave, (0, -len(wave) % self.codec.samples))
        return codec.encode(wave[None, None].to(codec.device, codec.dtype)).audio_codes[0].T.cpu()

    def _steps(self, number: int, text: Any, voice: VoiceSample | None, heard: Mapping[int, Tensor]) -> Tensor:
        """What is known of a row [L, K], -1 for what is not; see `RecordedFrames.of`. ValueError for what the class does not continue."""
        given = text.get("decoder_input_ids") if isinstance(text, Mapping) else None
        if given is None:
            codes = torch.zeros(0, len(self.delays), dtype=torch.long) if voice is None else heard[id(voice)]
            steps = delayed(codes, self.delays, self.start)
        else:
            steps = self._continued(number, text)
        known = int((steps[:, 0] >= 0).sum())
        if known > self.room:
            most = self.room - 1
            raise ValueError(f"the recording of prompt {number} has {known - 1} frames, the model room for {most}: give a shorter one")
        return steps

    def _continued(self, number: int, text: Inputs) -> Tensor:
        """The steps [L, K] of a processor's prompt, without padding."""
        given, mask = torch.as_tensor(text["decoder_input_ids"]).long().cpu(), text.get("decoder_attention_mask")
        if given.dim() != 3 or len(given) != 1 or given.shape[2] != len(self.delays):
            raise ValueError(f"prompt {number} has decoder_input_ids {list(given.shape)}, but the model takes [1, L, {len(self.delays)}]")
        real = torch.ones(given.shape[:2]) if mask is None else torch.as_tensor(mask).cpu()
        if real.shape != given.shape[:2]:
            raise ValueError(
                f"prompt {number} has decoder_attention_mask {list(real.shape)} beside {given.shape[1]} steps: make both at once"
            )
        steps = given[0][real[0].bool()]
        steps = steps.masked_fill(steps == self.pad, -1)
        known = int((steps[:, 0] >= 0).sum())
        fits = known and len(steps) - known <= max(self.delays) and (steps[:known] >= 0).all() and (steps[known:, 0] < 0).all()
        if not fits or not ((steps < self.codes) | (steps == self.start)).all():
            raise ValueError(
                f"prompt {number} has decoder_input_ids that cannot be continued: make them with the processor's generation=True"
            )
        return steps

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
        """Return the constraints; see `SpeechModel.rules`. A row with a recording ends while the model has positions."""
        ends, recorded = EndsInFirst(self.delays, self.end, self.pad), getattr(prompt, "recorded", None)
        if recorded is None:
            return (ends, NotYet(self.delays, self.start))
        last = [self.room + 1 - known for known in recorded.mask.sum(1).tolist()]
        return (EndAt(last, self.end), ends, StillToCome(recorded.coming))

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
