"""Speech: `synthesize` and `stream` for text-to-speech models and their codecs, and `transcribe` for recordings."""

from typing import TYPE_CHECKING

from mmspec.utils.lazy import exports

if TYPE_CHECKING:
    from mmspec.speech.generation import SpeechStream, stream, synthesize
    from mmspec.speech.recognition.transcribe import transcribe
    from mmspec.speech.recognition.transcript import Transcription
    from mmspec.speech.sound.speech import Speech
else:
    _MODULES = {
        "Speech": "sound.speech",
        "SpeechStream": "generation",
        "stream": "generation",
        "synthesize": "generation",
        "transcribe": "recognition.transcribe",
        "Transcription": "recognition.transcript",
    }
    __getattr__, __dir__ = exports(__name__, _MODULES, {"Stream": "SpeechStream"})

__all__ = ["Speech", "SpeechStream", "Transcription", "stream", "synthesize", "transcribe"]
