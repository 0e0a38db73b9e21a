"""`mmspec serve`: keys, limits, and clients that send nonsense, send too much, are slow or leave."""

import asyncio
import contextlib
import json
import queue
import select
import threading
import time
from collections import Counter
from concurrent.futures import CancelledError, ThreadPoolExecutor

import httpx
import openai
import pytest

from mmspec.serving.engine import Engine
from mmspec.serving.http import bodies, choices, errors, models, protocol
from mmspec.serving.http.bodies import body_bounds
from mmspec.serving.http.endpoints import shared
from mmspec.serving.http.endpoints.app import ROUTERS
from mmspec.serving.http.errors import GONE, ApiError
from mmspec.serving.http.gate import RequestGate
from mmspec.serving.http.metrics import ServerMetrics
from mmspec.serving.http.models import ServedModels, TextServed
from mmspec.serving.http.options import KEYS, ServerLimits, ServerOptions, api_keys, client_names
from mmspec.serving.http.worker import ModelWorker, SharedCall
from mmspec.serving.model_thread import EngineClosed
from tests.serving.web import STORY, WAIT, Gate, post, running, shared_text, text_models, until

JSON = {"Content-Type": "application/json"}
BODY = {"model": "mini-text", "prompt": STORY, "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def pair():
    models = text_models()
    yield models.text.pair
    models.close()


@pytest.fixture(scope="module")
def site(pair):
    limits = ServerLimits(max_rows=1, max_queue=1, max_body=20_000)
    with running(shared_text(pair, limits), limits) as found:
        yield found


@pytest.fixture
def held(site):
    """The engine's only row is taken, until the test ends or opens the gate."""
    engine, gate = site.models.text.engine, Gate()
    ids = site.models.text.pair.tokenizer(STORY, return_tensors="pt")
    handle = engine.submit({"input_ids": ids["input_ids"]}, max_new_tokens=4, stops=[gate])
    assert gate.reached.wait(WAIT)
    yield gate
    gate.opened.set()
    handle.result(WAIT)
    until(lambda: not engine.rows and not engine.queued)


def metric(site, name):
    lines = httpx.get(f"{site.url}/metrics", timeout=WAIT).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


# --- keys -------------------------------------------------------------------------------------------------------------


def test_keys(pair):
    limits = ServerLimits()
    with running(shared_text(pair, limits), limits, keys=("first", "schlüssel")) as site:
        for key in ("first", "other"):
            client = site.client(key)
            if key == "first":
                assert client.completions.create(**BODY).choices
            else:
                with pytest.raises(openai.AuthenticationError) as refused:
                    client.completions.create(**BODY)
                assert refused.value.body["code"] == "invalid_api_key"
                assert "other" not in str(refused.value)
        headers = {"Authorization": "Bearer schlüssel".encode()}
        assert httpx.get(f"{site.url}/v1/models", headers=headers, timeout=WAIT).status_code == 200
        for headers in ({}, {"Authorization": "first"}, {"Authorization": "Basic first"}, {"Authorization": "Bearer first2"}):
            assert httpx.get(f"{site.url}/metrics", headers=headers, timeout=WAIT).status_code == 401
        assert httpx.get(f"{site.url}/health", timeout=WAIT).json() == {"status": "ok"}
        large = httpx.post(f"{site.url}/v1/completions", content=b"x" * 2**22, timeout=WAIT)
        assert large.status_code == 401  # before the body is read


def test_keys_of_the_environment(monkeypatch):
    monkeypatch.delenv(KEYS, raising=False)
    assert api_keys() == ()
    monkeypatch.setenv(KEYS, "one, two,")
    assert api_keys() == ("one", "two")
    monkeypatch.setenv(KEYS, " ,")
    with pytest.raises(ValueError, match="holds no key"):
        api_keys()


def test_limits_are_checked():
    for wrong in ({"max_rows": 0}, {"timeout": 0.0}, {"timeout": float("nan")}, {"max_body": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ServerLimits(**wrong)
    for wrong, words in (({"port": 70_000}, "port is 70000"), ({"host": ""}, "host is empty"), ({"grace": -1.0}, "grace is -1")):
        with pytest.raises(ValueError, match=words):
            ServerOptions(**wrong)


# --- nonsense, and too much -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (b"", 400, "the body is missing"),
        (b"{", 400, "not valid JSON"),
        (b"[1]", 400, "the body"),
        (b"null", 400, "the body"),
        (b'{"prompt": "\xff"}', 400, "invalid unicode code point"),
        (b'{"prompt": "\\ud800"}', 400, "half of a surrogate pair"),
        (b'{"prompt": "a", "\\ud800": 1}', 400, "half of a surrogate pair"),
        (b'{"prompt": "a", "model": "\\ud800"}', 400, "half of a surrogate pair"),
        (b'{"prompt": NaN}', 400, "prompt"),
        (b'{"prompt": "a", "temperature": NaN}', 400, "temperature"),
        (b'{"prompt": "a", "seed": 1' + b"0" * 6000 + b"}", 400, "number out of range"),
        (b"[" * 15_000, 400, ""),
        (b"x" * 20_001, 413, "20000 bytes"),
    ],
    ids=str,
)
def test_malformed_bodies(site, content, status, words):
    out = httpx.post(f"{site.url}/v1/completions", content=content, headers=JSON, timeout=WAIT)
    assert (out.status_code, words in out.json()["error"]["message"]) == (status, True), out.text
    assert set(out.json()["error"]) == {"message", "type", "param", "code"}


def test_a_body_without_a_length_is_cut_off(site):
    out = httpx.post(f"{site.url}/v1/completions", content=(b"x" * 1000 for _ in range(100)), headers=JSON, timeout=WAIT)
    assert out.status_code == 413


def test_other_content_paths_and_methods(site):
    for headers in (
        {},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
    ):
        out = httpx.post(f"{site.url}/v1/completions", content=json.dumps(BODY), headers=headers, timeout=WAIT)
        assert (out.status_code, "Content-Type: application/json" in out.json()["error"]["message"]) == (400, True)
    for method, path, status in (("GET", "/v1/completions", 405), ("POST", "/v1/nothing", 404), ("GET", "/docs", 404)):
        out = httpx.request(method, f"{site.url}{path}", timeout=WAIT)
        assert (out.status_code, out.json()["error"]["type"]) == (status, "invalid_request_error")
    assert metric(site, 'mmspec_requests_total{endpoint="other"') >= 2


def test_bytes_that_are_no_http(site):
    with site.connect() as line:
        line.sendall(b"\x16\x03\x01 no HTTP at all\r\n\r\n")
        assert line.recv(100).startswith(b"HTTP/1.1 400")
    assert site.client().completions.create(**BODY).choices


def test_an_engine_that_has_ended(pair):
    limits = ServerLimits()
    with running(shared_text(pair, limits), limits) as found:
        found.models.text.engine.close()
        health = httpx.get(f"{found.url}/health", timeout=WAIT)
        assert (health.status_code, health.json()) == (503, {"status": "failed"})
        with pytest.raises(openai.InternalServerError) as refused:
            found.client().completions.create(**BODY)
        assert (refused.value.status_code, refused.value.body["code"]) == (503, "stopping")


def test_what_fails_is_an_error_of_the_server(site, monkeypatch):
    def failing(*_, **__):
        raise FloatingPointError("logits of row 0 are not finite")

    monkeypatch.setattr(site.models.text.engine, "submit", failing)
    with pytest.raises(openai.InternalServerError) as refused:
        site.client().completions.create(**BODY)
    assert (refused.value.status_code, refused.value.body["type"]) == (500, "server_error")
    assert "not finite" in refused.value.body["message"]


# --- workers ----------------------------------------------------------------------------------------------------------


def test_a_worker_runs_jobs_in_order_and_drops_cancelled_ones():
    begun, opened, order = threading.Event(), threading.Event(), []

    def holding(job):
        begun.set()
        while not opened.wait(0.01):
            job.on_step()

    worker = ModelWorker("test", max_queue=2)
    first = worker.submit(holding)
    assert begun.wait(WAIT)
    jobs = [worker.submit(lambda job, number=number: order.append(number)) for number in range(2)]
    assert (worker.queued, worker.busy) == (2, 1)
    with pytest.raises(queue.Full):
        worker.submit(print)
    jobs[0].cancel()
    last = worker.submit(lambda job: order.append(2))  # takes the place of the cancelled one
    first.cancel()
    with pytest.raises(CancelledError):
        first.future.result(WAIT)
    last.future.result(WAIT)
    assert order == [1, 2]
    failed = worker.submit(lambda job: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        failed.future.result(WAIT)
    begun.clear()
    running_one = worker.submit(holding)
    assert begun.wait(WAIT)
    waiting = worker.submit(print)
    worker.close(WAIT)
    assert running_one.future.exception(WAIT) is not None
    assert waiting.future.cancelled()
    with pytest.raises(EngineClosed):
        worker.submit(print)
    assert not worker.alive


def test_jobs_of_one_key_share_a_call_and_failures_stay_their_own():
    opened, calls = threading.Event(), []

    def together(jobs):
        calls.append([job.shared.inputs for job in jobs])
        return [10 / job.shared.inputs for job in jobs]

    worker = ModelWorker("test", max_queue=9, max_rows=4)
    holding = worker.submit(lambda job: opened.wait(WAIT))
    until(lambda: worker.busy)
    asked = [("a", 1, 1), ("b", 1, 2), ("a", 2, 4), ("a", 2, 5), ("a", 1, 8), ("b", 1, 0)]  # key, rows, inputs
    jobs = [worker.submit(SharedCall(key, rows, inputs, together)) for key, rows, inputs in asked]
    jobs.insert(3, gone := worker.submit(SharedCall("a", 1, 3, together)))
    gone.cancel()
    opened.set()
    assert holding.future.result(WAIT)
    found = [job.future.exception(WAIT) or job.future.result() for job in jobs if job is not gone]
    assert found[:5] == [10.0, 5.0, 2.5, 2.0, 1.25]
    assert isinstance(found[5], ZeroDivisionError)
    assert calls == [[1, 4, 8], [2, 0], [2], [0], [5]]  # rows 1 + 2 + 1 fill a call; a call that fails is run job by job
    worker.close(WAIT)


# --- a full queue, and time -------------------------------------------------------------------------------------------


def test_a_full_queue_gets_429(site, held):
    waiting = threading.Thread(target=lambda: site.client().completions.create(**BODY))
    waiting.start()
    until(lambda: site.models.text.engine.queued == 1)
    assert metric(site, "mmspec_queue_requests") == 1
    assert metric(site, "mmspec_running_requests") == 1
    with pytest.raises(openai.RateLimitError) as refused:
        site.client().completions.create(**BODY)
    assert refused.value.body["code"] == "queue_full"
    assert refused.value.response.headers["retry-after"] == "1"
    assert site.models.text.engine.queued == 1
    held.opened.set()
    waiting.join(WAIT)
    assert site.client().completions.create(**BODY).choices


def test_outputs_that_do_not_all_fit_in_the_queue_are_withdrawn(site, held):
    with pytest.raises(openai.RateLimitError):
        site.client().completions.create(**BODY, n=2)
    held.opened.set()
    until(lambda: not site.models.text.engine.queued)
    assert site.client().completions.create(**BODY).choices


@pytest.fixture(scope="module")
def impatient(pair):
    limits = ServerLimits(max_rows=1, max_queue=4, timeout=1.0)
    with running(shared_text(pair, limits), limits) as found:
        yield found


def test_requests_that_take_too_long(impatient):
    engine, gate = impatient.models.text.engine, Gate()
    ids = impatient.models.text.pair.tokenizer(STORY, return_tensors="pt")
    handle = engine.submit({"input_ids": ids["input_ids"]}, max_new_tokens=4, stops=[gate])
    try:
        with pytest.raises(openai.APIStatusError) as refused:
            impatient.client().completions.create(**BODY)
        assert (refused.value.status_code, refused.value.body["code"]) == (504, "timeout")
        with pytest.raises(openai.APIError, match="did not end within 1 s"):  # a stream has begun: the error is its last event
            list(impatient.client().completions.create(**BODY, stream=True))
    finally:
        gate.opened.set()
    handle.result(WAIT)
    until(lambda: not engine.rows and not engine.queued)
    assert engine.counts.cancelled == 2


def test_a_body_that_does_not_arrive(impatient):
    with impatient.connect() as line:
        line.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        answer = b"".join(iter(lambda: line.recv(1000), b""))  # up to the end: the server closes the connection
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"did not arrive within 1 s" in answer


HEALTH = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("begun", [b"", b"POST /v1/completions HTTP/1.1\r\nHost: a"])
def test_a_request_that_does_not_begin(site, monkeypatch, begun, before):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.3)
    with site.connect() as line:
        if before:
            line.sendall(HEALTH)
            while b'"ok"' not in line.recv(1000):
                pass
        line.sendall(begun)
        assert line.recv(1000) == b""  # the server closes the connection


def test_an_answer_may_take_longer_than_a_head(site, held, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.1)
    threading.Timer(0.5, held.opened.set).start()
    client = site.client()
    for _ in range(2):  # on one connection
        assert client.completions.create(**BODY).choices


# --- clients that leave -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels_its_request(site, held, stream):
    engine = site.models.text.engine
    before = engine.counts.cancelled
    with site.connect() as line:
        post(line, "/v1/completions", BODY | {"max_tokens": 200, "temperature": 1, "stream": stream})
        until(lambda: engine.queued == 1)
    held.opened.set()
    until(lambda: engine.counts.cancelled == before + 1)
    assert site.client().completions.create(**BODY).choices


def test_a_stream_that_is_left_midway_frees_its_row(site, monkeypatch):
    monkeypatch.setattr(choices, "StopStrings", lambda strings, decode: lambda row, ids: time.sleep(0.1))  # seconds for all of it
    engine = site.models.text.engine
    before = engine.counts.cancelled
    options = BODY | {"max_tokens": 200, "temperature": 0.8, "seed": 1, "stop": "never in it"}
    with site.client().completions.create(**options, stream=True) as events:
        next(iter(events))
    until(lambda: engine.counts.cancelled == before + 1)
    until(lambda: not engine.rows)
    assert site.client().completions.create(**BODY).choices


def test_answers_that_are_not_read(site):
    with site.connect() as line:
        line.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 2000)
        assert httpx.get(f"{site.url}/health", timeout=WAIT).status_code == 200
    assert site.client().completions.create(**BODY).choices


