"""Asynchronous pairs: a drafter in another process drafts while the target verifies. The output is that of plain decoding."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import mmspec
from mmspec.core.noise import Noise
from mmspec.core.records import Budget, Draft
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.token import Token
from mmspec.drafters.model.ahead import DraftedChains, RoundOutcome
from mmspec.drafters.model.asynchronous import Asynchronous
from mmspec.drafters.model.draft_process import DraftProcesses
from mmspec.drafters.retrieval.lookup import Lookup
from mmspec.drafters.shapes import Chain, drawn, most_likely, sampled
from tests.drafters.cascades import drafting, perturbed
from tests.drafters.runs import greedy, plain, random_prompt, run
from tests.drafters.test_positions import LONG, SHORT, pair, rows

ONE, RAGGED = random_prompt(9), random_prompt(5, 9, 7, seed=1)
SOME = {"max_new_tokens": 16, "draft_length": 6}


@pytest.fixture(scope="module")
def shared():
    """One process for all tests of this module: to start one takes seconds."""
    made = DraftProcesses()
    yield made
    made.close()


@pytest.fixture(scope="module")
def drafts(big, shared):
    """Makes asynchronous drafters; by default of a model that is often right."""

    def make(model=None, shape=None, temperature=None, ahead=8, least=1):
        drafter = drafting(near if model is None else model, shape or Chain(most_likely), temperature)
        return Asynchronous(drafter, least, ahead, processes=shared)

    near = perturbed(big, 0.02)
    return make


class SlowTarget:
    """A drafter whose rounds end when it has drafted all that it may, as if the target took long."""

    def __init__(self, drafter):
        self.drafter = drafter

    def begin(self, prompt, session):
        found = self.drafter.begin(prompt, session)
        observe = found.observe

        def observed_late(*outcome):
            while found.process is not None and any(
                len(row) < min(left - 1, self.drafter.ahead) for row, left in zip(found._current().rows, found.left, strict=True)
            ):
                found._read(found.process)
            observe(*outcome)

        found.observe = observed_late
        return found


@pytest.mark.parametrize("inputs", [ONE, RAGGED], ids=["one", "ragged"])
@pytest.mark.parametrize("length", [1, 5])
def test_greedy_tokens_are_those_of_plain_decoding(big, drafts, inputs, length):
    assert run(big, drafts(), inputs, length=length).sequences.tolist() == greedy(big, inputs)


@pytest.mark.parametrize("inputs", [ONE, RAGGED], ids=["one", "ragged"])
def test_coupled_tokens_are_those_of_plain_sampling(big, drafts, inputs):
    out = run(big, drafts(shape=Chain(drawn), temperature=1.0), inputs, Coupled(), temperature=1.0, seed=5)
    assert out.sequences.tolist() == plain(big, inputs, seed=5)
    assert out.stats.accepted > 0


def test_a_poor_drafter_is_rolled_back_row_by_row(big, small, drafts):
    drafter = drafts(small, least=2, ahead=4)
    out = run(big, drafter, RAGGED)
    assert out.sequences.tolist() == greedy(big, RAGGED)
    assert out.stats.rejected > 0
    assert [run(big, drafter, {k: v[row : row + 1] for k, v in RAGGED.items()}).sequences.tolist()[0] for row in range(3)] == greedy(
        big, RAGGED
    )


@pytest.mark.parametrize("inputs", [ONE, RAGGED], ids=["one", "ragged"])
def test_what_was_drafted_meanwhile_is_kept(big, drafts, inputs):
    """The target as its own drafter: every round verifies seven draft tokens, and none of them waits for the drafter."""
    drafted = []
    out = run(
        big,
        SlowTarget(drafts(big, ahead=16, least=0)),
        inputs,
        new=45,
        length=7,
        on_step=lambda step: drafted.append(step.committed.drafted),
    )
    assert out.sequences.tolist() == greedy(big, inputs, 45)
    rows = len(inputs["input_ids"])
    assert drafted == [[0] * rows, *[[7] * rows] * 5, [3] * rows]  # the first round does not wait; 1 + 5 * 8 + 4 tokens
    assert out.stats.rejected == 0


def test_ends_budgets_and_stops(big, drafts):
    near = drafts()
    text = greedy(big, RAGGED, 24)
    end = text[0][6]
    cut = [row[: row.index(end) + 1] if end in row else row for row in text]
    out = run(big, near, RAGGED, new=24, ends=[end])
    assert [row[:length] for row, length in zip(out.sequences.tolist(), out.lengths.tolist(), strict=True)] == cut
    for new in (1, 2, 3):
        assert run(big, near, ONE, new=new).sequences.tolist() == greedy(big, ONE, new)
    stopped = mmspec.text.generate(big, ONE, near, stops=[lambda row, values: len(values) == 5], **SOME)
    assert stopped.lengths.tolist() == [5]
    assert stopped.tokens.tolist()[0][:5] == greedy(big, ONE, 16)[0][:5]


def test_rows_outlast_a_drafter_that_has_no_positions_left(shared):
    target, inputs, rounds = pair("learned", LONG), rows(3, 14, SHORT + 1), []
    drafter = Asynchronous(pair("learned"), least=3, processes=shared)
    made = {"max_new_tokens": 24, "draft_length": 4}
    expected = mmspec.text.generate(target, inputs, **made).tokens
    found = mmspec.text.generate(target, inputs, drafter, on_step=lambda step: rounds.append(step.committed.drafted), **made)
    assert found.tokens.equal(expected)
    assert not any(row[2] for row in rounds)
    assert any(row[0] for row in rounds)
    assert not rounds[-1][0]


def test_models_and_names_are_resolved(big, shared):
    for settings in ({}, {"temperature": 1.0, "seed": 3}):
        expected = mmspec.text.generate(big, RAGGED, **settings, max_new_tokens=16)
        drafter = Asynchronous(perturbed(big, 0.02), ahead=8, processes=shared)
        for length in ("auto", 6):
            out = mmspec.text.generate(big, RAGGED, drafter, **settings, max_new_tokens=16, draft_length=length)
            assert torch.equal(out.tokens, expected.tokens)
        assert len(shared.idle) == 1  # every generation used the same process
    with pytest.raises(ValueError, match="write asynchronous:DRAFTER, such as"):
        mmspec.text.generate(big, ONE, "asynchronous:a,b")
    with pytest.raises(ValueError, match="was given a Lookup: give a model"):
        mmspec.text.generate(big, ONE, "asynchronous:lookup")


def test_draft_lengths_of_zero_leave_the_process_alone(big):
    drafter = Asynchronous(drafting(perturbed(big, 0.02), Chain(most_likely)))
    assert run(big, drafter, RAGGED, length=0).sequences.tolist() == greedy(big, RAGGED)
    assert drafter.processes.idle == []


def test_nothing_is_left_of_a_generation(big, drafts, shared):
    near = drafts()
    expected = run(big, near, RAGGED).sequences.tolist()
    target = mmspec.text.generate(big, ONE, near, **SOME).tokens.tolist()

    def give_up(step):
        raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            mmspec.text.generate(big, ONE, near, on_step=give_up, **SOME)
    assert run(big, near, RAGGED).sequences.tolist() == expected
    assert mmspec.text.generate(big, ONE, near, **SOME).tokens.tolist() == target
    assert len(shared.idle) == 1


def test_changed_weights_are_sent_again(big, drafts):
    model = perturbed(big, 0.5)
    drafter = drafts(model)
    poor = run(big, drafter, ONE).stats
    model.load_state_dict(big.state_dict())
    good = run(big, drafter, ONE).stats
    assert poor.rejected > 0
    assert good.rejected == 0


def test_a_model_that_has_told_its_hidden_states_can_be_sent(big, drafts):
    model = perturbed(big, 0.02)
    model(ONE["input_ids"], output_hidden_states=True)  # transformers leaves hooks in it, which are local functions
    assert run(big, drafts(model), ONE).sequences.tolist() == greedy(big, ONE)


def test_a_process_that_dies_is_reported_and_replaced(big, drafts, shared):
    drafter = drafts()
    run(big, drafter, ONE)
    process = shared.idle[0].process

    def kill(step):
        os.kill(process.pid, signal.SIGKILL)
        process.join()

    with pytest.raises(RuntimeError, match=r"^the drafter's process has ended \(exit code -9\): generate again, or decode without it$"):
        run(big, drafter, ONE, on_step=kill)
    assert run(big, drafter, ONE).sequences.tolist() == greedy(big, ONE)


def test_a_forked_process_leaves_the_drafter_s_process_to_its_parent(big, drafts, shared):
    drafter = drafts()
    run(big, drafter, ONE)
    idle = shared.idle[0]
    if (child := os.fork()) == 0:
        idle.close()
        os._exit(0 if idle.parent != os.getpid() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert run(big, drafter, ONE).sequences.tolist() == greedy(big, ONE)
    assert shared.idle == [idle]
    idle.parent = 0  # as in a forked process: one of its own is started
    assert run(big, drafter, ONE).sequences.tolist() == greedy(big, ONE)
    assert idle not in shared.idle
    idle.parent = os.getpid()
    idle.close()


def test_errors_of_the_model_arrive(big, drafts, shared):
    broken = perturbed(big, 0.0)
    broken.model.norm.weight.data.fill_(float("nan"))
    drafter = drafts(broken)
    with pytest.raises(FloatingPointError, match="the drafter's logits hold NaN or infinity in row 0"):
        run(big, drafter, ONE)
    broken.load_state_dict(big.state_dict())
    assert run(big, drafter, ONE).sequences.tolist() == greedy(big, ONE)  # the same process
    assert len(shared.idle) == 1


def test_what_cannot_be_sent_is_refused(big, drafts):
    unsendable = perturbed(big, 0.0)
    unsendable.register_forward_hook(lambda *parts: None)
    with pytest.raises(ValueError, match="cannot be sent to another process"):
        run(big, drafts(unsendable), ONE)
    with pytest.raises(ValueError, match="without their distributions"):
        run(big, drafts(shape=Chain(sampled), temperature=1.0), ONE, Token(), temperature=1.0)
    with pytest.raises(ValueError, match="takes no tree"):
        mmspec.text.generate(big, ONE, Asynchronous(big), tree=(2, 1))
    with pytest.raises(ValueError, match="with a transformers model, but was given a Lookup"):
        run(big, Asynchronous(Lookup()), ONE)
    with pytest.raises(ValueError, match="give ahead of at least 1"):
        Asynchronous(big, least=4, ahead=2)
    with pytest.raises(ValueError, match="threads is 0"):
        Asynchronous(big, threads=0)
    session = drafts().begin(ONE, None)
    roots = Draft(torch.zeros(1, 2, dtype=torch.long), torch.tensor([[-1, 0]]), torch.zeros(1, dtype=torch.long), roots=2)
    with pytest.raises(ValueError, match="cannot be a part of a cascade"):
        session.propose(roots, Budget(torch.tensor([5]), 2), Noise.from_seed(0, 1))


_PARENT = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
import mmspec
from mmspec.drafters.model.asynchronous import Asynchronous

if __name__ == "__main__":
    torch.set_num_threads(1)
    sizes = dict(vocab_size=50, hidden_size=32, intermediate_size=64, num_attention_heads=2, num_hidden_layers=1)
    model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    def told(step):
        print(torch.multiprocessing.active_children()[0].pid, flush=True)
    mmspec.text.generate(model, {"input_ids": torch.tensor([[3, 4]])}, Asynchronous(model), max_new_tokens=2000, on_step=told)
"""


def test_the_process_ends_with_a_killed_parent(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(_PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    number = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    for _ in range(200):
        if not _alive(number):
            return
        time.sleep(0.1)
    os.kill(number, signal.SIGKILL)
    pytest.fail("the drafter's process outlived its parent by 20 seconds")


def _alive(number):
    try:
        with open(f"/proc/{number}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_chains_go_on_behind_what_is_committed():
    chains = DraftedChains(3)
    for values in ([1, 5, None], [2, 6, None], [3, 7, 9]):
        chains.extend(values)
    assert chains.advance([[1, 2], [5], []])
    assert chains.rows == [[3], [6, 7], [9]]
    other = chains.copy()
    assert not other.advance([[3, 4], [8], [9]])  # longer than what was drafted; another value; all of it
    assert other.rows == [[], [], []]
    assert chains.rows == [[3], [6, 7], [9]]
    assert RoundOutcome([[1]], [False]).values == [[1]]
