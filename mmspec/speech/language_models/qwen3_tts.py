"""Qwen3-TTS (Hu et al. 2026, arXiv 2601.15621): a talker writes code 0 of every frame, a code predictor the codes behind it.

What is applied where, as published: a call's temperature, top_k and the like, the repetition penalty and the forbidden values to code 0;
the `subtalker_` settings of the generation config to the codes behind it. `depth` replaces the latter.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.core.distributions.depth_frame import Choose, DepthFrame, FrameWriter, one_by_one
from mmspec.core.processors.history import History, Processor
from mmspec.core.processors.pipeline import Pipeline, Suppress
from mmspec.core.stopping import EndTest
from mmspec.models.compat.cache_name import cache_keyword, cache_of
from mmspec.models.families.base import attention_mask
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache
from mmspec.speech.families.base import DRAWS, SpeechSampling, sampling_of
from mmspec.speech.families.codec_lm import LeastOutputs
from mmspec.speech.families.frames import FrameModel, FramePrompt, frame_history
from mmspec.speech.language_models.qwen3_tts_network import Qwen3TTSNetwork
from mmspec.speech.language_models.qwen3_tts_prompts import Qwen3TTSIds, Qwen3TTSRow, TalkerRows, embedded
from mmspec.speech.sound.stream import SoundStream
from mmspec.speech.sound.voice_sample import VoiceSample

LEAST = 2
"""Frames before a row may end."""
SPECIALS = 1024
"""Values at the end of the talker's that are no codes."""
MOST = 2048
"""Frames of a call that gives no duration."""
PACE, RATE = 12.5, 24000
"""Frames and samples a second of the 12 Hz codec."""


@dataclass(frozen=True)
class Qwen3TTSPrompt:
    """The requests of a batch, the model that embedded them, and what is added to their frames, [R, T, D]."""

    rows: tuple[Qwen3TTSRow, ...]
    model: "Qwen3TTS"
    beside: Tensor


