"""VibeVoice as a family: a language model, a diffusion head for the latents of frames, and an encoder of generated sound.

A value is [1 + d]: which of four ids the language model chooses (by argmax, a point mass), and for a frame its latent, N(f(z, xi), sigma^2)
given the noise xi of its position. Before the next step a frame is decoded to sound and encoded again by two streaming networks. Their
states are kept for recent positions (`Hearing`), so that the state before a rejected frame is available.

For guidance the original model runs two more streams of the language model; here they are further rows of the batch. Both begin behind the
prompt. The second is the head's and is run on the columns that precede frames (`unprompted`). The third chooses ids and reads ids only,
without encoded frames: transformers guides scores in this way wherever a guidance scale is set.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.aligned import aligned
from mmspec.core.distributions.gaussian import Gaussian
from mmspec.core.noise import Noise
from mmspec.core.processors.history import History
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.records import Draft, Scored
from mmspec.models.compat.cache_name import cache_keyword
from mmspec.models.families.base import attention_mask, text_prompt
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache
from mmspec.models.target import HFSession, HFTarget
from mmspec.speech.latents.base import PLACE, Inputs, Scale
from mmspec.utils.devices import to_device

_RING = 64
"""Number of positions whose encoder states are kept, more than the columns of a round."""


@dataclass(frozen=True)
class Ids:
    """The four ids of a step, in ascending order as in the model's argmax, and the role of each."""

    all: tuple[int, ...]
    frame: int
    start: int
    end: int

    @staticmethod
    def of(config: Any) -> "Ids":
        """Return the ids named by a model's config."""
        every = sorted({config.audio_token_id, config.audio_bos_token_id, config.audio_eos_token_id, config.eos_token_id})
        return Ids(tuple(every), *(every.index(i) for i in (config.audio_token_id, config.audio_bos_token_id, config.eos_token_id)))


@dataclass(frozen=True)
class DenoisedLatent:
    """f(z, xi): the model's own denoising from noise of deviation `spread` with guidance, in the target's latents; `z` is both states."""

    model: Any
    scheduler: Any
    steps: int
    spread: float
    guidance: float
    scale: Scale
    rows = 1

    def __call__(self, z: Tensor, noise: Tensor) -> Tensor:
        """Return latents [..., d] for states `z` [..., 2 D] and standard normal `noise` [..., 1, d]."""
        dtype, scheduler = self.model.dtype, copy.deepcopy(self.scheduler)
        states = torch.cat(z.flatten(0, -2).to(dtype).chunk(2, -1))
        latent = (noise.flatten(0, -3)[:, 0] * self.spread).to(dtype)
        scheduler.set_timesteps(num_inference_steps=self.steps)
        for time in scheduler.timesteps:
            both = torch.cat([latent, latent])
            cond, uncond = self.model.model.diffusion_head(both, time.repeat(len(both)).to(both), condition=states).chunk(2)
            latent = scheduler.step(uncond + self.guidance * (cond - uncond), time, latent).prev_sample
        return self.scale.out(latent.float()).view(*z.shape[:-1], -1)


class Hearing:
    """Encodes generated frames. States after recent positions are kept, so that rejected frames need no rollback."""

    def __init__(self, model: Any, rows: int):
        self.net, self.dtype, self.row = model.model, model.dtype, torch.arange(rows, device=model.device)
        self.width = model.config.audio_config.hidden_size
        self.caches: tuple[Any, ...] = ()  # the decoder's and the encoder's, which hold one state a row
        self.rings: tuple[dict[str, Tensor], ...] = ()  # [_RING, B, C, pad] by layer: those of positions

    def __call__(self, latents: Tensor, frames: Tensor, place: Tensor, real: Tensor) -> Tensor | None:
        """Encode frames.

        Args:
            latents: [B, M, d].
            frames: bool [B, M], True where a column is a frame.
            place: LongTensor [B, M], positions, in ascending order in each row.
            real: bool [B, M], True where there is a column.

        Returns:
            Features [B, M, E]; None before the first frame.
        """
        if not self.caches:
            if not bool(frames.any()):
                return None
            self._open()
        return torch.stack([self._heard(*parts) for parts in zip(*(x.unbind(1) for x in (latents, frames, place, real)), strict=True)], 1)

    def _heard(self, latents: Tensor, frames: Tensor, place: Tensor, real: Tensor) -> Tensor:
        """Return features [B, E] of one column."""
        before, now = (place - 1) % _RING, place % _RING
        for cache, ring in zip(self.caches, self.rings, strict=True):
            for key, layer in cache.layers.items():
                layer.cache = ring[key][before, self.row]
        found = self._run(latents)
        for cache, ring in zip(self.caches, self.rings, strict=True):
            for key, layer in cache.layers.items():
                after = torch.where(frames[:, None, None], layer.cache, ring[key][before, self.row])
                ring[key][now, self.row] = torch.where(real[:, None, None], after, ring[key][now, self.row])
        return found

    def _run(self, latents: Tensor) -> Tensor:
        cache, other = self.caches or (None, None)
        scaled = latents.to(self.dtype) / self.net.latent_scaling_factor - self.net.latent_bias_factor
        sound = self.net.audio_tower.decode(scaled[:, None], padding_cache=cache, use_cache=True)
        heard = self.net.semantic_tokenizer_encoder(sound.audio, padding_cache=other, use_cache=True)
        self.caches = (sound.padding_cache, heard.padding_cache)
        return heard.latents[:, 0]

    def _open(self) -> None:
        """Set the states of all positions to those of silence."""
        self._run(torch.zeros(len(self.row), self.width, device=self.row.device))
        layers = [cache.layers for cache in self.caches]
        self.rings = tuple({key: layer.cache.new_zeros(_RING, *layer.cache.shape) for key, layer in each.items()} for each in layers)


