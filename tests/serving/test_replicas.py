"""`mmspec serve --engine ray`: replicas behind one address, killed, added and ended, and a clean end."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event

import httpx
import openai
import psutil
import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

import mmspec
from mmspec.core.stats import Stats
from mmspec.serving.http.metrics import ServerMetrics
from mmspec.serving.replicas.deployment import ReplicaCount
from mmspec.serving.replicas.totals import ReplicaTotals, as_text, summed
from tests.commands import ROOT

WAIT = 600  # seconds; where replicas share a core with many processes, one takes minutes to start
BODY = {"model": "mini-text", "prompt": "Once upon a time", "max_tokens": 48, "temperature": 1.0}
HEADERS, JSON = {"Authorization": "Bearer key"}, {"Content-Type": "application/json"}
LEAST, MOST, ROWS, SEEDS = 2, 3, 16, 12  # replicas, requests that each runs at a time, seeds of the requests


QUICKLY = """
from mmspec.cli import main
from mmspec.serving.replicas import deployment

deployment.SCALING_SECONDS |= dict.fromkeys(deployment.SCALING_SECONDS, 1.0)
main()
"""
"""The command, in a service that adds and ends replicas after a second."""


@contextmanager
def service(*words):
    """A service in a process of its own, in a Ray of its own whose folder has a short name."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "MMSPEC_API_KEYS": "key", "RAY_TMPDIR": folder, "RAY_ADDRESS": "local"}
        env |= {"RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION": "0.01", "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.2"}
        command = [sys.executable, "-c", QUICKLY, "serve", "--engine", "ray", "--port", "0", "--json", "--device", "cpu", *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=ROOT)
        try:
            line = process.stdout.readline()
            if not line:
                raise AssertionError(process.communicate()[1])
            yield process, json.loads(line)
        finally:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def site():
    """A service of two or three replicas. The last test that uses it ends it."""
    counts = ("--replicas", str(LEAST), "--max-replicas", str(MOST), "--max-rows", str(ROWS))
    with service("--text", "mini", "--drafter", "lookup", *counts, "--max-body", "20000", "--grace", str(WAIT)) as (process, told):
        assert (told["models"], told["keys"], len(replicas(process))) == ({"text": "mini-text"}, 1, LEAST)
        yield process, told["url"]


@pytest.fixture(scope="module")
def right():
    """The texts that plain decoding gives, by seed."""
    mini = mmspec.load("text")
    inputs = mini.processor([BODY["prompt"]], return_tensors="pt")
    texts = {}
    for seed in range(SEEDS):
        out = mmspec.text.generate(mini.target, inputs, max_new_tokens=BODY["max_tokens"], temperature=1.0, seed=seed)
        texts[seed] = mini.processor.decode(out.tokens[0, : out.lengths[0]], skip_special_tokens=True)
    return texts


