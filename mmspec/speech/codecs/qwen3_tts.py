"""Qwen3-TTS's 12 Hz codec: Mimi's encoder for recordings, and a causal decoder of codebooks, a transformer and convolutions.

Sound comes in blocks. Beyond 300 frames the published code decodes in overlapping chunks, which approximate what is done here in one.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.models.compat.cache_name import cache_keyword, cache_of
from mmspec.models.compat.qwen_tts import causal_conv, upsampling, wave_config, wave_decoder, wave_transformer
from mmspec.speech.codecs.parts import BLOCK, FIRST_BLOCK, Layer, Local, Parts
from mmspec.speech.codecs.streams import PartsStream
from mmspec.speech.sound.stream import SoundStream
from mmspec.speech.sound.voice_sample import VoiceSample

VOICE_RATE = 24000
"""Samples a second of recordings whose voice is taken."""


class Codebooks(nn.Module):
    """The codebooks of a residual quantiser, as sums and counts of what fell on a code, and the projection of what they add up to.

    Args:
        books: number of books.
        size: codes of a book.
        width: width of a code.
        out: width behind the projection.
    """

    def __init__(self, books: int, size: int, width: int, out: int):
        super().__init__()
        self.sums, self.counts = nn.Parameter(torch.zeros(books, size, width)), nn.Parameter(torch.ones(books, size))
        self.projection = nn.Conv1d(width, out, 1, bias=False)

    def forward(self, codes: Tensor) -> Tensor:
        """Map codes [1, K, T] to [1, out, T]."""
        codes = codes.clamp(max=self.sums.shape[1] - 1)
        found = [
            sums[book] / counts[book].clamp_min(1e-5)[:, None] for book, sums, counts in zip(codes[0], self.sums, self.counts, strict=True)
        ]
        return self.projection(sum(found[1:], found[0]).T[None])


class Qwen3TTSDecoder(nn.Module):
    """Frames to samples.

    Args:
        config: the published `decoder_config`.
    """

    def __init__(self, config: Mapping[str, Any]):
        super().__init__()
        sizes = wave_config(config)
        width, latent = config.get("codebook_dim", 512), config.get("latent_dim", 1024)
        self.books, self.size = sizes.num_quantizers, sizes.codebook_size
        self.first = Codebooks(1, self.size, width // 2, width)
        self.rest = Codebooks(self.books - 1, self.size, width // 2, width)
        self.pre_conv = causal_conv(width, latent, 3)
        self.input_proj, self.output_proj = nn.Linear(latent, sizes.hidden_size), nn.Linear(sizes.hidden_size, latent)
        self.pre_transformer = wave_transformer(sizes)
        self.upsample = nn.ModuleList(upsampling(latent, factor) for factor in sizes.upsampling_ratios)
        self.decoder = wave_decoder(sizes, latent)
        self.samples = prod((*sizes.upsampling_ratios, *sizes.upsample_rates))

    def codes(self, codes: Tensor) -> Tensor:
        """Map codes [1, K, T] to what the transformer reads, [1, D, T]."""
        return self.pre_conv(self.first(codes[:, :1]) + self.rest(codes[:, 1:]))

    def remember(self, hidden: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Run the transformer over [1, D, T] behind `state`; returns [1, D, T] and the next state."""
        net = self.pre_transformer
        out = net(inputs_embeds=self.input_proj(hidden.transpose(1, 2)), **cache_keyword(net, state), use_cache=True)
        return self.output_proj(out.last_hidden_state).transpose(1, 2), cache_of(out)

    def wave(self, hidden: Tensor) -> Tensor:
        """Map [1, D, T] to samples [1, 1, T x `samples`] between -1 and 1."""
        for block in (layer for pair in self.upsample for layer in pair):  # pyright: ignore[reportGeneralTypeIssues]
            hidden = block(hidden)
        for block in self.decoder:
            hidden = block(hidden)
        return hidden.clamp(-1, 1)

    def forward(self, codes: Tensor) -> Tensor:
        """Map codes [1, K, T] to samples [1, 1, T x `samples`], all at once."""
        return self.wave(self.remember(self.codes(codes), None)[0])


