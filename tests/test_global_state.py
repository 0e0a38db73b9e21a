"""Nothing that a whole process shares is changed by a public call, and nothing is left behind."""

import pytest
import torch

import mmspec
from tests.companions import llama
from tests.families import FAMILIES, build, inputs_for
from tests.snapshots import differences, model_state, process_state
from tests.soak.calls import CALLS, COUNTS
from tests.soak.memory import watched

TURNS = {"text": (0, 1, 3, 7, 8, 9, 10, 13, 16, 22, 24), "pictures": (0, 4, 5), "speech": (0, 1, 3), "recommendations": (0, 1, 2, 3, 7)}


@pytest.mark.parametrize("what", [*TURNS, "seeing"])
def test_public_calls_leave_the_process_as_it_was(what):
    """Loading the mini included. The first call of a process may import: what imports set up is no residue."""
    CALLS[what]()(0)
    before = process_state()
    call = CALLS[what]()
    for turn in TURNS.get(what, range(9)):
        call(turn)
        assert not differences(before, process_state()), turn


def test_every_draft_length_may_be_captured_and_leaves_the_process_and_the_model_as_they_were(monkeypatch):
    model, inputs = llama(), inputs_for("Llama", 1)  # of one layer: compiling takes most of this test's time
    model.generation_config.eos_token_id = None
    expected = mmspec.text.generate(model, inputs, max_new_tokens=8)
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **_: real(model, backend="eager", fullgraph=True, dynamic=False))
    with torch._dynamo.config.patch(recompile_limit=3):
        before, own = process_state(), model_state(model)
        for length in range(5):  # more shapes than the compiler's limit, which is raised inside
            out = mmspec.text.generate(model, inputs, "suffix", draft_length=length, capture=True, max_new_tokens=8)
            assert torch.equal(out.sequences, expected.sequences)
        assert not differences(before, process_state())
        assert not differences(own, model_state(model))


def test_a_captured_target_whose_model_has_changed_is_refused():
    from mmspec.models.families.base import DecoderOnly
    from mmspec.models.target import HFTarget

    model = build(FAMILIES["Llama"])
    target = HFTarget(model, DecoderOnly.of(model)).capture(64, backend="eager", mode=None)
    target.begin(inputs_for("Llama", 1))
    model.model.layers[0].self_attn.scaling *= 2
    with pytest.raises(ValueError, match="has changed since it was captured"):
        target.begin(inputs_for("Llama", 1))


def test_text_calls_of_every_kind_leave_no_tensor_thread_or_file():
    """The short form of `python -m tests.soak text`: every turn once before and once after the first look."""
    _, left = watched("text", COUNTS["text"], warm=COUNTS["text"])
    assert not left


def test_mutant_a_kept_tensor_is_found(monkeypatch):
    kept = []
    real = CALLS["text"]
    monkeypatch.setitem(CALLS, "text", lambda call=None: lambda turn: kept.append(real_call(turn)))
    real_call = real()
    _, left = watched("text", 3, warm=3)
    assert any("tensors" in line for line in left)
