"""Higgs Audio v2 (Boson AI 2025): a language model that writes 8 codebooks, book k lagging k + 1 steps behind its prompt.

A step is a frame of ids: the first frame only begins the stream, and books begin one after the other. As in the class's own generation, the
end in any book starts the end of all: book k ends k + 1 steps later. Its repetition-aware sampling is the distribution it amounts to
(`speech.sampling.ras`), and is left out at temperature 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.core.distributions.frame import Frame
from mmspec.core.processors.history import History, Processor
from mmspec.core.processors.pipeline import Pipeline, pipeline
from mmspec.core.stopping import EndTest
from mmspec.models.compat.cache_name import cache_keyword
from mmspec.models.families.base import attention_mask, refuse_unsupported
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache
from mmspec.speech.codecs.transformers import HFCodec
from mmspec.speech.families.base import SpeechSampling, sampling_of
from mmspec.speech.families.frames import FrameModel, FramePrompt, FrameRows
from mmspec.speech.sampling.delay import NotYet, forced, frame_distribution, undelayed
from mmspec.speech.sampling.ras import RepetitionAware, higgs
from mmspec.speech.sound.stream import SoundStream
from mmspec.speech.sound.voice_sample import VoiceSample

Inputs = Mapping[str, Tensor]
"""One prompt as HiggsAudioV2Processor returns it: input_ids [1, P], attention_mask, and for sound audio_input_ids and their mask."""
SYSTEM = "Generate audio following instruction."
SCENE = "Audio is recorded from a quiet room."


@dataclass(frozen=True)
class HiggsPrompt:
    """Prompts as the class's forward takes them, padded on the left."""

    ids: Tensor  # [R, P]
    frames: Tensor  # [R, P, K] codes at places of sound
    model: Any  # that is to continue them


@dataclass(frozen=True)
class AnyBookEnds:
    """The end in any book starts the end of the row: book k is forced to end from k + 1 steps later on."""

    end: int
    frames: ClassVar[bool] = True

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        ended = history.visible & (history.ids == self.end).any(-1)[:, None]
        since = (history.visible & (ended.cumsum(-1) > 0)).sum(-1)  # [B, N] steps since the first end, 0 before it
        books = torch.arange(scores.shape[2], device=scores.device)
        return forced(scores, since[..., None] > books, self.end)


