"""The status of runs in Prometheus' text format, written with its client library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
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
NAMED = {
    "exploration": ("Settings of the collect policy.", "exploration"),
    "policy_lag": ("Versions that trained samples are old.", "policy_lag"),
    "number": ("Means of the env's numbers, last evaluation.", "numbers"),
    "column": ("What plugins show.", "columns"),
}
_Row = tuple[Mapping[str, Any], tuple[str, ...], Any]
"""A run, the values of further labels, and a number."""


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
        ups = ((run, (), float(run["state"] == "under way")) for run in self._found)
        yield _gauge("up", "Whether the run is under way.", (), ups)
        for names, make in ((COUNTERS, _counter), (GAUGES, _gauge)):
            for name, text in names.items():
                runs = self._live if name in LIVE else self._found
                yield make(name, text, (), [(run, (), run["status"].get(name)) for run in runs])
        yield _counter("samples", "Samples, by event.", ("event",), self._of("samples", SAMPLES))
        left = [
            (run, (reason,), count)
            for run in self._found
            for reason, count in ((run["status"].get("samples") or {}).get("evicted") or {}).items()
        ]
        yield _counter("evicted_samples", "Samples that left the buffer.", ("reason",), left)
        leases = [
            (run, (each["worker_id"], each["role"]), each["lease_s"])
            for run in self._live
            for each in run["status"].get("connected") or ()
        ]
        text = "Seconds until a worker must be heard from."
        yield _gauge("worker_lease_s", text, ("worker", "role"), leases)
        paces = [
            (run, (task["worker_id"], task["kind"]), task["per_s"])
            for run in self._live
            for task in run["status"].get("tasks") or ()
        ]
        text = "Env steps or iterations a second of a worker."
        yield _gauge("worker_per_s", text, ("worker", "kind"), paces)
        for name, (text, field) in NAMED.items():
            yield _gauge(name, text, ("name",), self._of(field))

    def _of(self, field: str, keys: Sequence[str] | None = None) -> Iterator[_Row]:
        """Yield the values of a field of each status, all or those of some keys, else 0."""
        for run in self._found:
            values = run["status"].get(field) or {}
            for key in values if keys is None else keys:
                yield run, (key,), values.get(key, 0)


def _family(kind: Any, name: str, text: str, labels: tuple[str, ...], rows: Iterable[_Row]) -> Any:
    family = kind(f"dingsdk_{name}", text, labels=["run", *labels])
    for run, values, number in rows:
        if isinstance(number, int | float):
            family.add_metric([run["name"], *values], float(number))
    return family


_gauge = partial(_family, GaugeMetricFamily)
_counter = partial(_family, CounterMetricFamily)
