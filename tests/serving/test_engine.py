"""The engine under threads: streams, cancelled rows, priorities, a full queue, failures and its end."""

import math
import os
import queue
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mmspec
from mmspec import Engine
from mmspec.serving.admission import Places, RequestQueue
from mmspec.serving.http.worker import ModelWorker
from mmspec.text.pieces import text_pieces
from tests.conftest import llama

PROMPT = {"input_ids": torch.tensor([[5, 6, 7, 5, 6]])}
WAIT = 60


@pytest.fixture(scope="module")
def model():
    return llama(2, seed=0)


def alone(model, **options):
    return mmspec.text.generate(model, PROMPT, **options).tokens[0].tolist()


class Gate:
    """A stop function that holds the engine at a row's first token until it is opened."""

    def __init__(self):
        self.reached, self.opened = Event(), Event()

    def __call__(self, row, values):
        self.reached.set()
        assert self.opened.wait(WAIT)
        return False


def test_many_threads_submit_and_each_gets_its_own(model):
    found = {}
    with Engine(model, "lookup", max_rows=3) as engine:

        def ask(seed):
            found[seed] = engine.submit(PROMPT, seed=seed, temperature=1.0, max_new_tokens=4 + seed).result(WAIT)

        threads = [Thread(target=ask, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
    for seed, out in found.items():
        assert out.tokens[0].tolist() == alone(model, seed=seed, temperature=1.0, max_new_tokens=4 + seed)
        assert out.lengths.tolist() == [4 + seed]
        assert out.stats.tokens == 4 + seed
        assert out.stats.exactness == "token-exact"
    assert engine.counts.finished == 8


def test_a_stream_gives_tokens_as_they_are_committed(model):
    gate = Gate()
    with Engine(model) as engine:
        handle = engine.submit(PROMPT, max_new_tokens=6, stops=[gate])
        assert gate.reached.wait(WAIT)
        assert not handle.done
        gate.opened.set()
        assert list(handle.stream()) == handle.result(WAIT).tokens[0].tolist() == alone(model, max_new_tokens=6)
        assert "".join(handle.stream(lambda ids: "".join(chr(97 + i % 26) for i in ids))) == "".join(
            chr(97 + i % 26) for i in handle.tokens
        )


def test_pieces_of_text_end_between_characters():
    data = "aé日本𝄞b".encode()
    assert list(text_pieces(list(data), lambda ids: bytes(ids).decode("utf-8", "replace"))) == ["a", "é", "日", "本", "𝄞", "b"]
    assert "".join(text_pieces(list(data[:3]), lambda ids: bytes(ids).decode("utf-8", "replace"))) == "aé"
    assert list(text_pieces([], lambda ids: "")) == []


def test_priorities_a_full_queue_and_cancelled_requests(model):
    gate, order = Gate(), []
    with Engine(model, max_rows=1, max_queue=3) as engine:
        first = engine.submit(PROMPT, max_new_tokens=3, stops=[gate])
        assert gate.reached.wait(WAIT)

        def noted(name):
            return lambda row, values: order.append(name) is not None

        low = engine.submit(PROMPT, max_new_tokens=2, stops=[noted("low")])
        high = engine.submit(PROMPT, max_new_tokens=2, stops=[noted("high")], priority=1)
        gone = engine.submit(PROMPT, max_new_tokens=2, stops=[noted("gone")])
        with pytest.raises(queue.Full, match=r"^3 requests are waiting"):
            engine.submit(PROMPT)
        gone.cancel()
        engine.submit(PROMPT, max_new_tokens=1).cancel()  # takes the place of the cancelled one
        gate.opened.set()
        assert first.result(WAIT).lengths.tolist() == [3]
        assert low.result(WAIT).lengths.tolist() == high.result(WAIT).lengths.tolist() == [2]
        with pytest.raises(CancelledError):
            gone.result(WAIT)
    assert order == ["high", "high", "low", "low"]
    assert engine.counts.cancelled == 2


def test_a_running_row_is_cancelled_and_the_others_go_on(model):
    gate = Gate()
    with Engine(model, max_rows=2) as engine:
        other = engine.submit(PROMPT, max_new_tokens=30, seed=1, temperature=1.0)
        handle = engine.submit(PROMPT, max_new_tokens=200, stops=[gate])
        assert gate.reached.wait(WAIT)
        handle.cancel()
        gate.opened.set()
        assert other.result(WAIT).tokens[0].tolist() == alone(model, max_new_tokens=30, seed=1, temperature=1.0)
        with pytest.raises(CancelledError):
            handle.result(WAIT)
    assert 1 <= len(handle.tokens) < 200


def test_an_error_in_one_request_ends_no_other(model):
    def broken(row, values):
        if len(values) == 5:
            raise ZeroDivisionError("a stop function that fails")
        return False

    with Engine(model, "lookup", max_rows=4) as engine:
        fine = [engine.submit(PROMPT, seed=seed, temperature=1.0, max_new_tokens=12) for seed in range(3)]
        bad = engine.submit(PROMPT, max_new_tokens=12, stops=[broken])
        later = engine.submit(PROMPT, max_new_tokens=3)
        for seed, handle in enumerate(fine):
            assert handle.result(WAIT).tokens[0].tolist() == alone(model, seed=seed, temperature=1.0, max_new_tokens=12)
            assert list(handle.stream()) == handle.tokens
            assert handle.stats.tokens == 12
        with pytest.raises(ZeroDivisionError):
            bad.result(WAIT)
        assert later.result(WAIT).lengths.tolist() == [3]
    assert engine.counts.failed == 1
    assert engine.counts.finished == 4


def test_logits_that_are_not_finite_end_their_request_alone(model):
    broken = llama(2, seed=0)
    broken.model.embed_tokens.weight.data[9] = torch.nan
    with Engine(broken, max_rows=3) as engine:
        bad = engine.submit({"input_ids": torch.tensor([[5, 9]])}, max_new_tokens=4)
        fine = engine.submit(PROMPT, max_new_tokens=1)
        with pytest.raises(FloatingPointError, match="in row 0 at output position 0"):
            bad.result(WAIT)
        assert fine.result(WAIT).tokens[0].tolist() == alone(model, max_new_tokens=1)


def sevens(scores, history):
    """A processor that leaves one token."""
    return torch.where(torch.arange(scores.shape[-1]) == 7, scores, -torch.inf)


def test_a_processor_of_one_request_is_applied_to_its_row_alone(model):
    with Engine(model, max_rows=3) as engine:
        both = [engine.submit(PROMPT, max_new_tokens=9, processors=own) for own in ([], [sevens])]
        assert both[0].result(WAIT).tokens[0].tolist() == alone(model, max_new_tokens=9)
        assert both[1].result(WAIT).tokens[0].tolist() == [7] * 9


def test_no_request_is_lost_at_the_end(model):
    engine = Engine(model, max_rows=2)
    handles = [engine.submit(PROMPT, max_new_tokens=5) for _ in range(6)]
    engine.close()
    assert [handle.result(0).lengths.tolist() for handle in handles] == [[5]] * 6
    with pytest.raises(RuntimeError, match="the engine is closed"):
        engine.submit(PROMPT)
    engine.close()


def test_an_exception_in_the_callers_block_cancels_what_runs(model):
    gate, handles = Gate(), []

    def interrupted():
        with Engine(model, max_rows=1) as engine:
            handles.extend((engine.submit(PROMPT, max_new_tokens=50, stops=[gate]), engine.submit(PROMPT)))
            assert gate.reached.wait(WAIT)
            Thread(target=lambda: (time.sleep(0.1), gate.opened.set())).start()
            raise KeyError("the caller's own")

    with pytest.raises(KeyError):
        interrupted()
    for handle in handles:
        with pytest.raises(CancelledError):
            handle.result(0)


def test_a_request_that_takes_too_long_is_waited_for_no_longer(model):
    gate = Gate()
    with Engine(model) as engine:
        handle = engine.submit(PROMPT, max_new_tokens=2, stops=[gate])
        with pytest.raises(TimeoutError, match=r"has not ended after 0\.01 s"):
            handle.result(0.01)
        gate.opened.set()


@pytest.mark.parametrize("seconds", [math.nan, -1.0, True, "1"])
def test_seconds_to_wait_are_a_number(model, seconds):
    worker = ModelWorker("test", 1)
    with Engine(model) as engine:
        handle = engine.submit(PROMPT, max_new_tokens=1)
        for wait in (lambda: engine.submit(PROMPT, wait=seconds), lambda: handle.result(seconds), lambda: worker.close(seconds)):
            with pytest.raises(ValueError, match=r"(wait|timeout) is .*: give a number of seconds from 0 on, or None for no limit$"):
                wait()
        assert handle.result(math.inf).stats.tokens == 1
    worker.close(math.inf)


def _in_a_fork(*calls):
    """What each of `calls` raises in a forked process, a line each."""
    reads, writes = os.pipe()
    if (child := os.fork()) == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)  # a call that waits for ever ends the process
        for call in calls:
            try:
                said = repr(call())
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(writes, f"{said}\n".encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as file:
        said = file.read().splitlines()
    os.waitpid(child, 0)
    return said


def test_a_forked_process_is_told_that_the_engine_is_not_in_it(model):
    gate, worker = Gate(), ModelWorker("test", 1)
    with Engine(model) as engine:
        done = engine.submit(PROMPT, max_new_tokens=1)
        done.result(WAIT)
        held = engine.submit(PROMPT, max_new_tokens=2, stops=[gate])
        assert gate.reached.wait(WAIT)
        said = _in_a_fork(
            lambda: engine.submit(PROMPT), engine.close, held.result, lambda: next(held.stream()), lambda: worker.submit(len), worker.close
        )
        assert _in_a_fork(lambda: done.result().lengths.tolist()) == ["[1]"]
        gate.opened.set()
        assert held.result(WAIT).stats.tokens == 2
    worker.close()
    assert [line.split(" runs in process ")[0] for line in said] == [
        f"RuntimeError: this {name}" for name in ("engine", "engine", "request", "request", "worker", "worker")
    ]
    assert all(f"process {os.getpid()}, from which this one was forked" in line for line in said)


_LEFT_OPEN = """
import sys, time, torch
from mmspec import Engine
from mmspec.serving.http.worker import ModelWorker
from tests.conftest import llama

engine, worker = Engine(llama(2, seed=0)), ModelWorker("worker", 4)
for _ in range(3):
    engine.submit({"input_ids": torch.tensor([[5, 6, 7]])}, max_new_tokens=200, stops=[lambda row, values: multiply(20)])

def multiply(times):
    for _ in range(times):
        torch.ones(500, 500) @ torch.ones(500, 500)

def job(job):
    while True:
        multiply(1)
        job.on_step()

worker.submit(job)
while not engine.counts.tokens or not worker.busy:
    time.sleep(0.01)
if sys.argv[1:]:
    raise KeyError("the program's own")
"""


@pytest.mark.parametrize("arguments", [(), ("fails",)])
def test_a_program_that_ends_with_running_requests_ends_as_it_would_without(arguments):
    ended = subprocess.run([sys.executable, "-c", _LEFT_OPEN, *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == len(arguments), ended.stderr
    assert "mmspec-engine was still open at the end of the program, and 3 requests were cancelled" in ended.stderr
    assert "worker was still open at the end of the program, and 1 requests were cancelled" in ended.stderr
    assert ended.stderr.count("Traceback") == len(arguments)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": [0.0, 1.0]}, "temperature has 2 values, but a request of an engine is one row"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"max_new_tokens": 60}, "exceed the engine's 64 positions: ask for at most 59"),
        ({"seed": "a"}, "seed is 'a'"),
        ({"priority": 0.5}, "priority is 0.5"),
        ({"processors": len}, "processors is "),
    ],
)
def test_a_wrong_request_is_refused_before_it_waits(model, options, words):
    with Engine(model, max_length=64) as engine, pytest.raises(ValueError, match=words) as caught:
        engine.submit(PROMPT, **options)
    assert "\n" not in str(caught.value)


def test_several_prompts_are_not_one_request(model):
    with Engine(model) as engine, pytest.raises(ValueError, match="one prompt, but input_ids has 2 rows"):
        engine.submit({"input_ids": torch.ones(2, 3, dtype=torch.long)})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_rows": 0}, "max_rows is 0"),
        ({"accept": "token"}, "accept rule Token is distribution-exact, so that outputs would depend on the requests beside them"),
        ({"drafter": "lookahead"}, "keeps states of the whole batch"),
        ({"draft_length": -1}, "draft_length is -1"),
    ],
)
def test_a_wrong_engine_is_refused(model, options, words):
    with pytest.raises(ValueError, match=words) as caught:
        Engine(model, **options)
    assert "\n" not in str(caught.value)


