"""Mllama: a row gives what it gives alone, whatever pictures its neighbours in the batch have."""

from functools import cache

import pytest
import torch

import mmspec
from mmspec.drafters.self_drafting.early_exit import EarlyExit
from mmspec.models.families.multimodal import never_generated_ids_of
from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget
from tests.companions import llama
from tests.crossing import generated_alone, row_of
from tests.seeing import SIGHTS, seen
from tests.sizes import VOCAB, build

TOKENS = 12
BATCHES = ((0, 2, 1), (1, 0), (3, 1, 0, 2), (0, 1), (2, 1))


@cache
def model_of(attention="sdpa"):
    model = build(SIGHTS["Mllama"].case)
    model.set_attn_implementation(attention)
    return model


def alone(model, inputs):
    return generated_alone(model, inputs, max_new_tokens=TOKENS, suppress_tokens=list(never_generated_ids_of(model)))


def cut(out):
    return [out.sequences[row, : out.lengths[row]].tolist() for row in range(len(out.lengths))]


def run(model, inputs, **options):
    return cut(mmspec.text.generate(model, inputs, **{"max_new_tokens": TOKENS, "draft_length": 3} | options))


@pytest.mark.parametrize("pictures", BATCHES)
@pytest.mark.parametrize("seed", [1, 2])
def test_rows_give_the_tokens_of_generate_on_each_alone(pictures, seed):
    model = model_of()
    expected = alone(model, seen("Mllama", pictures, seed=seed))
    for side in ("left", "right"):
        inputs = seen("Mllama", pictures, side, seed)
        for options in ({}, {"drafter": "lookup"}, {"drafter": model, "tree": (2, 2)}, {"drafter": EarlyExit(1)}, {"drafter": llama()}):
            assert run(model, inputs, **options) == expected, (side, options)


def test_eager_attention_gives_the_same():
    inputs = seen("Mllama", (0, 2, 1))
    expected = alone(model_of(), inputs)
    assert run(model_of("eager"), inputs, drafter=model_of("eager"), tree=(2, 2)) == expected


def test_sampling_coupled_gives_the_tokens_of_each_row_alone():
    model, inputs = model_of(), seen("Mllama", (3, 1, 0, 2))
    expected = [run(model, row_of(inputs, row), temperature=1.0, seed=5 + row)[0] for row in range(4)]
    for options in ({}, {"drafter": "lookup"}, {"drafter": model, "tree": (2, 2)}):
        assert run(model, inputs, temperature=1.0, seed=5, **options) == expected, options


def unseen_at_the_end(inputs):
    """The same prompts, whose last positions look at no picture."""
    mask = inputs["cross_attention_mask"].clone()
    mask[:, -3:] = 0
    return inputs | {"cross_attention_mask": mask}


def test_prompts_that_end_without_a_look_at_their_pictures():
    model, inputs = model_of(), unseen_at_the_end(seen("Mllama", (2, 1, 0)))
    expected = alone(model, inputs)
    for options in ({}, {"drafter": model, "tree": (2, 2)}):
        assert run(model, inputs, **options) == expected


def test_logits_are_those_of_each_row_alone():
    model, pictures = model_of(), (0, 3, 1)
    inputs, new = seen("Mllama", pictures), torch.randint(3, VOCAB - 8, (3, 4))
    session, pending = HFTarget(model, family_of(model)).begin(inputs)
    found = session.score(pending.extend_chain(new, torch.full((3,), 4))).p.scores
    for row in range(3):
        session, pending = HFTarget(model, family_of(model)).begin(row_of(inputs, row))
        own = session.score(pending.extend_chain(new[row : row + 1], torch.full((1,), 4))).p.scores
        assert (found[row] - own[0]).abs().max() <= 1e-5
