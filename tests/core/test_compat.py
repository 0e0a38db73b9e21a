"""Canaries: each fails when a release of transformers no longer works as `mmspec.core.compat` assumes."""

import torch

from mmspec.core.compat import rope_deltas_kept
from tests.films import batch, row
from tests.seeing import SIGHTS
from tests.sizes import build


def test_rope_deltas_are_noted_on_the_base_module_and_put_back():
    model, inputs = build(SIGHTS["Qwen2-VL"].case), batch("Qwen2-VL", [row("Qwen2-VL", 2, ("picture", 4, 8), 3)])
    with torch.no_grad(), rope_deltas_kept(model):
        model(**inputs)
        assert model.model.rope_deltas is not None
    assert model.model.rope_deltas is None
