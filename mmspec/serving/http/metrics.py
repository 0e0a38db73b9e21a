"""Metrics in the format of Prometheus: requests, latency, queues, tokens, calls and acceptance."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from mmspec.core.stats import Stats

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
RATIOS = {
    "mmspec_tokens_per_call": ("mmspec_tokens_total", "mmspec_target_calls_total"),
    "mmspec_draft_length": ("mmspec_drafted_tokens_total", "mmspec_target_calls_total"),
    "mmspec_acceptance": ("mmspec_accepted_tokens_total", "mmspec_drafted_tokens_total"),
}
"""Gauges that are ratios, with the counters that they are made of."""


class ServerMetrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = where = CollectorRegistry()
        self.requests = Counter("mmspec_requests", "Requests answered.", ["endpoint", "status"], registry=where)
        self.seconds = Histogram(
            "mmspec_request_seconds", "Seconds from a request to its end.", ["endpoint"], buckets=_SECONDS, registry=where
        )
        self.queued = Gauge("mmspec_queue_requests", "Requests that wait.", ["model"], registry=where)
        self.running = Gauge("mmspec_running_requests", "Requests that run.", ["model"], registry=where)
        self.tokens = Counter("mmspec_tokens", "Tokens, codes or levels committed.", ["model"], registry=where)
        self.calls = Counter("mmspec_target_calls", "Target forwards, counted for every row that took part.", ["model"], registry=where)
        self.drafted = Counter("mmspec_drafted_tokens", "Draft tokens scored.", ["model"], registry=where)
        self.accepted = Counter("mmspec_accepted_tokens", "Draft tokens accepted.", ["model"], registry=where)
        self.per_call = Gauge("mmspec_tokens_per_call", "Tokens per target call since the start.", ["model"], registry=where)
        self.length = Gauge("mmspec_draft_length", "Draft tokens per target call since the start.", ["model"], registry=where)
        self.acceptance = Gauge("mmspec_acceptance", "Share of draft tokens that were accepted since the start.", ["model"], registry=where)
        self._totals: dict[str, Stats] = {}

    def watch(self, model: str, queued: Callable[[], int], running: Callable[[], int]) -> None:
        """Report a model.

        Args:
            model: its id.
            queued: returns how many of its requests wait.
            running: returns how many run.
        """
        total = self._totals[model] = Stats()
        self.queued.labels(model).set_function(queued)
        self.running.labels(model).set_function(running)
        self.per_call.labels(model).set_function(lambda: total.tokens_per_call)
        self.length.labels(model).set_function(lambda: total.drafted / max(1, total.row_calls))
        self.acceptance.labels(model).set_function(lambda: total.accepted / max(1, total.drafted))
        for counter in (self.tokens, self.calls, self.drafted, self.accepted):
            counter.labels(model)

    def add(self, model: str, all_stats: Iterable[Stats]) -> None:
        """Count the work of a request. Called in the server's loop only.

        Args:
            model: id of the model.
            all_stats: the statistics of its outputs.
        """
        total = self._totals[model]
        for stats in all_stats:
            total.tokens += stats.tokens
            total.row_calls += stats.row_calls
            total.drafted += stats.drafted
            total.accepted += stats.accepted
            self.tokens.labels(model).inc(stats.tokens)
            self.calls.labels(model).inc(stats.row_calls)
            self.drafted.labels(model).inc(stats.drafted)
            self.accepted.labels(model).inc(stats.accepted)

    def answered(self, endpoint: str, status: int, seconds: float) -> None:
        """Count an answer.

        Args:
            endpoint: the path.
            status: HTTP status.
            seconds: from the request to the end of the answer.
        """
        self.requests.labels(endpoint, str(status)).inc()
        self.seconds.labels(endpoint).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
