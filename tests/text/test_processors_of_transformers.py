"""`processors=` takes transformers' logits processors: each node's own history, the output of the model's own `generate`."""

import pytest
import torch
from transformers import LogitsProcessor
from transformers.generation import logits_process as known

import mmspec

NEW = 24


class Stateless(LogitsProcessor):
    """Favours the token after the last one; a function of one row."""

    mmspec_stateless = True

    def __call__(self, input_ids, scores):
        scores[:, (int(input_ids[0, -1]) + 1) % scores.shape[1]] += 2.0
        return scores


class Counting(LogitsProcessor):
    """Keeps a state."""

    def __call__(self, input_ids, scores):
        return scores


OURS = {
    "n-grams": known.NoRepeatNGramLogitsProcessor(2),
    "penalty": known.RepetitionPenaltyLogitsProcessor(1.5),
    "bias": known.SequenceBiasLogitsProcessor([[[7, 9], 5.0], [[11], -4.0]]),
    "typical": known.TypicalLogitsWarper(0.9),
    "prefix": known.PrefixConstrainedLogitsProcessor(lambda row, ids: list(range(int(ids[-1]) % 3, 200, 2)), 1),
    "stateless": Stateless(),
}


@pytest.fixture(scope="module")
def mini():
    return mmspec.load("text")


@pytest.mark.parametrize("drafter", [None, "lookup", "model"])
@pytest.mark.parametrize("name", OURS)
def test_the_output_is_that_of_generate(mini, name, drafter):
    inputs = {key: value[:2] for key, value in mini.examples.items()}
    own = {"processors": [OURS[name]], "max_new_tokens": NEW}
    out = mmspec.text.generate(mini.target, inputs, mini.drafters["model"] if drafter == "model" else drafter, **own)
    for row in range(2):
        alone = {key: value[row, None][:, inputs["attention_mask"][row].bool()] for key, value in inputs.items()}
        theirs = mini.target.generate(**alone, logits_processor=[OURS[name]], max_new_tokens=NEW, do_sample=False)
        assert out.tokens[row, : out.lengths[row]].tolist() == theirs[0, alone["input_ids"].shape[1] :].tolist()


def test_sampled_rows_do_not_depend_on_the_drafter(mini):
    inputs = {key: value[:2] for key, value in mini.examples.items()}
    given = {"processors": [OURS["n-grams"], OURS["stateless"]], "max_new_tokens": NEW, "temperature": 0.9, "seed": 3}
    plain, drafted = (mmspec.text.generate(mini.target, inputs, each, **given) for each in (None, mini.drafters["model"]))
    assert torch.equal(plain.tokens, drafted.tokens)


def test_an_engine_takes_them_too(mini):
    inputs = {key: value[:1, value.shape[1] // 2 :] for key, value in mini.examples.items()}
    given = {"processors": [OURS["n-grams"], OURS["prefix"]], "max_new_tokens": NEW}
    alone = mmspec.text.generate(mini.target, inputs, **given)
    with mmspec.Engine(mini.target, "lookup") as engine:
        assert torch.equal(engine.submit(inputs, **given).result().tokens, alone.tokens)


@pytest.mark.parametrize("processor", [Counting(), known.SynthIDTextWatermarkLogitsProcessor(3, [1, 2], 8, 0, 8, torch.device("cpu"))])
def test_one_that_may_keep_a_state_is_refused_in_one_line(mini, processor):
    inputs = {key: value[:1] for key, value in mini.examples.items()}
    with pytest.raises(ValueError, match=rf"processors holds a {type(processor).__name__}, which .*keep") as error:
        mmspec.text.generate(mini.target, inputs, processors=[processor])
    assert "\n" not in str(error.value)
