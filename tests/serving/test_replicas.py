"""`mmspec serve --engine ray`: two replicas behind one address, one of them killed under load, and a clean end."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

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

WAIT = 180
BODY = {"model": "mini-text", "prompt": "Once upon a time", "max_tokens": 48, "temperature": 1.0}
HEADERS = {"Authorization": "Bearer key"}


@contextmanager
def service(*words):
    """A service in a process of its own, in a Ray of its own whose folder has a short name."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "MMSPEC_API_KEYS": "key", "RAY_TMPDIR": folder, "RAY_ADDRESS": "local"}
        env |= {"RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION": "0.01"}
        command = [sys.executable, "-m", "mmspec.cli", "serve", "--engine", "ray", "--port", "0", "--json", "--device", "cpu", *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=ROOT)
        try:
            line = process.stdout.readline()
            if not line:
                raise AssertionError(process.communicate()[1])
            yield process, json.loads(line)
        finally:
            process.kill()
            process.communicate()


def replicas(process):
    return [child for child in psutil.Process(process.pid).children(recursive=True) if "ServeReplica" in child.name()]


def counters(url):
    text = httpx.get(f"{url}/metrics", headers=HEADERS, timeout=WAIT).text
    return {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples if sample.labels}


def until(true):
    end = time.monotonic() + WAIT
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def alone(seeds):
    mini = mmspec.load("text")
    inputs = mini.processor([BODY["prompt"]], return_tensors="pt")
    texts = {}
    for seed in seeds:
        out = mmspec.text.generate(mini.target, inputs, max_new_tokens=48, temperature=1.0, seed=seed)
        texts[seed] = mini.processor.decode(out.tokens[0, : out.lengths[0]], skip_special_tokens=True)
    return texts


def asked(url, seed, failed):
    """The text of a request, whole or streamed, sent again until it is answered; failures are noted."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0, timeout=WAIT)
    while True:
        try:
            if seed % 2:
                return client.completions.create(**BODY, seed=seed).choices[0].text
            chunks = [chunk.choices[0] for chunk in client.completions.create(**BODY, seed=seed, stream=True)]
            assert chunks[-1].finish_reason is not None
            return "".join(chunk.text for chunk in chunks)
        except openai.APIConnectionError as error:
            failed.append(error)
        except openai.APIStatusError as error:
            if error.status_code < 500:
                raise
            failed.append(error)
            time.sleep(0.1)


def test_a_killed_replica_changes_no_answer_and_comes_back():
    right = alone(range(24))
    with service("--text", "mini", "--drafter", "lookup", "--replicas", "2", "--max-body", "20000") as (process, told):
        url, failed = told["url"], []
        assert (told["models"], told["keys"], len(replicas(process))) == ({"text": "mini-text"}, 1, 2)
        _check_the_edges(url)
        with ThreadPoolExecutor(6) as pool:
            answers = {seed: pool.submit(asked, url, seed % 24, failed) for seed in range(72)}
            until(lambda: sum(answer.done() for answer in answers.values()) > 8)
            victim = replicas(process)[0]
            victim.send_signal(signal.SIGKILL)
            found = {seed: answer.result(WAIT) for seed, answer in answers.items()}
        assert found == {seed: right[seed % 24] for seed in range(72)}
        assert failed  # of the requests that ran on it
        until(lambda: len(replicas(process)) == 2 and victim.pid not in [each.pid for each in replicas(process)])
        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(lambda seed: asked(url, seed, failed), range(24))) == list(right.values())
        _check_that_a_client_who_leaves_is_noticed(url)
        _check_the_end(process, url, right)


def _check_the_edges(url):
    """Keys, limits and errors are those of the built-in server, and the metrics of both replicas are one."""
    assert httpx.get(f"{url}/health", timeout=WAIT).json() == {"status": "ok"}
    assert httpx.get(f"{url}/metrics", timeout=WAIT).status_code == 401
    for content, status, words in (
        (b"{", 400, "not valid JSON"),
        (b"x" * 20_001, 413, "20000 bytes"),
        (b'{"prompt": "a", "n": 99}', 400, "99"),
    ):
        headers = HEADERS | {"Content-Type": "application/json"}
        out = httpx.post(f"{url}/v1/completions", content=content, headers=headers, timeout=WAIT)
        assert (out.status_code, words in out.json()["error"]["message"]) == (status, True), out.text
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0, timeout=WAIT)
    made = sum(client.completions.create(**BODY, seed=seed).usage.completion_tokens for seed in range(8))
    until(lambda: counters(url)["mmspec_tokens_total"] == made)
    found = counters(url)
    assert found["mmspec_tokens_per_call"] == made / found["mmspec_target_calls_total"]


def _check_that_a_client_who_leaves_is_noticed(url):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0, timeout=WAIT)
    stream = client.completions.create(**BODY | {"max_tokens": 900, "prompt": "A list:"}, extra_body={"top_k": 1}, seed=1, stream=True)
    next(iter(stream))
    stream.close()
    until(lambda: counters(url)["mmspec_running_requests"] == 0)


def _check_the_end(process, url, right):
    """A signal lets the running request finish; nothing of Ray stays."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0, timeout=WAIT)
    events = iter(client.completions.create(**BODY, seed=1, stream=True))
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