@dataclass(frozen=True)
class Streams:
    """A target with `count` rows for each prompt; row b of stream s is row s B + b. The engine sees B rows."""

    target: HFTarget
    count: int

    def require_columns(self, prompt: Any) -> None:
        """Test whether values that are scored together get the distributions of plain decoding; see `HFTarget.require_columns`."""
        self.target.require_columns(prompt, lambda target: Streams(target, self.count))

    def begin(self, prompt: Any) -> tuple["StreamsSession", Draft]:
        """Open a session on `prompt`; see `Target.begin`."""
        session, pending = self.target.begin(prompt)
        rows = len(pending.start) // self.count
        return StreamsSession(session, self.count), Draft.root(pending.nodes[:rows, 0], pending.start[:rows])


class StreamsSession:
    """One generation; every stream scores the same draft."""

    def __init__(self, session: HFSession, count: int):
        self.session, self.count = session, count

    @property
    def scored(self) -> int:
        """Number of columns of the draft that have been scored."""
        return self.session.scored

    def score(self, draft: Draft) -> Scored:
        """Score the draft; see `TargetSession.score`."""
        nodes, parents, start = (torch.cat([part] * self.count) for part in (draft.nodes, draft.parents, draft.start))
        scored = self.session.score(replace(draft, nodes=nodes, parents=parents, start=start, q=None, drift=None, score=None))
        assert scored.healthy is not None
        return replace(scored, healthy=scored.healthy.view(self.count, -1).all(0))

    def commit(self, keep: Tensor, most: int) -> None:
        """Commit the kept columns; see `TargetSession.commit`."""
        self.session.commit(torch.cat([keep] * self.count), most)


@dataclass
class Session:
    """State of one generation: embedded prompts, the re-encoded frames and, for the further streams, the ids in each slot."""

    embeds: Tensor  # [R, P, D]
    hearing: Hearing
    said: Tensor  # [B, capacity] numbers in `Ids.all`


