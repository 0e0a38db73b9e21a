"""The sweep's models that take sound and write text.

Every architecture of transformers' MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING, and of MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING and
MODEL_FOR_MULTIMODAL_LM_MAPPING those that hear and do not see.
"""

from functools import partial

from transformers.models.auto.modeling_auto import MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES

from tests.sweep import recognisers
from tests.sweep.case import Case


def cases() -> list[Case]:
    """One case for every model type that hears."""
    return [
        Case(
            name,
            "audio",
            architecture,
            partial(recognisers.make, name, architecture),
            heard.alone,
            heard.batch,
            recognisers.after_the_start,
        )
        for name, architecture in MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES.items()
        if (heard := recognisers.HEARD.get(name)) is not None
    ]
