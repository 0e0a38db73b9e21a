"""transformers' own assisted generation and mmspec on the same weights, in one process: `tests.assisted`."""

from tests.assisted import GEMMA, compared, pairs


def test_both_write_the_text_of_generate_in_as_many_calls(tmp_path):
    """Gemma-4's assistant: in transformers it also reads the key of the first rejected token (`test_shared_states`)."""
    names = []
    for pair in pairs(tmp_path):
        theirs, *ours = compared(pair, 24)
        assert theirs.same, pair.name
        assert all(row.same for row in ours), pair.name
        assert theirs.tokens_per_call > 1, pair.name
        if pair.name != GEMMA:
            assert ours[0].tokens_per_call == theirs.tokens_per_call, pair.name
        names.append(pair.name.partition(",")[0])
    assert set(names) == {"MTP", "DFlash", GEMMA}
