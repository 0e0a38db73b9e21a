"""Speech: `load`, `synthesize` and `stream` for text-to-speech models and their codecs, and `transcribe` for recordings."""

from typing import TYPE_CHECKING

from mmspec.utils.lazy import exports

if TYPE_CHECKING:
    from mmspec.speech.checkpoints.load import load_checkpoint as load
    from mmspec.speech.generation import stream, synthesize
    from mmspec.speech.quality.assess import SpeechQuality, assess_quality
    from mmspec.speech.recognition.transcribe import transcribe
    from mmspec.speech.recognition.transcript import Transcription
    from mmspec.speech.sound.speech import Speech
    from mmspec.speech.sound.voice_sample import VoiceSample
    from mmspec.speech.speech_stream import SentenceStream, SpeechStream, whole_sentences
else:
    _MODULES = {
        "load": "checkpoints.load:load_checkpoint",
        "SentenceStream": "speech_stream",
        "Speech": "sound.speech",
        "SpeechQuality": "quality.assess",
        "SpeechStream": "speech_stream",
        "assess_quality": "quality.assess",
        "stream": "generation",
        "synthesize": "generation",
        "transcribe": "recognition.transcribe",
        "Transcription": "recognition.transcript",
        "VoiceSample": "sound.voice_sample",
        "whole_sentences": "speech_stream",
    }
    __getattr__, __dir__ = exports(__name__, _MODULES, {"Stream": "SpeechStream"})

__all__ = [
    "SentenceStream",
    "Speech",
    "SpeechQuality",
    "SpeechStream",
    "Transcription",
    "VoiceSample",
    "assess_quality",
    "load",
    "stream",
    "synthesize",
    "transcribe",
    "whole_sentences",
]
