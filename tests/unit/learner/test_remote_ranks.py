"""Learner processes that somebody else has started."""

from __future__ import annotations

import contextlib
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
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dingsdk.errors import ConfigError, WorkerCrashedError
from dingsdk.worker.learner import aggregator, remote_ranks
from dingsdk.worker.learner.aggregator import LearnerAggregator, process_group, serve_remote
from dingsdk.worker.learner.remote_ranks import RankPlace, RemoteRanks

from .test_aggregator import CFG, batches, listening_sockets, new_addresses, policy, weights

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


def test_remote_ranks_train_as_one_learner_in_one_group_after_the_other(
    place: RankPlace, started: Ranks
) -> None:
    alone, together = policy(), policy()
    before = listening_sockets("self")
    rank = start_rank(place, started, CFG)
    with closing(RemoteRanks(place)) as remote:
        assert new_addresses(before) == {"0100007F"}
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


@pytest.mark.slow
def test_rank_of_another_config_is_refused(place: RankPlace, started: Ranks) -> None:
    other = {**CFG, "learn": {**CFG["learn"], "target_update_freq": 4}}
    rank = start_rank(place, started, other)
    with (
        closing(RemoteRanks(place)) as remote,
        pytest.raises(WorkerCrashedError, match=r"rank 1 .* ConfigError: policy\.learn of rank 1"),
    ):
        LearnerAggregator(policy(), CFG, 2, 20.0, remote)
    assert "dingsdk.errors.ConfigError: policy.learn of rank 1" in rank.communicate(timeout=20)[1]


def test_missing_ranks_are_named(place: RankPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_ranks, "JOIN_S", 0.2)
    with (
        closing(RemoteRanks(place)) as remote,
        pytest.raises(WorkerCrashedError, match="rank 1 of the learner did not come within"),
    ):
        LearnerAggregator(policy(), CFG, 2, 20.0, remote)


def test_rank_without_a_first_one_gives_up(
    place: RankPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_ranks, "JOIN_S", 0.2)
    monkeypatch.setattr(remote_ranks, "_HANDSHAKE_S", 0.2)
    other = RankPlace(1, 2, place.host, place.port)
    with pytest.raises(WorkerCrashedError, match=r"rank 0 of the learner, at 127\.0\.0\.1"):
        serve_remote(other, CFG, threading.Event())
    stop = threading.Event()
    stop.set()
    serve_remote(other, CFG, stop)


def test_rank_says_why_it_waits_for_a_new_group(
    place: RankPlace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    links = iter([Connection(ours.detach()), None])
    monkeypatch.setattr(aggregator, "dial", lambda *_: next(links))

    serve_remote(dataclasses.replace(place, rank=1), CFG, threading.Event())

    assert caplog.messages == ["rank 1 waits for a new group: rank 0 hung up"]


def test_stranger_is_refused(place: RankPlace, caplog: pytest.LogCaptureFixture) -> None:
    with closing(RemoteRanks(place)) as remote:
        address = remote._server.getsockname()
        for said in (b"", b"\0\0\0\x05hello", b"\xff" * 64):
            # It may be hung up on at any moment.
            with socket.create_connection(address) as stranger, contextlib.suppress(OSError):
                stranger.sendall(said)
                stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(4096):
                    pass
        assert remote._links == {}
    assert "was refused" in caplog.text


def test_rank_outside_of_the_world_is_hung_up_on_and_a_new_process_replaces_the_old(
    place: RankPlace,
) -> None:
    def dial(rank: int) -> Any:
        # The store is there already, also for one that says it is rank 0.
        other = dataclasses.replace(place, rank=rank, has_agent=True)
        return closing(remote_ranks.dial(other, threading.Event()))

    with closing(RemoteRanks(place)) as remote:
        for rank in (0, 2):
            with dial(rank) as stray, pytest.raises((EOFError, OSError)):
                stray.recv_bytes()
        with dial(1) as old:
            remote.links()[1].send_bytes(b"old")
            assert old.recv_bytes() == b"old"
            with dial(1) as new:
                with pytest.raises((EOFError, OSError)):
                    old.recv_bytes()
                remote.links()[1].send_bytes(b"new")
                assert new.recv_bytes() == b"new"


PLACE = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "alpha", "MASTER_PORT": "29500"}


def test_place_is_read_from_the_environment() -> None:
    assert RankPlace.of({}) is None
    assert RankPlace.of({**PLACE, "WORLD_SIZE": "1"}) is None
    assert RankPlace.of(PLACE) == RankPlace(1, 3, "alpha", 29500, local_rank=1)
    torchrun = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}
    torchrun["LOCAL_RANK"] = "0"
    assert RankPlace.of({**PLACE, **torchrun}) == RankPlace(1, 3, "alpha", 29500, True, "2", 0)
    RankPlace(1, 3, "alpha", 29500).check(3)
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
        with pytest.raises(ConfigError, match=f"no usable '{missing}'"):
            RankPlace.of({key: value for key, value in PLACE.items() if key != missing})
    with pytest.raises(ConfigError, match="learner_num is 2, but WORLD_SIZE is 3"):
        RankPlace(1, 3, "alpha", 29500).check(2)


class NCCL:
    """Stands for nccl, which torch for the CPU has not."""

    Options = SimpleNamespace

    def __init__(self, *args: Any) -> None:
        self.args = args


def test_rank_on_a_gpu_talks_over_nccl() -> None:
    built_with_nccl = SimpleNamespace(ProcessGroupNCCL=NCCL)
    patience = timedelta(seconds=7)

    group = process_group(built_with_nccl, "cuda:1", "store", 1, 2, patience, "127.0.0.1")

    assert group.args == ("store", 1, 2, SimpleNamespace(_timeout=patience))
