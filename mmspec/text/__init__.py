"""Text out: language models, encoder-decoders and speech recognisers."""

from mmspec.text.drop_in.speculate import speculate
from mmspec.text.generation import aligned_drafter, generate
from mmspec.text.settings.processors import StopStrings
from mmspec.text.views import ensemble, view

__all__ = ["StopStrings", "aligned_drafter", "ensemble", "generate", "speculate", "view"]
