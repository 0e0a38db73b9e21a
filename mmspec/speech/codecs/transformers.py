"""Codecs of transformers as sound for speech models: codes of one row in, samples out, streamed where the codec allows it.

Streamed sound must equal the sound decoded at once. DAC's decoder is convolutional: a sample depends on a bounded number of codes on
either side. EnCodec's and Mimi's decoders are causal, with an LSTM or attention whose state is carried along. X-Codec2 and NeuCodec attend
to the whole recording, so all their sound comes at the end.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from mmspec.models.compat import encodec_frame
from mmspec.models.compat.cache_name import cache_keyword, cache_of
from mmspec.speech.codecs.parts import BLOCK, FIRST_BLOCK, Local, Parts, layers_of
from mmspec.speech.codecs.streams import PartsStream, WholeStream
from mmspec.speech.sound.stream import SoundStream


def _dac(model: Any) -> Parts:
    return Parts(Local(lambda codes: model.quantizer.from_codes(codes)[0]), lambda x, state: (x, state), _local(model.decoder))


def _encodec(model: Any) -> Parts:
    first, memory, *rest = model.decoder.layers

    def carry(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        out, state = memory.lstm(rearrange(x, "b d t -> t b d"), state)
        return x + rearrange(out, "t b d -> b d t"), state

    return Parts(
        Local(lambda codes: first(model.quantizer.decode(codes.transpose(0, 1))), layers_of(first)), carry, _local(nn.Sequential(*rest))
    )


def _mimi(model: Any) -> Parts:
    decoder = model.decoder

    def carry(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        out = decoder.decoder_transformer(x.transpose(1, 2), **cache_keyword(decoder.decoder_transformer, state), use_cache=True)
        return out.last_hidden_state.transpose(1, 2), cache_of(out)

    up = decoder.upsample if decoder.upsample is not None else nn.Identity()
    return Parts(Local(lambda codes: up(model.quantizer.decode(codes)), layers_of(up)), carry, _local(decoder.decoder_seanet))


def _higgs(model: Any) -> Parts:
    enter = Local(lambda codes: model.fc2(model.quantizer.decode(codes.transpose(0, 1)).transpose(1, 2)).transpose(1, 2))
    return Parts(enter, lambda x, state: (x, state), _local(model.acoustic_decoder))


def _local(net: nn.Module) -> Local:
    return Local(net, layers_of(net))


_PARTS = {"dac": _dac, "encodec": _encodec, "higgs_audio_v2_tokenizer": _higgs, "mimi": _mimi}


class HFCodec:
    """A transformers codec: codes [T], or frames [T, K] of K books, of one row to samples.

    DAC, EnCodec, Mimi and Higgs Audio's tokenizer return sound in blocks of `block` codes, the first of `first_block`, which do not depend
    on how the codes were pushed. Against `decode`, which runs the class's own code on everything at once, they differ by float32 rounding
    (tests: below 1e-5). Any other codec whose `decode` takes `audio_codes` returns everything when the stream is closed. With odd strides
    a decoder may give fewer than T x `samples` samples, as DAC's 7,968 for 50 codes of 160.

    Raises:
        ValueError: for codecs whose codes alone do not determine the sound.
    """

    def __init__(self, model: Any, block: int = BLOCK, first_block: int = FIRST_BLOCK):
        name, config = type(model).__name__, getattr(model, "config", None)
        if not callable(getattr(model, "decode", None)):
            raise ValueError(f"{name} is not a codec: pass what DacModel, EncodecModel, MimiModel or Xcodec2Model.from_pretrained returned")
        if getattr(config, "audio_channels", 1) != 1:
            raise ValueError(f"{name} decodes {config.audio_channels} channels: only codecs of one channel are supported")
        if getattr(config, "normalize", False):
            raise ValueError(
                f"{name} scales every chunk by a loudness that is no code (normalize=True): use a codec without, such as the 24 kHz one"
            )
        for option, size in (("block", block), ("first_block", first_block)):
            if size < 1:
                raise ValueError(f"{option} is {size}: decode at least 1 code at a time")
        self.model, self.block, self.first_block = model.eval(), block, first_block
        self.rate = int(getattr(config, "sampling_rate", None) or config.sample_rate)
        self.samples = _hop(model)
        self.size = int(getattr(config, "codebook_size", 0)) or prod(config.quantization_levels)
        self.books = _books(model)
        self.parts = self._split()

    def _split(self) -> Parts | None:
        make = _PARTS.get(self.model.config.model_type)
        try:
            return None if make is None else make(self.model)
        except ValueError:
            return None  # it needs everything at once

    @property
    def pace(self) -> float:
        """Codes, or frames, a second."""
        return self.rate / self.samples

    @property
    def streams(self) -> bool:
        """True if sound is returned before the end."""
        return self.parts is not None

    def tensor(self, steps: Sequence[Any]) -> Tensor:
        """Return `steps`, numbers or lists of K numbers, as codes [1, K, T]. ValueError for an unknown code or too many books."""
        codes = torch.as_tensor(steps, device=self.model.device)
        codes = codes[:, None] if codes.dim() == 1 else codes
        if codes.shape[1] > self.books:
            raise ValueError(f"frames of {codes.shape[1]} codes, but the codec has {self.books} books: give it as many or fewer")
        bad = (codes < 0) | (codes >= self.size)
        if bad.any():
            raise ValueError(f"code {int(codes[bad][0])} is none of the codec's {self.size}: check which ids of the model stand for codes")
        return codes.T[None]

    @torch.no_grad()
    def decode(self, steps: Sequence[Any]) -> Tensor:
        """Return all samples [S] of `steps`, by the class's own `decode`."""
        if not len(steps):
            return torch.zeros(0)
        codes = self.tensor(steps)
        if self.model.config.model_type == "encodec":
            return encodec_frame(self.model, codes).flatten().float().cpu()
        return self.model.decode(audio_codes=codes).audio_values.flatten().float().cpu()

    def stream(self) -> SoundStream:
        """Open a stream that decodes codes to sound piece by piece."""
        return WholeStream(self.decode) if self.parts is None else PartsStream(self, self.parts)


def _hop(model: Any) -> int:
    ratios = getattr(model.config, "upsampling_ratios", None)
    if model.config.model_type == "mimi":
        return int(model.config.sampling_rate / model.config.frame_rate)
    return int(getattr(model.config, "hop_length", 0) or prod(ratios or ()))


def _books(model: Any) -> int:
    quantizer = model.quantizer
    stages = getattr(quantizer, "quantizers", None) or getattr(quantizer, "layers", None)
    return len(stages) if stages is not None else getattr(model.config, "num_quantizers", 1)
