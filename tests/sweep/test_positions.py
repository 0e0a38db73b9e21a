"""A fast part of `python -m tests.sweep --positions`: a class of every way in which positions end, or do not."""

import pytest

from tests.sweep.positions import cases, outcome

WAYS = {
    "causal gpt_neo": "right, ends",  # learned, and windows that are tables
    "causal codegen": "right, ends",  # a table of rotary values
    "causal mpt": "right, goes on, as its own forward does not",  # biases for so many distances
    "causal roberta": "right, ends",  # learned, after the padding id
    "causal llama": "right, goes on",
    "causal jamba": "right, goes on",  # no positions, though its config names a number
    "seq2seq bart": "right, ends",
    "seq2seq m2m_100": "right, goes on",  # sinusoids, made as they are needed
    "seq2seq t5": "right, goes on",
}
CASES = {f"{case.kind} {case.name}": case for case in cases()}


@pytest.mark.parametrize("name", WAYS)
def test_a_drafter_with_fewer_positions_leaves_the_text_alone(name):
    assert outcome(CASES[name]) == WAYS[name]
