"""Where workers run is a matter of the transport's class and the config, not of its name."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from dingsdk.config import to_easydict
from dingsdk.errors import ConfigError
from dingsdk.pipeline.train import compile_run
from dingsdk.pipeline.worker import place_of, run_worker, worker_ids
from dingsdk.plugins import default_manager
from dingsdk.worker.comm import Place, Transport


class Anywhere(Transport):
    places: ClassVar[tuple[Place, ...]] = ("processes", "threads")


class Undeclared(Transport):
    pass


def section(**cfg: Any) -> dict[str, Any]:
    return {"type": "mine", **cfg}


def test_first_place_is_the_default_and_the_config_may_choose_another() -> None:
    assert place_of(Anywhere, section()) == "processes"
    assert place_of(Anywhere, section(workers="")) == "processes"
    assert place_of(Anywhere, section(workers="threads")) == "threads"


def test_transport_that_declares_nothing_runs_threads() -> None:
    assert place_of(Undeclared, section()) == "threads"


@pytest.mark.parametrize("asked", ["processes", "fibres"])
def test_place_that_the_transport_does_not_reach_is_refused(asked: str) -> None:
    with pytest.raises(ConfigError, match="'mine' runs workers as threads") as caught:
        place_of(Undeclared, section(workers=asked))

    assert caught.value.facts["path"] == "system.transport.workers"


def test_workers_that_the_user_starts_need_processes() -> None:
    assert place_of(Anywhere, section(workers="threads"), is_elsewhere=True) == "processes"
    with pytest.raises(ConfigError):
        place_of(Undeclared, section(), is_elsewhere=True)


@pytest.mark.parametrize(
    ("type_key", "places"),
    [("in_memory", ("threads",)), ("flask_fs", ("processes", "threads"))],
)
def test_shipped_transports_declare_their_places(type_key: str, places: tuple[str, ...]) -> None:
    assert default_manager().get("transports", type_key).places == places


def test_every_worker_has_an_id_of_its_own_and_the_learner_comes_first() -> None:
    cfg = to_easydict({"system": {"learner_num": 1, "collector_num": 2}})

    assert worker_ids(cfg) == [
        ("learner", "learner-0"),
        ("collector", "collector-0"),
        ("collector", "collector-1"),
    ]


def test_worker_looks_for_a_lost_coordinator_as_long_as_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = compile_run("cartpole-dqn", "parallel", "in_memory", ["system.rejoin_s=12.5"], 0)
    begun: list[tuple[str, float]] = []
    closed: list[str] = []

    class Worker:
        """A worker whose coordinator ends at once."""

        rejoin_s, is_over, failure, tasks_done = 0.0, True, None, 0

        def start(self, address: str) -> None:
            begun.append((address, self.rejoin_s))

        def close(self) -> None:
            closed.append("worker")

    role = SimpleNamespace(create_worker=lambda transport, worker_id: Worker(), resumes=False)
    monkeypatch.setattr("dingsdk.pipeline.worker.create_role", lambda name, cfg: role)
    joined: list[str] = []
    stop = threading.Event()
    is_again = run_worker(
        "collector", cfg, "memory", "c0", tmp_path, stop, lambda: joined.append("c0")
    )
    assert (is_again, joined, begun, closed) == (False, ["c0"], [("memory", 12.5)], ["worker"])