def test_a_client_that_does_not_read_is_dropped():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        raise AssertionError("the body was taken")

    async def send(message):
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    metrics = ServerMetrics()
    gate = RequestGate(app, ServerLimits(timeout=0.2), (), metrics, {}, frozenset({"/a"}))
    asyncio.run(gate({"type": "http", "path": "/a", "headers": []}, None, send))
    assert b'mmspec_requests_total{endpoint="/a",status="499"} 1.0' in metrics.text()


# --- attacks: work before a check, and places of others ---------------------------------------------------------------


def sent(site, body, **headers):
    return httpx.post(f"{site.url}/v1/completions", content=body, headers=JSON | headers, timeout=WAIT)


def test_every_endpoint_has_its_own_bound_of_bodies(pair):
    models = shared_text(pair, ServerLimits())
    bounds, positions = body_bounds(models, ServerLimits()), models.text.engine.model.max_length
    assert set(bounds) == {route.path for router in ROUTERS.values() for route in router.routes}
    assert all(bound.size < ServerLimits().max_body for path, bound in bounds.items() if path != "/v1/audio/transcriptions")
    longest = json.dumps({"prompt": ["\N{PILE OF POO}" * positions] * ServerLimits().max_inputs}).encode()
    assert len(longest) <= bounds["/v1/completions"].size
    longest = json.dumps({"prompt": [[100_000] * positions] * ServerLimits().max_inputs}).encode()
    bounds["/v1/completions"].check(longest)
    assert all(bound.size <= 10 for bound in body_bounds(models, ServerLimits(max_body=10)).values())
    models.close()


