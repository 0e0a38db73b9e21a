"""Every logits processor of transformers: which have a form for drafts, and that form against the class itself at every node."""

import inspect

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation import logits_process as known
from transformers.generation import stopping_criteria

from mmspec.run.drop_in import processors as drop_in_processors
from mmspec.run.drop_in import stops as drop_in_stops
from mmspec.run.drop_in.processors import FORMS, WITHOUT_DRAFTING, NodeByNode, ProcessorContext, form_of
from tests.core.test_sequence_processors import BIASES, IGNORED, SOURCE, B, P, V, case, theirs

WHISPER = GenerationConfig(no_timestamps_token_id=2, eos_token_id=1, bos_token_id=1, max_initial_timestamp_index=1)
LATE = P + 3  # a length that nodes of several rows reach
ENDS = torch.tensor([2, 4])


def allowed(row: int, ids: torch.Tensor) -> list[int]:
    """What may follow depends on the row, the padding and the last id."""
    return sorted({(row + int(ids[-1]) + int(ids[0])) % V, (int(ids[-1]) * 2 + 1) % V, 3})


EXAMPLES = {
    "TemperatureLogitsWarper": [lambda: known.TemperatureLogitsWarper(0.7)],
    "TopKLogitsWarper": [
        lambda: known.TopKLogitsWarper(3),
        lambda: known.TopKLogitsWarper(1, -9.0),
        lambda: known.TopKLogitsWarper(1, min_tokens_to_keep=2),
    ],
    "TopPLogitsWarper": [
        lambda: known.TopPLogitsWarper(0.6),
        lambda: known.TopPLogitsWarper(0.1, min_tokens_to_keep=3),
        lambda: known.TopPLogitsWarper(1.0),
    ],
    "MinPLogitsWarper": [lambda: known.MinPLogitsWarper(0.3), lambda: known.MinPLogitsWarper(0.9, min_tokens_to_keep=3)],
    "TopHLogitsWarper": [lambda: known.TopHLogitsWarper(0.5)],
    "TypicalLogitsWarper": [lambda: known.TypicalLogitsWarper(0.4), lambda: known.TypicalLogitsWarper(0.1, min_tokens_to_keep=2)],
    "EpsilonLogitsWarper": [lambda: known.EpsilonLogitsWarper(0.2)],
    "EtaLogitsWarper": [lambda: known.EtaLogitsWarper(0.3)],
    "BarkEosPrioritizerLogitsProcessor": [lambda: known.BarkEosPrioritizerLogitsProcessor(2, 0.2)],
    "LogitNormalization": [known.LogitNormalization],
    "InfNanRemoveLogitsProcessor": [known.InfNanRemoveLogitsProcessor],
    "RepetitionPenaltyLogitsProcessor": [
        lambda: known.RepetitionPenaltyLogitsProcessor(1.4),
        lambda: known.RepetitionPenaltyLogitsProcessor(0.8, 4),
        lambda: known.RepetitionPenaltyLogitsProcessor(1.4, IGNORED),
    ],
    "NoRepeatNGramLogitsProcessor": [lambda n=n: known.NoRepeatNGramLogitsProcessor(n) for n in (1, 2, 3)],
    "EncoderRepetitionPenaltyLogitsProcessor": [lambda: known.EncoderRepetitionPenaltyLogitsProcessor(1.6, SOURCE)],
    "EncoderNoRepeatNGramLogitsProcessor": [
        *(lambda n=n: known.EncoderNoRepeatNGramLogitsProcessor(n, SOURCE) for n in (1, 2, 3, 9)),
        lambda: known.EncoderNoRepeatNGramLogitsProcessor(2, SOURCE[:1]),
    ],
    "SequenceBiasLogitsProcessor": [lambda: known.SequenceBiasLogitsProcessor(BIASES)],
    "NoBadWordsLogitsProcessor": [lambda: known.NoBadWordsLogitsProcessor([[1, 2], [3], [2]], 2)],
    "SuppressTokensLogitsProcessor": [lambda: known.SuppressTokensLogitsProcessor([1, 4, -1])],
    "SuppressTokensAtBeginLogitsProcessor": [lambda n=n: known.SuppressTokensAtBeginLogitsProcessor([1, 4], n) for n in (P, LATE, 2)],
    "MinLengthLogitsProcessor": [lambda: known.MinLengthLogitsProcessor(LATE, ENDS)],
    "MinNewTokensLengthLogitsProcessor": [
        lambda skip=skip: known.MinNewTokensLengthLogitsProcessor(skip, 3, ENDS) for skip in (P, 2, P + 2)
    ],
    "ForcedBOSTokenLogitsProcessor": [lambda: known.ForcedBOSTokenLogitsProcessor(3)],
    "ForcedEOSTokenLogitsProcessor": [lambda: known.ForcedEOSTokenLogitsProcessor(LATE, ENDS)],
    "ExponentialDecayLengthPenalty": [lambda: known.ExponentialDecayLengthPenalty((2, 1.2), ENDS, P)],
    "PrefixConstrainedLogitsProcessor": [lambda: known.PrefixConstrainedLogitsProcessor(allowed, 1)],
    "WatermarkLogitsProcessor": [
        lambda: known.WatermarkLogitsProcessor(V, "cpu"),
        lambda: known.WatermarkLogitsProcessor(V, "cpu", context_width=9),
    ],
    "AlternatingCodebooksLogitsProcessor": [lambda: known.AlternatingCodebooksLogitsProcessor(P, 2, 2)],
    "WhisperTimeStampLogitsProcessor": [lambda: known.WhisperTimeStampLogitsProcessor(WHISPER, P)],
}
if "torch.Tensor" not in inspect.getsource(known.RepetitionPenaltyLogitsProcessor.__init__):  # transformers 5.17
    EXAMPLES["RepetitionPenaltyLogitsProcessor"].pop()
