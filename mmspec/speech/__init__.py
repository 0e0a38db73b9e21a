"""Speech out: text-to-speech models, their codecs, and `synthesize`."""

from mmspec.speech.generation import Speech, synthesize

__all__ = ["Speech", "synthesize"]
