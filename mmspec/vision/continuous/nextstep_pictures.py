"""NextStep-1 as `mmspec.vision.generate` draws with it: prompts, grid, guidance, and the family of its tokens."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from PIL import Image
from torch import Tensor

from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache
from mmspec.vision.continuous.flow_schedule import FlowSchedule
from mmspec.vision.continuous.latents import LatentRequest, Latents, Sampling, tokens_of
from mmspec.vision.continuous.methods import ContinuousPictures
from mmspec.vision.continuous.nextstep import NextStep, place_embeddings
from mmspec.vision.families.base import Size, cells_of, texts_of
from mmspec.vision.families.tokens import Tokens, one_each, states

IMAGE_AREA = "<|image_area|>"
SCALE = 8
"""Pixels a side of one latent of the published autoencoder."""


class NextStepPictures(ContinuousPictures):
    """A NextStep-1 model, its tokenizer and its autoencoder.

    Args:
        model: the network.
        tokenizer: of its prompts.
        to_pictures: maps latents [B, channels, h, w] to PIL pictures; without it only tokens are available.
        size: pixels a side, or (height, width), multiples of 16.
        negative: the text that guidance leads away from, one, or one a prompt.
        normalised: every token is normalised over its numbers before it is read and decoded, as the released example does
            (`use_norm=True`).
        drafter: a smaller `NextStep` of the same tokens and vocabulary.
    """

    shared = ("channels", "head", "vocab_size")

    def __init__(
        self,
        model: NextStep,
        tokenizer: Any,
        to_pictures: Callable[[Tensor], list[Image.Image]] | None = None,
        *,
        size: Size = 256,
        negative: str | Sequence[str] = "",
        normalised: bool = True,
        drafter: NextStep | None = None,
    ):
        network: Any = model
        super().__init__(network, to_pictures, drafter=drafter)  # pyright: ignore[reportArgumentType]
        self.tokenizer, self.negative, self.normalised = tokenizer, negative, normalised
        self.grid = cells_of(size, SCALE * network.config.latent_patch_size, "NextStep-1")
        _check_places(network.config, self.grid)

    @property
    def head(self) -> str:
        """Kind of the model's head: "diffusion"."""
        return "diffusion"

    @property
    def method(self) -> str:
        """Default method: "chain", which needs neither a drafter nor noise on the token."""
        return "chain"

    @property
    def cells(self) -> int:
        """Tokens of a picture."""
        return self.grid[0] * self.grid[1]

    def resized(self, size: Size) -> "NextStepPictures":
        """Return this model for pictures of another size, multiples of 16 pixels."""
        found = copy.copy(self)
        found.grid = cells_of(size, SCALE * found.model.config.latent_patch_size, "NextStep-1")  # type: ignore[attr-defined]
        _check_places(found.model.config, found.grid)
        return found

    def guided_from(self, negative: str | Sequence[str]) -> "NextStepPictures":
        """Return this model with another text that guidance leads away from."""
        found = copy.copy(self)
        found.negative = negative
        return found

    def encode(self, prompts: Sequence[Any], guided: bool) -> Tokens:
        """Encode texts: the caption, the picture's rows and columns, and the token that begins a picture.

        Args:
            prompts: texts.
            guided: append the unconditional prompts, with `negative` in place of the caption.

        Returns:
            Ids [R, P], padded on the right, and their mask [R, P] bool.
        """
        texts = texts_of(prompts)
        texts = texts + (one_each(self.negative, len(texts)) if guided else [])
        area = self.tokenizer(f"{IMAGE_AREA}{self.grid[0]}*{self.grid[1]}", add_special_tokens=False)["input_ids"]
        config: Any = self.model.config
        lines = [[*self.tokenizer(text)["input_ids"], *area, config.boi] for text in texts]
        most, device = max(len(line) for line in lines), self.model.device
        ids = torch.tensor([line + [0] * (most - len(line)) for line in lines], device=device)
        mask = torch.tensor([[True] * len(line) + [False] * (most - len(line)) for line in lines], device=device)
        return ids, mask

    def family(self, network: Any, request: LatentRequest, sampling: Sampling) -> Latents:
        """Return the family that runs `network`, this model's or its drafter's, in one generation."""
        if not isinstance(sampling.filled(network.config).schedule, FlowSchedule):
            raise ValueError("schedule is not NextStep-1's: give a FlowSchedule of mmspec.vision.continuous.flow_schedule, or leave it out")
        return NextStepLatents(network, request, sampling, self.grid, self.normalised)

    def picture(self, sequences: Tensor) -> Tensor:
        """Arrange the head's tokens [B, h * w, d] as pictures [B, h, w, d], normalised where the model's are."""
        return normed(sequences, self.normalised).unflatten(1, self.grid)

    def decode(self, tokens: Tensor) -> list[Image.Image]:
        """Decode tokens [B, h, w, d] to PIL pictures. ValueError if there is no decoder."""
        if self.to_pictures is None:
            raise ValueError("this model has no decoder: load it with decoder=, the folder of its autoencoder")
        patch = self.model.config.latent_patch_size  # type: ignore[attr-defined]
        return self.to_pictures(rearrange(tokens, "b h w (c p q) -> b c (h p) (w q)", p=patch, q=patch))


