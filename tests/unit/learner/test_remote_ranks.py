"""Learner ranks in processes that dingsdk did not start, for example with torchrun."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dingsdk.data.channel import encode_value
from dingsdk.errors import ConfigError, WorkerCrashedError
from dingsdk.worker.learner import aggregator, remote_ranks
from dingsdk.worker.learner.aggregator import (
    Call,
    Done,
    Failed,
    LearnerAggregator,
    process_group,
    serve_remote,
)
from dingsdk.worker.learner.remote_ranks import Over, RankPlace, RemoteRanks

from .test_aggregator import (
    CFG,
    LOOPBACK,
    batches,
    link_pair,
    listening_sockets,
    new_addresses,
    policy,
    weights,
)

SCRIPT = """
import json, os, sys, threading
from dingsdk.worker.learner.aggregator import serve_remote
from dingsdk.worker.learner.remote_ranks import RankPlace
serve_remote(RankPlace.of(os.environ), json.loads(sys.argv[1]), threading.Event())
"""


@pytest.fixture
def place() -> RankPlace:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return RankPlace(0, 2, "127.0.0.1", probe.getsockname()[1])


Ranks = list[subprocess.Popen[str]]


@pytest.fixture
def started() -> Iterator[Ranks]:
    made: Ranks = []
    yield made
    for each in made:
        each.kill()
        each.communicate()


def start_rank(
    place: RankPlace, started: Ranks, cfg: dict[str, Any], rank: int = 1, world_size: int = 2
) -> subprocess.Popen[str]:
    own = {"RANK": rank, "WORLD_SIZE": world_size, "MASTER_ADDR": place.host}
    own |= {"MASTER_PORT": place.port, "OMP_NUM_THREADS": 1}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, json.dumps(cfg)],
        env={**os.environ, **{key: str(value) for key, value in own.items()}},
        stderr=subprocess.PIPE,
        text=True,
    )
    started.append(process)
    return process


def test_remote_ranks_train_like_one_learner_in_two_groups(
    place: RankPlace, started: Ranks
) -> None:
    alone, together = policy(), policy()
    before = listening_sockets("self")
    rank = start_rank(place, started, CFG)
    with closing(RemoteRanks(place)) as remote:
        assert new_addresses(before) == {LOOPBACK}
        for _ in range(2):
            with LearnerAggregator(together, CFG, 2, 20.0, remote) as ranks:
                for batch in batches(3):
                    alone.forward(batch)
                    ranks.learn_mode.forward(batch)
    assert rank.wait(20) == 0
    for name, tensor in weights(alone).items():
        torch.testing.assert_close(weights(together)[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_new_group_is_formed_when_a_lost_rank_is_started_again(
    place: RankPlace, started: Ranks
) -> None:
    together = policy()
    first, other = (start_rank(place, started, CFG, rank, 3) for rank in (1, 2))
    with closing(RemoteRanks(dataclasses.replace(place, world_size=3))) as remote:
        with LearnerAggregator(together, CFG, 3, 20.0, remote) as ranks:
            ranks.learn_mode.forward(next(batches(1, size=12)))
            first.kill()
            with pytest.raises(WorkerCrashedError, match="rank 1 of the learner is gone"):
                ranks.learn_mode.forward(next(batches(1, size=12)))
        again = start_rank(place, started, CFG, 1, 3)
        with LearnerAggregator(together, CFG, 3, 20.0, remote) as ranks:
            ranks.learn_mode.forward(next(batches(1, size=12)))
    assert (again.wait(20), other.wait(20)) == (0, 0)


def test_missing_ranks_are_named(place: RankPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_ranks, "JOIN_S", 0.2)
    with (
        closing(RemoteRanks(place)) as remote,
        pytest.raises(WorkerCrashedError, match="rank 1 of the learner did not come within"),
    ):
        LearnerAggregator(policy(), CFG, 2, 20.0, remote)


def test_rank_gives_up_if_rank_0_is_missing(
    place: RankPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_ranks, "JOIN_S", 0.2)
    monkeypatch.setattr(remote_ranks, "HANDSHAKE_S", 0.2)
    other = RankPlace(1, 2, place.host, place.port)
    with pytest.raises(WorkerCrashedError, match=r"rank 0 of the learner, at 127\.0\.0\.1"):
        serve_remote(other, CFG, threading.Event())
    stop = threading.Event()
    stop.set()
    serve_remote(other, CFG, stop)


class Served:
    """A rank in a group of one, served by a thread, and the other end of its link."""

    def __init__(
        self, place: RankPlace, monkeypatch: pytest.MonkeyPatch, cfg: dict[str, Any] = CFG
    ) -> None:
        monkeypatch.setattr(aggregator, "_NOTICE_STOP_S", 0.01)
        self.link, theirs = link_pair()
        links = iter([theirs, None])
        monkeypatch.setattr(aggregator, "dial", lambda *_: next(links))
        self.stop, self.error = threading.Event(), list[Exception]()
        self._place, self._cfg = dataclasses.replace(place, world_size=1, local_rank=3), cfg
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        try:
            serve_remote(self._place, self._cfg, self.stop)
        except ConfigError as error:
            self.error.append(error)

    def ask(self, name: str, args: Any) -> Done | Failed:
        self.link.send(Call(name), encode_value(aggregator._KIND, args), timeout_s=20.0)
        answer: Done | Failed = self.link.receive(Done | Failed, 20.0)[0]
        return answer

    def close(self) -> None:
        self.stop.set()
        self.thread.join(20.0)
        self.link.close()


@pytest.mark.parametrize("key", ["learn", "nstep"])
def test_remote_rank_with_another_policy_reports_it_and_ends(
    place: RankPlace, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    with closing(Served(place, monkeypatch)) as rank:
        answer = rank.ask("begin", [1, 20.0, {**CFG, key: 3}, 5])
        assert isinstance(answer, Failed)
        assert f"ConfigError: policy.{key} of rank 0" in answer.text
        assert "Traceback" in answer.traceback
        rank.thread.join(20.0)
    (error,) = rank.error
    assert isinstance(error, ConfigError)
    assert error.path == f"policy.{key}"


def test_remote_rank_uses_its_gpu_and_reports_a_lost_rank(
    place: RankPlace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forward(batch: Any) -> None:
        raise ConnectionError("a rank was lost: timeout")

    made = SimpleNamespace(learn_mode=SimpleNamespace(forward=forward))
    monkeypatch.setattr(aggregator, "create_policy", lambda *_, **__: made)
    gpus: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", gpus.append)
    cfg = {**CFG, "cuda": True}
    with closing(Served(place, monkeypatch, cfg)) as rank:
        assert rank.ask("begin", [1, 20.0, cfg, 5]) == Done()
        assert gpus == [3]
        assert rank.ask("forward", [next(batches(1))]) == Failed("has lost another rank")
        rank.thread.join(20.0)
    assert caplog.messages == ["rank 0 waits for a new group: a rank was lost: timeout"]


def test_invalid_rank_is_disconnected_and_a_new_process_replaces_the_old(
    place: RankPlace,
) -> None:
    def dial(rank: int) -> Any:
        # ``has_agent``: the store exists already, also for a process that claims to be rank 0.
        other = dataclasses.replace(place, rank=rank, has_agent=True)
        return closing(remote_ranks.dial(other, threading.Event()))

    with closing(RemoteRanks(place)) as remote:
        for rank in (0, 2):
            with dial(rank) as stray, pytest.raises(ConnectionError):
                stray.receive(Over, 20.0)
        with dial(1) as old:
            first = remote.links()[1]
            with dial(1) as new:
                with pytest.raises(ConnectionError):
                    old.receive(Over, 20.0)
                assert remote.links()[1] is not first
                remote.links()[1].send(Over(), timeout_s=20.0)
                assert new.receive(Over, 20.0)[0] == Over()


PLACE = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "alpha", "MASTER_PORT": "29500"}


def test_place_is_read_from_the_environment() -> None:
    assert RankPlace.of({}) is None
    assert RankPlace.of({**PLACE, "WORLD_SIZE": "1"}) is None
    assert RankPlace.of(PLACE) == RankPlace(1, 3, "alpha", 29500, local_rank=1)
    torchrun = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}
    torchrun["LOCAL_RANK"] = "0"
    assert RankPlace.of({**PLACE, **torchrun}) == RankPlace(1, 3, "alpha", 29500, True, "2", 0)
    RankPlace(1, 3, "alpha", 29500).check(3)
    for address in ("127.0.0.1", "::1"):
        assert RankPlace(1, 3, address, 29500).own_address() == address
    assert RankPlace(1, 3, "alpha", 29500).local_rank == 0  # the first GPU of its host


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"RANK": "three"}, "three"),
        ({"RANK": "3"}, "RANK is 3, with WORLD_SIZE 3 it is 0 to 2"),
        ({"MASTER_PORT": "x"}, "start it with torchrun"),
    ],
)
def test_unusable_places_are_refused(change: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        RankPlace.of({**PLACE, **change})
    for missing in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        with pytest.raises(ConfigError, match=f"KeyError: '{missing}'"):
            RankPlace.of({key: value for key, value in PLACE.items() if key != missing})
    with pytest.raises(ConfigError, match="learner_num is 2, but WORLD_SIZE is 3"):
        RankPlace(1, 3, "alpha", 29500).check(2)


def test_rank_that_connects_during_the_close_is_told_that_the_run_is_over(
    place: RankPlace,
) -> None:
    remote, told = RemoteRanks(place), list[Any]()

    class LateLink:
        """A link whose rank is ready when rank 0 has just been closed."""

        def receive(self, kind: Any, timeout_s: float) -> None:
            remote.close()

        def send(self, head: Any, timeout_s: float) -> None:
            told.append(head)

    thread = threading.Thread(target=remote._take, args=(LateLink(), 1), daemon=True)
    thread.start()
    thread.join(10.0)
    assert not thread.is_alive()
    assert told == [Over()]


def test_rank_connects_again_after_rank_0_was_restarted(place: RankPlace) -> None:
    store = place.store(1.0)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        gone = {"address": f"127.0.0.1:{closed.getsockname()[1]}", "key": "0" * 64}
    store.set(remote_ranks._FRONT, json.dumps(gone))
    agent, made = dataclasses.replace(place, has_agent=True), list[RemoteRanks]()
    pauses: list[float | None] = []

    class Stop(threading.Event):
        """Starts rank 0 during the first pause."""

        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            made.append(RemoteRanks(agent))
            return False

    link = remote_ranks.dial(dataclasses.replace(agent, rank=1), Stop())

    assert link is not None
    with closing(link), closing(made[0]) as remote:
        remote.links()[1].send(Over(), timeout_s=20.0)
        assert link.receive(Over, 20.0)[0] == Over()
    assert pauses == [remote_ranks.RETRY_S]


class NCCL:
    """Replaces nccl, which torch for the CPU does not have."""

    Options = SimpleNamespace

    def __init__(self, *args: Any) -> None:
        self.args = args


def test_rank_on_a_gpu_uses_nccl() -> None:
    built_with_nccl = SimpleNamespace(ProcessGroupNCCL=NCCL)
    patience = timedelta(seconds=7)

    group = process_group(built_with_nccl, "cuda:1", "store", 1, 2, patience, "127.0.0.1")

    assert group.args == ("store", 1, 2, SimpleNamespace(_timeout=patience))