def replicas(process):
    """The processes of the replicas."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended since
            found += [child] if "ServeReplica" in child.name() else []
    return found


def counters(url):
    text = httpx.get(f"{url}/metrics", headers=HEADERS, timeout=WAIT).text
    return {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples if sample.labels}


def until(true):
    end = time.monotonic() + WAIT
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def client_of(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0, timeout=WAIT)


def asked(url, seed):
    """The text of a request, whole or streamed, sent again until it is answered."""
    client = client_of(url)
    while True:
        try:
            if seed % 2:
                return client.completions.create(**BODY, seed=seed).choices[0].text
            chunks = [chunk.choices[0] for chunk in client.completions.create(**BODY, seed=seed, stream=True)]
            assert chunks[-1].finish_reason is not None
            return "".join(chunk.text for chunk in chunks)
        except openai.APIConnectionError:
            pass
        except openai.APIStatusError as error:
            if error.status_code < 500:
                raise
            time.sleep(0.1)


@contextmanager
def held(url, count):
    """Requests that replicas have and cannot answer, for their bodies lack the end. Gives what sends it and returns the texts, by seed;
    None for a request that broke."""
    rest = Event()

    def body(seed):
        content = json.dumps(BODY | {"seed": seed % SEEDS}).encode()
        yield content[:-1]
        assert rest.wait(WAIT)
        yield content[-1:]

    def posted(seed):
        try:
            out = httpx.post(f"{url}/v1/completions", content=body(seed), headers=HEADERS | JSON, timeout=WAIT)
        except httpx.TransportError:
            return None
        assert out.status_code == 200 or out.status_code >= 500
        return out.json()["choices"][0]["text"] if out.status_code == 200 else None

    with ThreadPoolExecutor(count) as pool:
        answers = {seed: pool.submit(posted, seed) for seed in range(count)}

        def end():
            rest.set()
            return {seed: answer.result(WAIT) for seed, answer in answers.items()}

        try:
            yield end
        finally:
            rest.set()


def test_keys_limits_and_errors_are_those_of_the_built_in_server_and_metrics_are_one(site):
    _, url = site
    assert httpx.get(f"{url}/health", timeout=WAIT).json() == {"status": "ok"}
    assert httpx.get(f"{url}/metrics", timeout=WAIT).status_code == 401
    for content, status, words in (
        (b"{", 400, "not valid JSON"),
        (b"x" * 20_001, 413, "20000 bytes"),
        (b'{"prompt": "a", "n": 99}', 400, "99"),
    ):
        out = httpx.post(f"{url}/v1/completions", content=content, headers=HEADERS | JSON, timeout=WAIT)
        assert (out.status_code, words in out.json()["error"]["message"]) == (status, True), out.text
    before, client = counters(url)["mmspec_tokens_total"], client_of(url)
    made = sum(client.completions.create(**BODY, seed=seed).usage.completion_tokens for seed in range(8))
    until(lambda: counters(url)["mmspec_tokens_total"] == before + made)
    found = counters(url)
    assert found["mmspec_tokens_per_call"] == found["mmspec_tokens_total"] / found["mmspec_target_calls_total"]


def test_a_killed_replica_changes_no_answer_and_comes_back(site, right):
    """Requests that both replicas have are among those under way, so that some break with the one that is killed, and not all."""
    process, url = site
    victim = replicas(process)[0]
    with held(url, 8) as end, ThreadPoolExecutor(6) as pool:
        answers = {seed: pool.submit(asked, url, seed % SEEDS) for seed in range(3 * SEEDS)}
        until(lambda: sum(answer.done() for answer in answers.values()) > 8)
        victim.send_signal(signal.SIGKILL)
        found = {seed: answer.result(WAIT) for seed, answer in answers.items()}
        ended = end()
    assert found == {seed: right[seed % SEEDS] for seed in range(3 * SEEDS)}
    answered = {seed: text for seed, text in ended.items() if text is not None}
    assert 0 < len(answered) < len(ended)
    assert answered == {seed: right[seed] for seed in answered}
    until(lambda: len(replicas(process)) == LEAST and victim.pid not in [each.pid for each in replicas(process)])
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda seed: asked(url, seed), range(SEEDS))) == list(right.values())


def test_replicas_are_added_while_many_requests_are_under_way_and_ended_afterwards(site, right):
    process, url = site
    until(lambda: len(replicas(process)) == LEAST)
    with held(url, ROWS * (MOST + 1)) as end:  # for which one more than the most would be needed
        until(lambda: len(replicas(process)) == MOST)
        assert end() == {seed: right[seed % SEEDS] for seed in range(ROWS * (MOST + 1))}
        assert len(replicas(process)) <= MOST
    until(lambda: len(replicas(process)) == LEAST)
    assert asked(url, 1) == right[1]


def test_a_client_who_leaves_is_noticed(site):
    _, url = site
    options = BODY | {"max_tokens": 900, "prompt": "A list:"}
    stream = client_of(url).completions.create(**options, extra_body={"top_k": 1}, seed=1, stream=True)
    next(iter(stream))
    stream.close()
    until(lambda: counters(url)["mmspec_running_requests"] == 0)


def test_a_signal_lets_the_running_request_finish_and_nothing_of_ray_stays(site, right):
    process, url = site
    events = iter(client_of(url).completions.create(**BODY, seed=1, stream=True))
    text = next(events).choices[0].text
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    text += "".join(chunk.choices[0].text for chunk in events)
    assert text == right[1]
    out, err = process.communicate(timeout=WAIT)
    assert (process.returncode, out) == (0, ""), err
    until(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children))


@pytest.mark.parametrize(("given", "words"), [((0, None), "replicas is 0"), ((3, 2), "max_replicas is 2, and replicas is 3")])
def test_wrong_numbers_of_replicas_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        ReplicaCount(*given)


def test_metrics_are_summed_and_counts_of_replicas_that_ended_stay(monkeypatch):
    reports = []
    for tokens, calls, running in ((6, 3, 1), (10, 2, 2)):
        metrics = ServerMetrics()
        metrics.watch("m", lambda: 0, lambda running=running: running)
        metrics.add("m", [Stats(tokens=tokens, row_calls=calls)])
        metrics.answered("/a", 200, 0.02)
        reports.append(list(metrics.registry.collect()))
    totals, now = ReplicaTotals(), [0.0]
    monkeypatch.setattr("mmspec.serving.replicas.totals.monotonic", lambda: now[0])
    for number, report in enumerate(reports):
        now[0] = 100.0 * number
        totals.report(str(number), report)
    lines = totals.text().decode().splitlines()
    for line in ('mmspec_tokens_total{model="m"} 16.0', 'mmspec_tokens_per_call{model="m"} 3.2', 'mmspec_running_requests{model="m"} 2.0'):
        assert line in lines
    assert 'mmspec_requests_total{endpoint="/a",status="200"} 2.0' in lines
    assert 'mmspec_request_seconds_bucket{endpoint="/a",le="0.025"} 2.0' in lines


def test_metrics_of_one_registry_stay_as_they_are():
    registry = CollectorRegistry()
    Counter("some", "Of something.", ["kind"], registry=registry).labels("a").inc(3)
    text = as_text(summed([registry.collect()])).decode()
    assert 'some_total{kind="a"} 3.0' in text
    assert "# HELP some_total Of something." in text
