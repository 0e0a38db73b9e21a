"""Views of a drafter with a Whisper encoder of its own: the recording without the silence that pads it to a whole window.

Whisper encodes windows of 30 seconds, whatever the length of the recording. An encoder that adds learned or sinusoidal positions can read a
shorter input, at the cost of some accuracy since it was not trained for it. A drafter needs none, because the target scores every draft
token. A view marks how many frames are read; the family `Listening` reads them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.protocols import StartWork
from mmspec.drafters.views.base import View, own_encoder, own_opening
from mmspec.models.changed import replaced
from mmspec.models.compat import whisper_window_changes
from mmspec.models.families.encoder_decoder import Encoded, EncoderDecoder
from mmspec.models.families.whisper import Whisper, one_window
from mmspec.models.module_copy import own_copy
from mmspec.models.slot_cache import SlotCache

FRAMES = "heard_frames"  # what `Cropped` asks of `Listening`, beside what the processor gave
_FRAME_RATE = 100  # frames a second of Whisper's features
_TOKEN_RATE = 3.5  # tokens a second of English speech: LJ Speech has 3.6, rows of spoken digits 3.4


@dataclass(frozen=True)
class Listening(Whisper):
    """Family of a Whisper drafter whose prompt may ask for the first frames of the window only."""

    @torch.no_grad()
    def begin(self, model: Any, inputs: Mapping[str, Any], capacity: int) -> tuple[SlotCache, Encoded]:
        """Open the cache and the state of one generation; see the family protocol."""
        if FRAMES not in inputs:
            return super().begin(model, inputs, capacity)
        given = {name: value for name, value in inputs.items() if name not in (FRAMES, "attention_mask")}
        given[self.source] = one_window(model, given[self.source])[..., : inputs[FRAMES]]
        model = own_copy(model)
        with replaced(*whisper_window_changes(model, given[self.source].shape[-1])):
            return EncoderDecoder.begin(self, model, given, capacity)


@dataclass(frozen=True)
class Cropped:
    """The recording and `margin` seconds behind it, in place of the whole window. Rows of a batch are cropped to the longest one.

    Args:
        margin: seconds of silence that are kept.
        base: the view before cropping.

    Raises:
        ValueError: for a negative margin.
    """

    margin: float = 1.0
    base: View = own_encoder

    def __post_init__(self):
        if not self.margin >= 0:
            raise ValueError(f"margin is {self.margin}: give 0 or more seconds of silence to keep")

    def __call__(self, prompt: Any, session: Any) -> dict[str, Any]:
        """Return the prompt of `base`, and the number of frames to read."""
        found = self.base(prompt, session)
        source = session.target.family.source
        return {**found, FRAMES: self.frames(found[source])} if source in found else found

    def frames(self, features: Tensor) -> int:
        """Return how many frames of features [B, mels, F] are read: an even number, 2 or more."""
        kept = max(2, heard_frames(features) + round(_FRAME_RATE * self.margin))
        return min(kept + kept % 2, features.shape[-1])


def heard_frames(features: Tensor) -> int:
    """Return the frames of the longest recording in features [B, mels, F]: up to the last frame that differs from the window's last one.

    What pads a window is constant: a feature extractor pads the sound with zeros. Reads the features on the host once.
    """
    differs = (features != features[..., -1:]).any(1).any(0)
    return int((differs * torch.arange(1, differs.shape[-1] + 1, device=features.device)).amax())


def encoder_start(view: View, drafter: Any, prompt: Any, session: Any) -> StartWork | None:
    """Estimate the work of a Whisper drafter's own encoder and of its draft tokens, and the tokens that a recording will have.

    Args:
        view: the drafter's view.
        drafter: its model.
        prompt: the target's prompt.
        session: the target's session.

    Returns:
        The estimate; None for drafters that run no Whisper encoder of their own.
    """
    target = getattr(session, "target", None)
    family = getattr(target, "family", None)
    if not (view in (own_encoder, own_opening) or isinstance(view, Cropped)) or not isinstance(family, Whisper):
        return None
    if family.source not in prompt or getattr(getattr(drafter, "config", None), "model_type", None) != "whisper":
        return None
    model = target.model  # type: ignore[union-attr]
    features, window = prompt[family.source], 2 * model.config.max_source_positions
    frames = view.frames(features) if isinstance(view, Cropped) else window
    encoder = encoder_work(drafter.config, frames) / encoder_work(model.config, window)
    return StartWork(encoder, decoder_bytes(drafter) / decoder_bytes(model), _TOKEN_RATE * heard_frames(features) / _FRAME_RATE)


def decoder_bytes(model: Any) -> int:
    """Return the bytes of the linear layers of a Whisper decoder and its output head: a step for few rows reads them all."""
    layers = [module for module in (*model.get_decoder().modules(), model.get_output_embeddings()) if hasattr(module, "out_features")]
    sizes = [1 if callable(layer.weight) else layer.weight.element_size() for layer in layers]  # int8 layers have a method `weight`
    return sum(layer.in_features * layer.out_features * size for layer, size in zip(layers, sizes, strict=True))


def encoder_work(config: Any, frames: int) -> int:
    """Return the multiplications of a Whisper encoder of one row of `frames` frames, without norms and activations."""
    width, positions = config.d_model, frames // 2
    layer = 4 * width**2 + 2 * width * config.encoder_ffn_dim + 2 * positions * width
    return positions * (config.encoder_layers * layer + 6 * config.num_mel_bins * width + 3 * width**2)
