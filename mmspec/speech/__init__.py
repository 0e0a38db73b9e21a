"""Speech out: text-to-speech models, their codecs, and `synthesize`, whole or piece by piece (`stream`)."""

from typing import TYPE_CHECKING

from mmspec.lazy import exports

if TYPE_CHECKING:
    from mmspec.speech.generation import Speech, SpeechStream, stream, synthesize
else:
    _MODULES = {
        "Speech": "generation",
        "SpeechStream": "generation",
        "stream": "generation",
        "synthesize": "generation",
    }
    __getattr__, __dir__ = exports(__name__, _MODULES)

__all__ = ["Speech", "SpeechStream", "stream", "synthesize"]
