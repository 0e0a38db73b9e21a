"""`mmspec serve` under load: 1,000 requests by 50 clients. None is lost, none is mixed up, and memory stays flat."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import local

import psutil
import pytest

import mmspec
from mmspec.serving.http.options import ServerLimits
from tests.serving.web import running, text_models

REQUESTS, CLIENTS, TOKENS, WARM = 1000, 50, 4, 200
LIMITS = ServerLimits(max_rows=32, max_queue=CLIENTS)
GROWTH = 24 * 2**20
"""Most bytes that the process may grow by over the last 800 requests."""


@pytest.fixture(scope="module")
def site():
    with running(text_models(LIMITS), LIMITS) as found:
        yield found


def requests_of(pair):
    """1,000 requests, no two alike."""
    prompts = ["Once upon a time", "Question: Ann has 3 apples", "The old king", "def add(a, b):", "One day, a girl named Lily"]
    return [(prompts[number % len(prompts)], number) for number in range(REQUESTS)]


def alone(pair, asked):
    """The text of every request by plain decoding; rows do not depend on each other."""
    texts = []
    for first in range(0, len(asked), 50):
        part = asked[first : first + 50]
        inputs = pair.tokenizer([prompt for prompt, _ in part], return_tensors="pt", padding=True)
        inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        out = mmspec.text.generate(pair.target, inputs, seed=[seed for _, seed in part], temperature=0.8, max_new_tokens=TOKENS)
        texts += [pair.decode(row[:length]) for row, length in zip(out.tokens.tolist(), out.lengths.tolist(), strict=True)]
    return texts


def test_a_thousand_requests_by_fifty_clients(site):
    pair = site.models.text.pair
    asked, own = requests_of(pair), local()
    expected = alone(pair, asked)

    def ask(one):
        if not hasattr(own, "client"):
            own.client = site.client()
        out = own.client.completions.create(model="mini-text", prompt=one[0], seed=one[1], temperature=0.8, max_tokens=TOKENS)
        return out.choices[0].text, out.id

    process, began = psutil.Process(), time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as threads:
        found = list(threads.map(ask, asked[:WARM]))
        before = process.memory_info().rss
        found += list(threads.map(ask, asked[WARM:]))
        grown = process.memory_info().rss - before
    seconds = time.perf_counter() - began
    print(f"{REQUESTS} requests in {seconds:.1f} s, {grown / 2**20:.1f} MiB more")
    assert [text for text, _ in found] == expected
    assert len({name for _, name in found}) == REQUESTS
    counts = site.models.text.engine.counts
    assert (counts.finished, counts.failed, counts.cancelled) == (REQUESTS, 0, 0)
    assert grown < GROWTH
