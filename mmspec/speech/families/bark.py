"""Bark (Suno 2023): text to semantic tokens, these to the codes of two books, one after the other, and those to eight books and sound.

The first two stages are language models and are sped up here, each as an ordinary problem of tokens. The coarse stage writes in windows:
after 60 ids it begins anew behind the last 630, so every window is a problem of its own, with a prompt of its own. The fine stage hears
codes on both sides and runs in a few passes, by the class itself, and so does the codec: all sound comes at the end.
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
from mmspec.core.noise import Noise, mix
from mmspec.core.processors.pipeline import Pipeline, Processor
from mmspec.core.records import Step
from mmspec.core.rules.base import Accept
from mmspec.core.stats import Stats
from mmspec.core.stopping import DefaultStopping
from mmspec.models.family import Family
from mmspec.models.target import HFTarget
from mmspec.run.request import Request
from mmspec.run.shapes import Tree
from mmspec.speech.codecs.streams import WholeStream
from mmspec.speech.families.bark_network import BarkFamily, BarkPrompt, EndOnceLikely, ragged
from mmspec.speech.families.base import SpeechModel, SpeechSampling, one_voice_each
from mmspec.speech.sampling.codebook_order import InterleavedCodebooks
from mmspec.speech.sound.speech import Speech

Voice = Mapping[str, Tensor]
"""A voice preset: semantic_prompt [S], coarse_prompt [2, T] and fine_prompt [8, T], as `BarkProcessor` loads them."""


@dataclass
class StagedRequest:
    """How a call wants its stages written, and what they cost."""

    drafter: Any = None
    accept: str | Accept = "exact"
    seed: int | Sequence[int] = 0
    draft_length: int | str | Control = "auto"
    tree: Tree = None
    on_step: Callable[[Step], None] | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)  # what differs from each stage's own
    stats: Stats = field(default_factory=Stats)

    def drafting(self, stage: str) -> Any:
        """What drafts for a stage: its network of a smaller Bark, its entry of a dict, or one thing for both."""
        if isinstance(self.drafter, Bark):
            return self.drafter.network(stage)
        return self.drafter.get(stage) if isinstance(self.drafter, Mapping) else self.drafter

    def request(self, stage: str, drawn: SpeechSampling) -> Request:
        """What is asked of a stage whose distributions are formed by `drawn`."""
        return Request.of(
            drafter=self.drafting(stage), accept=self.accept, draft_length=self.draft_length, tree=self.form(stage), seed=self.seed,
            temperature=drawn.temperature, top_k=drawn.top_k, top_p=drawn.top_p, repetition_penalty=drawn.repetition_penalty,
        )  # fmt: skip

    def form(self, stage: str) -> Tree:
        """The tree of a stage's draft tokens: none in a stage that a dict of drafters leaves out."""
        return None if isinstance(self.drafter, Mapping) and self.drafter.get(stage) is None else self.tree