class HiggsAudio(FrameModel):
    """A `HiggsAudioV2ForConditionalGeneration` and its processor, which brings tokenizer, chat template and codec.

    A prompt is a text, or what the processor returned for one conversation. A `VoiceSample` with its text goes into the conversation as a
    turn before the text. In place of the processor a `codec`, where prompts are the processor's.

    Args:
        model: the model.
        processor: its processor.
        codec: what decodes codes, with `stream`, `rate` and `pace`, or a codec of transformers; by default the processor's.
        system: the conversation's first message.
        scene: description of the recording; None to leave it out.

    Raises:
        ValueError: without a codec, or for a model that cannot be driven.
    """

    capturable = False
    clones = True

    def __init__(self, model: Any, processor: Any = None, codec: Any = None, *, system: str = SYSTEM, scene: str | None = SCENE):
        codec = getattr(processor, "audio_tokenizer", None) if codec is None else codec
        if codec is None:
            raise ValueError("Higgs Audio has no codec of its own: give its HiggsAudioV2Processor, or codec=")
        refuse_unsupported(model)
        config = model.config
        self.model, self.processor, self.system, self.scene = model.eval(), processor, system, scene
        self.codec = codec if hasattr(codec, "stream") else HFCodec(codec)
        self.rate, self.pace = self.codec.rate, self.codec.pace
        self.books, self.size, self.layers = config.num_codebooks, config.codebook_size, config.num_hidden_layers
        self.start, self.end, self.lead = config.audio_stream_bos_id, config.audio_stream_eos_id, config.num_codebooks
        self.longest = config.max_position_embeddings - 1
        self.sampling = _sampling(model.generation_config, (self.start, self.end))

    # --- prompts ------------------------------------------------------------------------------------------------------

    def encode(self, texts: Sequence[str | Inputs], voices: Sequence[Any]) -> FramePrompt:
        """Return prompts from texts, or from the processor's output for one conversation each. ValueError for an invalid one."""
        if isinstance(texts, (str, Mapping)) or not texts:
            raise ValueError("texts must be a list of texts, or of inputs for one prompt each: give at least one")
        rows = [self._row(number, *each) for number, each in enumerate(zip(texts, voices, strict=True))]
        most = max(len(ids) for ids, _ in rows)
        if most >= self.model.config.max_position_embeddings:
            raise ValueError(f"a prompt of {most} ids is too long: the model has {self.model.config.max_position_embeddings} positions")
        device, pad = self.model.device, self.model.config.pad_token_id or 0
        ids = torch.stack([F.pad(ids, (most - len(ids), 0), value=pad) for ids, _ in rows]).to(device)
        frames = torch.stack([F.pad(frames, (0, 0, most - len(frames), 0)) for _, frames in rows]).to(device)
        real = torch.tensor([[column >= most - len(row) for column in range(most)] for row, _ in rows], device=device)
        return FramePrompt(torch.empty(*ids.shape, 0, device=device), real, HiggsPrompt(ids, frames, self.model))

    def _row(self, number: int, text: str | Inputs, voice: VoiceSample | None) -> tuple[Tensor, Tensor]:
        """Ids [P] and frames [P, K] of one prompt, without padding."""
        inputs = text if isinstance(text, Mapping) else self._read(text, voice)
        if isinstance(text, Mapping) and voice is not None:
            raise ValueError(f"prompt {number} is the processor's: put the voice into its conversation, and leave voice out")
        if "input_ids" not in inputs or len(inputs["input_ids"]) != 1:
            raise ValueError(f"prompt {number} must hold input_ids of one row: give a list of inputs, one a prompt")
        mask = inputs.get("attention_mask")
        ids = torch.as_tensor(inputs["input_ids"])[0].cpu()
        ids = ids if mask is None else ids[torch.as_tensor(mask)[0].bool().cpu()]
        config = self.model.config
        last = ids[-self.books :]
        if not len(ids) or int(ids[-1]) != config.audio_bos_token_id or (last == config.audio_delay_token_id).any():
            raise ValueError(f"prompt {number} does not end where sound begins: make it with add_generation_prompt=True")
        frames, places = torch.zeros(len(ids), self.books, dtype=torch.long), self._places(ids)
        sound = inputs.get("audio_input_ids")
        given = torch.zeros(0, self.books, dtype=torch.long) if sound is None else torch.as_tensor(sound)[0].cpu()
        if sound is not None and inputs.get("audio_input_ids_mask") is not None:
            given = given[torch.as_tensor(inputs["audio_input_ids_mask"])[0].bool().cpu()]
        if int(places.sum()) != len(given):
            raise ValueError(f"prompt {number} has {int(places.sum())} places for sound and {len(given)} frames: make both in one call")
        window = max((each.window for each in self.sampling.last if isinstance(each, RepetitionAware)), default=0)
        if len(given) and window > self.books + 1:
            raise ValueError(f"ras_win_len is {window}: with sound in the prompt, at most {self.books + 1} is supported")
        frames[places] = given
        return ids, frames

    def _places(self, ids: Tensor) -> Tensor:
        """True where an id stands for a frame of sound."""
        return (ids == self.model.config.audio_token_id) | (ids == self.model.config.audio_delay_token_id)

    def _read(self, text: Any, voice: VoiceSample | None) -> Inputs:
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"text {text!r} is empty: give some words")
        if self.processor is None:
            raise ValueError(f"text {text!r} needs a processor: make HiggsAudio with the model's own, or give what that returned")
        turns: list[dict[str, Any]] = [_said("system", self.system), *([] if self.scene is None else [_said("scene", self.scene)])]
        sounds: dict[str, Any] = {}
        if voice is not None:
            turns += [_said("user", voice.said()), {"role": "assistant", "content": [{"type": "audio"}]}]
            sounds = {"audio": [voice.at(self.rate).numpy()], "sampling_rate": self.rate}
        prompt = self.processor.apply_chat_template([*turns, _said("user", text)], tokenize=False, add_generation_prompt=True)
        return self.processor(text=[prompt], add_special_tokens=False, return_tensors="pt", **sounds)

    def begin(self, model: Any, inputs: FramePrompt, capacity: int) -> tuple[SlotCache, FrameRows]:
        """Open the cache and the state of one generation; see the family protocol."""
        theirs = inputs.extra.model.config
        if (theirs.num_codebooks, theirs.codebook_size, theirs.vocab_size) != (self.books, self.size, self.model.config.vocab_size):
            raise ValueError(
                f"the drafter writes {self.books} books of {self.size} codes, the target {theirs.num_codebooks} of "
                f"{theirs.codebook_size}: draft with a model of the same codec and tokenizer"
            )
        return SlotCache(self.layers, capacity), FrameRows(inputs)

    # --- the network --------------------------------------------------------------------------------------------------

    def embed(self, frames: Tensor) -> Tensor:
        """Return embeddings [R, M, D] of frames [R, M, K]."""
        return self.model.model.embed_audio_tokens(frames)

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: FrameRows, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Scores [R, keep, K, V]. Texts and frames pass through layers of their own, which the class chooses by the ids."""
        written = {"audio_input_ids": layout.ids.clamp(max=self.size - 1)}  # PAD columns may hold the prompt's ids
        inputs = self._opening(layout.ids, state) if layout.opening else written
        hidden = self.model.model(
            **inputs,
            attention_mask=attention_mask(layout.visible, self.model),
            position_ids=layout.positions,
            **cache_keyword(self.model.model, cache),
            use_cache=True,
        ).last_hidden_state
        return self.model.audio_lm_head(hidden[:, -keep:]).unflatten(-1, (self.books, self.size)), None

    def _opening(self, ids: Tensor, state: FrameRows) -> dict[str, Tensor]:
        """Inputs of columns of which some are the prompt's."""
        length, told = state.mask.shape[1], ids[..., 0] >= self.size
        place = (length - 1 - (ids[..., 0] - self.size)).clamp(0, length - 1)
        words = torch.where(told, state.extra.ids.gather(1, place), self.model.config.audio_token_id)
        given = state.extra.frames.gather(1, place[..., None].expand(-1, -1, self.books))
        frames = torch.where(told[..., None], given, ids)
        return {"input_ids": words, "audio_input_ids": frames, "audio_input_ids_mask": self._places(words)}

    def run(self, embeds: Tensor, layout: Layout, cache: SlotCache, prompt: FrameRows) -> Tensor:
        """Scores of every column; see `forward`, which the engine calls."""
        return self.forward(self.model, layout, cache, prompt, layout.ids.shape[1])[0]

    def distribution(self, raw: Tensor, history: History, processors: Pipeline) -> Frame:
        """Return the distribution of the frame after each column."""
        return frame_distribution(raw, history, processors)

    def rules(self, prompt: Any) -> tuple[Processor, ...]:
        """Return the constraints; see `SpeechModel.rules`."""
        return (NotYet(tuple(range(1, self.books + 1)), self.start), AnyBookEnds(self.end))

    def drawn(self, sampling: SpeechSampling) -> SpeechSampling:
        """Put temperature and truncation into the repetition-aware sampler, which draws again from scores without them."""
        if not any(isinstance(each, RepetitionAware) for each in sampling.last):
            return sampling
        if sampling.temperature == 0:
            return replace(sampling, last=tuple(each for each in sampling.last if not isinstance(each, RepetitionAware)))
        usual = pipeline(temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p)
        last = tuple(replace(each, usual=usual) if isinstance(each, RepetitionAware) else each for each in sampling.last)
        return replace(sampling, temperature=1.0, top_k=None, top_p=None, last=last)

    @property
    def ends(self) -> EndTest:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Test for the frame that ends a row."""
        return lambda frames: (frames == self.end).all(-1)

    def stream(self) -> "HiggsStream":
        """Open a stream that decodes codes to sound piece by piece."""
        return HiggsStream(self.codec.stream(), self.books, self.start, self.end)


class HiggsStream:
    """Undoes the delay. As in the class's processor, the frames that begin and end a row are no sound, and special ids sound as the last
    code."""

    def __init__(self, sound: SoundStream, books: int, codes: int, end: int):
        self.sound, self.delays, self.codes, self.end = sound, range(books), codes, end
        self.steps: list[list[int]] = []
        self.done, self.begun = 0, False

    def push(self, steps: list[list[int]]) -> Iterator[Tensor]:
        """Decode the next codes and return the sound they complete."""
        self.steps += [step for step in (steps if self.begun else steps[1:]) if any(code != self.end for code in step)]
        self.begun = self.begun or bool(steps)
        frames = undelayed(self.steps, self.delays, self.done)
        self.done += len(frames)
        return self.sound.push([[min(code, self.codes - 1) for code in frame] for frame in frames])

    def close(self) -> Iterator[Tensor]:
        """Return what is left of the stream; see `SoundStream.close`."""
        return self.sound.close()


def _said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}]}


def _sampling(config: Any, specials: tuple[int, ...]) -> SpeechSampling:
    """The settings of a generation config. One that is greedy and repetition-aware draws again where a code repeats, as the class does."""
    drawn = sampling_of(config)
    window, limit = (getattr(config, name, None) for name in ("ras_win_len", "ras_win_max_num_repeat"))
    if window is None or limit is None:
        return drawn
    greedy = {"temperature": 1.0, "top_k": 1} if drawn.temperature == 0 else {}
    return replace(drawn, **greedy, last=(*drawn.last, higgs(window, limit, specials, Pipeline())))
