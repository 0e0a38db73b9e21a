"""Text out: language models, encoder-decoders and speech recognisers."""

from mmspec.text.generation import aligned_drafter, generate
from mmspec.text.processors import StopStrings
from mmspec.text.speculate import speculate

__all__ = ["StopStrings", "aligned_drafter", "generate", "speculate"]
