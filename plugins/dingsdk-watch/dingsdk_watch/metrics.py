"""The status of runs in Prometheus' text format, written with its client library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from dingsdk_watch.runs import Run

CONTENT_TYPE: str = CONTENT_TYPE_LATEST
COUNTERS = {
    "env_steps": "Env steps collected for training.",
    "train_iter": "Train iterations.",
}
GAUGES = {
    "env_steps_per_s": "Env steps a second, smoothed.",
    "updates_per_s": "Train iterations a second, smoothed.",
    "last_return": "Mean return of the latest evaluation.",
    "best_return": "Best mean return of an evaluation.",
    "loss": "Loss of the latest iteration.",
    "buffer_fill": "Samples in the replay buffer.",
    "buffer_capacity": "Samples that the replay buffer can hold.",
    "workers": "Workers connected.",
    "elapsed_s": "Seconds since the first env step.",
    "left_s": "Seconds to the first limit, at this pace.",
}
LIVE = ("env_steps_per_s", "updates_per_s", "workers", "left_s")
"""Gauges that only runs under way have, as leases and paces of workers: others make no progress."""
SAMPLES = ("collected", "acknowledged", "trained")


def exposition(runs: Sequence[Run]) -> bytes:
    """Return the metrics ``dingsdk_*`` of all runs, each with the label ``run``."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector([run.status() for run in runs]))
    content: bytes = generate_latest(registry)
    return content


class _Collector:
    def __init__(self, found: Sequence[Mapping[str, Any]]) -> None:
        self._found = found
        self._live = [run for run in found if run["state"] == "under way"]

    def collect(self) -> Iterator[Any]:
        up = GaugeMetricFamily("dingsdk_up", "Whether the run is under way.", labels=["run"])
        for run in self._found:
            up.add_metric([run["name"]], float(run["state"] == "under way"))
        yield up
        for name, text in COUNTERS.items():
            counter = CounterMetricFamily(f"dingsdk_{name}", text, labels=["run"])
            yield self._filled(counter, name)
        for name, text in GAUGES.items():
            yield self._filled(GaugeMetricFamily(f"dingsdk_{name}", text, labels=["run"]), name)
        yield from self._samples()
        yield from self._of_workers()
        yield from self._named("exploration", "Settings of the collect policy.", "exploration")
        yield from self._named("policy_lag", "Versions that trained samples are old.", "policy_lag")
        yield from self._named("number", "Means of the env's numbers, last evaluation.", "numbers")
        yield from self._named("column", "What plugins show.", "columns")

    def _filled(self, family: Any, name: str) -> Any:
        for run in self._live if name in LIVE else self._found:
            value = run["status"].get(name)
            if isinstance(value, int | float):
                family.add_metric([run["name"]], float(value))
        return family

    def _samples(self) -> Iterator[Any]:
        events = CounterMetricFamily(
            "dingsdk_samples", "Samples, by event.", labels=["run", "event"]
        )
        left = CounterMetricFamily(
            "dingsdk_evicted_samples", "Samples that left the buffer.", labels=["run", "reason"]
        )
        for run in self._found:
            samples = run["status"].get("samples") or {}
            for event in SAMPLES:
                events.add_metric([run["name"], event], float(samples.get(event, 0)))
            for reason, count in (samples.get("evicted") or {}).items():
                left.add_metric([run["name"], reason], float(count))
        yield events
        yield left

    def _of_workers(self) -> Iterator[Any]:
        lease = GaugeMetricFamily(
            "dingsdk_worker_lease_s",
            "Seconds until a worker must be heard from.",
            labels=["run", "worker", "role"],
        )
        pace = GaugeMetricFamily(
            "dingsdk_worker_per_s",
            "Env steps or iterations a second of a worker.",
            labels=["run", "worker", "kind"],
        )
        for run in self._live:
            for each in run["status"].get("connected") or ():
                lease.add_metric([run["name"], each["worker_id"], each["role"]], each["lease_s"])
            for task in run["status"].get("tasks") or ():
                if task["per_s"] is not None:
                    pace.add_metric([run["name"], task["worker_id"], task["kind"]], task["per_s"])
        yield lease
        yield pace

    def _named(self, metric: str, text: str, field: str) -> Iterator[Any]:
        family = GaugeMetricFamily(f"dingsdk_{metric}", text, labels=["run", "name"])
        for run in self._found:
            for name, value in (run["status"].get(field) or {}).items():
                if isinstance(value, int | float):
                    family.add_metric([run["name"], name], float(value))
        yield family