@dataclass(frozen=True)
class VibeVoiceFamily:
    """Family of `VibeVoiceForConditionalGeneration` for one call; `noise` is the head's input, `sigma` the deviation of the added noise.

    R rows are `streams` times B: three with guidance, else one.
    """

    sampler: DenoisedLatent
    sigma: float
    noise: Noise
    ids: Ids

    @property
    def streams(self) -> int:
        """Number of streams: three with guidance, else one."""
        return 1 if self.sampler.guidance == 1 else 3

    def prompt(self, model: Any, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Return values [R, P, 1 + d] of prompt positions, and the mask: outside the first stream only the last position is real."""
        ids, mask = text_prompt(inputs)
        place = PLACE + torch.arange(ids.shape[1] - 1, -1, -1, device=model.device, dtype=torch.float32)
        values = place[None, :, None].expand(self.streams * len(ids), -1, 1 + model.config.audio_config.hidden_size)
        mask, column = mask.to(model.device), torch.arange(ids.shape[1], device=model.device)
        last = column == torch.where(mask, column, 0).amax(1, keepdim=True)
        return values, torch.cat([mask] + [last] * (self.streams - 1))

    def begin(self, model: Any, inputs: Inputs, capacity: int) -> tuple[SlotCache, Session]:
        """Open the cache and the state of one generation; see the family protocol."""
        embedded, word = embed_vibevoice_prompt(model, inputs), model.get_input_embeddings()
        start = word(to_device(model.config.audio_bos_token_id, model.device)).expand_as(embedded)
        embeds = torch.cat([embedded, start, word(inputs["input_ids"].to(model.device))][: self.streams])
        said = torch.full((len(embedded), capacity), self.ids.start, device=model.device)
        return SlotCache(model.config.text_config.num_hidden_layers, capacity), Session(embeds, Hearing(model, len(embedded)), said)

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: Session, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, None]:
        """Return the last hidden states [R, keep, D]. Other hidden states are taken by hooks."""
        visible, positions = layout.visible, layout.positions
        if self.streams > 1:
            (first, _, third), (one, _, three) = visible.chunk(3), positions.chunk(3)
            seen, counted = self._unprompted(layout, cache, state)
            visible, positions = torch.cat([first, seen, third]), torch.cat([one, counted, three])
        hidden = model.model.language_model(
            inputs_embeds=self._embedded(model, layout, cache, state, keep),
            attention_mask=attention_mask(visible, model),
            position_ids=positions,
            **cache_keyword(model.model.language_model, cache),
            use_cache=True,
        ).last_hidden_state
        return hidden[:, -keep:], None

    def _embedded(self, model: Any, layout: Layout, cache: SlotCache, state: Session, keep: int) -> Tensor:
        """Return embeddings [R, M, D] of prompts, ids and frames; only the last `keep` columns may hold generated values."""
        net, rows = model.model, len(layout.ids) // self.streams
        place, said = layout.ids[..., 0] - PLACE, layout.ids[:rows, -keep:]
        prompt = (place >= 0)[..., None]
        index = (state.embeds.shape[1] - 1 - place).clamp(0, state.embeds.shape[1] - 1).long()
        embeds = state.embeds.gather(1, index[..., None].expand(*index.shape, state.embeds.shape[-1]))
        slots, number = layout.slots[:rows, -keep:], self._number(said[..., 0])
        real = slots < cache.capacity - 1
        frames = (number == self.ids.frame) & ~prompt[:rows, -keep:, 0] & real
        latents = torch.where(frames[..., None], self.sampler.scale.back(said[..., 1:]), 0.0)
        word = own = model.get_input_embeddings()(to_device(self.ids.all, number.device)[number])
        features = state.hearing(latents, frames, slots, real)
        if features is not None:
            heard = net.multi_modal_projector(latents.to(model.dtype)) + net.semantic_connector(features)
            own = torch.where(frames[..., None], heard, own)
        own = torch.where(prompt[:, -keep:], embeds[:, -keep:], torch.cat([own, own, word][: self.streams]))
        return torch.cat([embeds[:, :-keep], own], 1)

    def _number(self, said: Tensor) -> Tensor:
        """Return the number of the id; meaningless at prompt positions, where it is not used."""
        return torch.where(said >= PLACE, self.ids.start, said).round().clamp(0, len(self.ids.all) - 1).long()

    def _unprompted(self, layout: Layout, cache: SlotCache, state: Session) -> tuple[Tensor, Tensor]:
        """Return the slots that the columns of the second stream attend to, bool [B, M, S], and their positions [B, M].

        The original model runs that stream on the columns before a frame, and restarts it at every start of sound. So a column attends to
        itself and, from the last start on, to all columns that preceded a frame.
        """
        visible, slots, said = (part.chunk(3)[1] for part in (layout.visible, layout.slots, layout.ids[..., 0]))
        more, view = cache.capacity - state.said.shape[1], visible.shape[-1]
        if more > 0:
            state.said = torch.cat([state.said, state.said.new_zeros(len(slots), more)], 1)
        state.said.scatter_(1, slots, self._number(said))
        slot = torch.arange(view, device=slots.device)
        started = torch.where(state.said[:, :view] == self.ids.start, slot, 0).cummax(1).values
        first = started.gather(1, slots.clamp(max=view - 1))[..., None]
        framed = (state.said[:, 1 : view + 1] == self.ids.frame)[:, None]
        seen = (slot == slots[..., None]) | (visible & framed & (slot >= first))
        counted, real = seen.sum(-1) - 1, slots < cache.capacity - 1
        return torch.where(real[..., None], seen, visible), torch.where(real, counted, 0)

    def distribution(self, raw: Tensor, history: History, processors: Pipeline) -> Gaussian:
        """Return the distributions of B rows from the states [R, N, D] of all streams."""
        model, sampler, width = self.sampler.model, self.sampler, self.sampler.model.config.audio_config.hidden_size
        states = raw.chunk(self.streams)
        scores = [model.lm_head(part.to(model.dtype))[..., list(self.ids.all)].float() for part in (states[0], states[-1])]
        number = (scores[1] + sampler.guidance * (scores[0] - scores[1])).argmax(-1, keepdim=True)
        z, keys = torch.cat([states[0], states[self.streams // 2]], -1), self.noise.aligned(history.position[: len(number)])
        if self.sigma > 0:
            mean = aligned(z, sampler, self.sigma, keys, width).mean
        else:
            mean = sampler(z, keys.branch(sampler.rows).normal(width).to(z.dtype))
        mean = torch.where(number == self.ids.frame, mean, 0.0)
        scale = torch.cat([torch.zeros_like(mean[..., :1]), torch.full_like(mean, self.sigma)], -1)
        return Gaussian(torch.cat([number.to(mean), mean], -1), scale)


def embed_vibevoice_prompt(model: Any, inputs: Inputs) -> Tensor:
    """Return embeddings [B, P, D] of prompts, equal to those of the model's own forward except for the random noise on voices."""
    net, ids = model.model, inputs["input_ids"].to(model.device)
    embeds = model.get_input_embeddings()(ids)
    if inputs.get("input_values") is None:
        return embeds
    voices = net.get_audio_features(inputs["input_values"].to(model.device), inputs["padding_mask"].to(model.device), sample=False)
    given = voices.pooler_output.to(embeds)
    return embeds.masked_scatter(net.get_placeholder_mask(ids, embeds, given), given)
