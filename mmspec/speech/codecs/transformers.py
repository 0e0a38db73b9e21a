"""Codecs of transformers as sound for speech models: codes of one row in, samples out, a few at a time where the codec allows it.

What is given out early must be what decoding everything at once gives. That is decided by what a sample rests on. DAC's decoder is
convolutions: a bounded stretch of codes on either side. EnCodec's and Mimi's look back only, without bound through an LSTM and through
attention, whose states are carried along. X-Codec2 and NeuCodec attend to the whole recording: all their sound comes at the end.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from mmspec.models.compat import encodec_frame
from mmspec.speech.families.base import SoundStream

BLOCK = 8
"""Codes decoded together, by default."""


@dataclass(frozen=True)
class Layer:
    """A convolution, or with `up` a transposed one: output o rests on the inputs whose `noise_schedule` reaches it."""

    noise_schedule: int  # extent, holes counted
    left: int  # padding before the first input; of a transposed one, outputs cut off there
    right: int
    up: int = 0  # stride of a transposed one
    mirrored: bool = False  # padded with its own first inputs

    def span(self, first: int, stop: int) -> tuple[int, int]:
        """The inputs that outputs `first` .. `stop - 1` rest on, half open; below 0 and beyond the end where they reach into padding."""
        if self.up:
            return -((self.noise_schedule - 1 - first - self.left) // self.up), (stop - 1 + self.left) // self.up + 1
        return first - self.left, stop - self.left + self.noise_schedule - 1

    def ready(self, known: int) -> int:
        """How many outputs rest on the first `known` inputs alone, whatever follows."""
        if self.mirrored and known <= self.left:
            return 0
        return max(0, known * self.up - self.left if self.up else known - (self.noise_schedule - 1 - self.left))

    def length(self, inputs: int) -> int:
        """Outputs of all there is."""
        if self.up:
            return (inputs - 1) * self.up + self.noise_schedule - self.left - self.right
        return inputs + self.left + self.right - self.noise_schedule + 1


class Local:
    """A stretch of a decoder whose outputs rest on nearby inputs: `run` maps [1, D, n] to [1, E, length(n)] through `layers`."""

    def __init__(self, run: Callable[[Tensor], Tensor], layers: Sequence[Layer] = ()):
        self.run, self.layers = run, tuple(layers)
        self.scale = prod(layer.up or 1 for layer in self.layers)

    def stop(self, known: int, closed: bool) -> int:
        """Outputs that can be had from `known` inputs; once `closed`, all."""
        for layer in self.layers:
            known = layer.length(known) if closed else layer.ready(known)
        return known

    def window(self, x: Tensor, first: int, stop: int) -> Tensor:
        """Outputs `first` .. `stop - 1` from the inputs `x` known so far, running only those they rest on."""
        lowest, highest = first, stop
        for layer in reversed(self.layers):
            lowest, highest = layer.span(lowest, highest)
        lowest = max(0, lowest)
        before = first - lowest * self.scale
        return self.run(x[..., lowest : min(highest, x.shape[-1])])[..., before : before + stop - first]


def layers_of(net: nn.Module) -> list[Layer]:
    """The convolutions of a decoder, in order. ValueError for those that cannot be run piece by piece."""
    found, inside = [], set()
    for module in net.modules():
        if hasattr(module, "conv") and hasattr(module, "causal"):  # EnCodec's and Mimi's wrappers, which pad and cut by themselves
            inside.add(module.conv)
            found.append(_wrapped(module))
        elif isinstance(module, (nn.Conv1d, nn.ConvTranspose1d)) and module not in inside:
            extent, pad = (module.kernel_size[0] - 1) * module.dilation[0] + 1, int(module.padding[0])
            found.append(Layer(extent, pad, pad, module.stride[0] if isinstance(module, nn.ConvTranspose1d) else 0))
    return found


def _wrapped(module: Any) -> Layer:
    conv = module.conv
    if not module.causal or getattr(module, "norm_type", "") == "time_group_norm":
        raise ValueError("it looks ahead, or normalises over all of time")
    extent = (conv.kernel_size[0] - 1) * conv.dilation[0] + 1
    if isinstance(conv, nn.ConvTranspose1d):
        total = extent - conv.stride[0]
        right = -int(-total * module.trim_right_ratio // 1)
        return Layer(extent, total - right, right, conv.stride[0])
    return Layer(extent, extent - 1, 0, mirrored=module.pad_mode == "reflect")


@dataclass(frozen=True)
class Parts:
    """A decoder in three: codes [1, K, n] to latents nearby, a memory that only looks back, and latents to samples nearby."""

    enter: Local
    carry: Callable[[Tensor, Any], tuple[Tensor, Any]]  # (new latents [1, D, n], state) -> (the same length, the next state)
    leave: Local


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
        out = decoder.decoder_transformer(x.transpose(1, 2), past_key_values=state, use_cache=True)
        return out.last_hidden_state.transpose(1, 2), out.past_key_values

    up = decoder.upsample if decoder.upsample is not None else nn.Identity()
    return Parts(Local(lambda codes: up(model.quantizer.decode(codes)), layers_of(up)), carry, _local(decoder.decoder_seanet))


def _local(net: nn.Module) -> Local:
    return Local(net, layers_of(net))


_PARTS = {"dac": _dac, "encodec": _encodec, "mimi": _mimi}


class HFCodec:
    """A transformers codec: codes [T], or frames [T, K] of K books, of one row to samples.

    DAC, EnCodec and Mimi give sound in blocks of `block` codes, each as soon as all it rests on is known. Blocks begin at the same codes
    however many come at a time, so the samples of a row never depend on how they were pushed; beside `decode`, which runs the class's own
    code over everything at once, they differ by the rounding of float32 (tests: below 1e-5). Any other codec whose `decode` takes
    `audio_codes`, X-Codec2 and NeuCodec among them, gives everything when the stream is closed.

    Lengths are the decoder's own: one whose strides are odd may give less than T x `samples`, as DAC's 7,968 samples for 50 codes
    of 160. ValueError for codecs whose codes alone do not say how they sound.
    """

    def __init__(self, model: Any, block: int = BLOCK):
        name, config = type(model).__name__, getattr(model, "config", None)
        if not callable(getattr(model, "decode", None)):
            raise ValueError(f"{name} is no codec: pass what DacModel, EncodecModel, MimiModel or Xcodec2Model.from_pretrained returned")
        if getattr(config, "audio_channels", 1) != 1:
            raise ValueError(f"{name} decodes {config.audio_channels} channels: only codecs of one channel are supported")
        if getattr(config, "normalize", False):
            raise ValueError(
                f"{name} scales every chunk by a loudness that is no code (normalize=True): use a codec without, such as the 24 kHz one"
            )
        if block < 1:
            raise ValueError(f"block is {block}: decode at least 1 code at a time")
        self.model, self.block = model.eval(), block
        self.rate = int(config.sampling_rate)
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
        """Codes, or frames, of a second of sound."""
        return self.rate / self.samples

    @property
    def streams(self) -> bool:
        """Is sound given out before the end?"""
        return self.parts is not None

    def tensor(self, steps: Sequence[Any]) -> Tensor:
        """`steps`, numbers or lists of K numbers, as codes [1, K, T]. ValueError for a code or a book the codec lacks."""
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
        """All samples [S] of `steps` at once, by the class's own `decode`."""
        if not len(steps):
            return torch.zeros(0)
        codes = self.tensor(steps)
        if self.model.config.model_type == "encodec":
            return encodec_frame(self.model, codes).flatten().float().cpu()
        return self.model.decode(audio_codes=codes).audio_values.flatten().float().cpu()

    def stream(self) -> SoundStream:
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


