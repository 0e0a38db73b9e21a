"""`mmspec.vision.Pipeline`: image models of codes, called as pipelines of diffusers are."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.core.control import Control
from mmspec.core.decode import each
from mmspec.core.stats import Stats
from mmspec.run.arguments import public_call
from mmspec.utils.files import whole_folder
from mmspec.utils.names import shown
from mmspec.vision.checkpoints.load import load_image_checkpoint
from mmspec.vision.checkpoints.save import save_image_checkpoint
from mmspec.vision.codes.methods import Method
from mmspec.vision.drop_in.pipeline_call import (
    OUTPUTS,
    TENSORS,
    CodesProgress,
    OnStepEnd,
    callback_of,
    each_repeated,
    images_of,
    prompts_with_images,
    seeds_of,
)
from mmspec.vision.families import image_model
from mmspec.vision.families.base import ImageModel, Size
from mmspec.vision.generation import generate


@dataclass(frozen=True)
class PipelineOutput:
    """What a pipeline returns.

    Attributes:
        images: PIL images; a float array [B, H, W, C] or tensor [B, C, H, W] in [0, 1]; or the codes LongTensor [B, height, width].
        tokens: the codes, LongTensor [B, height, width].
        stats: counts and seconds.
    """

    images: Any
    tokens: Tensor = field(repr=False)
    stats: Stats = field(repr=False)


class ImagePipeline:
    """An image model of codes with the call of diffusers' pipelines.

    Args:
        model: an adapter, or a model that `mmspec.vision.generate` takes.
        guidance_scale: the scale of calls that give none.
    """

    @public_call
    def __init__(self, model: Any, guidance_scale: float | None = None):
        self.model: ImageModel = image_model(model)
        self.guidance_scale = guidance_scale
        self._bar: dict[str, Any] = {}

    @classmethod
    @public_call
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        torch_dtype: torch.dtype | str = "float32",
        device: torch.device | str = "cpu",
        decoder: str | Path | None = None,
        captions: str | Path | None = None,
        size: Size | None = None,
    ) -> "ImagePipeline":
        """Load a pipeline.

        Args:
            path: a folder that `save_pretrained` or `vision/train_target.py` wrote, a published LlamaGen `.pt` file, a folder of diffusers'
                `GlmImagePipeline`, or a folder or hub name of a transformers image model.
            torch_dtype: a torch dtype or its name; "auto" for the checkpoint's.
            device: where it runs.
            decoder: the file of the picture decoder, for LlamaGen files, Chameleon, Anole and Lumina-mGPT.
            captions: the folder of the T5 encoder, for LlamaGen files of captions.
            size: pixels a side, for LlamaGen files whose names do not tell.

        Returns:
            The pipeline.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: for what cannot be loaded.
        """
        kind = str(torch_dtype).removeprefix("torch.")
        return cls(load_image_checkpoint(path, dtype=kind, device=device, decoder=decoder, captions=captions, size=size))

    @public_call
    def save_pretrained(self, folder: str | Path) -> None:
        """Write the pipeline to a folder that `from_pretrained` reads; the folder is replaced as a whole.

        Args:
            folder: where.

        Raises:
            ValueError: for decoders and encoders without a file format.
        """
        with whole_folder(folder) as place:
            save_image_checkpoint(self.model, place)

    @property
    def device(self) -> torch.device:
        """Where the network runs."""
        return self.model.model.device

    @property
    def dtype(self) -> torch.dtype:
        """The network's dtype."""
        return self.model.model.dtype

    @public_call
    def to(self, device: torch.device | str) -> "ImagePipeline":
        """Move the network, its drafter, its text encoder and its decoder.

        Args:
            device: where to.

        Returns:
            This pipeline.
        """
        model: Any = self.model
        decoder, captions = getattr(model, "to_pictures", None), getattr(model, "captions", None)
        assistant = getattr(getattr(model, "assistant", None), "model", None)
        parts = [model.model, model.drafter, assistant, getattr(captions, "encoder", None), getattr(decoder, "tokenizer", None)]
        parts += [decoder] if hasattr(decoder, "to") else [getattr(decoder, "pipeline", None)]
        for part in parts:
            if part is not None:
                part.to(device)
        return self

    @public_call
    def set_progress_bar_config(self, *, disable: bool = False, description: str = "codes") -> None:
        """Set how progress is shown.

        Args:
            disable: no progress bar.
            description: the text beside it.
        """
        self._bar = {"disable": disable, "description": description}

    @public_call
    def __call__(
        self,
        prompt: Any = None,
        image: Any = None,
        *,
        negative_prompt: str | Sequence[str] | None = None,
        height: int | None = None,
        width: int | None = None,
        guidance_scale: float | Sequence[float] | None = None,
        num_images_per_prompt: int = 1,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        output_type: str = "pil",
        return_dict: bool = True,
        callback_on_step_end: OnStepEnd | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = (),
        method: str | Method | None = None,
        window: int | str | Control | None = None,
        temperature: float | Sequence[float] = 1.0,
        top_k: int | Sequence[int] | None = None,
        top_p: float | Sequence[float] | None = None,
        drift_budget: float | None = None,
    ) -> PipelineOutput | tuple[Any]:
        """Generate images.

        Args:
            prompt: a text (or a class, or None for ImageGPT), or a list of them.
            image: for models that make images from images, one PIL image, a list for one prompt, or one list a prompt.
            negative_prompt: a text that guidance leads away from, or one a prompt.
            height, width: pixels; both or none.
            guidance_scale: the scale of classifier-free guidance; 1 for none.
            num_images_per_prompt: images of each prompt, one after the other.
            generator: seeds the images: one, or one an image. By default torch's global generator.
            output_type: "pil", "np", "pt", or "latent" for the codes.
            return_dict: False for the tuple `(images,)`.
            callback_on_step_end: called as `callback(pipeline, round, codes, tensors)` after every round; `codes` is the number (controls
                included) that the slowest image has. It returns None or an empty dict.
            callback_on_step_end_tensor_inputs: what `tensors` holds: "codes" committed in this round, LongTensor [B, N] with -1 where a row
                has fewer, and "lengths" LongTensor [B].
            method, window, temperature, top_k, top_p, drift_budget: as in `mmspec.vision.generate`.

        Returns:
            A `PipelineOutput`, or the tuple.

        Raises:
            ValueError: for invalid arguments.
        """
        if output_type not in OUTPUTS:
            raise ValueError(f"output_type is {shown(output_type)}: give one of {', '.join(OUTPUTS)}")
        if num_images_per_prompt < 1:
            raise ValueError(f"num_images_per_prompt is {num_images_per_prompt}: give at least 1")
        if (height is None) != (width is None):
            raise ValueError(f"height is {height} and width is {width}: give both, or none")
        unknown = [name for name in callback_on_step_end_tensor_inputs if name not in TENSORS]
        if unknown or (callback_on_step_end_tensor_inputs and callback_on_step_end is None):
            raise ValueError(f"callback_on_step_end_tensor_inputs may name {' and '.join(TENSORS)}, for a callback_on_step_end")
        prompts = prompts_with_images(prompt, image)
        scale = self.guidance_scale if guidance_scale is None else guidance_scale
        model = self.model
        if negative_prompt is not None:
            if scale is None or scale == 1:
                raise ValueError("negative_prompt is given without guidance: give guidance_scale above 1, or leave it out")
            texts = negative_prompt if isinstance(negative_prompt, str) else each_repeated(negative_prompt, num_images_per_prompt)
            model = model.guided_from(texts)
        prompts = each_repeated(prompts, num_images_per_prompt)
        total = len(prompts) * (model if height is None else model.resized((height, int(width or 0)))).raster.length
        with CodesProgress(total, **self._bar) as bar:
            out = generate(
                model,
                prompts,
                seed=seeds_of(generator, len(prompts)),
                size=None if height is None else (height, int(width or 0)),
                guidance=scale,
                on_step=each(bar, callback_of(self, callback_on_step_end, callback_on_step_end_tensor_inputs, len(prompts))),
                method=method,
                window=window,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                drift_budget=drift_budget,
            )
        images = images_of(out, output_type)
        return PipelineOutput(images, out.tokens, out.stats) if return_dict else (images,)
