"""Workers as actors, with a fake Ray."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from dingsdk_ray.workers import RayWorker, Workers

from dingsdk.errors import ConfigError, ServerLostError


class Refs:
    """A fake of Ray: its existing references and their values."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.there: dict[str, Any] = {}
        self.waited: list[tuple[str, float]] = []
        monkeypatch.setattr("ray.wait", self.wait)
        monkeypatch.setattr("ray.get", lambda ref, timeout: self.there[ref])

    def wait(self, refs: list[str], timeout: float) -> tuple[list[str], list[str]]:
        self.waited += [(ref, timeout) for ref in refs]
        return [r for r in refs if r in self.there], [r for r in refs if r not in self.there]


def started() -> RayWorker:
    run, joined = (SimpleNamespace(remote=lambda *given, n=name: n) for name in ("run", "joined"))
    spec: Any = None
    return RayWorker(SimpleNamespace(run=run, wait_joined=joined), spec)


def test_worker_reports_its_join_once_and_its_end_once(
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
    assert {timeout for _, timeout in refs.waited} == {0.0}  # reading messages does not wait
    refs.waited.clear()
    worker.join(9.0)
    assert refs.waited == []  # the exit code is already known

    early = started()  # a worker that never joined
    assert (list(early.messages()), early.exit_code) == ([end], 1)
    refs.there["run"] = {"code": 0}
    assert (list(started().messages()), started().exit_code) == ([], 0)


def test_first_worker_of_each_role_needs_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.available_resources", lambda: {"CPU": 3.0, "GPU": 1.0})

    def demand(cpus: float, gpus: float = 0.0) -> dict[str, Any]:
        return {"num_cpus": cpus, "num_gpus": gpus, "resources": {}}

    roles = [("learner-0", demand(2.0, 1.0)), ("collector-0", demand(1.0))]
    Workers([*roles, ("collector-1", demand(1.0))], "", 1.0)
    with pytest.raises(ConfigError, match="no room for evaluator-0, which takes"):
        Workers([*roles, ("evaluator-0", demand(0.5))], "", 1.0)
    with pytest.raises(ConfigError, match="no room for evaluator-0, which takes 9 CPU"):
        Workers([("learner-1", demand(1.0)), ("evaluator-0", demand(9.0))], "", 1.0)
    with pytest.raises(ConfigError, match=r"1 disk .*3 CPU, 1 GPU is free"):
        Workers([("learner-0", {**demand(1.0), "resources": {"disk": 1.0}})], "", 1.0)


class Groups:
    """A fake of Ray's placement groups."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, has_room: bool) -> None:
        self.has_room = has_room
        self.made: list[tuple[Any, str]] = []
        self.waited: list[float] = []
        self.removed: list[Any] = []
        monkeypatch.setattr("ray.util.placement_group", self.make)
        monkeypatch.setattr("ray.util.remove_placement_group", self.removed.append)
        monkeypatch.setattr("ray.available_resources", lambda: {"CPU": 2.0})

    def make(self, bundles: Any, strategy: str) -> Groups:
        self.made.append((bundles, strategy))
        return self

    def wait(self, timeout_s: float) -> bool:
        self.waited.append(timeout_s)
        return self.has_room


def set_nodes(monkeypatch: pytest.MonkeyPatch, *, is_own_alive: bool) -> None:
    context = SimpleNamespace(get_node_id=lambda: "own", gcs_address="head:6379")
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    nodes = [{"NodeID": "own", "Alive": is_own_alive}, {"NodeID": "other", "Alive": False}]
    monkeypatch.setattr("ray.nodes", lambda: nodes)


def test_no_worker_is_started_after_the_node_has_left_the_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Groups(monkeypatch, has_room=True)
    workers = Workers(DEMANDS, "SPREAD", 7.0)
    set_nodes(monkeypatch, is_own_alive=False)
    spec: Any = SimpleNamespace(worker_id="learner-0")
    with pytest.raises(ServerLostError, match="--resume") as caught:
        workers.start(spec)
    assert caught.value.facts["address"] == "head:6379"


DEMANDS = [
    ("learner-0", {"num_cpus": 2.0, "num_gpus": 1.0, "resources": {"disk": 3.0}}),
    ("collector-0", {"num_cpus": 0.0, "num_gpus": 0.0, "resources": {}}),
]
BUNDLES = [{"CPU": 2.0, "GPU": 1.0, "disk": 3.0}, {"CPU": 0.001}]


def test_workers_of_a_placement_group_have_a_bundle_each(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups(monkeypatch, has_room=True)
    workers = Workers(DEMANDS, "SPREAD", 7.0)
    assert (groups.made, groups.waited) == ([(BUNDLES, "SPREAD")], [7.0])
    set_nodes(monkeypatch, is_own_alive=True)
    chosen: list[dict[str, Any]] = []

    def remote(**given: Any) -> Any:
        def options(**more: Any) -> Any:
            chosen.append(given | more)
            call = SimpleNamespace(remote=lambda *spec: "ref")
            return SimpleNamespace(remote=lambda: SimpleNamespace(run=call, wait_joined=call))

        return lambda cls: SimpleNamespace(options=options)

    monkeypatch.setattr("ray.remote", remote)
    for name in ("collector-0", "learner-0"):
        spec: Any = SimpleNamespace(worker_id=name)
        workers.start(spec)
    strategies = [each.pop("scheduling_strategy") for each in chosen]
    assert [each.placement_group_bundle_index for each in strategies] == [1, 0]
    assert all(each.placement_group is groups for each in strategies)
    # Ray does not restart workers; the process that watches them does.
    assert chosen == [
        {"max_restarts": 0, "max_concurrency": 4, "num_cpus": 0},
        {
            "max_restarts": 0,
            "max_concurrency": 4,
            "num_cpus": 2.0,
            "num_gpus": 1.0,
            "resources": {"disk": 3.0},
        },
    ]
    assert groups.removed == []
    workers.close()
    assert groups.removed == [groups]


def test_placement_group_without_room_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups(monkeypatch, has_room=False)
    with pytest.raises(ConfigError, match=r"within 7 s: they take .*\(PACK\), and 2 CPU") as caught:
        Workers(DEMANDS, "PACK", 7.0)
    assert caught.value.path == "system.transport.placement"
    assert groups.removed == [groups]