def test_models_with_an_encoder_are_refused():
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 16, "d_ff": 16, "d_kv": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 30, "decoder_start_token_id": 0}
    with pytest.raises(ValueError, match="T5ForConditionalGeneration has an encoder"):
        Engine(T5ForConditionalGeneration(T5Config(**sizes)).eval())


def test_an_option_that_the_modality_does_not_read_is_refused_by_name(model):
    with (
        Engine(model) as engine,
        pytest.raises(ValueError, match="voice is no option of this engine's requests; valid: max_new_tokens"),
    ):
        engine.submit(PROMPT, voice="theo")


@pytest.mark.parametrize(("rows", "waiting"), [(8, 4), (1, 1), (3, 5)])
def test_an_engine_holds_as_many_requests_as_it_says(model, rows, waiting):
    """All come at once, before the engine's thread has taken the first one."""
    gate, taken = Gate(), []
    with Engine(model, max_rows=rows, max_queue=waiting) as engine:
        for _ in range(2 * (rows + waiting)):
            with suppress(queue.Full):
                taken.append(engine.submit(PROMPT, max_new_tokens=2, stops=[gate]))
        gate.opened.set()
        assert all(handle.result(WAIT).lengths.tolist() == [2] for handle in taken)
        engine.submit(PROMPT, max_new_tokens=1).result(WAIT)  # places are free again
    assert len(taken) == rows + waiting


