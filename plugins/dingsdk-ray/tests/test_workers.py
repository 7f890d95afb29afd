"""Workers as actors, with Ray answered by the test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray
from dingsdk_ray.workers import KILLED, RayWorker, Workers

from dingsdk.errors import (
    ConfigError,
)


class Refs:
    """Stands for Ray: which references are there, and what they hold."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.there: dict[str, Any] = {}
        monkeypatch.setattr("ray.wait", self.wait)
        monkeypatch.setattr("ray.get", self.get)

    def wait(self, refs: list[str], timeout: float) -> tuple[list[str], list[str]]:
        return [r for r in refs if r in self.there], [r for r in refs if r not in self.there]

    def get(self, ref: str, timeout: float) -> Any:
        if isinstance(self.there[ref], BaseException):
            raise self.there[ref]
        return self.there[ref]


def started() -> RayWorker:
    run, joined = (SimpleNamespace(remote=lambda *given, n=name: n) for name in ("run", "joined"))
    spec: Any = None
    return RayWorker(SimpleNamespace(run=run, wait_joined=joined), spec)


def test_worker_tells_once_that_it_joined_and_once_why_it_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refs, worker = Refs(monkeypatch), started()
    assert (list(worker.messages()), worker.exit_code) == ([], None)
    refs.there["joined"] = None
    assert [list(worker.messages()) for _ in "12"] == [[{"event": "joined"}], []]
    end = {"code": 1, "event": "failed", "text": "it broke"}
    refs.there["run"] = end
    assert [list(worker.messages()) for _ in "12"] == [[end], []]
    assert worker.exit_code == 1

    early = started()  # it never joined
    assert (list(early.messages()), early.exit_code) == ([end], 1)
    refs.there["run"] = {"code": 0}
    assert (list(started().messages()), started().exit_code) == ([], 0)


@pytest.mark.parametrize("has_room", [False, True])
def test_actor_that_died_is_a_killed_worker(
    monkeypatch: pytest.MonkeyPatch, has_room: bool
) -> None:
    refs, worker = Refs(monkeypatch), started()
    error = ray.exceptions.ActorDiedError() if has_room else ray.exceptions.OutOfMemoryError("x")
    refs.there["run"] = error
    assert worker.exit_code == KILLED
    (message,) = worker.messages()
    assert message["event"] == "failed"
    assert message["text"].startswith("its actor died" if has_room else "out of memory")


def test_first_worker_of_each_role_needs_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.available_resources", lambda: {"CPU": 3.0, "GPU": 1.0})

    def demand(cpus: float, gpus: float = 0.0) -> dict[str, Any]:
        return {"num_cpus": cpus, "num_gpus": gpus, "resources": {}}

    roles = [("learner-0", demand(2.0, 1.0)), ("collector-0", demand(1.0))]
    Workers([*roles, ("collector-1", demand(1.0))], "", 1.0)
    with pytest.raises(ConfigError, match="no room for evaluator-0, which takes"):
        Workers([*roles, ("evaluator-0", demand(0.5))], "", 1.0)
    with pytest.raises(ConfigError, match=r"1 disk .*3 CPU, 1 GPU is free"):
        Workers([("learner-0", {**demand(1.0), "resources": {"disk": 1.0}})], "", 1.0)


def test_worker_gets_what_its_role_takes_and_no_cpu_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen: list[dict[str, Any]] = []

    class Remote:
        def options(self, **given: Any) -> Any:
            chosen.append(given)
            run = SimpleNamespace(remote=lambda *given: "ref")
            return SimpleNamespace(remote=lambda: SimpleNamespace(run=run, wait_joined=run))

    monkeypatch.setattr("ray.available_resources", lambda: {"CPU": 3.0})
    monkeypatch.setattr("ray.remote", lambda **given: lambda cls: Remote())
    demand = {"num_cpus": 0.0, "num_gpus": 0.0, "resources": {}}
    workers = Workers([("a-0", demand), ("a-1", {**demand, "num_cpus": 2.0})], "", 1.0)
    for name in ("a-0", "a-1"):
        spec: Any = SimpleNamespace(worker_id=name)
        workers.start(spec)
    assert chosen == [
        {"max_concurrency": 4, "num_cpus": 0},
        {"max_concurrency": 4, "num_cpus": 2.0},
    ]
