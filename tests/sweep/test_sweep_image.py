"""A fast slice of the sweep: image-text architectures that have no case in `tests.seeing`."""

from dataclasses import replace

import pytest

from mmspec.models.families.registry import SEES
from tests.sweep.image import cases
from tests.sweep.image_models import NAMED, READS
from tests.sweep.run import EXACT, REFUSED, examine

ADDED = (
    "deepseek_vl",
    "lighton_ocr",
    "llava_next_video",
    "ovis2",
    "gemma4",
    "llama4",
    "florence2",
    "chameleon",
    "hunyuan_vl",
    "pix2struct",
)
CASES = {case.name: case for case in cases()}


@pytest.mark.parametrize("name", ADDED)
def test_pictures_give_the_tokens_of_each_row_alone(name):
    record = examine(replace(CASES[name], tokens=min(6, CASES[name].tokens)), pairs=True)
    assert record.outcome == EXACT, record.reason


@pytest.mark.parametrize("name", ["blip", "evolla"])
def test_what_is_not_driven_is_refused(name):
    record = examine(CASES[name])
    assert record.outcome == REFUSED, record.reason


def test_every_model_that_sees_is_examined_with_pictures():
    assert {kind for kind in SEES if kind in CASES} <= {*READS, *NAMED}