def test_who_waits_for_a_place_gets_that_of_a_request_that_has_ended(model):
    gate = Gate()
    with Engine(model, max_rows=1, max_queue=1) as engine:
        for _ in range(2):
            engine.submit(PROMPT, max_new_tokens=2, stops=[gate])
        Thread(target=lambda: (time.sleep(0.1), gate.opened.set())).start()
        assert engine.submit(PROMPT, max_new_tokens=1, wait=WAIT).result(WAIT).lengths.tolist() == [1]


def test_a_short_request_does_not_wait_for_long_ones(model):
    """A row is kept for it; without one it still starts before all long ones that wait."""
    for short_rows, place in ((1, 0), (0, 1)):
        ended, gate = [], Gate()
        with Engine(model, max_rows=2, short_rows=short_rows, max_length=2000) as engine:

            def noted(name, most, ended=ended):
                return lambda row, values: len(values) == most and ended.append(name) is not None

            lengths = [100 + 10 * row for row in range(8)]
            own = [[], [gate], *([] for _ in lengths[2:])]  # two run when the gate is reached
            options = [{"max_new_tokens": each, "stops": [*gates, noted("long", each)]} for each, gates in zip(lengths, own, strict=True)]
            handles = [engine.submit(PROMPT, processors=[sevens], **each) for each in options]
            assert gate.reached.wait(WAIT)
            handles.append(engine.submit(PROMPT, max_new_tokens=1, stops=[noted("short", 1)]))
            gate.opened.set()
            assert [handle.result(WAIT).lengths.tolist() for handle in handles] == [[each] for each in (*lengths, 1)]
        assert ended.index("short") == place


