"""Times of tokens in a batch: the alignment of text and sound, over the row's own tokens.

Whisper's `generate` aligns the tokens of a row with its sound by cross-attentions that are normalised over all tokens of the longest row.
Rows that end earlier are aligned again without what pads them, as each is alone.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from mmspec.models import compat

_FRAMES = 100  # log-mel frames a second


def token_times(model: Any, parts: Sequence[dict[str, Any]], frames: int) -> list[list[float]]:
    """Return the seconds at which the tokens of each segment end.

    Args:
        model: the Whisper that wrote them.
        parts: segments of one recording as `generate` returns them, with `token_timestamps`.
        frames: log-mel frames of the recording.
    """
    found: list[list[float]] = []
    window: Any = None
    aligned: Tensor | None = None
    for part in parts:
        first, last = part["idxs"]
        if part["result"] is not window:
            window = part["result"]
            before = round(float(part["token_timestamps"][0] - window["token_timestamps"][first]) * _FRAMES)
            aligned = _aligned_alone(model, window, first, frames - before)
        if aligned is None:
            found.append(part["token_timestamps"].tolist())
        else:
            offset = part["token_timestamps"] - window["token_timestamps"][first:last]
            found.append((aligned[first:last] + offset).tolist())
    return found


def _aligned_alone(model: Any, window: dict[str, Any], prompt: int, frames: int) -> Tensor | None:
    """The times [P + T] of a window's tokens without those that pad it; None where nothing does."""
    ends = (window["sequences"][prompt:] == model.generation_config.eos_token_id).nonzero()
    length = prompt + int(ends[0]) + 1 if len(ends) else len(window["sequences"])
    if length == len(window["sequences"]):
        return None
    attentions = tuple(layer[:, :, : length - 1] for layer in window["cross_attentions"][0])
    return compat.whisper_token_times(model, window["sequences"][:length], attentions, prompt, frames)
