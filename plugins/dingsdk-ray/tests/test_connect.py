"""Ray clusters that are joined, started and left, without a cluster."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from importlib import metadata
from typing import Any

import pytest
from dingsdk_ray import cluster

from dingsdk.errors import (
    ConfigError,
    InsecureBindError,
    PluginNotInstalledError,
)


@pytest.mark.parametrize("found", ["2.53.0", "1.13.0", ""])
def test_ray_that_is_old_or_absent_is_told_before_a_run_folder_is_made(
    monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    def version(name: str) -> str:
        if name == "ray" and not found:
            raise metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(cluster.importlib.metadata, "version", version)
    with pytest.raises(PluginNotInstalledError, match=r"ray >= 2\.54.*pip install"):
        cluster.check_ray()
    with pytest.raises(PluginNotInstalledError):
        cluster.connect("local")


def test_ray_that_does_not_start_in_time_is_told_in_one_line(
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
    # Only those who know a token may come in, and a Ray that is killed is missed soon.
    assert seen["RAY_AUTH_MODE"] == "token"
    assert len(seen["RAY_AUTH_TOKEN"]) == 64
    assert seen["RAY_gcs_rpc_server_reconnect_timeout_s"] == "10"
    assert dict(os.environ) == environ


def serve(sock: socket.socket, answer: bytes | None, until: threading.Event) -> None:
    """Answer the first words on each connection; None: never."""
    sock.settimeout(0.05)
    with contextlib.ExitStack() as opened:
        while not until.is_set():
            with contextlib.suppress(TimeoutError):
                connection = opened.enter_context(sock.accept()[0])
                connection.settimeout(5.0)
                connection.recv(64)
                if answer is not None:
                    connection.sendall(answer)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("closed", "refused"),
        (None, "timed out"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no GCS"),
    ],
    ids=["nobody", "mute", "another server"],
)
def test_cluster_that_does_not_answer_is_told_before_ray_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, answer: Any, why: str
) -> None:
    def init(**options: Any) -> None:
        raise AssertionError("Ray was asked to join")

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr(cluster, "REACH_S", 0.5)
    environ = dict(os.environ)
    until = threading.Event()
    with socket.socket() as sock:
        # As Ray resolves 127.0.0.1 to the address of its node.
        sock.bind(("0.0.0.0", 0))
        if answer != "closed":
            sock.listen()
            thread = threading.Thread(target=serve, args=(sock, answer, until))
            thread.start()
        try:
            with pytest.raises(ConfigError, match=f"did not answer as a GCS.*{why}"):
                cluster.connect(f"127.0.0.1:{sock.getsockname()[1]}")
        finally:
            until.set()
            if answer != "closed":
                thread.join(10.0)
    assert dict(os.environ) == environ


@pytest.mark.parametrize("address", ["10.0.0.1", "head:a", "head:6379/", "ray://head:10001"])
def test_address_of_a_cluster_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr(cluster, "REACH_S", 0.5)
    with pytest.raises(ConfigError, match=f"no Ray cluster at .*{address}"):
        cluster.connect(address, allow_insecure=True)


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


def test_ray_is_stopped_with_its_last_user_and_the_environment_is_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped: list[int] = []
    monkeypatch.setattr("ray.shutdown", lambda: stopped.append(1))
    monkeypatch.setattr(cluster, "_users", 2)
    monkeypatch.setattr(cluster, "_started", {"RAY_A": None, "RAY_B": "before"})
    monkeypatch.setenv("RAY_A", "during")
    monkeypatch.setenv("RAY_B", "during")
    cluster.disconnect()
    assert (stopped, os.environ["RAY_A"]) == ([], "during")
    cluster.disconnect()
    assert (stopped, cluster._started) == ([1], None)
    assert ("RAY_A" in os.environ, os.environ["RAY_B"]) == (False, "before")
