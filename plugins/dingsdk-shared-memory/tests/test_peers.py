"""Which peers may connect to the master, and its reaction to invalid messages."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from dingsdk_shared_memory.connection import Ask, Connection, Reply
from dingsdk_shared_memory.server import SocketServer
from dingsdk_shared_memory.transport import SharedMemoryTransport

from dingsdk.data.channel import MAGIC, Channel
from dingsdk.errors import AuthError, ConfigError
from dingsdk.worker.comm import WorkerInfo
from dingsdk.worker.comm.requests import (
    Answer,
    ForeignAnswerError,
    LinkError,
    Secret,
    find_secret,
)
from dingsdk.worker.comm.requests.messages import Request, encode_request

from .conftest import listener

SECRET = Secret(b"0123456789abcdef", source="test", is_explicit=True)
UNKNOWN = Request("a" * 32, 1, "w", 0, "nonsense")


class Served:
    """A listening master and its socket."""

    def __init__(self, transport: SharedMemoryTransport) -> None:
        self.transport = transport
        self.listener = listener()
        self.end = transport.master_end()
        self.address = self.end.open(self.listener)
        self.path = self.address.removeprefix("unix:")

    def dial(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(10.0)
        made.connect(self.path)
        return made

    def introduced(self) -> Channel:
        secret = find_secret(self.transport.memory.folder)
        assert secret is not None
        channel = Channel(self.dial(), 1 << 20)
        channel.greet(secret, "0" * 32, 10.0)
        return channel

    def is_serving(self) -> bool:
        worker = self.transport.slave_end(self.address)
        worker.join(WorkerInfo(f"w{len(self.listener.events)}", "collector"), 5.0)
        worker.close()
        return True


@pytest.fixture
def served(transport: SharedMemoryTransport) -> Iterator[Served]:
    made = Served(transport)
    yield made
    made.end.close(1.0)


def ends(sock: socket.socket) -> bool:
    """Whether the other end closes the connection without sending more."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_worker_with_another_secret_is_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DINGSDK_SECRET", "another secret of 16 bytes")
    end = served.transport.slave_end(served.address)
    with pytest.raises(AuthError, match="refused the secret"):
        end.join(WorkerInfo("w", "collector"), 5.0)

    served.end.close(5.0)  # it refuses a worker first, and then says so
    assert served.listener.events == []
    told = [each for each in caplog.records if "was refused" in each.getMessage()]
    assert {each.levelname for each in told} == {"WARNING"}


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 64, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"x" * 64, os.urandom(4096)],
    ids=["nothing", "zeros", "http", "random"],
)
def test_peer_that_does_not_know_the_secret_is_disconnected(served: Served, content: bytes) -> None:
    with served.dial() as peer:
        assert peer.recv(1024).startswith(MAGIC)
        peer.sendall(content)
        if not content:
            peer.shutdown(socket.SHUT_WR)
        assert ends(peer)

    assert served.is_serving()


def test_silent_peer_is_disconnected_in_time(served: Served) -> None:
    with served.dial() as peer:
        peer.recv(1024)
        started = time.monotonic()
        assert ends(peer)
    assert time.monotonic() - started < 5.0


def test_other_version_of_the_protocol_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        connection = Connection(path, 1024)
        newer = struct.pack("<4sIQ", MAGIC[:3] + b"9", 64, 0)

        def run() -> None:
            with listener.accept()[0] as peer:
                peer.sendall(newer)

        serving = threading.Thread(target=run)
        serving.start()
        with pytest.raises(ForeignAnswerError, match="version b'9'"):
            connection.post("/v1/turn", b"", SECRET, deadline())
        serving.join(20.0)
        connection.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_is_refused_even_if_the_socket_is_open_to_all(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    Path(served.path).chmod(0o777)
    Path(served.path).parent.chmod(0o755)
    script = (
        "import os, socket, sys\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "made = socket.socket(socket.AF_UNIX); made.settimeout(10.0)\n"
        "made.connect(sys.argv[1]); print(len(made.recv(1024)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, served.path],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    Path(served.path).parent.chmod(0o700)

    assert done.stdout == "0\n"
    assert [record.levelname for record in caplog.records if "user 65534" in record.message] == [
        "WARNING"
    ]


def test_message_over_the_limit_ends_the_connection(served: Served) -> None:
    channel = served.introduced()
    channel._sock.sendall(struct.pack("<4sIQ", MAGIC, 64, (4 << 20) + 1000))
    assert ends(channel._sock)
    channel.close()

    assert served.is_serving()


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("", b""),
        ("/v1/join", b""),
        ("/v1/join", b"{"),
        ("/v1/nonsense", b"{}"),
        ("\xff", b"\0"),
        ("join", b"[]"),
        ("/v1/nonsense", encode_request(UNKNOWN, b"{}")),
    ],
)
def test_invalid_request_gets_an_error_answer(
    served: Served, target: str, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    channel = served.introduced()
    channel.send(Ask(target), (body,), timeout_s=5.0)
    reply, content = channel.receive(Reply, 5.0)
    channel.close()

    assert (reply.status, json.loads(bytes(content))["code"]) == (400, "ProtocolError")
    assert caplog.messages == []  # it is no defect of the master
    assert served.is_serving()


@pytest.mark.parametrize("address", ["", "memory", "http://127.0.0.1:80", "unix:", "unix:relative"])
def test_invalid_address_is_refused(transport: SharedMemoryTransport, address: str) -> None:
    with pytest.raises(ConfigError, match="no address"):
        transport.slave_end(address)


class Echo:
    """A server on its own socket that answers with the request."""

    def __init__(self, path: Path, max_bytes: int = 1000) -> None:
        self.path = str(path)
        self.asked: list[tuple[str, bytes]] = []
        self.server = SocketServer(
            self.path, self.answer, SECRET, connections=8, max_bytes=max_bytes, timeout_s=10.0
        )

    def answer(self, kind: str, body: bytes) -> Answer:
        self.asked.append((kind, body))
        return Answer(207, body)

    def __enter__(self) -> Echo:
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self.server.close()


def deadline() -> float:
    return time.monotonic() + 10.0


def test_answer_of_exactly_the_limit_is_read_and_a_larger_one_is_not(tmp_path: Path) -> None:
    with Echo(tmp_path / "s") as echo:
        connection = Connection(echo.path, 100)
        answer = connection.post("/v1/turn", bytes(100), SECRET, deadline())
        assert (answer.status, answer.body) == (207, bytes(100))
        assert echo.asked == [("turn", bytes(100))]
        with pytest.raises(LinkError, match="at most 100"):
            connection.post("/v1/turn", bytes(101), SECRET, deadline())
        assert connection.post("/v1/turn", b"x", SECRET, deadline()).body == b"x"  # reconnects
        connection.close()


def test_connecting_to_a_master_that_accepts_nobody_ends(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as master, socket.socket(socket.AF_UNIX) as first:
        master.bind(path)
        master.listen(0)
        first.connect(path)  # the queue is full now
        with pytest.raises(LinkError):
            Connection(path, 100).post("/v1/turn", b"x", SECRET, time.monotonic() + 0.5)


def test_socket_of_a_dead_master_is_replaced_and_removed_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with Echo(path) as echo:
        connection = Connection(echo.path, 100)
        assert connection.post("/v1/turn", b"x", SECRET, deadline()).body == b"x"
        connection.close()
    assert not path.exists()
    assert echo.server.close()  # a second close
