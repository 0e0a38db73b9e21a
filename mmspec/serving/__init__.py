"""Serving: many requests in one running generation."""

from typing import TYPE_CHECKING

from mmspec.utils.lazy import exports

if TYPE_CHECKING:
    from mmspec.serving.engine import Engine
    from mmspec.serving.handle import RequestHandle
else:
    __getattr__, __dir__ = exports(__name__, {"Engine": "engine", "RequestHandle": "handle"})

__all__ = ["Engine", "RequestHandle"]
