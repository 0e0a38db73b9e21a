"""Speech out: text-to-speech models, their codecs, and `synthesize`, whole or piece by piece (`stream`)."""

from typing import TYPE_CHECKING

from mmspec.utils.lazy import exports

if TYPE_CHECKING:
    from mmspec.speech.generation import SpeechStream, stream, synthesize
    from mmspec.speech.sound.speech import Speech
else:
    _MODULES = {
        "Speech": "sound.speech",
        "SpeechStream": "generation",
        "stream": "generation",
        "synthesize": "generation",
    }
    __getattr__, __dir__ = exports(__name__, _MODULES, {"Stream": "SpeechStream"})

__all__ = ["Speech", "SpeechStream", "stream", "synthesize"]
