"""The sweep's models that write speech: every architecture of transformers' text-to-waveform and text-to-spectrogram mappings.

None of them writes text: `mmspec.text.generate` refuses each in one line. Those that `mmspec.speech.synthesize` decodes are compared with
their classes' `generate` in tests/speech.
"""

from functools import partial

from transformers.models.auto.modeling_auto import (
    MODEL_FOR_TEXT_TO_SPECTROGRAM_MAPPING_NAMES,
    MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES,
)

from tests.sweep import unfit
from tests.sweep.case import Case


def cases() -> list[Case]:
    """One case for every model type that writes speech."""
    found = {**MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES, **MODEL_FOR_TEXT_TO_SPECTROGRAM_MAPPING_NAMES}
    return [
        Case(name, "speech", architecture, partial(unfit.make, name, architecture), unfit.WORDS.alone, unfit.WORDS.batch, unfit.none)
        for name, architecture in sorted(found.items())
    ]
