"""The sweep's models that take sound and write text.

Every architecture of transformers' MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING, and of MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING and
MODEL_FOR_MULTIMODAL_LM_MAPPING those that hear and do not see.
"""

from functools import partial

from transformers.models.auto.modeling_auto import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
)

from tests.sweep import listeners, recognisers, unfit
from tests.sweep.case import Case
from tests.sweep.seq2seq import IN_PROMPT


def architectures() -> dict[str, str]:
    """Class names by model type."""
    in_prompt = {name: MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES[name] for name in IN_PROMPT}
    hearing = {
        name: architecture
        for name, architecture in MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES.items()
        if name not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    }
    return dict(sorted({**MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES, **in_prompt, **hearing}.items()))


def cases() -> list[Case]:
    """One case for every model type that hears."""
    return [_case(name, architecture) for name, architecture in architectures().items()]


def _case(name: str, architecture: str) -> Case:
    if name in recognisers.HEARD:
        heard, make, reference = recognisers.HEARD[name], recognisers.make, recognisers.after_the_start
    elif name in listeners.PROMPTS:
        heard, make, reference = listeners.PROMPTS[name], listeners.make, listeners.without_placeholders
    else:
        heard, make, reference = unfit.WORDS, unfit.make, unfit.none
    return Case(name, "audio", architecture, partial(make, name, architecture), heard.alone, heard.batch, reference)
