"""Malformed requests to a server of all minis end clearly, every one of them, and the server answers as before."""

from contextlib import contextmanager
from dataclasses import replace

import httpx

import mmspec
from mmspec.serving.http.loading import ModelNames, load_served
from mmspec.serving.http.options import ServerLimits
from tests.fuzz import requests
from tests.serving.web import MINI_TEXT, STORY, WAIT, running

LIMITS = ServerLimits(max_rows=4, max_tokens=8, max_inputs=3, max_seconds=5)


@contextmanager
def all_minis():
    """A server of every kind of model that ships."""
    kinds = ("image", "speech", "recommender")
    models = load_served(ModelNames(MINI_TEXT, dict.fromkeys(kinds, "mini"), device="cpu"), LIMITS)
    with running(replace(models), LIMITS) as site:
        yield site


def test_no_request_ends_unclearly():
    with all_minis() as site:
        pair = site.models.text.pair
        report = requests.run(site)
        print(report.table("requests"))
        assert report.counts.total() >= 150
        assert report.clear, report.table("requests")
        assert httpx.get(f"{site.url}/health", timeout=WAIT).json() == {"status": "ok"}
        body = {"prompt": STORY, "seed": 3, "temperature": 0.8, "max_tokens": 8}
        text = httpx.post(f"{site.url}/v1/completions", json=body, timeout=WAIT).json()["choices"][0]["text"]
        inputs = {"input_ids": pair.tokenizer([STORY], return_tensors="pt")["input_ids"]}
        out = mmspec.text.generate(pair.target, inputs, seed=3, temperature=0.8, max_new_tokens=8)
        assert text == pair.decode(out.tokens[0, : out.lengths[0]].tolist())
        assert not any(served.running or served.queued for served in site.models.all.values())