# --- the queue --------------------------------------------------------------------------------------------------------


@dataclass
class Waiting:
    """What a queue reads of a handle."""

    size: int
    client: str = ""
    priority: int = 0
    cancelled: bool = False
    done: bool = False
    together = True
    columns = 1

    @property
    def work(self):
        return self


def test_no_request_waits_without_end():
    """Short requests come for ever: a long one starts once a row has committed as many tokens as it asks for."""
    line, now = RequestQueue(1, 99), 0
    line.add(long := Waiting(100, "other"), now)
    while True:
        line.add(Waiting(10), now)
        taken = line.take(None)
        if taken is long:
            break
        taken.done, now = True, now + taken.size
    assert now == 90  # the short one that came then is due after it


def test_clients_take_turns():
    line = RequestQueue(1, 99)
    for _ in range(20):
        line.add(Waiting(10, "many"), 0)
    for _ in range(3):
        line.add(Waiting(10, "few"), 0)
    order = []
    while (taken := line.take(None)) is not None:
        taken.done = True
        order.append(taken.client)
    assert order[:6] == ["many", "few"] * 3
    assert len(order) == 23


@given(st.integers(1, 12), st.lists(st.sampled_from("abc"), max_size=40))
def test_no_client_takes_the_places_of_others(total, asked):
    places, holders = Places(total, "abc"), []
    for client in asked:
        if places.free(holders, client):
            holders.append(client)
    assert len(holders) <= total
    for client in "abc":
        while holders.count(client) < total // 6:  # half of the places are kept for three clients
            assert places.free(holders, client)
            holders.append(client)
    assert len(holders) <= total
    assert Places(total).free(["a"] * (total - 1), "a")  # one client alone may have all
