"""Text output: language models, encoder-decoders and speech recognisers."""

from typing import TYPE_CHECKING

from mmspec.utils.lazy import exports

if TYPE_CHECKING:
    from mmspec.run.drop_in.speculate import speculate
    from mmspec.run.settings.processors import StopStrings
    from mmspec.text.generation import aligned_drafter, generate
    from mmspec.text.views import ensemble, view
else:
    _MODULES = {
        "StopStrings": "mmspec.run.settings.processors",
        "aligned_drafter": "generation",
        "ensemble": "views",
        "generate": "generation",
        "speculate": "mmspec.run.drop_in.speculate",
        "view": "views",
    }
    __getattr__, __dir__ = exports(__name__, _MODULES)

__all__ = ["StopStrings", "aligned_drafter", "ensemble", "generate", "speculate", "view"]
