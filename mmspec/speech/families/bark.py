"""Bark (Suno 2023): text to semantic tokens, semantic tokens to the codes of two codebooks, these to eight codebooks and sound.

The first two stages are language models; speculative decoding applies to each of them. The coarse stage generates in windows: every 60 ids
it starts again with the last 630 as its prompt, so every window is a generation of its own. The fine stage reads codes on both sides and
takes a few passes; it and the codec are run by transformers. The whole sound is returned at the end.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import floor
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.random import fork_rng
from transformers.models.bark.generation_configuration_bark import (
    BarkCoarseGenerationConfig,
    BarkFineGenerationConfig,
    BarkSemanticGenerationConfig,
)

from mmspec.core.control import Control
from mmspec.core.decode import run
from mmspec.core.hashing import mix
from mmspec.core.noise import Noise
from mmspec.core.processors.history import Processor
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.records import Step
from mmspec.core.rules.base import Accept
from mmspec.core.stats import Stats
from mmspec.core.stopping import DefaultStopping
from mmspec.models.family import Family
from mmspec.models.target import HFTarget
from mmspec.run.request import Request
from mmspec.run.shapes import Tree
from mmspec.speech.codecs.streams import WholeStream
from mmspec.speech.families.bark_network import BarkFamily, BarkPrompt, EndOnceLikely, PresetVoices, ragged, stage_config, stage_sampling
from mmspec.speech.families.base import SpeechModel, SpeechSampling, one_voice_each
from mmspec.speech.sampling.codebook_order import InterleavedCodebooks
from mmspec.speech.sound.speech import Speech, decode_rows

Voice = Mapping[str, Tensor]
"""A voice preset: semantic_prompt [S], coarse_prompt [2, T] and fine_prompt [8, T], as `BarkProcessor` loads them."""


@dataclass
class StagedRequest:
    """Arguments of one call for all its stages, and the statistics of the call."""

    drafter: Any = None
    accept: str | Accept = "exact"
    seed: int | Sequence[int] = 0
    draft_length: int | str | Control = "auto"
    tree: Tree = None
    on_step: Callable[[Step], None] | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)  # settings that replace those of each stage
    stats: Stats = field(default_factory=Stats)
    finish_reasons: Sequence[str | None] = ()  # of the semantic stage, which decides when a row ends

    def drafting(self, stage: str) -> Any:
        """Return the drafter of a stage: the stage's network of a smaller Bark, an entry of a dict, or one drafter for both stages."""
        if isinstance(self.drafter, Bark):
            return self.drafter.network(stage)
        return self.drafter.get(stage) if isinstance(self.drafter, Mapping) else self.drafter

    def request(self, stage: str, drawn: SpeechSampling) -> Request:
        """Return the request of a stage whose sampling settings are `drawn`."""
        return Request.of(
            drafter=self.drafting(stage), accept=self.accept, draft_length=self.draft_length, tree=self.form(stage), seed=self.seed,
            temperature=drawn.temperature, top_k=drawn.top_k, top_p=drawn.top_p, repetition_penalty=drawn.repetition_penalty,
        )  # fmt: skip

    def form(self, stage: str) -> Tree:
        """Return the tree of a stage's draft; None for a stage without a drafter in the dict of drafters."""
        return None if isinstance(self.drafter, Mapping) and self.drafter.get(stage) is None else self.tree