class Bark(SpeechModel):
    """A `BarkModel` and its tokenizer; `presets` are voices by name. `min_eos_p` ends the semantic stage once its end is that likely.

    `synthesize` of `mmspec.speech` takes it. A drafter is "lookup" and its kin, a smaller `Bark`, or a dict of one for "semantic" and
    one for "coarse"; either may be left out. Both stages are token-exact beside the class's own.
    """

    def __init__(self, model: Any, tokenizer: Any = None, presets: Mapping[str, Voice] | None = None, min_eos_p: float | None = None):
        self.model, self.tokenizer, self.presets, self.min_eos_p = model.eval(), tokenizer, dict(presets or {}), min_eos_p
        self.voices = tuple(self.presets)
        own = model.generation_config
        kinds = (BarkSemanticGenerationConfig, BarkCoarseGenerationConfig, BarkFineGenerationConfig)
        names = ("semantic_config", "coarse_acoustics_config", "fine_acoustics_config")
        if not all(hasattr(own, name) for name in names):
            raise ValueError(
                "generation_config is not Bark's: load the model with BarkModel.from_pretrained, or set a BarkGenerationConfig"
            )
        self.first, self.second, self.third = (_config(kind, getattr(own, name)) for kind, name in zip(kinds, names, strict=True))
        self.size, self.rate = own.codebook_size, own.sample_rate
        self.ratio = self.second.coarse_rate_hz / self.first.semantic_rate_hz * self.second.n_coarse_codebooks  # coarse ids a semantic one
        self.pace = float(self.second.coarse_rate_hz * self.second.n_coarse_codebooks)
        self.sampling = _sampling(self.first)

    def network(self, stage: str) -> Any:
        return self.model.semantic if stage == "semantic" else self.model.coarse_acoustics

    def encode(self, texts: Sequence[str], voices: Sequence[str | None]) -> BarkPrompt:
        """The semantic stage's prompts. ValueError for a text that is empty or too long: the class would cut it."""
        if self.tokenizer is None:
            raise ValueError("texts need a tokenizer: make Bark with the one that came with the model")
        if isinstance(texts, str) or not texts:
            raise ValueError(f"texts is {texts!r}: give a list of texts, one an utterance")
        most, rows = self.first.max_input_semantic_length, []
        for text in texts:
            if not isinstance(text, str) or not text.strip():
                raise ValueError(f"text {text!r} is empty: give some words to say")
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            if len(ids) > most:
                raise ValueError(f"text {text[:37]!r}... is too long: {len(ids)} ids where the model takes {most}; cut it into sentences")
            rows.append(ids + [-1] * (most - len(ids)))
        return self.semantic_prompt(torch.tensor(rows), voices)

    def semantic_prompt(self, ids: Tensor, voices: Sequence[str | None]) -> BarkPrompt:
        """From the tokenizer's ids [B, <= 256], -1 where there are none: text and the voice's tokens, one upon the other."""
        most, pad = self.first.max_input_semantic_length, self.first.semantic_pad_token
        ids = F.pad(ids, (0, most - ids.shape[1]), value=-1).to(self.model.device)
        words = torch.where(ids >= 0, ids + self.first.text_encoding_offset, self.first.text_pad_token)
        beside = words.new_full(words.shape, pad)
        for row, voice in enumerate(voices):
            if voice is not None:
                told = self.presets[voice]["semantic_prompt"][-most:]
                beside[row, : len(told)] = told.to(beside)
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

    def semantic(self, prompt: BarkPrompt, asked: StagedRequest, seconds: float | None = None) -> list[list[int]]:
        """Semantic tokens of every row, the end left out."""
        most = min(self.first.max_new_tokens or 768, self.model.semantic.config.block_size - prompt.ids.shape[1] + 1)
        if seconds is not None:
            most = min(most, max(1, int(seconds * self.first.semantic_rate_hz)))
        noise = Noise.from_seed(asked.seed, len(prompt.ids), self.model.device)
        rows = self._write("semantic", prompt, self.rules(prompt), [most] * len(prompt.ids), self.ends, noise, asked)
        return [[token for token in row if token != self.ends[0]] for row in rows]

    def coarse(self, semantic: Sequence[list[int]], voices: Sequence[str | None], asked: StagedRequest) -> list[list[int]]:
        """Ids of the two books of every row, one after the other, as the class's coarse model gives them."""
        window, start = self.second.sliding_window_len, self.first.semantic_vocab_size
        lengths = [floor(len(row) * self.ratio / self.second.n_coarse_codebooks) * self.second.n_coarse_codebooks for row in semantic]
        told = [self._history(voice) for voice in voices]
        written: list[list[int]] = [[] for _ in semantic]
        rules = (
            InterleavedCodebooks(((start, start + self.size), (start + self.size, self.model.coarse_acoustics.config.output_vocab_size))),
        )
        seeds = mix(Noise.from_seed(asked.seed, len(semantic), self.model.device).seeds)
        for number, done in enumerate(range(0, max(lengths, default=0), window)):
            open_ = [row for row, length in enumerate(lengths) if length > done]
            prompts = [self._window(told[row], semantic[row], written[row]) for row in open_]
            noise = Noise(mix(seeds[open_] + number + 1))  # every window draws afresh
            budget = [min(window, lengths[row] - done) for row in open_]
            found = self._write("coarse", ragged(prompts, self.model.device), rules, budget, (), noise, asked)
            for row, ids in zip(open_, found, strict=True):
                written[row] += ids
        return written

    def _history(self, voice: str | None) -> tuple[list[int], list[int]]:
        """The voice's semantic tokens and coarse ids, by the class's own trimming."""
        if voice is None:
            return [], []
        parts = self.model.coarse_acoustics.preprocess_histories(
            self.second.max_coarse_history, self.ratio, 1, self.first, self.size, self.presets[voice]
        )
        return parts[0][0].tolist(), parts[1][0].tolist()

    def _window(self, told: tuple[list[int], list[int]], semantic: list[int], written: list[int]) -> list[int]:
        """A window's prompt: semantic tokens from a little before what it is to say, a mark, and the last ids written."""
        most, before = self.second.max_coarse_input_length, floor(self.second.max_coarse_history / self.ratio)
        now = len(told[0]) + round(len(written) / self.ratio)
        meant = (told[0] + semantic)[max(0, now - before) :][:most]
        meant += [self.second.coarse_semantic_pad_token] * (most - len(meant))
        return [*meant, self.second.coarse_infer_token, *(told[1] + written)[-self.second.max_coarse_history :]]

    def _write(
        self,
        stage: str,
        prompt: BarkPrompt,
        rules: tuple[Processor, ...],
        budget: list[int],
        ends: Sequence[int],
        noise: Noise,
        asked: StagedRequest,
    ) -> list[list[int]]:
        """One problem of tokens: what every row writes, at most `budget` each."""
        net, drawn = self.network(stage), replace(_sampling(self.first if stage == "semantic" else self.second), **asked.sampling)
        request = asked.request(stage, drawn)
        rule = request.rule()
        distributions = Pipeline((*request.distributions(rule, rules).steps, *drawn.last))
        target = HFTarget(net, BarkFamily.of(net), distributions, reserve=max(budget) + 32)
        resolved = request.resolve(target, rule, lambda drafter: _drafting(drafter, target))
        stopping = DefaultStopping(len(budget), max(budget), ends, device=self.model.device)
        stopping.left, stopping.remaining = torch.tensor(budget, device=self.model.device), list(budget)
        asked.stats.exactness = rule.exactness
        counted = {"stats": asked.stats, "on_step": asked.on_step}
        for _ in run(target, resolved.drafter, rule, prompt, stopping=stopping, noise=noise, control=resolved.control, **counted):
            pass
        return stopping.outputs

    @torch.no_grad()
    def speak(self, coarse: Sequence[int], voice: str | None = None, seed: int = 0) -> Tensor:
        """The wave [S] of one row's coarse ids: the class's fine stage, whose draws, where it draws, are those of `seed`; its codec."""
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
        """Sound from coarse ids, all of it at the end."""
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
        """As `mmspec.speech.synthesize`, which calls it; `tokens` are coarse ids, and `stats` count both stages."""
        clock = perf_counter()
        given = {{"samplers": "last"}.get(name, name): value for name, value in sampling.items() if value is not None}
        if given.get("guidance") not in (None, 1):
            raise ValueError("Bark has no unconditional prompts: leave guidance out")
        if max_seconds is not None and not max_seconds > 0:
            raise ValueError(f"max_seconds is {max_seconds}: ask for more than none")
        voices = one_voice_each(voice, texts, self.voices)
        asked = StagedRequest(drafter, accept, seed, draft_length, tree, on_step, given)
        prompt = self.encode(texts, voices)
        coarse = self.coarse(self.semantic(prompt, asked, max_seconds), voices, asked)
        seeds = [seed + row for row in range(len(texts))] if isinstance(seed, int) else list(seed)
        waves, first = [], []
        for row, ids in enumerate(coarse):
            waves.append(self.speak(ids, voices[row], seeds[row]))
            first.append(perf_counter() - clock if len(waves[-1]) else float("nan"))
            if on_sound is not None and len(waves[-1]):
                on_sound(row, waves[-1])
        lengths = torch.tensor([len(ids) for ids in coarse])
        tokens = pad_sequence([torch.tensor(ids, dtype=torch.long) for ids in coarse], batch_first=True)
        nan = [float("nan")] * len(coarse)
        return Speech(tokens, lengths, asked.stats, waves, self.rate, first, nan, perf_counter() - clock)


def _config(kind: Any, found: Any) -> Any:
    return found if isinstance(found, kind) else kind(**found)


def _sampling(config: Any) -> SpeechSampling:
    """A stage's own settings: greedy unless its generation config samples."""
    return SpeechSampling(config.temperature if config.do_sample else 0.0, config.top_k if config.do_sample else None, config.top_p)


def _drafting(drafter: Any, target: HFTarget) -> HFTarget | None:
    """A smaller network of the same stage as a target that drafts behind the target's own rules; None for other drafters."""
    if hasattr(drafter, "guide"):
        raise ValueError("Bark's stages have no output embedding to share with heads: draft with a smaller Bark, or with lookup")
    if not hasattr(drafter, "input_embeds_layer"):
        return None
    if drafter.config.output_vocab_size != target.model.config.output_vocab_size:
        sizes = drafter.config.output_vocab_size, target.model.config.output_vocab_size
        raise ValueError(f"the drafter's stage has {sizes[0]} values, the target's {sizes[1]}: take a Bark of the same ones")
    return replace(target, model=drafter, family=BarkFamily.of(drafter))