@pytest.fixture(scope="module")
def wide(pair):
    """A server with the default bound of bodies."""
    limits = ServerLimits(max_rows=1, max_queue=2)
    with running(shared_text(pair, limits), limits) as found:
        yield found


def test_lists_of_nonsense_are_refused_at_the_first_entry(wide, monkeypatch):
    checked = []
    own = errors.invalid_fields
    monkeypatch.setattr(bodies, "invalid_fields", lambda error, given: checked.append(error.error_count()) or own(error, given))
    for prompt in ([{}] * 30_000, [[{}] * 30_000], [[]] * 30_000 + [{}], ["a"] * 30_000 + [{}], [1] * 30_000 + [{}]):
        out = sent(wide, json.dumps({"prompt": prompt}))
        assert (out.status_code, "prompt" in out.json()["error"]["message"]) == (400, True), out.text
    assert max(checked) <= 4  # one for each form that prompts have
    out = sent(wide, b'{"prompt": [' + b"{}," * 300_000 + b"{}]}")
    assert (out.status_code, out.json()["error"]["code"]) == (413, "too_large")
    assert len(checked) == 5  # nothing was parsed


def test_what_cannot_fit_is_not_tokenized(wide, monkeypatch):
    """A bound by bytes before, and by the tokens of pieces in between."""
    served, pieces = wide.models.text, []
    own = served.pair.tokenizer

    def counted(text, **options):
        pieces.append(len(text))
        return own(text, **options)

    room, most = served.engine.model.max_length, served.engine.model.max_length * served.token_bytes
    with monkeypatch.context() as patch:
        patch.setattr(type(served.pair), "tokenizer", property(lambda _: counted))
        check = lambda: None  # noqa: E731
        with pytest.raises(ApiError, match=f"prompt has {most + 1} bytes: at most {most} bytes fit in the model's {room} positions"):
            served.ids_of("a" * (most + 1), check, "prompt")
        assert pieces == []
        patch.setattr(models, "PIECE", 1000)
        with pytest.raises(ApiError, match="has more tokens than the model's"):
            served.ids_of("a b " * (most // 8), check, "prompt")
        assert sum(pieces) < 8 * room
        pieces.clear()
        with pytest.raises(ApiError, match="left"):
            served.ids_of("a b " * (most // 8), gone_after(1), "prompt")
        assert len(pieces) == 1
        text = STORY * 40
        assert served.ids_of(text, check, "prompt") == own(text)["input_ids"]


def gone_after(calls):
    """A check that fails after some calls, as when a client leaves."""
    left = iter(range(calls))

    def check():
        if next(left, None) is None:
            raise ApiError(GONE, "the client has left")

    return check


def test_work_on_requests_of_clients_that_have_left_is_dropped(wide, monkeypatch):
    begun, opened, ended = threading.Event(), threading.Event(), []

    def held(self, text, check, name, special=True):
        begun.set()
        assert opened.wait(WAIT)
        try:
            check()
        except ApiError as error:
            ended.append(error.status_code)
            raise
        raise AssertionError("the client was not missed")

    monkeypatch.setattr(TextServed, "ids_of", held)
    with wide.connect() as line:
        post(line, "/v1/completions", BODY)
        assert begun.wait(WAIT)
    time.sleep(0.2)  # the loop notices
    opened.set()
    until(lambda: ended == [GONE])


@pytest.mark.parametrize("count", [1, 12])
def test_small_requests_do_not_wait_for_large_ones(wide, monkeypatch, count):
    """Large bodies are read one after the other, in a lane of their own."""
    opened, most, now = threading.Event(), [], []
    own = bodies.parsed

    def held(content, kind, bound):
        if len(content) > bodies.SMALL:
            now.append(1)
            most.append(len(now))
            assert opened.wait(WAIT)
            now.pop()
        return own(content, kind, bound)

    monkeypatch.setattr("mmspec.serving.http.endpoints.shared.parsed", held)
    large = json.dumps({"prompt": "a" * (bodies.SMALL + 1)})
    threads = [threading.Thread(target=sent, args=(wide, large)) for _ in range(count)]
    for thread in threads:
        thread.start()
    until(lambda: most)
    assert site_answers(wide)
    opened.set()
    for thread in threads:
        thread.join(WAIT)
    assert max(most) == 1


def site_answers(site):
    return site.client().completions.create(**BODY).choices


def test_bodies_under_way_are_bounded_together(pair, monkeypatch):
    limits = ServerLimits(max_body=4000)  # of 8 such bodies, 4 for one client
    with running(shared_text(pair, limits), limits) as found, contextlib.ExitStack() as stack:
        lines = [stack.enter_context(found.connect()) for _ in range(5)]
        for line in lines:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 3990\r\n\r\n"
            line.sendall(head + b" " * 3980)
        answers = [line for line in lines if readable(line, 2)]
        assert len(answers) == 1
        said = answers[0].recv(1000)
        assert said.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in said.lower()
        stack.close()
        until(lambda: httpx.post(f"{found.url}/v1/completions", json=BODY, timeout=WAIT).status_code == 200)


def readable(line, seconds):
    return bool(select.select([line], [], [], seconds)[0])


def test_idle_connections_make_room(pair):
    """More than there may be, of one address: health, metrics and requests are answered."""
    limits = ServerLimits(max_connections=30, max_per_address=20)
    with running(shared_text(pair, limits), limits) as found, contextlib.ExitStack() as stack:
        lines = [stack.enter_context(found.connect()) for _ in range(60)]
        for number, line in enumerate(lines):
            with contextlib.suppress(OSError):
                line.sendall(b"" if number % 2 else b"GET /health HT")  # none, or half of a head
        assert httpx.get(f"{found.url}/health", timeout=WAIT).status_code == 200
        assert httpx.get(f"{found.url}/metrics", timeout=WAIT).status_code == 200
        assert site_answers(found)
        until(lambda: sum(not readable(line, 0) for line in lines) <= 20)  # the others have been closed


def test_busy_connections_leave_health(pair):
    limits = ServerLimits(max_connections=8, max_per_address=4)
    with running(shared_text(pair, limits), limits) as found, contextlib.ExitStack() as stack:
        for _ in range(4):  # whose bodies do not come
            line = stack.enter_context(found.connect())
            line.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n")
        time.sleep(0.2)
        assert httpx.get(f"{found.url}/health", timeout=WAIT).status_code == 200
        assert httpx.get(f"{found.url}/metrics", timeout=WAIT).status_code == 200
        refused = httpx.post(f"{found.url}/v1/completions", json=BODY, timeout=WAIT)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_connections")
        assert refused.headers["retry-after"] == "1"


def test_rows_and_queue_hold_as_many_requests_as_they_say(pair):
    limits = ServerLimits(max_rows=8, max_queue=4)
    with running(shared_text(pair, limits), limits) as found:
        gate, own = Gate(), found.models.text.engine.submit
        with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(24) as pool:
            patch.setattr(found.models.text.engine, "submit", lambda *args, **options: own(*args, **options | {"stops": [gate]}))
            asked = [pool.submit(httpx.post, f"{found.url}/v1/completions", json=BODY, timeout=WAIT) for _ in range(24)]
            until(lambda: sum(each.done() for each in asked) == 12)
            gate.opened.set()
            answers = [each.result(WAIT) for each in asked]
    assert Counter(each.status_code for each in answers) == {200: 12, 429: 12}
    assert all(each.headers["retry-after"] == "1" for each in answers if each.status_code == 429)


def test_a_key_cannot_take_the_places_of_others(pair):
    limits = ServerLimits(max_rows=1, max_queue=7)
    names = client_names(("first", "second"))
    engine = Engine(pair.target, pair.drafter, max_rows=1, max_queue=7, clients=names)
    with running(ServedModels(text=TextServed("mini-text", engine, pair)), limits, keys=("first", "second")) as found:
        gate, own = Gate(), engine.submit
        with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(24) as pool:
            patch.setattr(engine, "submit", lambda *args, **options: own(*args, **options | {"stops": [gate]}))

            def ask(key):
                headers = {"Authorization": f"Bearer {key}"}
                return pool.submit(httpx.post, f"{found.url}/v1/completions", json=BODY, headers=headers, timeout=WAIT)

            many = [ask("first") for _ in range(12)]
            until(lambda: sum(each.done() for each in many) == 6)
            few = [ask("second") for _ in range(2)]
            until(lambda: engine.queued + engine.rows == 8)
            gate.opened.set()
            assert Counter(each.result(WAIT).status_code for each in many) == {200: 6, 429: 6}
            assert [each.result(WAIT).status_code for each in few] == [200, 200]


# --- pages of browsers, and quiet streams -----------------------------------------------------------------------------


def test_pages_of_other_sites(pair):
    limits, page = ServerLimits(), "http://localhost:3000"
    asked = {"Origin": page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    for origins, allowed in (((), None), ((page,), page), (("https://example.org",), None), (("*",), "*")):
        with running(shared_text(pair, limits), limits, keys=("key",), origins=origins) as found:
            url = f"{found.url}/v1/completions"
            before = httpx.options(url, headers=asked, timeout=WAIT)
            assert before.headers.get("access-control-allow-origin") == allowed
            assert (before.status_code == 200) == (allowed is not None)
            out = httpx.post(url, json=BODY, headers={"Origin": page, "Authorization": "Bearer key"}, timeout=WAIT)
            assert (out.status_code, out.headers.get("access-control-allow-origin")) == (200, allowed)
            refused = httpx.post(url, json=BODY, headers={"Origin": page}, timeout=WAIT)  # errors can be read, too
            assert (refused.status_code, refused.headers.get("access-control-allow-origin")) == (401, allowed)
    for wrong in ("example.org", "https://example.org/", "ftp://example.org", "null"):
        with pytest.raises(ValueError, match="origin"):
            ServerOptions(origins=(wrong,))


def test_quiet_streams_get_comments(site, held, monkeypatch):
    monkeypatch.setattr(shared, "QUIET", 0.05)
    with httpx.stream("POST", f"{site.url}/v1/completions", json=BODY | {"stream": True}, timeout=WAIT) as answer:
        lines = answer.iter_lines()
        assert next(lines) == ": keep-alive"
        held.opened.set()
        assert list(lines)[-2:] == ["data: [DONE]", ""]
    whole = site.client().completions.create(**BODY).choices[0].text
    events = site.client().completions.create(**BODY, stream=True)
    assert "".join(event.choices[0].text for event in events) == whole
