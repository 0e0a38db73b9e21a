"""Which models an engine serves: every decoder-only family, past windows too; all others are refused in one line."""

from itertools import zip_longest

import pytest
import torch

from tests.families import FAMILIES, SOUND, build, heard
from tests.hybrids import HYBRIDS, small
from tests.serving.traffic import Asked, scheduler_for, serve

SERVED = [name for name, case in FAMILIES.items() if case.kind == "decoder"]
REFUSED = [name for name, case in FAMILIES.items() if not case.kind.startswith("decoder")]
ASKED = [
    Asked([5, 6, 7] * 4, {"max_new_tokens": 12}),
    Asked([9, 8], {"max_new_tokens": 20, "temperature": 1.0, "seed": 1}),
    Asked([4, 5, 4, 5, 4], {"max_new_tokens": 14, "temperature": 0.8, "top_k": 12, "seed": 2}, arrives=3),
    Asked([11], {"max_new_tokens": 5}, arrives=6),
]


@pytest.mark.parametrize("name", SERVED)
def test_decoders_give_every_request_its_tokens(name):
    model = build(FAMILIES[name])
    model.generation_config.eos_token_id = None
    scheduler, waiting = scheduler_for(model, "lookup", max_rows=2, piece=4, draft_length=3)
    handles = serve(scheduler, waiting, ASKED, most=300)
    assert [handle.result(0).tokens[0].tolist() for handle in handles] == [each.alone(model) for each in ASKED]
    assert scheduler.counts.restarted == 0


@pytest.mark.parametrize("name", SOUND)
def test_recordings_of_several_lengths_give_every_request_its_tokens(name):
    """Those that read pictures are tested in `test_engine_seeing.py`."""
    model, clips = build(FAMILIES[name]), heard(name, 3)
    model.generation_config.eos_token_id = None
    prompts = [{key: values[row : row + 1] for key, values in clips.items()} for row in range(3)]
    asked = [Asked(each or words.ids, words.options, words.arrives) for each, words in zip_longest(prompts, ASKED)]
    scheduler, waiting = scheduler_for(model, "lookup", max_rows=2, piece=4, draft_length=3)
    handles = serve(scheduler, waiting, asked, most=300)
    assert [handle.tokens for handle in handles] == [each.alone(model) for each in asked]
    assert scheduler.counts.restarted == 0


@pytest.mark.parametrize("name", REFUSED)
def test_encoder_decoders_are_refused(name):
    with pytest.raises(ValueError, match="has an encoder, and an engine serves decoder-only models") as caught:
        scheduler_for(build(FAMILIES[name]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", list(HYBRIDS)[:1])
def test_models_with_recurrent_states_are_refused(name):
    with pytest.raises(ValueError, match="keeps more than keys and values") as caught:
        scheduler_for(small(name))
    assert "\n" not in str(caught.value)


def test_pieces_of_a_prompt_are_run_between_the_rounds_of_other_rows():
    """A long prompt holds no round up by more than a piece, and its tokens are those of the prompt run whole."""
    model = build(FAMILIES["Llama"])
    model.generation_config.eos_token_id = None
    long = torch.randint(3, 40, (50,), generator=torch.Generator().manual_seed(0)).tolist()
    asked = [Asked([5, 6], {"max_new_tokens": 30}), Asked(long, {"max_new_tokens": 6}, arrives=2)]
    scheduler, waiting = scheduler_for(model, max_rows=2, piece=8)
    rounds, widest = [], []
    own = scheduler._count

    def noted(columns: int, forwards: int) -> None:
        widest.append(columns)
        if scheduler.starting is not None and scheduler.running is not None:
            rounds.append(len(scheduler.running.handles[0].tokens))
        own(columns, forwards)

    scheduler._count = noted  # type: ignore[method-assign]
    handles = serve(scheduler, waiting, asked)
    assert [handle.tokens for handle in handles] == [each.alone(model) for each in asked]
    assert max(widest) <= 8 + 1
    assert max(rounds) - min(rounds) >= 5  # the first request went on while the long prompt was run
