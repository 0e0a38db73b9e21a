"""Speech out: text-to-speech models, their codecs, and `synthesize`, whole or piece by piece (`stream`)."""

from mmspec.speech.generation import SpeechStream, stream, synthesize
from mmspec.speech.sound.speech import Speech

__all__ = ["Speech", "SpeechStream", "stream", "synthesize"]
