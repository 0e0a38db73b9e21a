"""The engine's model of a target, by the target's modality."""

from typing import Any

from mmspec.run.request import Request
from mmspec.serving.models.base import EngineModel
from mmspec.serving.models.text import TextModel


def engine_model(target: Any, request: Request, max_length: int | None) -> EngineModel:
    """Check a target and a drafter, and return what an engine runs.

    Args:
        target: the target.
        request: drafter, accept rule, tree and what else all requests share.
        max_length: most tokens of a prompt and its output; None for the target's positions.

    Returns:
        The model of the target's modality.

    Raises:
        ValueError: for targets, drafters and rules that an engine cannot serve.
    """
    return TextModel.of(target, request, max_length)
