"""Text out: language models, encoder-decoders and speech recognisers."""

from mmspec.text.generation import aligned_drafter, generate
from mmspec.text.processors import StopStrings
from mmspec.text.speculate import speculate
from mmspec.text.views import ensemble, view

__all__ = ["StopStrings", "aligned_drafter", "ensemble", "generate", "speculate", "view"]