class Qwen3TTSCodec:
    """The codec behind a Qwen3-TTS.

    Args:
        decoder: frames to samples.
        encoder: a `MimiModel` whose encoder hears recordings; None to hear none.
        rate: samples a second.
        block: frames decoded together.
        first_block: frames of the first block, so that sound begins sooner.
    """

    def __init__(
        self, decoder: Qwen3TTSDecoder, encoder: Any = None, rate: int = 24000, block: int = BLOCK, first_block: int = FIRST_BLOCK
    ):
        self.model, self.encoder, self.rate, self.block, self.first_block = decoder.eval(), encoder, rate, block, first_block
        self.books, self.size, self.samples = decoder.books, decoder.size, decoder.samples
        self.pace = rate / decoder.samples

    def tensor(self, steps: Sequence[Any]) -> Tensor:
        """Return frames, lists of K codes, as codes [1, K, T]."""
        return torch.as_tensor(steps, device=self.model.input_proj.weight.device).T[None]

    @torch.no_grad()
    def decode(self, steps: Sequence[Any]) -> Tensor:
        """Return all samples [S] of frames."""
        return self.model(self.tensor(steps)).flatten().float().cpu() if len(steps) else torch.zeros(0)

    def stream(self) -> SoundStream:
        """Open a stream that decodes frames to sound piece by piece."""
        enter = Local(self.model.codes, (Layer(3, 2, 0),))
        return PartsStream(self, Parts(enter, self.model.remember, Local(self.model.wave, _layers(self.model))))

    def listener(self, voices: nn.Module) -> Callable[[VoiceSample], tuple[Tensor, Tensor]] | None:
        """Return what maps a recording to its frames [T, K] and its voice [D]; None without an encoder.

        Args:
            voices: the encoder of voices.
        """
        return None if self.encoder is None else lambda voice: (self._frames(voice), _voice(voices, voice))

    @torch.no_grad()
    def _frames(self, voice: VoiceSample) -> Tensor:
        samples = voice.at(self.rate).to(self.encoder.device, self.encoder.dtype)
        codes = self.encoder.encode(samples[None, None], num_quantizers=self.books).audio_codes[0]
        return codes[:, : -(-len(samples) // self.samples)].T


def _voice(encoder: nn.Module, voice: VoiceSample) -> Tensor:
    """The voice [D] of a recording, from its log-mel spectrogram of 128 bands up to 12 kHz."""
    from transformers.audio_utils import mel_filter_bank

    size, hop = 1024, 256
    samples = voice.at(VOICE_RATE)
    padded = nn.functional.pad(samples[None, None], ((size - hop) // 2,) * 2, mode="reflect")[0]
    spectrum = torch.stft(padded, size, hop, size, torch.hann_window(size), center=False, return_complex=True)
    bands = mel_filter_bank(size // 2 + 1, 128, 0, VOICE_RATE // 2, VOICE_RATE, norm="slaney", mel_scale="slaney")
    power = (spectrum.abs().square() + 1e-9).sqrt()
    mel = (torch.from_numpy(bands).float().T @ power).clamp_min(1e-5).log()
    weight = next(encoder.parameters())
    with torch.no_grad():
        return encoder(mel.transpose(1, 2).to(weight.device, weight.dtype))[0]


def _layers(decoder: Qwen3TTSDecoder) -> list[Layer]:
    """The convolutions behind the transformer, in order; all are causal."""
    found = []
    for module in (each for part in (decoder.upsample, decoder.decoder) for each in part.modules()):
        if isinstance(module, (nn.Conv1d, nn.ConvTranspose1d)):
            extent, up = (module.kernel_size[0] - 1) * module.dilation[0] + 1, module.stride[0]
            transposed = isinstance(module, nn.ConvTranspose1d)
            found.append(Layer(extent, 0, extent - up, up) if transposed else Layer(extent, extent - 1, 0))
    return found
