"""Metrics of all replicas as one: every replica reports its own to one actor, and `/metrics` of any of them answers with the sums."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from mmspec.serving.http.metrics import RATIOS, ServerMetrics

PERIOD = 0.5
"""Seconds between two reports of a replica."""
_LOST = 10 * PERIOD  # seconds after which the requests that a replica last reported as waiting or running are not counted


class ReplicaTotals:
    """What replicas have reported. One actor of a service.

    Counts of replicas that have ended stay in the sums, so that they never fall.
    """

    def __init__(self) -> None:
        self._reports: dict[str, tuple[float, list[Metric]]] = {}
        self._refusal: str | None = None

    def report(self, replica: str, metrics: list[Metric]) -> None:
        """Take in the metrics of a replica, in place of those before.

        Args:
            replica: its id.
            metrics: its metrics.
        """
        self._reports[replica] = monotonic(), metrics

    def text(self) -> bytes:
        """Return the metrics of all replicas in Prometheus' text format."""
        now = monotonic()
        reports = [metrics if now - seen < _LOST else _counters(metrics) for seen, metrics in self._reports.values()]
        return as_text(summed(reports))

    def refuse(self, line: str) -> None:
        """Keep why a replica could not load its models.

        Args:
            line: the message.
        """
        self._refusal = line

    def refusal(self) -> str | None:
        """Return why a replica could not load its models; None if none has failed."""
        return self._refusal


class ReplicaMetrics(ServerMetrics):
    """The metrics of one replica. `text` gives those of all.

    Args:
        totals: handle of the actor of `ReplicaTotals`.
        replica: id of this replica.
    """

    def __init__(self, totals: Any, replica: str):
        super().__init__()
        self.totals, self.replica = totals, replica

    def report(self) -> Any:
        """Report the present state to the actor.

        Returns:
            What `ray.get` waits for.
        """
        return self.totals.report.remote(self.replica, list(self.registry.collect()))

    def text(self) -> bytes:
        """Return the metrics of all replicas in Prometheus' text format; of this one alone if the actor is gone."""
        import ray
        from ray.exceptions import RayError

        try:
            ray.get(self.report())
            return ray.get(self.totals.text.remote())
        except RayError:
            return super().text()


def summed(reports: Sequence[Iterable[Metric]]) -> list[Metric]:
    """Sum the metrics of several registries.

    Args:
        reports: the metrics of each.

    Returns:
        Every metric once: counts and numbers of requests are summed, ratios are those of the sums, times of creation are the first ones.
    """
    families: dict[str, Metric] = {}
    values: dict[tuple[str, tuple[tuple[str, str], ...]], list[float]] = defaultdict(list)
    for metric in (each for report in reports for each in report):
        family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
        for sample in metric.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            if key not in values:
                family.add_sample(sample.name, sample.labels, 0.0)
            values[key].append(sample.value)
    totals = {key: min(found) if key[0].endswith("_created") else sum(found) for key, found in values.items()}
    for (name, labels), _ in totals.items():
        if name in RATIOS:
            part, whole = (totals.get((count, labels), 0.0) for count in RATIOS[name])
            totals[name, labels] = part / max(1.0, whole)
    for family in families.values():
        family.samples = [each._replace(value=totals[each.name, tuple(sorted(each.labels.items()))]) for each in family.samples]
    return list(families.values())


def as_text(metrics: Iterable[Metric]) -> bytes:
    """Return metrics in Prometheus' text format.

    Args:
        metrics: the metrics.
    """
    registry = CollectorRegistry()
    registry.register(_Collected(list(metrics)))  # type: ignore[arg-type]
    return generate_latest(registry)


class _Collected:
    def __init__(self, metrics: list[Metric]):
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


def _counters(metrics: Iterable[Metric]) -> list[Metric]:
    """Without the numbers of requests that wait and run."""
    return [metric for metric in metrics if metric.type != "gauge" or metric.name in RATIOS]