class Bark(SpeechModel):
    """Bark as a speech model of two stages. Both are token-exact relative to transformers' own generation.

    A drafter is a name such as "lookup", a smaller `Bark`, or a dict with drafters for "semantic" and "coarse"; either may be left out.

    Args:
        model: a `BarkModel`.
        tokenizer: its tokenizer, or its BarkProcessor, which has voices.
        presets: voices by name; by default the processor's.
        min_eos_p: the semantic stage ends once its end token has at least this probability; by default the generation config's, and without
            one the end is sampled.

    Raises:
        ValueError: if the generation config is not Bark's.
    """

    def __init__(self, model: Any, tokenizer: Any = None, presets: Mapping[str, Voice] | None = None, min_eos_p: float | None = None):
        if hasattr(tokenizer, "available_voice_presets"):
            presets, tokenizer = PresetVoices(tokenizer) if presets is None else presets, tokenizer.tokenizer
        self.model, self.tokenizer, self.presets = model.eval(), tokenizer, presets or {}
        self.voices = tuple(self.presets)
        own = model.generation_config
        kinds = (BarkSemanticGenerationConfig, BarkCoarseGenerationConfig, BarkFineGenerationConfig)
        names = ("semantic_config", "coarse_acoustics_config", "fine_acoustics_config")
        if not all(hasattr(own, name) for name in names):
            raise ValueError("generation_config is not Bark's: load it with BarkModel.from_pretrained, or set a BarkGenerationConfig")
        self.first, self.second, self.third = (stage_config(kind, getattr(own, name)) for kind, name in zip(kinds, names, strict=True))
        self.min_eos_p = self.first.min_eos_p if min_eos_p is None else min_eos_p
        self.size, self.rate = own.codebook_size, own.sample_rate
        self.ratio = self.second.coarse_rate_hz / self.first.semantic_rate_hz * self.second.n_coarse_codebooks  # coarse ids a semantic one
        self.pace = float(self.second.coarse_rate_hz * self.second.n_coarse_codebooks)
        self.sampling = stage_sampling(self.first)

    def network(self, stage: str) -> Any:
        """Return the network of stage "semantic" or "coarse"."""
        return self.model.semantic if stage == "semantic" else self.model.coarse_acoustics

    def encode(self, texts: Sequence[str], voices: Sequence[str | None]) -> BarkPrompt:
        """Return the prompts of the semantic stage. ValueError for a text that is empty or too long; transformers would truncate it."""
        if self.tokenizer is None:
            raise ValueError("texts need a tokenizer: make Bark with the one that came with the model")
        if isinstance(texts, str) or not texts:
            raise ValueError(f"texts is {texts!r}: give a list of texts, one an utterance")
        most, rows = self.first.max_input_semantic_length, []
        for text in texts:
            if not isinstance(text, str) or not text.strip():
                raise ValueError(f"text {text!r} is empty: give a text with words")
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            if len(ids) > most:
                raise ValueError(f"text {text[:37]!r}... is too long: {len(ids)} ids where the model takes {most}; cut it into sentences")
            rows.append(ids + [-1] * (most - len(ids)))
        return self.semantic_prompt(torch.tensor(rows), voices)

    def semantic_prompt(self, ids: Tensor, voices: Sequence[str | None]) -> BarkPrompt:
        """Return prompts for ids [B, <= 256] of the tokenizer, padded with -1: embeddings of the text plus those of the voice's tokens."""
        most, pad = self.first.max_input_semantic_length, self.first.semantic_pad_token
        ids = F.pad(ids, (0, most - ids.shape[1]), value=-1).to(self.model.device)
        words = torch.where(ids >= 0, ids + self.first.text_encoding_offset, self.first.text_pad_token)
        beside = words.new_full(words.shape, pad)
        for row, voice in enumerate(voices):
            if voice is not None:
                history = self.presets[voice]["semantic_prompt"][-most:]
                beside[row, : len(history)] = history.to(beside)
        infer, none = words.new_full((len(words), 1), self.first.semantic_infer_token), words.new_full((len(words), 1), -1)
        whole = torch.cat([words, infer], 1)
        return BarkPrompt(whole, torch.ones_like(whole, dtype=torch.bool), torch.cat([beside, none], 1))

    @cached_property
    def family(self) -> Family:  # pyright: ignore[reportIncompatibleVariableOverride]
        return BarkFamily.of(self.model.semantic)

    @property
    def ends(self) -> Sequence[int]:
        return (self.first.semantic_pad_token,)

    def rules(self, prompt: Any) -> tuple[Processor, ...]:
        end = self.first.semantic_pad_token
        spoken = InterleavedCodebooks(((0, self.first.semantic_vocab_size),), (end,))
        return (spoken, EndOnceLikely(end, self.min_eos_p)) if self.min_eos_p else (spoken,)

    def semantic(self, prompt: BarkPrompt, staged: StagedRequest, seconds: float | None = None) -> list[list[int]]:
        """Generate the semantic tokens of every row, without the end token, for at most `seconds` of sound."""
        most = min(self.first.max_new_tokens or 768, self.model.semantic.config.block_size - prompt.ids.shape[1] + 1)
        if seconds is not None:
            most = min(most, max(1, int(seconds * self.first.semantic_rate_hz)))
        noise = Noise.from_seed(staged.seed, len(prompt.ids), self.model.device)
        rows = self._write("semantic", prompt, self.rules(prompt), [most] * len(prompt.ids), self.ends, noise, staged)
        return [[token for token in row if token != self.ends[0]] for row in rows]

    def coarse(self, semantic: Sequence[list[int]], voices: Sequence[str | None], staged: StagedRequest) -> list[list[int]]:
        """Generate the ids of both codebooks of every row, interleaved, window by window."""
        window, start = self.second.sliding_window_len, self.first.semantic_vocab_size
        lengths = [floor(len(row) * self.ratio / self.second.n_coarse_codebooks) * self.second.n_coarse_codebooks for row in semantic]
        histories = [self._history(voice) for voice in voices]
        written: list[list[int]] = [[] for _ in semantic]
        end = self.model.coarse_acoustics.config.output_vocab_size
        rules = (InterleavedCodebooks(((start, start + self.size), (start + self.size, end))),)
        seeds = mix(Noise.from_seed(staged.seed, len(semantic), self.model.device).seeds)
        for number, done in enumerate(range(0, max(lengths, default=0), window)):
            open_ = [row for row, length in enumerate(lengths) if length > done]
            prompts = [self._window(histories[row], semantic[row], written[row]) for row in open_]
            noise = Noise(mix(seeds[open_] + number + 1))  # new noise for every window
            budget = [min(window, lengths[row] - done) for row in open_]
            found = self._write("coarse", ragged(prompts, self.model.device), rules, budget, (), noise, staged)
            for row, ids in zip(open_, found, strict=True):
                written[row] += ids
        return written

    def _history(self, voice: str | None) -> tuple[list[int], list[int]]:
        """Return the voice's semantic tokens and coarse ids, trimmed by transformers' own function."""
        if voice is None:
            return [], []
        parts = self.model.coarse_acoustics.preprocess_histories(
            self.second.max_coarse_history, self.ratio, 1, self.first, self.size, self.presets[voice]
        )
        return parts[0][0].tolist(), parts[1][0].tolist()

    def _window(self, history: tuple[list[int], list[int]], semantic: list[int], written: list[int]) -> list[int]:
        """Return a window's prompt: semantic tokens from shortly before the window, a separator, and the last coarse ids."""
        most, before = self.second.max_coarse_input_length, floor(self.second.max_coarse_history / self.ratio)
        now = len(history[0]) + round(len(written) / self.ratio)
        meant = (history[0] + semantic)[max(0, now - before) :][:most]
        meant += [self.second.coarse_semantic_pad_token] * (most - len(meant))
        return [*meant, self.second.coarse_infer_token, *(history[1] + written)[-self.second.max_coarse_history :]]

    def _write(
        self,
        stage: str,
        prompt: BarkPrompt,
        rules: tuple[Processor, ...],
        budget: list[int],
        ends: Sequence[int],
        noise: Noise,
        staged: StagedRequest,
    ) -> list[list[int]]:
        """Run one generation and return the ids of every row, at most `budget` each."""
        net, drawn = self.network(stage), replace(stage_sampling(self.first if stage == "semantic" else self.second), **staged.sampling)
        request = staged.request(stage, drawn)
        rule = request.rule()
        distributions = Pipeline((*request.distributions(rule, rules).steps, *drawn.last))
        target = HFTarget(net, BarkFamily.of(net), distributions, reserve=max(budget) + 32)
        resolved = request.resolve(target, rule, lambda drafter: _drafting(drafter, target))
        stopping = DefaultStopping(len(budget), max(budget), ends, device=self.model.device)
        stopping.left, stopping.remaining = torch.tensor(budget, device=self.model.device), list(budget)
        staged.stats.exactness = rule.exactness
        staged.finish_reasons = stopping.finish_reasons if stage == "semantic" else staged.finish_reasons
        counted = {"stats": staged.stats, "on_step": staged.on_step}
        for _ in run(target, resolved.drafter, rule, prompt, stopping=stopping, noise=noise, control=resolved.control, **counted):
            pass
        return stopping.outputs

    @torch.no_grad()
    def speak(self, coarse: Sequence[int], voice: str | None = None, seed: int = 0) -> Tensor:
        """Run the fine stage and the codec on one row's coarse ids and return its waveform [S]. Sampling in the fine stage uses `seed`."""
        whole = len(coarse) - len(coarse) % self.second.n_coarse_codebooks
        if not whole:
            return torch.zeros(0)
        device = self.model.device
        with fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed % 2**63)
            fine = self.model.fine_acoustics.generate(
                torch.tensor([list(coarse[:whole])], device=device),
                semantic_generation_config=self.first,
                coarse_generation_config=self.second,
                fine_generation_config=self.third,
                codebook_size=self.size,
                history_prompt=None if voice is None else self.presets[voice],
            )
        return self.model.codec_decode(fine).flatten().float().cpu()

    def stream(self) -> WholeStream:
        """Return a stream that decodes all sound when it is closed."""
        return WholeStream(self.speak)

    @torch.no_grad()
    def synthesize(
        self,
        texts: Sequence[str],
        drafter: Any = None,
        accept: str | Accept = "exact",
        seed: int | Sequence[int] = 0,
        *,
        voice: str | Sequence[str] | None = None,
        max_seconds: float | None = None,
        draft_length: int | str | Control = "auto",
        tree: Tree = None,
        on_sound: Callable[[int, Tensor], None] | None = None,
        on_step: Callable[[Step], None] | None = None,
        **sampling: Any,
    ) -> Speech:
        """As `mmspec.speech.synthesize`, which calls it. `tokens` are coarse ids, and `stats` count both stages."""
        clock = perf_counter()
        given = {{"samplers": "last"}.get(name, name): value for name, value in sampling.items() if value is not None}
        if given.get("guidance") not in (None, 1):
            raise ValueError("Bark has no unconditional prompts: leave guidance out")
        voices = one_voice_each(voice, texts, self.voices)
        staged = StagedRequest(drafter, accept, seed, draft_length, tree, on_step, given)
        prompt = self.encode(texts, voices)
        coarse = self.coarse(self.semantic(prompt, staged, max_seconds), voices, staged)
        seeds = [seed + row for row in range(len(texts))] if isinstance(seed, int) else list(seed)
        sizes = [len(ids) for ids in coarse]
        waves, first = decode_rows(sizes, lambda row: self.speak(coarse[row], voices[row], seeds[row]), clock, on_sound)
        lengths = torch.tensor(sizes)
        tokens = pad_sequence([torch.tensor(ids, dtype=torch.long) for ids in coarse], batch_first=True)
        nan, reasons = [float("nan")] * len(coarse), tuple(staged.finish_reasons)
        return Speech(tokens, lengths, staged.stats, waves, self.rate, first, nan, perf_counter() - clock, finish_reasons=reasons)


def _drafting(drafter: Any, target: HFTarget) -> HFTarget | None:
    """Return a smaller network of the same stage as a drafter's target, with the target's processors; None for other drafters."""
    if hasattr(drafter, "guide"):
        raise ValueError("Bark's stages have no output embedding to share with heads: draft with a smaller Bark, or with lookup")
    if not hasattr(drafter, "input_embeds_layer"):
        return None
    if drafter.config.output_vocab_size != target.model.config.output_vocab_size:
        sizes = drafter.config.output_vocab_size, target.model.config.output_vocab_size
        raise ValueError(f"the drafter's stage has {sizes[0]} values, the target's {sizes[1]}: take a Bark of the same ones")
    return replace(target, model=drafter, family=BarkFamily.of(drafter))
