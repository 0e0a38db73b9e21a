"""The engine's model of a target, by the target's modality."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmspec.run.request import Request
from mmspec.serving.models.base import EngineModel, options_of
from mmspec.serving.models.pictures import PictureModel, PictureSettings
from mmspec.serving.models.recommendations import RecommendModel
from mmspec.serving.models.searches import RecommendSettings
from mmspec.serving.models.speech import SynthesisModel
from mmspec.serving.models.text import TextModel
from mmspec.speech.families import is_speech_model
from mmspec.vision.continuous.methods import ContinuousPictures
from mmspec.vision.families.base import ImageModel

_SETTING = "setting of this target's engine"
_ONLY_PICTURES = ("LlamaGen", "ImageGPTForCausalImageModeling", "GlmImageForConditionalGeneration")


@dataclass(frozen=True)
class NoSettings:
    """Of targets whose requests share nothing beside what every engine takes."""


def engine_model(target: Any, request: Request, max_length: int | None, settings: Mapping[str, Any] | None = None) -> EngineModel:
    """Check a target and a drafter, and return what an engine runs.

    Args:
        target: the target.
        request: drafter, accept rule, tree and what else all requests share.
        max_length: most tokens of a prompt and its output; None for the target's positions.
        settings: what all requests share beside these, by name.

    Returns:
        The model of the target's modality.

    Raises:
        ValueError: for targets, drafters and rules that an engine cannot serve.
    """
    given = {} if settings is None else settings
    if isinstance(target, ImageModel | ContinuousPictures) or type(target).__name__ in _ONLY_PICTURES:
        return PictureModel.of(target, request, max_length, options_of(PictureSettings, given, _SETTING))
    if "catalogue" in given:
        return RecommendModel.of(target, request, max_length, options_of(RecommendSettings, given, _SETTING))
    options_of(NoSettings, given, _SETTING)
    if is_speech_model(target):
        return SynthesisModel.of(target, request, max_length)
    return TextModel.of(target, request, max_length)