class Qwen3TTS(FrameModel):
    """A Qwen3-TTS.

    Args:
        model: its networks.
        tokenizer: its tokenizer.
        ids: its ids.
        codec: what decodes frames, with `stream`, `rate` and `pace`, and hears recordings with `listen`; None for codes without sound.
        settings: the published generation config.
        language: the language of all texts, or auto.
        instruct: an instruction, such as a description of the voice; None for none.
        streaming: give the talker its text a token a frame, as if it were still being written; by default base models do.
        writer: how the code predictor writes a frame (`core.distributions.depth_frame`).
        depth: processors of the codes behind code 0.

    Raises:
        ValueError: for an unknown language.
    """

    usual = MOST

    def __init__(
        self,
        model: Qwen3TTSNetwork,
        tokenizer: Any,
        ids: Qwen3TTSIds,
        codec: Any = None,
        settings: Mapping[str, Any] | None = None,
        *,
        language: str = "auto",
        instruct: str | None = None,
        streaming: bool | None = None,
        writer: FrameWriter = one_by_one,
        depth: Pipeline | None = None,
    ):
        told = settings or {}
        self.model, self.tokenizer, self.ids, self.codec, self.writer = model.eval(), tokenizer, ids, codec, writer
        self.language, self.instruct = language, instruct
        self.streaming = model.speaker_encoder is not None if streaming is None else streaming
        self.books, self.size, self.layers = model.books, model.config.vocab_size, model.config.num_hidden_layers
        self.rate, self.pace = (RATE, PACE) if codec is None else (codec.rate, codec.pace)
        self.voices = tuple(ids.speakers)
        self.longest = model.config.max_position_embeddings - 1
        self.sampling = _settings(told)
        self.depth = CodePredictor(model, _settings(told, "subtalker_").processors() if depth is None else depth)
        self._listen = None if codec is None or model.speaker_encoder is None else codec.listener(model.speaker_encoder)
        self.clones = self._listen is not None
        ids.controls(language, None)

    # --- prompts ------------------------------------------------------------------------------------------------------

    def encode(self, texts: Sequence[str], voices: Sequence[Any]) -> FramePrompt:
        """Return the prompts of a batch; see `SpeechModel.encode`."""
        if isinstance(texts, str) or not texts:
            raise ValueError("texts must be a list of texts: give at least one")
        return self._prompt(tuple(self._row(text, voice) for text, voice in zip(texts, voices, strict=True)))

    def _row(self, text: Any, voice: Any) -> Qwen3TTSRow:
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"text {text!r} is empty: give some words")
        if voice is None and self.voices:
            voice = self.voices[0]
        whole = self._tokens(f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n")
        instruct = self._tokens(f"<|im_start|>user\n{self.instruct}<|im_end|>\n") if self.instruct else []
        said: list[int] = []
        if isinstance(voice, VoiceSample) and (voice.text or "").strip():
            said = self._tokens(f"<|im_start|>assistant\n{voice.said()}<|im_end|>\n")[3:-2]
        value = self.ids.speakers[voice] if isinstance(voice, str) else voice
        return Qwen3TTSRow(whole[3:-5], whole[:3], instruct, self.ids.controls(self.language, voice), value, said)

    def _tokens(self, text: str) -> list[int]:
        return self.tokenizer(text)["input_ids"]

    def _prompt(self, rows: tuple[Qwen3TTSRow, ...]) -> FramePrompt:
        made = [embedded(self.model, self.ids, row, self.streaming, self._listen) for row in rows]
        most = max(len(embeds) for embeds, _ in made)
        positions = self.model.config.max_position_embeddings
        if most >= positions:
            raise ValueError(f"a prompt of {most} steps is too long: the model has {positions} positions")
        embeds = torch.stack([F.pad(embeds, (0, 0, most - len(embeds), 0)) for embeds, _ in made])
        real = torch.tensor([[column >= most - len(each) for column in range(most)] for each, _ in made], device=embeds.device)
        long = max(len(beside) for _, beside in made)
        beside = torch.stack([torch.cat([each, each[-1:].expand(long - len(each), -1)]) for _, each in made])
        return FramePrompt(embeds, real, Qwen3TTSPrompt(rows, self, beside))

    def begin(self, model: Any, inputs: FramePrompt, capacity: int) -> tuple[SlotCache, TalkerRows]:
        """As every family; a prompt that another Qwen3-TTS embedded is embedded anew, so that a small one can draft for a large one."""
        theirs = inputs.extra.model
        if theirs is not self:
            if (theirs.books, theirs.size) != (self.books, self.size):
                raise ValueError(
                    f"the drafter writes {self.books} books of {self.size} values, the target {theirs.books} of {theirs.size}: draft with "
                    "a model of the same codec"
                )
            inputs = self._prompt(inputs.extra.rows)
        return SlotCache(self.layers, capacity), TalkerRows(inputs)

    # --- the talker ---------------------------------------------------------------------------------------------------

    def embed(self, frames: Tensor) -> Tensor:
        """Return embeddings [R, M, D] of frames [R, M, K], without what is added to them."""
        return self.model.frames(frames)

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: TalkerRows, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """The talker's last hidden states of the last `keep` columns. Frame s of a row also carries what is `beside` it."""
        beside, written = state.beside, layout.ids[..., 0] < self.size
        step = (layout.positions - state.mask.sum(1, keepdim=True)).clamp(0, beside.shape[1] - 1)
        more = beside.gather(1, step[..., None].expand(*step.shape, beside.shape[-1]))
        embeds = self.embedded(layout.ids, state)
        return self.run(torch.where(written[..., None], embeds + more, embeds), layout, cache, state)[:, -keep:], None

    def run(self, embeds: Tensor, layout: Layout, cache: SlotCache, prompt: TalkerRows) -> Tensor:
        """Run the talker; returns its last hidden states."""
        talker = self.model.talker
        return talker(
            inputs_embeds=embeds,
            attention_mask=attention_mask(layout.visible, talker),
            position_ids=layout.positions,
            **cache_keyword(talker, cache),
            use_cache=True,
        ).last_hidden_state

    # --- the distribution of a frame ----------------------------------------------------------------------------------

    def distribution(self, raw: Tensor, history: History, processors: Pipeline) -> DepthFrame:
        """Return the distribution of the frame after each column; see `FrameModel.distribution`."""
        scores = self.model.code_head(raw.to(self.model.dtype)).float()
        return DepthFrame(torch.cat([raw, processors(scores, frame_history(history, 0))], -1), self.depth, self.writer)

    def rules(self, prompt: FramePrompt) -> tuple[Processor, ...]:
        """Return the constraints; see `SpeechModel.rules`."""
        specials = tuple(value for value in range(max(0, self.size - SPECIALS), self.size) if value != self.ids.end)
        return (Suppress(specials), LeastOutputs((self.ids.end,), (LEAST,) * len(prompt.mask)))

    @property
    def ends(self) -> EndTest:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Test for the frame that ends a row: its code 0 is the end, the others mean nothing."""
        return lambda frames: frames[..., 0] == self.ids.end

    # --- sound --------------------------------------------------------------------------------------------------------

    def stream(self) -> "FramesUpToEnd":
        """Open a stream that decodes frames to sound; without a codec there is none."""
        return FramesUpToEnd(None if self.codec is None else self.codec.stream(), self.ids.end)

    def streams(self, prompt: FramePrompt, rows: int) -> list[Any]:
        """Open the streams of a batch. The frames of a recording sound before a row's own, and are cut off."""
        made = []
        for row in prompt.extra.rows:
            stream = self.stream()
            if isinstance(row.voice, VoiceSample) and len(row.said) and self._listen is not None:
                stream.lead(self._listen(row.voice)[0].tolist(), round(self.rate / self.pace))
            made.append(stream)
        return made


@dataclass(frozen=True)
class CodePredictor:
    """The code predictor with its processors. Its state is the talker's last hidden state followed by the scores of code 0."""

    model: Qwen3TTSNetwork
    distributions: Pipeline

    @property
    def books(self) -> int:
        """Codes per frame."""
        return self.model.books

    def scores(self, hidden: Tensor, codes: Tensor) -> Tensor:
        """Return the scores of every code given `codes` [M, K], in one run."""
        hidden, first = self._parts(hidden)
        known = [self.model.book(codes[:, book], book) for book in range(self.books - 1)]
        out = self.model.predictor(inputs_embeds=self.model.narrowing(torch.stack([hidden, *known], 1)), use_cache=False)
        states = out.last_hidden_state[:, 1:]
        behind = torch.stack([head(states[:, number]) for number, head in enumerate(self.model.predictor_heads)], 1)
        return torch.cat([first[:, None], self._scores(behind)], 1)

    def write(self, hidden: Tensor, codes: Tensor, first: int, choose: Choose) -> Tensor:
        """Write the codes from number `first` on, each chosen by `choose`, in one run a code."""
        hidden, scores = self._parts(hidden)
        codes = codes.clone()
        if first == 0:
            codes[:, 0] = choose(scores, 0)
        start, past = max(first, 1), None
        fresh = torch.stack([hidden, *(self.model.book(codes[:, book], book) for book in range(start))], 1)
        for book in range(start, self.books):
            net = self.model.predictor
            out = net(inputs_embeds=self.model.narrowing(fresh), **cache_keyword(net, past), use_cache=True)
            past = cache_of(out)
            told = self.model.predictor_heads[book - 1](out.last_hidden_state[:, -1:])
            codes[:, book] = choose(self._scores(told)[:, 0], book)
            fresh = self.model.book(codes[:, book : book + 1], book)
        return codes

    def _parts(self, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden, first = state.split([self.model.config.hidden_size, self.model.config.vocab_size], -1)
        return hidden.to(self.model.dtype), first

    def _scores(self, logits: Tensor) -> Tensor:
        """`logits` [M, N, V] behind the processors, which read no history, over as many values as code 0 has."""
        rows, count = logits.shape[:2]
        nothing = torch.zeros(rows, 0, dtype=torch.long, device=logits.device)
        none = History(nothing, nothing.bool()[:, None].expand(-1, count, -1), nothing.new_zeros(rows, count))
        scores = self.distributions(logits.float(), none)
        return F.pad(scores, (0, self.model.config.vocab_size - scores.shape[-1]), value=-torch.inf)


class FramesUpToEnd:
    """The sound of frames up to the one that ends the row.

    Args:
        sound: the stream of frames; None for no sound.
        end: the end's value.
    """

    def __init__(self, sound: SoundStream | None, end: int):
        self.sound, self.end, self.cut, self.before = sound, end, 0, []

    def lead(self, frames: list[list[int]], samples: int) -> None:
        """Let `frames` of `samples` samples each sound first, unheard."""
        self.before, self.cut = frames, len(frames) * samples

    def push(self, steps: list[list[int]]) -> Iterator[Tensor]:
        """Decode the next frames; see `SoundStream.push`."""
        if self.sound is None:
            return
        before, self.before = self.before, []
        yield from self._heard(self.sound.push([*before, *(step for step in steps if step[0] != self.end)]))

    def close(self) -> Iterator[Tensor]:
        """Return what is left of the stream; see `SoundStream.close`."""
        if self.sound is not None:
            yield from self._heard(self.sound.close())

    def _heard(self, pieces: Iterator[Tensor]) -> Iterator[Tensor]:
        for piece in pieces:
            cut = min(self.cut, len(piece))
            self.cut -= cut
            if cut < len(piece):
                yield piece[cut:]


def _settings(told: Mapping[str, Any], start: str = "") -> SpeechSampling:
    """The settings of a published generation config, of the talker or of what begins with `start`, over those of the published code."""
    usual = {"do_sample": True, "temperature": 0.9, "top_k": 50, "top_p": 1.0} | ({} if start else {"repetition_penalty": 1.05})
    own = {name.removeprefix(start): value for name, value in told.items() if name.startswith(start)}
    own |= {"do_sample": own["dosample"]} if "dosample" in own else {}
    return sampling_of(SimpleNamespace(**usual | own), DRAWS if start else (*DRAWS, "repetition_penalty"))
