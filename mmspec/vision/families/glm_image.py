"""GLM-Image (2026): an autoregressive model writes a small preview, then the picture, in codes that condition a diffusion model."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from mmspec.core.processors.raster import Raster
from mmspec.models.families.base import refuse_unsupported
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache
from mmspec.vision.families.base import ImageModel, Size, cells_of, decoded
from mmspec.vision.families.prompts import ImagePrompt, Prompt
from mmspec.vision.families.tokens import Vocabulary, content_of, prompt_tokens, states, tokens_on

PIXELS = 32
"""A code's side in the picture; a preview has about (PIXELS / 2)^2 codes, whatever the picture's size."""


class GlmImage(ImageModel):
    """A `GlmImageForConditionalGeneration`, and its processor for prompts that are texts or `ImagePrompt`s (image to image).

    `to_pictures` makes PIL pictures of codes [B, height, width]: a `DiffusionStage`, or a function that calls diffusers'
    `GlmImagePipeline` with the same prompts and with `prior_token_ids=prior_tokens(codes)`. Guidance is the pipeline's affair too.
    `size` is in pixels; `preview` the rows and columns of the preview, by default the published ones. Prompts with images have none.
    """

    def __init__(
        self,
        model: Any,
        processor: Any = None,
        to_pictures: Callable[[Tensor], list[Image.Image]] | None = None,
        size: Size = (1152, 768),
        preview: tuple[int, int] | None = None,
    ):
        self.model, self.processor, self.to_pictures = model, processor, to_pictures
        self.decoder = model.model.language_model
        refuse_unsupported(self.decoder)
        config = model.config
        self.layers, self.codes = config.text_config.num_hidden_layers, config.vq_config.num_embeddings
        self.codebook = F.normalize(model.model.vqmodel.quantize.embedding.weight.detach(), dim=-1)
        self.vocabulary = Vocabulary(torch.tensor([*range(self.codes), config.image_end_token_id], device=model.device))
        self._resize(size, preview)

    def _resize(self, size: Size, preview: tuple[int, int] | None) -> None:
        height, width = cells_of(size, PIXELS, "GLM-Image")
        ratio = height / width
        self.preview = preview or (int(ratio**0.5 * (PIXELS // 2)), int((1 / ratio) ** 0.5 * (PIXELS // 2)))
        self._write((self.preview, (height, width)))

    def _write(self, grids: Sequence[tuple[int, int]]) -> None:
        """Set the grids that are written, in turn; the last one is the picture's."""
        self.grids = tuple(grids)
        self.raster = Raster.grid(*self.grids[-1], self.codes, tail=(self.codes,))
        for grid in self.grids[-2::-1]:
            self.raster = self.raster.behind(Raster.grid(*grid, self.codes))

    def may_draw(self, token: int) -> bool:
        """Return whether a token is a code: these are the first ids; see `ImageModel.may_draw`."""
        return token < self.codes

    def resized(self, size: Size) -> "GlmImage":
        """Resize a picture to the input size of the tokenizer; see `ImageModel.resized`."""
        other = copy(self)
        other._resize(size, None)
        return other

    def prepared(self, prompts: Any) -> "GlmImage":
        """Without the preview for prompts that hold images, and with the prompts for the diffusion stage; see `ImageModel.prepared`."""
        other = copy(self)
        if _with_images(prompts):
            other._write(self.grids[-1:])
        if isinstance(self.to_pictures, DiffusionStage) and not isinstance(prompts, Mapping | str):
            other.to_pictures = replace(self.to_pictures, prompts=tuple(prompts))
        return other

    @torch.no_grad()
    def encode(self, prompts: Sequence[str | ImagePrompt] | Mapping[str, Tensor], guided: bool) -> Prompt:
        """Texts, or what the processor returned for them; with images only on the adapter that `prepared` returns."""
        if guided:
            raise ValueError("GLM-Image is guided in its diffusion stage, not here: leave guidance out, give it to the pipeline instead")
        inputs = prompt_tokens(prompts, self._tokenize if self.processor is not None else None, "GLM-Image", images=True)
        ids, mask = tokens_on(inputs, self.model.device)
        grids = self._sources(inputs, len(ids))
        ids = self._with_codes(ids, inputs, [grid for row in grids for grid in row])
        places = [self._places(line[real], row) for line, real, row in zip(ids, mask, grids, strict=True)]
        longest = max(line.shape[1] for line in places)
        extra = torch.stack([F.pad(line, (0, longest - line.shape[1])) for line in places])
        return Prompt.of(self.decoder.embed_tokens(ids), mask, extra=extra)

    def _tokenize(self, prompts: list[Any]) -> Mapping[str, Any]:
        said = [[{"role": "user", "content": content_of(prompt)}] for prompt in prompts]
        size = {"target_h": self.raster.height * PIXELS, "target_w": self.raster.width * PIXELS}
        options = {"tokenize": True, "padding": True, "return_dict": True, "return_tensors": "pt"}
        return self.processor.apply_chat_template(said, **options, **size)

    def _sources(self, inputs: Mapping[str, Any], rows: int) -> list[list[tuple[int, int]]]:
        """The grids of the images in each prompt. ValueError unless the prompts ask for the grids that are written.

        `image_grid_thw` lists the images of a prompt, then its picture, then its preview.
        """
        asked = [(int(height), int(width)) for _, height, width in torch.as_tensor(inputs.get("image_grid_thw", [])).tolist()]
        if not asked:
            return [[] for _ in range(rows)]
        if len(asked) % rows:
            raise ValueError(f"{len(asked)} grids in image_grid_thw for {rows} prompts: every prompt holds the same number of images")
        each, own = len(asked) // rows, list(self.grids[::-1])
        found = [asked[row * each : (row + 1) * each] for row in range(rows)]
        for grids in found:
            if grids[-len(own) :] != own:
                raise ValueError(
                    f"the prompts ask for grids {grids}, but this adapter makes {own} a prompt: use resized, or the same target size"
                )
        return [grids[: -len(own)] for grids in found]

    def _with_codes(self, ids: Tensor, inputs: Mapping[str, Any], grids: list[tuple[int, int]]) -> Tensor:
        """`ids` with the codes of the images in place of their placeholders."""
        features = (inputs.get("mm_encoder_outputs") or {}).get("image")
        if features is None and inputs.get("pixel_values") is None:
            return ids
        if features is None:
            thw = torch.tensor([(1, *grid) for grid in grids], device=self.model.device)
            features = self.model.get_image_features(inputs["pixel_values"].to(self.model.device), thw, return_dict=True)
        codes = self.model.get_image_tokens(features.pooler_output).flatten().to(ids.device)
        return ids.masked_scatter(self.model.model.get_placeholder_mask(ids, codes), codes)

    def _places(self, ids: Tensor, sources: Sequence[tuple[int, int]]) -> Tensor:
        """Time, row and column [3, P + T] of the logical positions of one row: equal in its text `ids` [P], apart within grids.

        The class itself keeps this table on the module, where it is the last caller's.
        """
        config, device = self.model.config, ids.device
        begins = (torch.nonzero(ids == config.image_start_token_id)[:, 0] + 1).tolist()
        ends = torch.nonzero(ids == config.image_end_token_id)[:, 0].tolist()
        parts, place, done = [], 0, 0
        for begin, end, grid in zip(begins, ends, sources, strict=False):  # the last begin is the picture's
            parts += [_line(place, begin - done, device), _cells(grid, place + begin - done, device)]
            place, done = place + begin - done + max(grid), end
        parts.append(_line(place, len(ids) - done, device))
        place += len(ids) - done
        for grid in self.grids:
            parts.append(_cells(grid, place, device))
            place += max(grid)
        return torch.cat([*parts, _line(place, 1, device)], 1)

    def embed(self, values: Tensor) -> Tensor:
        """Return embeddings [B, M, H] of ids; see `ImageModel.embed`."""
        return self.decoder.embed_tokens(self.vocabulary.tokens(values))

    def hidden(self, embeds: Tensor, layout: Layout, cache: SlotCache, prompt: Prompt) -> Tensor:
        """Run the backbone and return hidden states [B, M, H]; see `ImageModel.hidden`."""
        assert prompt.extra is not None
        places = prompt.extra.gather(2, layout.positions[:, None].expand(-1, 3, -1))
        return states(self.decoder, embeds, layout, cache, places.transpose(0, 1))

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [B, M, V] over the codes of the picture; see `ImageModel.logits`."""
        return self.vocabulary.logits(hidden, self.model.lm_head.weight)

    def decode(self, codes: Tensor) -> list[Image.Image]:
        """Decode codes to pixels; see `ImageModel.decode`."""
        return decoded(self.to_pictures, codes, "GLM-Image")

    def decode_row(self, codes: Tensor, row: int) -> Image.Image:
        """Decode one picture by its own prompt; see `ImageModel.decode_row`."""
        stage = self.to_pictures
        if isinstance(stage, DiffusionStage):
            stage = replace(stage, prompts=stage.prompts[row : row + 1])
        return decoded(stage, codes[row : row + 1], "GLM-Image")[0]


def prior_tokens(codes: Tensor) -> Tensor:
    """What the diffusion stage takes: every code twice as high and wide, in raster order. [B, H, W] -> [B, 4 H W]"""
    return codes.repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(1)


@dataclass(frozen=True)
class DiffusionStage:
    """Pictures of codes by the diffusion stage of diffusers' `GlmImagePipeline`. Its noise is a function of the codes.

    Args:
        pipeline: the pipeline.
        prompts: one a picture, texts or `ImagePrompt`s; `generate` fills them in.
        options: of the pipeline's call: guidance_scale, num_inference_steps, ...
    """

    pipeline: Any
    prompts: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, codes: Tensor) -> list[Image.Image]:
        """Decode codes [B, height, width] picture by picture. ValueError without a prompt for each."""
        if len(self.prompts) != len(codes):
            raise ValueError(f"{len(codes)} pictures and {len(self.prompts)} prompts for the diffusion stage: give the prompts as texts")
        return [self._picture(prompt, each) for prompt, each in zip(self.prompts, codes, strict=True)]

    def _picture(self, prompt: Any, codes: Tensor) -> Image.Image:
        seed = int.from_bytes(sha256(codes.cpu().numpy().tobytes()).digest()[:7], "big")
        given: dict[str, Any] = {"height": codes.shape[0] * PIXELS, "width": codes.shape[1] * PIXELS}
        given |= {"prior_token_ids": prior_tokens(codes[None]), "generator": torch.Generator().manual_seed(seed)}
        text, images = (prompt.text, prompt.images) if isinstance(prompt, ImagePrompt) else (prompt, ())
        if images:
            given |= self._sources(images)
        return self.pipeline(text, **given, **self.options).images[0]

    @torch.no_grad()
    def _sources(self, images: Sequence[Image.Image]) -> dict[str, Any]:
        """The images of a prompt as the pipeline takes them beside codes: their own codes, and their grids."""
        model = self.pipeline.vision_language_encoder
        read = self.pipeline.processor.image_processor(images=list(images), return_tensors="pt")
        grids = read["image_grid_thw"].to(model.device)
        features = model.get_image_features(read["pixel_values"].to(model.device), grids, return_dict=True).pooler_output
        codes = model.get_image_tokens(features).split(grids.prod(1).tolist())
        found = [prior_tokens(each.view(1, *grid[1:].tolist()))[0] for each, grid in zip(codes, grids, strict=True)]
        twice = grids * torch.tensor([1, 2, 2], device=grids.device)
        sizes = [(PIXELS * width, PIXELS * height) for _, height, width in grids.tolist()]
        # the pipeline cuts sides to whole codes where the processor rounds them: pictures of the processor's size suit both
        fitting = [
            each if each.size == size else each.resize(size, Image.Resampling.LANCZOS) for each, size in zip(images, sizes, strict=True)
        ]
        return {"image": fitting, "prior_token_image_ids": [torch.cat(found)], "source_image_grid_thw": [twice]}


def _with_images(prompts: Any) -> bool:
    """True if prompts hold images: what a processor returned, or `ImagePrompt`s."""
    if isinstance(prompts, Mapping):
        return prompts.get("pixel_values") is not None or (prompts.get("mm_encoder_outputs") or {}).get("image") is not None
    return any(isinstance(prompt, ImagePrompt) and prompt.images for prompt in prompts)


def _line(place: int, count: int, device: torch.device) -> Tensor:
    """[3, count] places of text from `place` on."""
    return torch.arange(place, place + count, device=device).expand(3, -1)


def _cells(grid: tuple[int, int], place: int, device: torch.device) -> Tensor:
    """[3, height * width] places of a grid that begins at `place`."""
    cell = torch.arange(grid[0] * grid[1], device=device)
    return torch.stack([torch.zeros_like(cell), cell // grid[1], cell % grid[1]]) + place
