"""`mmspec serve`: recommendation requests that wait share calls, and each gets what it gets alone."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import httpx
import numpy as np
import pytest

import mmspec
from mmspec.serving.http.loading import ModelNames, load_served
from mmspec.serving.http.options import ServerLimits
from tests.serving.web import WAIT, running, until

LIMITS = ServerLimits(max_queue=9)


@pytest.fixture(scope="module")
def site():
    with running(load_served(ModelNames(names={"recommender": "mini"}, device="cpu"), LIMITS), LIMITS) as found:
        yield found


def recommended(site, **body):
    return httpx.post(f"{site.url}/v1/recommendations", json=body, timeout=WAIT)


def test_waiting_recommendations_share_a_call(site, monkeypatch):
    loaded, worker = site.models.recommender.loaded, site.models.recommender.worker
    users = [[int(item) for item in history] for history in mmspec.load("recsys").examples[:5]]
    bodies: list[dict] = [{"history": user, "k": 5} for user in users]
    best = recommended(site, **bodies[0]).json()["data"][0]["items"]
    bodies += [
        {"history": users[0], "k": 5, "deny": best[:2]},
        {"histories": users[1:3], "k": 5, "allow": best},
        {"history": users[4], "k": 3},
    ]
    alone = [recommended(site, **body).json() for body in bodies]
    calls: list[int] = []

    def counted(model, histories, *args, **options):
        calls.append(len(histories))
        return mmspec.recsys.recommend(model, histories, *args, **options)

    monkeypatch.setattr("mmspec.serving.http.endpoints.recommendations.recommend", counted)
    opened = Event()
    job = worker.submit(lambda job: opened.wait(WAIT))
    until(lambda: worker.busy)
    with ThreadPoolExecutor(len(bodies)) as threads:
        answers = list(map(threads.submit, [lambda body=body: recommended(site, **body).json() for body in bodies]))
        until(lambda: worker.queued == len(bodies))
        opened.set()
        found = [answer.result(WAIT) for answer in answers]
    assert job.future.result(WAIT)
    assert sorted(calls) == [1, 8]  # one of k 3, and all others together, as many as the server searches at a time
    for ours, theirs in zip(found, alone, strict=True):
        assert [row["items"] for row in ours["data"]] == [row["items"] for row in theirs["data"]]
        assert np.allclose([row["scores"] for row in ours["data"]], [row["scores"] for row in theirs["data"]], atol=1e-5)
        assert ours["mmspec"]["tokens"] == theirs["mmspec"]["tokens"] == loaded.catalogue.levels * len(ours["data"])
