"""Speech out: text-to-speech models, their codecs, and `synthesize`, whole or piece by piece (`stream`)."""

from mmspec.speech.generation import Speech, Stream, stream, synthesize

__all__ = ["Speech", "Stream", "stream", "synthesize"]
