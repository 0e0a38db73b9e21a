"""Speech out: text-to-speech models, their codecs, and `synthesize`, whole or piece by piece (`stream`)."""

from mmspec.speech.generation import Speech, SpeechStream, stream, synthesize

__all__ = ["Speech", "SpeechStream", "stream", "synthesize"]