class NextStepLatents(Latents):
    """Family of one NextStep-1 network in one generation.

    Args:
        model: the network.
        request: settings of the generation.
        sampling: of the head.
        grid: rows and columns of tokens.
        normalised: tokens are normalised before they are read.
    """

    def __init__(self, model: Any, request: LatentRequest, sampling: Sampling, grid: tuple[int, int], normalised: bool):
        super().__init__(model, request, sampling)
        self.normalised, self.places = normalised, None
        if model.config.use_gen_pos_embed:
            table = place_embeddings(model.config.hidden_size, model.config.base_image_grid_size)
            self.places = table[: grid[0], : grid[1]].flatten(0, 1).to(model.device)

    def prompt(self, model: Any, inputs: Tokens) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Return empty values [R, P, ...] for the positions of the prompt, and the mask."""
        ids, mask = inputs
        return torch.zeros(*ids.shape, *self.value, dtype=torch.float32, device=ids.device), mask

    def begin(self, model: Any, inputs: Tokens, capacity: int) -> tuple[SlotCache, Tokens]:  # type: ignore[override]
        """Open the cache, and embed the prompts: embeddings [R, P, D] and lengths [R, 1]."""
        network: Any = self.model
        ids, mask = inputs
        return SlotCache(network.config.num_hidden_layers, capacity), (network.embed_tokens(ids), mask.sum(1, keepdim=True))

    def forward(  # type: ignore[override]
        self, model: Any, layout: Layout, cache: SlotCache, state: Tokens, keep: int, states_: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Return the head's conditioning [R, keep, D] of the last `keep` columns, float32."""
        network: Any = self.model
        words, lengths = state
        embeds = self.token_embeddings(tokens_of(layout.ids, self.width), layout.positions)
        if layout.opening:
            place = layout.positions.clamp(max=words.shape[1] - 1)
            given = words.gather(1, place[..., None].expand(-1, -1, words.shape[-1]))
            embeds = torch.where((layout.positions < lengths)[..., None], given, embeds)
        hidden = states(network, embeds, layout, cache)[:, -keep:]
        return self.conditioning(hidden, layout.positions[:, -keep:] + 1 - lengths), None

    def token_embeddings(self, tokens: Tensor, cells: Tensor) -> Tensor:
        """Return the backbone's inputs [R, M, D] of tokens [R, M, d]."""
        network: Any = self.model
        return network.image_in_projector(normed(tokens, self.normalised).to(network.image_in_projector.weight.dtype))

    def conditioning(self, hidden: Tensor, cells: Tensor) -> Tensor:
        """Return the head's conditioning [R, M, D], float32, of last hidden states that predict the tokens at `cells` [R, M]."""
        network: Any = self.model
        if self.places is not None:
            hidden = hidden + self.places[cells.clamp(0, len(self.places) - 1)].to(hidden.dtype)
        return network.image_out_projector(hidden).float()


def normed(tokens: Tensor, normalised: bool) -> Tensor:
    """Return tokens [..., d], normalised over their numbers if asked."""
    return F.layer_norm(tokens, tokens.shape[-1:], eps=1e-6) if normalised else tokens


def _check_places(config: Any, grid: tuple[int, int]) -> None:
    """Raise ValueError for a grid larger than the table of places."""
    if config.use_gen_pos_embed and max(grid) > config.base_image_grid_size:
        raise ValueError(f"size is {grid[0]} x {grid[1]} tokens: this model has places for {config.base_image_grid_size} a side")