class WholeStream:
    """Sound of codecs that need every code first."""

    def __init__(self, decode: Callable[[list[Any]], Tensor]):
        self.decode, self.steps = decode, []

    def push(self, steps: list[Any]) -> Iterator[Tensor]:
        self.steps += steps
        return iter(())

    def close(self) -> Iterator[Tensor]:
        if self.steps:
            yield self.decode(self.steps)


class PartsStream:
    """Sound block by block; `codec` says the `block`, and codes as a tensor. What is run, and on what, depends on the codes alone."""

    def __init__(self, codec: Any, parts: Parts):
        self.codec, self.parts = codec, parts
        self.steps: list[Any] = []
        self.blocks = self.entered = self.left = 0  # blocks run, latents made, samples given out
        self.state: Any = None
        self.hidden: Tensor | None = None  # [1, D, n] latents behind the memory

    def push(self, steps: list[Any]) -> Iterator[Tensor]:
        """The pieces that `steps` complete."""
        self.steps += steps
        while len(self.steps) >= (self.blocks + 1) * self.codec.block:
            self.blocks += 1
            yield from self._advance(self.blocks * self.codec.block, closed=False)

    def close(self) -> Iterator[Tensor]:
        """What is left once no code follows."""
        if self.steps:
            yield from self._advance(len(self.steps), closed=True)

    @torch.no_grad()
    def _advance(self, known: int, closed: bool) -> Iterator[Tensor]:
        """What the first `known` codes commit beyond what was given out."""
        enter, leave = self.parts.enter, self.parts.leave
        stop = enter.stop(known, closed)
        if stop > self.entered:
            new, self.state = self.parts.carry(enter.window(self.codec.tensor(self.steps[:known]), self.entered, stop), self.state)
            self.hidden = new if self.hidden is None else torch.cat([self.hidden, new], -1)
            self.entered = stop
        if self.hidden is None:
            return
        stop = leave.stop(self.entered, closed)
        if stop > self.left:
            yield leave.window(self.hidden, self.left, stop).flatten().float().cpu()
            self.left = stop


@dataclass(frozen=True)
class WindowCodec:
    """Any codec as a function: `decode` takes frames [n, K] and gives `samples` samples for each, [n * samples].

    What a frame sounds like may rest on `behind` frames before it and `ahead` after it, and on none beyond; without `behind` on all of
    them, and then all sound comes when the stream is closed.
    """

    decode: Callable[[Tensor], Tensor]
    rate: int
    samples: int
    behind: int | None = None
    ahead: int = 0
    block: int = BLOCK
    size: int | None = None

    @property
    def pace(self) -> float:
        """Frames of a second of sound."""
        return self.rate / self.samples

    def stream(self) -> SoundStream:
        if self.behind is None:
            return WholeStream(lambda steps: self.decode(torch.tensor(steps)).flatten().float().cpu())
        return PartsStream(self, self._parts(self.behind))

    def tensor(self, steps: Sequence[Any]) -> Tensor:
        codes = torch.as_tensor(steps)
        return (codes[:, None] if codes.dim() == 1 else codes).T[None]

    def _parts(self, behind: int) -> Parts:
        run = lambda codes: self.decode(codes[0].T).reshape(1, 1, -1)  # noqa: E731
        near = Layer(behind + self.ahead + 1, behind, self.ahead)
        return Parts(Local(lambda codes: codes), lambda x, state: (x, state), Local(run, (near, Layer(self.samples, 0, 0, self.samples))))