CASES = [(name, number) for name, makes in EXAMPLES.items() for number in range(len(makes))]


def close(own: torch.Tensor, other: torch.Tensor) -> bool:
    """The same scores, and so the same distribution."""
    return torch.equal(own.isfinite(), other.isfinite()) and torch.allclose(own, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "number"), CASES)
@pytest.mark.parametrize("seed", range(3))
def test_each_form_is_the_class_itself_at_every_node_of_every_row(name, number, seed):
    prompt, history, outputs = case(seed)
    raw = 3 * torch.randn(B, history.visible.shape[1], V, generator=torch.Generator().manual_seed(seed))
    make = EXAMPLES[name][number]
    form = form_of(make(), ProcessorContext(prompt))
    expected = theirs(make(), raw, prompt, outputs)
    found = form(raw.clone(), history)
    if name == "PrefixConstrainedLogitsProcessor":  # a node that the constraint does not let a row reach is left alone
        reached = form.at
        for row in range(B):
            for node, values in enumerate(outputs[row]):
                if reached(row, values) is None:
                    found[row, node] = expected[row, node]
    assert close(found, expected)


def classes(module, base: type) -> set[type]:
    found = {kind for _, kind in inspect.getmembers(module, inspect.isclass) if issubclass(kind, base) and kind is not base}
    return {kind for kind in found if kind.__module__ == module.__name__}


def test_every_processor_that_transformers_has_is_classified():
    """A release that adds one fails here until it has a form or a reason to have none."""
    theirs = classes(known, known.LogitsProcessor)
    assert theirs == set(FORMS) | set(WITHOUT_DRAFTING)
    assert {kind.__name__ for kind in FORMS} == EXAMPLES.keys()
    assert not FORMS.keys() & WITHOUT_DRAFTING.keys()


def test_every_criterion_that_transformers_has_is_classified():
    theirs = classes(stopping_criteria, stopping_criteria.StoppingCriteria)
    assert theirs == set(drop_in_stops.FORMS) | set(drop_in_stops.WITHOUT_DRAFTING)


class Custom(known.LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores + input_ids[:, :1] - input_ids.sum(1, keepdim=True) * scores.sign()


class Vouched(Custom):
    mmspec_stateless = True


def test_unknown_processors_have_a_form_where_the_caller_vouches_for_them():
    prompt, history, outputs = case(5)
    raw = torch.randn(B, history.visible.shape[1], V)
    assert form_of(Custom(), ProcessorContext(prompt)) is None
    for form in (form_of(Vouched(), ProcessorContext(prompt)), form_of(Custom(), ProcessorContext(prompt, (), (Custom,)))):
        assert isinstance(form, NodeByNode)
        assert torch.equal(form(raw.clone(), history), theirs(Custom(), raw, prompt, outputs))


def test_a_subclass_of_a_known_class_is_unknown():
    class Warm(known.TemperatureLogitsWarper):
        pass

    assert form_of(Warm(0.5), ProcessorContext(torch.zeros(1, 1, dtype=torch.long))) is None


def test_a_prefix_function_is_asked_once_for_each_sequence_that_can_be_reached():
    prompt, history, _ = case(1)
    asked = []

    def counted(row: int, ids: torch.Tensor) -> list[int]:
        asked.append((row, tuple(ids.tolist())))
        return allowed(row, ids)

    form = form_of(known.PrefixConstrainedLogitsProcessor(counted, 1), ProcessorContext(prompt))
    raw = torch.randn(B, history.visible.shape[1], V)
    for _ in range(2):
        form(raw.clone(), history)
    assert len(asked) == len(set(asked))
    assert {row for row, _ in asked} == {0, 1, 2}


def test_a_prefix_function_is_told_the_prompt_of_a_copy():
    """`generate` repeats prompts for `num_return_sequences`; since 5.24 it makes the processor for as many rows a prompt."""
    prompt = torch.tensor([[5, 6], [5, 6], [7, 6], [7, 6]])
    processor = known.PrefixConstrainedLogitsProcessor(allowed, 2)
    form = form_of(processor, ProcessorContext(prompt))
    scores = torch.randn(4, V)
    right = processor(prompt, scores)
    for row in range(4):
        assert list(form.at(row, []).allowed) == allowed(row // 2, prompt[row])
        assert set(right[row].isfinite().nonzero()[:, 0].tolist()) == set(form.at(row, []).allowed)
    with pytest.raises(ValueError, match="2 sequences a prompt, and there are 3 rows"):
        form_of(processor, ProcessorContext(prompt[:3]))


def test_what_a_prefix_function_raises_is_raised_once_a_row_gets_there_and_not_before():
    prompt = torch.tensor([[1, 2]])

    def dead_end(row: int, ids: torch.Tensor) -> list[int]:
        return [3, 4] if len(ids) == 2 else []

    form = form_of(known.PrefixConstrainedLogitsProcessor(dead_end, 1), ProcessorContext(prompt))
    assert form.at(0, [3]).error is not None
    assert not form.check(0, [3])
    with pytest.raises(ValueError, match="returned an empty list for row 0"):
        form.check(0, [3, 5])


def test_a_row_that_has_ended_is_not_asked_about():
    form = form_of(known.PrefixConstrainedLogitsProcessor(lambda row, ids: [2], 1), ProcessorContext(torch.tensor([[1]]), (2,)))
    assert form.at(0, [2]) is None


def test_the_tables_name_classes_that_exist():
    for kind in drop_in_processors.WITHOUT_DRAFTING:
        assert issubclass(kind, known.LogitsProcessor)
