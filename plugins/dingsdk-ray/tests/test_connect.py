"""Joining, starting and leaving Ray clusters, tested without a cluster."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from dingsdk_ray import cluster

from dingsdk.errors import (
    ConfigError,
    InsecureBindError,
)

GCS_TIMEOUT = "RAY_gcs_rpc_server_reconnect_timeout_s"


class Ray:
    """A fake of Ray in this process that records how it is started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[dict[str, Any]] = []
        self.stopped = 0
        self.is_there = False
        monkeypatch.setattr("ray.init", self.init)
        monkeypatch.setattr("ray.shutdown", self.shutdown)
        monkeypatch.setattr("ray.is_initialized", lambda: self.is_there)
        context = SimpleNamespace(gcs_address="10.0.0.1:6379")
        monkeypatch.setattr("ray.get_runtime_context", lambda: context)

    def init(self, **options: Any) -> None:
        self.started.append(options)
        self.is_there = True
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)

    def shutdown(self) -> None:
        self.stopped += 1
        self.is_there = False
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Ray:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    return Ray(monkeypatch)


def token_of_ray() -> str:
    raylet: Any = importlib.import_module("ray._raylet")
    return str(raylet.AuthenticationTokenLoader.instance().get_raw_token())


def test_local_ray_is_started_by_the_first_user_and_stopped_with_the_last(
    fake: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")  # the user's setting is kept
    monkeypatch.setenv(GCS_TIMEOUT, "7")
    environ = dict(os.environ)
    tokens = []
    for _ in range(2):
        address = cluster.connect("local", num_cpus=3.5, object_store_bytes=1 << 20)
        assert address == "10.0.0.1:6379"
        tokens.append(os.environ["RAY_AUTH_TOKEN"])
        assert token_of_ray() == tokens[0]  # Ray reads the environment again
    assert tokens[0] == tokens[1]
    assert fake.started == [
        {
            "address": "local",
            "num_cpus": 3.5,
            "include_dashboard": False,
            "object_store_memory": 1 << 20,
            "log_to_driver": False,
            "logging_level": logging.ERROR,
            "namespace": cluster.NAMESPACE,
        }
    ]
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] == "1"
    assert os.environ[GCS_TIMEOUT] == "7"
    cluster.disconnect()
    assert fake.stopped == 0
    cluster.disconnect()
    assert fake.stopped == 1
    assert dict(os.environ) == environ
    cluster.connect("local", shows_logs=True)  # starts Ray again, with another token
    try:
        assert os.environ["RAY_AUTH_TOKEN"] not in tokens
        assert token_of_ray() == os.environ["RAY_AUTH_TOKEN"]
        started = fake.started[1]
        assert (started["num_cpus"], started["log_to_driver"]) == (1, True)
        assert "object_store_memory" not in started
    finally:
        cluster.disconnect()


def test_ray_already_started_in_this_process_is_used_and_not_stopped(fake: Ray) -> None:
    fake.is_there = True
    environ = dict(os.environ)
    assert cluster.connect("10.0.0.1:6379", allow_insecure=True) == "10.0.0.1:6379"
    cluster.disconnect()
    assert (fake.started, fake.stopped) == ([], 0)
    assert dict(os.environ) == {**environ, **dict.fromkeys(cluster._QUIET, "0")}
    for name in cluster._QUIET.keys() - environ.keys():
        del os.environ[name]


def test_signals_are_handled_as_before_ray_was_started_and_stopped(fake: Ray) -> None:
    def handle(number: int, frame: object) -> None:
        pass

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, handle) for number in numbers]
    try:
        cluster.connect("local")
        assert [signal.getsignal(number) for number in numbers] == [handle] * 2
        cluster.disconnect()
        assert [signal.getsignal(number) for number in numbers] == [handle] * 2
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_ray_that_does_not_start_in_time_is_a_one_line_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, str] = {}

    def init(**options: Any) -> None:
        seen.update(os.environ)
        raise Exception("The current node timed out during startup.\nSome of the raylet failed")

    environ = dict(os.environ)
    monkeypatch.setattr("ray.init", init)
    with pytest.raises(ConfigError, match="'local': The current node timed out during") as caught:
        cluster.connect("local")
    assert "\n" not in str(caught.value)
    # Clients need a token, and the loss of a killed Ray is detected soon.
    assert seen["RAY_AUTH_MODE"] == "token"
    assert len(seen["RAY_AUTH_TOKEN"]) == 64
    assert seen[GCS_TIMEOUT] == "10"
    assert dict(os.environ) == environ


def test_cluster_is_joined_once_its_gcs_answers(fake: Ray) -> None:
    # On all addresses, because Ray resolves 127.0.0.1 to the address of its node.
    with socket.create_server(("0.0.0.0", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert cluster.connect(address) == "10.0.0.1:6379"
    ((options),) = fake.started
    assert options["address"] == address
    assert not options.keys() & {"num_cpus", "include_dashboard", "object_store_memory"}
    assert "RAY_AUTH_TOKEN" not in os.environ
    cluster.disconnect()


def test_silent_cluster_is_reported_before_ray_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def init(**options: Any) -> None:
        raise AssertionError("Ray was asked to join")

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr(cluster, "REACH_S", 0.5)
    environ = dict(os.environ)
    with socket.create_server(("0.0.0.0", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(ConfigError, match=r"did not answer: .*refused"):
        cluster.connect(address)
    assert dict(os.environ) == environ


@pytest.mark.parametrize("address", ["10.0.0.1", "head:a", "head:6379/", "ray://head:10001"])
def test_invalid_cluster_address_is_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(cluster, "REACH_S", 0.5)
    with pytest.raises(ConfigError, match=f"no Ray cluster at .*{address}") as caught:
        cluster.connect(address, allow_insecure=True)
    assert caught.value.path == "system.transport.address"


@pytest.mark.parametrize("address", ["auto", "10.0.0.1:6379", "head:6379"])
def test_cluster_without_tokens_is_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(InsecureBindError, match="allow_insecure_ray"):
        cluster.check_tokens(address, allow_insecure=False)
    with pytest.raises(InsecureBindError, match="allow_insecure_ray"):
        cluster.connect(address)
    cluster.check_tokens(address, allow_insecure=True)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    cluster.check_tokens(address, allow_insecure=False)


@pytest.mark.parametrize("address", ["local", "127.0.0.1:6379", "localhost:6379"])
def test_cluster_of_this_host_may_do_without_tokens(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    cluster.check_tokens(address, allow_insecure=False)
