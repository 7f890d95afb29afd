"""A replay server in this process: rows, recovery, protocol and refused requests."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dingsdk import ReplayClient, ReplayServer
from dingsdk.data import SampleBatch
from dingsdk.data import channel as channels
from dingsdk.errors import (
    AuthError,
    BufferFullError,
    CheckpointCorruptError,
    CheckpointVersionError,
    ClosedError,
    ConfigError,
    DataCorruptError,
    DingError,
    InsecureBindError,
    PortInUseError,
    ProtocolError,
    RunFolderError,
    SchemaMismatchError,
    ServerLostError,
    StorageFullError,
    UnknownKeyError,
)
from dingsdk.runtime import PrivateDir, create_secret
from dingsdk.runtime.connections import parse_address
from dingsdk.testing import open_files
from dingsdk.worker.replay_server import client as clients
from dingsdk.worker.replay_server import messages as wire
from dingsdk.worker.replay_server import served_buffer
from dingsdk.worker.replay_server.client import _error_of
from dingsdk.worker.replay_server.served_buffer import (
    POINTER_NAME,
    ROWS_FOLDER,
    ServedBuffer,
)
from tools.os_calls import recorded_writes

from .serving import numbers, rows

SMALL = {"type": "naive", "replay_buffer_size": 1000, "seed": 0}
LIMITER = {"type": "samples_per_insert", "samples_per_insert": 1.0, "error_buffer": 64}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ReplayServer]:
    with ReplayServer({}, SMALL, tmp_path / "replay") as made:
        yield made


@pytest.fixture
def client(server: ReplayServer, tmp_path: Path) -> Iterator[ReplayClient]:
    with ReplayClient(server.address, tmp_path / "replay") as made:
        yield made


@contextmanager
def served(
    path: Path, cfg: dict[str, Any], timeout_s: float = 10.0
) -> Iterator[tuple[ReplayServer, ReplayClient]]:
    """Yield a server with this section, and a client."""
    with (
        ReplayServer(cfg, SMALL, path) as server,
        ReplayClient(server.address, path, timeout_s=timeout_s) as client,
    ):
        yield server, client


def opened(tmp_path: Path, **changes: Any) -> ServedBuffer:
    return ServedBuffer({**SMALL, **changes}, tmp_path / "replay")


def dialled(server: ReplayServer) -> channels.Channel:
    """Return a connection on which the handshake is still to be done."""
    place = parse_address(server.address)
    return channels.Channel(socket.create_connection(place, 10.0), 1 << 20)


Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two connected sockets."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def message(head: bytes, frame: bytes = b"") -> bytes:
    """Return a message as it is sent."""
    return struct.pack("<4sIQ", channels.MAGIC, len(head), len(frame)) + head + frame


def frame_of(value: Any, kind: str = wire.ROWS_KIND) -> memoryview:
    return memoryview(b"".join(map(bytes, channels.encode_value(kind, value))))


def put(buffer: ServedBuffer, number: int, first: int, count: int = 64, client: str = "") -> None:
    buffer.insert(client or "0" * 32, number, 0, frame_of(rows(first, count)), 0.0)


def held(buffer: ServedBuffer) -> list[int]:
    return numbers(buffer.table.sample(buffer.table.count(), cur_learner_iter=0))


def test_rows_come_back_as_they_were_inserted(client: ReplayClient) -> None:
    client.insert(rows(0))
    found = client.sample(64)

    assert isinstance(found, SampleBatch)
    assert numbers(found) == list(range(64))
    assert found.columns["obs"].dtype == np.float32
    assert np.array_equal(found.columns["obs"][:, 2], found.columns["number"])
    assert all(column.flags.aligned for column in found.columns.values())
    found.columns["obs"][:] = 0  # the sample is a copy
    assert client.stats()["pushed"] == 64


def test_client_waits_until_the_server_of_its_folder_has_written_its_address(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "replay"
    with PrivateDir(folder) as kept, ReplayClient(path=folder, timeout_s=0.3) as client:
        create_secret(kept)
        with pytest.raises(ServerLostError, match="no server has written its address"):
            client.stats()
        with ReplayServer({}, SMALL, tmp_path / "other") as other:
            # The address of a dead server; another server has its port now.
            kept.write_atomic("address", [other.address.encode()])
            with pytest.raises(ServerLostError, match="cannot be reached"):
                client.stats()
        client._timeout_s = 20.0
        for count in (64, 128):  # the server, and its successor
            with ReplayServer({}, SMALL, folder):
                client.insert(rows(count))
                assert client.stats()["pushed"] == count


@pytest.mark.parametrize("wrong", [-1, 1.5, 2**62, "x", None])
def test_wrong_numbers_are_refused_by_the_client(client: ReplayClient, wrong: Any) -> None:
    for call in (
        lambda: client.sample(wrong),
        lambda: client.sample(1, train_iter=wrong),
        lambda: client.insert(rows(0), env_step=wrong),
    ):
        with pytest.raises(ConfigError):
            call()
    assert client.stats()["pushed"] == 0


@pytest.mark.parametrize("timeout_s", [float("nan"), "3", None])
def test_timeouts_that_are_no_seconds_are_refused_by_the_client(
    client: ReplayClient, timeout_s: Any, tmp_path: Path
) -> None:
    for call in (
        lambda: client.insert(rows(0), timeout_s=timeout_s),
        lambda: client.sample(10**9, timeout_s=timeout_s),
        lambda: client.save(timeout_s),
        lambda: ReplayClient(path=tmp_path / "replay", timeout_s=timeout_s),
    ):
        with pytest.raises(ConfigError, match="timeout_s"):
            call()


@pytest.mark.parametrize("timeout_s", [float("inf"), 2**63])
def test_a_client_takes_huge_timeouts(
    server: ReplayServer, tmp_path: Path, timeout_s: float
) -> None:
    with ReplayClient(server.address, tmp_path / "replay", timeout_s=timeout_s) as client:
        client.insert(rows(0), timeout_s=timeout_s)
        assert numbers(client.sample(1, timeout_s=timeout_s))
        client.save(timeout_s)


def test_insert_waits_for_the_limiter_until_rows_are_sampled(tmp_path: Path) -> None:
    with (
        ReplayServer({}, {**SMALL, "limiter": LIMITER}, tmp_path) as server,
        ReplayClient(server.address, tmp_path) as client,
        ReplayClient(server.address, tmp_path) as learner,
    ):
        client.insert(rows(0))
        with pytest.raises(BufferFullError, match="limiter"):
            client.insert(rows(64), timeout_s=0.1)
        assert client.stats()["pushed"] == 64
        timer = threading.Timer(0.2, lambda: learner.sample(64))
        timer.start()
        client.insert(rows(128), timeout_s=20.0)
        timer.join()
        assert client.stats()["pushed"] == 128


def test_more_rows_than_the_capacity_are_refused(client: ReplayClient) -> None:
    with pytest.raises(SchemaMismatchError, match="1000"):
        client.insert(rows(0, 1001))
    assert client.stats()["pushed"] == 0
    client.insert(rows(0, 1000))
    assert client.stats()["count"] == 1000


def test_same_insert_over_two_connections_at_once_counts_once(tmp_path: Path) -> None:
    with opened(tmp_path, limiter=LIMITER) as buffer:
        put(buffer, 1, 0)
        threads = [
            threading.Thread(target=buffer.insert, args=("0" * 32, 2, 0, frame_of(rows(64)), 20.0))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for _ in range(4):
            buffer.table.sample(64, cur_learner_iter=0, timeout_s=1.0)
        for thread in threads:
            thread.join(20.0)
        assert buffer.table.push_count == 128


def test_checkpoint_and_log_together_give_each_row_once(tmp_path: Path) -> None:
    with opened(tmp_path) as buffer:
        put(buffer, 1, 0)
        buffer.save()
        put(buffer, 2, 64)
        put(buffer, 2, 64)
    for _ in range(2):
        with opened(tmp_path) as buffer:
            assert held(buffer) == list(range(128))
    with opened(tmp_path) as buffer:
        buffer.save()
    with opened(tmp_path) as buffer:
        put(buffer, 2, 64)
        put(buffer, 3, 128)
    with opened(tmp_path) as buffer:
        assert held(buffer) == list(range(192))
        logs = sorted(path.name for path in (tmp_path / "replay").glob("inserts-*.log"))
        assert "inserts-000001.log" not in logs


def test_checkpoint_survives_a_power_cut(tmp_path: Path) -> None:
    with opened(tmp_path) as buffer:
        put(buffer, 1, 0)
        with recorded_writes() as log:
            buffer.save()
        folder = tmp_path / "replay"
        manifest, pointer = folder / ROWS_FOLDER / "manifest.json", folder / POINTER_NAME
        assert log.is_durable(manifest)
        assert log.is_durable(pointer)
        named = [call[2] for call in log.calls if call[0] == "rename"]
        assert named[-2:] == [str(manifest), str(pointer)]


def test_crash_between_rows_and_pointer_of_a_checkpoint_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as buffer:
        put(buffer, 1, 0)
        buffer.save()
        put(buffer, 2, 64)
        with monkeypatch.context() as patch:
            patch.setattr("dingsdk.worker.replay_server.served_buffer.POINTER_NAME", "no/name")
            with pytest.raises(ValueError, match="no/name"):
                buffer.save()
        put(buffer, 3, 128)
    with opened(tmp_path) as buffer:
        assert held(buffer) == list(range(192))


def test_checkpoints_leave_no_open_file_and_a_start_no_temporary_file(tmp_path: Path) -> None:
    opened(tmp_path).close()
    before = open_files(collect=True)
    with opened(tmp_path) as buffer:
        for number in (1, 2, 3):
            put(buffer, number, 64 * number)
            buffer.save()
    assert open_files(collect=True) == before
    half = tmp_path / "replay" / f".tmp-{'0' * 16}"
    half.touch()
    with opened(tmp_path):
        assert not half.exists()


def test_sequences_do_not_cross_from_one_client_to_another(tmp_path: Path) -> None:
    folder = tmp_path / "replay"
    steps = SampleBatch({"x": np.zeros(2), "done": np.zeros(2, np.bool_)})
    sequences = {**SMALL, "type": "sequence"}
    for is_saved in (True, False):
        served = ServedBuffer(sequences, folder)
        found = []
        for number, client in enumerate(["aa", "bb", "bb"], start=1 if is_saved else 4):
            served.insert(client * 16, number, 0, frame_of(steps), 0.0)
            found.append(served.table.count_starts(2))  # type: ignore[attr-defined]
        assert found == ([1, 2, 4] if is_saved else [5, 6, 8])
        if is_saved:
            served.save()
        served.close()
    with ServedBuffer(sequences, folder) as served:  # from the checkpoint and the log
        assert served.table.count_starts(2) == 8  # type: ignore[attr-defined]


def test_refused_rows_are_not_recovered_from_the_log(tmp_path: Path) -> None:
    wrong = frame_of(SampleBatch({"x": np.zeros(64)}))
    with opened(tmp_path) as buffer:
        put(buffer, 1, 0)
        with pytest.raises(SchemaMismatchError):
            buffer.insert("0" * 32, 2, 0, wrong, 0.0)
        put(buffer, 3, 64)
        with pytest.raises(SchemaMismatchError):
            buffer.insert("0" * 32, 4, 0, wrong, 0.0)
    with opened(tmp_path) as buffer:
        assert held(buffer) == list(range(128))


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_truncated_log_loses_only_its_last_insert(tmp_path: Path, cut: int) -> None:
    with opened(tmp_path) as buffer:
        put(buffer, 1, 0)
        put(buffer, 2, 64)
    log = tmp_path / "replay" / "inserts-000001.log"
    os.truncate(log, log.stat().st_size - cut)
    with opened(tmp_path) as buffer:
        assert held(buffer) == list(range(64))
        put(buffer, 2, 64)
    with opened(tmp_path) as buffer:
        assert held(buffer) == list(range(128))


@pytest.mark.parametrize(
    ("damage", "text"),
    [(lambda log: os.truncate(log, 100), "has 100 bytes"), (os.unlink, "is gone")],
    ids=["cut", "removed"],
)
def test_insert_is_refused_if_the_log_was_damaged_meanwhile(
    tmp_path: Path, damage: Any, text: str
) -> None:
    with opened(tmp_path) as buffer:
        put(buffer, 1, 0)
        damage(tmp_path / "replay" / "inserts-000001.log")
        with pytest.raises(RunFolderError, match=text):
            put(buffer, 2, 64)
        assert held(buffer) == list(range(64))
        buffer.save()  # begins a new log
        put(buffer, 2, 64)
        assert held(buffer) == list(range(128))


@pytest.mark.parametrize(("is_saved", "lost"), [(True, 2), (False, 1)])
def test_missing_log_is_refused(tmp_path: Path, is_saved: bool, lost: int) -> None:
    with opened(tmp_path) as buffer:
        put(buffer, 1, 0)
        if is_saved:
            buffer.save()
            put(buffer, 2, 64)
    if not is_saved:
        with opened(tmp_path) as buffer:
            put(buffer, 2, 64)
    (tmp_path / "replay" / f"inserts-{lost:06d}.log").unlink()
    for _ in range(2):
        with pytest.raises(CheckpointCorruptError, match="cannot be used: no file"):
            opened(tmp_path)


@pytest.mark.parametrize("held", [None, 100])
def test_log_that_does_not_continue_the_checkpoint_is_refused(
    tmp_path: Path, held: int | None
) -> None:
    with opened(tmp_path) as buffer:
        put(buffer, 1, 0)
        buffer.save()
        put(buffer, 2, 64)  # the log has the rows from 64 on
    rows_folder = tmp_path / "replay" / served_buffer.ROWS_FOLDER
    shutil.rmtree(rows_folder)
    if held is not None:
        with opened(tmp_path / "other") as buffer:
            put(buffer, 1, 0, held)
            buffer.save()
        shutil.copytree(tmp_path / "other" / "replay" / served_buffer.ROWS_FOLDER, rows_folder)
    text = f"continues after 64 rows, and its checkpoint ends after {held or 0}"
    with pytest.raises(CheckpointCorruptError, match=text):
        opened(tmp_path)


def test_checkpoint_that_is_damaged_or_of_another_buffer_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as buffer:
        put(buffer, 1, 0)
        buffer.save()
    with pytest.raises(CheckpointVersionError):
        opened(tmp_path, type="advanced")
    (tmp_path / "replay" / "checkpoint.json").write_bytes(b"{")
    with pytest.raises(CheckpointCorruptError, match=r"checkpoint\.json"):
        opened(tmp_path)


def test_second_server_of_a_folder_is_refused(server: ReplayServer, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RunFolderError, match="another replay server"):
        ReplayServer({"port": port}, SMALL, tmp_path / "replay")
    socket.create_server(("127.0.0.1", port)).close()  # the refused server does not listen


def test_update_that_is_not_a_dict_of_columns_is_refused(server: ReplayServer) -> None:
    frame = frame_of([1, 2], wire.INFO_KIND)
    answer, parts = server._answer("0" * 32, wire.Update(), frame)
    assert (type(answer), answer.code, parts) == (channels.Refused, "ProtocolError", [])


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("StorageFullError", StorageFullError),
        ("NoSuchError", DingError),
        ("difflib", DingError),  # a name in the module that is not an error
    ],
)
def test_refusal_is_raised_as_the_error_that_it_names(code: str, kind: type[DingError]) -> None:
    error = _error_of(channels.Refused(code, "what is wrong"))
    assert (type(error), str(error)) == (kind, "what is wrong")


@pytest.mark.parametrize("written", [20, None])
def test_full_disk_refuses_an_insert_and_the_next_one_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int | None
) -> None:
    def full(descriptor: int, chunks: Any) -> None:
        os.write(descriptor, b"".join(map(bytes, chunks))[:written])
        raise OSError(28, "No space left on device")

    with opened(tmp_path) as buffer:
        put(buffer, 1, 0)
        with monkeypatch.context() as patch:
            patch.setattr("dingsdk.runtime.files.write_chunks", full)
            with pytest.raises(StorageFullError, match="No space"):
                put(buffer, 2, 64)
        assert buffer.table.push_count == 64
    with opened(tmp_path) as buffer:
        assert held(buffer) == list(range(64))
        put(buffer, 2, 64)
    with opened(tmp_path) as buffer:
        assert held(buffer) == list(range(128))


def test_used_up_rows_are_not_recovered_from_a_checkpoint(tmp_path: Path) -> None:
    changes = {"type": "advanced", "max_use": 1}
    with opened(tmp_path, **changes) as buffer:
        put(buffer, 1, 0)
        while buffer.table.count():
            buffer.table.sample(1, cur_learner_iter=0)
        buffer.save()
        put(buffer, 2, 64)
    with opened(tmp_path, **changes) as buffer:
        assert buffer.table.count() == 64
        assert buffer.table.push_count == 128


def test_another_secret_is_refused_by_both_sides(
    server: ReplayServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DINGSDK_SECRET", "x" * 32)
    sockets: list[socket.socket] = []
    create = socket.create_connection
    monkeypatch.setattr(
        "socket.create_connection", lambda *given: (sockets.append(create(*given)), sockets[-1])[1]
    )
    with pytest.raises(AuthError, match="DINGSDK_SECRET"):
        ReplayClient(server.address, tmp_path / "replay").stats()  # not the folder's secret
    assert [each.fileno() for each in sockets] == [-1]  # the socket is closed
    monkeypatch.delenv("DINGSDK_SECRET")
    with pytest.raises(AuthError, match="DINGSDK_SECRET_FILE"):
        ReplayClient(server.address)
    assert server.buffer.table.push_count == 0


def test_close_ends_the_connections_and_then_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ReplayServer({}, SMALL, tmp_path)
    link = dialled(server)
    link.greet(server.secret, "0" * 32, 10.0)
    ended: list[bool] = []

    def save(buffer: ServedBuffer) -> None:
        with pytest.raises(ConnectionError):
            link.receive(wire.Reply, 10.0)
        with pytest.raises(ConnectionError):
            socket.create_connection(parse_address(server.address), 10.0)
        ended.append(True)

    monkeypatch.setattr(ServedBuffer, "save", save)
    server.close()
    assert not server._saver.is_alive()
    assert ended == [True]
    link.close()


def test_impostor_without_the_secret_gets_no_rows(tmp_path: Path) -> None:
    (tmp_path / "secret").touch(0o600)
    (tmp_path / "secret").write_text("s" * 32)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend() -> None:
            sock, _ = listener.accept()
            link = channels.Channel(sock, 1 << 20)
            link.send(channels.Welcome("0" * 32), timeout_s=5.0)
            link.receive(channels.Hello, 5.0)
            link.send(channels.Accepted("0" * 64), timeout_s=5.0)
            link.close()

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(AuthError):
            ReplayClient(f"127.0.0.1:{listener.getsockname()[1]}", tmp_path).stats()
        thread.join(10.0)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n1234",
        struct.pack("<4sIQ", channels.MAGIC, 64, 1 << 40) + b" " * 64,
        struct.pack("<4sIQ", channels.MAGIC, 1 << 30, 0),
        message(b"{".ljust(64)),
        message(b'{"type":"Insert"}'.ljust(64)),
        b"",
    ],
)
def test_invalid_connection_is_closed_and_others_are_served(
    server: ReplayServer, client: ReplayClient, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = parse_address(server.address)
    with socket.create_connection((host, port), 10.0) as sock:
        sock.settimeout(10.0)
        with suppress(OSError):  # closed before all bytes were sent
            sock.sendall(sent)
            sock.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while sock.recv(4096):
                pass
    client.insert(rows(0))
    told = [each for each in caplog.messages if each.startswith("a connection was refused: ")]
    assert len(told) == bool(sent)


ASK = message(b'{"type":"Ask"}'.ljust(64))


@pytest.mark.parametrize(
    ("sent", "refusal"),
    [
        (ASK.replace(b"DCH1", b"DCH2"), r"version b'2'.*b'1'"),
        (ASK + ASK, "sent more before it got an answer"),
        (message(ASK[16:].ljust(16 << 10)), None),
        (message(ASK[16:].ljust((16 << 10) + 64)), "no message"),
        (message(ASK[16:], bytes(4096)), None),
        (message(ASK[16:], bytes(4097)), "at most 4096"),
    ],
)
def test_message_before_the_handshake_has_the_version_and_a_largest_size(
    pair: Pair, sent: bytes, refusal: str | None
) -> None:
    ours, theirs = pair
    theirs.sendall(sent)
    link = channels.Channel(ours, 1 << 20)
    if refusal is None:
        assert link.receive(wire.Ask, 10.0)[0] == wire.Ask()
    else:
        with pytest.raises(ProtocolError, match=refusal):
            link.receive(wire.Ask, 10.0)


def test_message_that_arrives_in_pieces_is_read(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "time", SimpleNamespace(monotonic=lambda: 100.0))
    ours, theirs = pair
    frame = bytes(range(200))

    class Piecewise:
        """A socket that receives a few bytes at a time."""

        family = socket.AF_UNIX
        settimeout = ours.settimeout

        def recv_into(self, view: Any) -> int:
            return ours.recv_into(memoryview(view)[:7])

    theirs.sendall(message(b'{"type":"Update"}'.ljust(64), frame))
    link = channels.Channel(Piecewise(), 1 << 20)  # type: ignore[arg-type]
    found, body = link.receive(wire.Request, 0.5)
    assert (found, bytes(body)) == (wire.Update(), frame)


@pytest.mark.parametrize(
    ("request_", "is_taken"),
    [
        ({"type": "Sample", "size": 0, "train_iter": 2**62 - 1, "timeout_s": 10.0}, True),
        ({"type": "Sample", "size": 2**62, "train_iter": 0, "timeout_s": 0.0}, False),
        ({"type": "Sample", "size": -1, "train_iter": 0, "timeout_s": 0.0}, False),
        ({"type": "Sample", "size": 1, "train_iter": 0, "timeout_s": 10.1}, False),
        ({"type": "Insert", "number": 1, "env_step": 0, "timeout_s": 0.0}, True),
        ({"type": "Insert", "number": 2**62 - 1, "env_step": 2**62 - 1, "timeout_s": 0}, True),
        ({"type": "Insert", "number": 2**62, "env_step": 0, "timeout_s": 0}, False),
        ({"type": "Insert", "number": 0, "env_step": 0, "timeout_s": 0}, False),
    ],
)
def test_numbers_of_a_request_must_be_in_range(
    pair: Pair, request_: dict[str, Any], is_taken: bool
) -> None:
    ours, theirs = pair
    theirs.sendall(message(json.dumps(request_).encode().ljust(128)))
    if is_taken:
        found, _ = channels.Channel(ours, 100).receive(wire.Request, 10.0)
        assert json.loads(msgspec.json.encode(found)) == request_
    else:
        with pytest.raises(ProtocolError, match="the head of a message is wrong"):
            channels.Channel(ours, 100).receive(wire.Request, 10.0)


@pytest.mark.parametrize(("timeout_s", "idle_s"), [(0.0, 5.0), (0.3, 3600.0)])
def test_message_that_arrives_byte_by_byte_has_the_message_timeout_not_the_idle_one(
    pair: Pair, timeout_s: float, idle_s: float
) -> None:
    ours, theirs = pair
    has_ended = threading.Event()

    def dribble() -> None:
        for byte in channels.MAGIC + bytes(4096):
            if has_ended.wait(0.05):
                return
            theirs.sendall(bytes([byte]))

    thread = threading.Thread(target=dribble)
    thread.start()
    try:
        with pytest.raises(TimeoutError):
            channels.Channel(ours, 1 << 20).receive(channels.Hello, timeout_s, idle_s)
    finally:
        has_ended.set()
        thread.join(10.0)


def test_message_larger_than_allowed_is_refused(tmp_path: Path) -> None:
    with served(tmp_path, {"max_message_bytes": 64 << 10}, 0.5) as (_, client):
        with pytest.raises(ServerLostError):
            client.insert(SampleBatch({"x": np.zeros((64, 1024))}))
        client.insert(rows(0))


def test_connections_above_the_limit_are_refused(tmp_path: Path) -> None:
    with served(tmp_path, {"max_connections": 1}) as (server, client):
        client.insert(rows(0))
        with pytest.raises(ServerLostError):
            ReplayClient(server.address, tmp_path, timeout_s=0.3).stats()
        client.insert(rows(0))


def waiting_sample(
    server: ReplayServer, client: ReplayClient, timeout_s: float, *expected: type[BaseException]
) -> tuple[threading.Thread, list[BaseException]]:
    """Return a thread that waits for rows, and the errors that it will get."""
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            client.sample(1, timeout_s=timeout_s)
        except expected as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while thread.is_alive() and not server.buffer.table._waiting:
        time.sleep(0.01)
    return thread, errors


def test_closing_the_server_ends_calls_that_wait_for_rows(tmp_path: Path) -> None:
    server = ReplayServer({}, SMALL, tmp_path)
    client = ReplayClient(server.address, tmp_path, timeout_s=0.5)
    thread, errors = waiting_sample(server, client, 9.0, ServerLostError, ClosedError)
    begun = time.monotonic()
    server.close()
    server.close()
    assert time.monotonic() - begun < 5.0
    client.close()
    thread.join(20.0)
    assert len(errors) == 1


def test_closing_the_client_ends_its_waiting_call_at_once(
    server: ReplayServer, client: ReplayClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "PAUSE_S", (1000.0, 1000.0))
    thread, errors = waiting_sample(server, client, 60.0, ClosedError)
    client.close()
    assert client._channel is None
    thread.join(20.0)
    assert len(errors) == 1
    assert server.buffer.table._waiting  # the server did not end the call


def test_answer_of_an_interrupted_call_is_not_given_to_the_next_one(
    client: ReplayClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*given: Any) -> None:
        raise KeyboardInterrupt

    client.insert(rows(0))
    with monkeypatch.context() as patch:
        patch.setattr(client._channel, "receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.sample(4)
    assert client.stats()["count"] == 64


def test_insert_number_of_the_longest_silent_client_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dingsdk.worker.replay_server.served_buffer.CLIENTS_KEPT", 2)
    first, second, third = ("1" * 32, "2" * 32, "3" * 32)
    with opened(tmp_path) as buffer:
        put(buffer, 1, 0, client=first)
        put(buffer, 1, 64, client=second)
        put(buffer, 2, 128, client=first)
        put(buffer, 1, 192, client=third)
        for client, number in ((first, 2), (first, 1), (third, 1)):
            put(buffer, number, 0, client=client)
        assert buffer.table.push_count == 4 * 64
        put(buffer, 1, 256, client=second)
        assert buffer.table.push_count == 5 * 64


def test_checkpoints_are_automatic_and_a_failed_one_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    has_failed, has_saved = threading.Event(), threading.Event()
    save = ServedBuffer.save

    def save_at_second_try(buffer: ServedBuffer) -> None:
        if not has_failed.is_set():
            has_failed.set()
            raise StorageFullError("no room", path="/full")
        save(buffer)
        has_saved.set()

    monkeypatch.setattr(ServedBuffer, "save", save_at_second_try)
    with served(tmp_path, {"save_every_s": 0.01}) as (_, client):
        client.insert(rows(0))
        assert has_failed.wait(20.0)
        client.insert(rows(64))
        assert has_saved.wait(20.0)
        assert (tmp_path / "checkpoint.json").exists()
    assert "no checkpoint: no room" in caplog.text


def test_due_checkpoint_is_written_before_the_period_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, go_on = threading.Event(), threading.Event()

    def save(buffer: ServedBuffer) -> None:
        has_begun.set()
        if threading.current_thread() is server._saver:
            go_on.wait(20.0)

    monkeypatch.setattr("dingsdk.worker.replay_server.served_buffer.LOG_BYTES", 1)
    monkeypatch.setattr(ServedBuffer, "save", save)
    with served(tmp_path, {"save_every_s": 1000}) as (server, client):
        client.insert(rows(0))
        assert has_begun.wait(20.0)
        threading.Timer(0.2, go_on.set).start()
    assert not server._saver.is_alive()


def test_unexpected_exception_closes_the_connection_and_is_logged(
    server: ReplayServer,
    client: ReplayClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client.insert(rows(0))
    link = dialled(server)
    link.greet(server.secret, "0" * 32, 10.0)
    with monkeypatch.context() as patch:
        patch.setattr(server.buffer, "figures", lambda: 1 // 0)
        link.send(wire.Ask(), timeout_s=10.0)
        with pytest.raises(ConnectionResetError):
            link.receive(wire.Reply, 10.0)
    link.close()
    (record,) = [each for each in caplog.records if each.exc_info]
    assert record.levelname == "ERROR"
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError
    assert client.stats()["pushed"] == 64


def test_address_of_a_server_on_all_interfaces_has_the_host_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DINGSDK_SECRET", "y" * 32)
    with ReplayServer({"host": "0.0.0.0"}, SMALL, tmp_path) as server:
        assert parse_address(server.address)[0] == socket.gethostname()
        assert (tmp_path / "address").read_text() == server.address


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    head=st.binary(max_size=200),
    is_message=st.booleans(),
    frame=st.binary(max_size=200),
    is_known=st.booleans(),
)
def test_arbitrary_bytes_end_only_their_own_connection(
    server: ReplayServer,
    client: ReplayClient,
    head: bytes,
    is_message: bool,
    frame: bytes,
    is_known: bool,
) -> None:
    """The bytes are sent before or after the handshake, as they are or as a message."""
    before = client.stats()
    place = parse_address(server.address)
    link = channels.Channel(sock := socket.create_connection(place, 10.0), 1 << 20)
    try:
        if is_known:
            link.greet(server.secret, "0" * 32, 10.0)
        if is_message:
            frame = message(head.ljust(-(-len(head) // 64) * 64), frame)
        sock.settimeout(10.0)
        with suppress(OSError):
            sock.sendall(frame)
            sock.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while sock.recv(4096):
                pass
    finally:
        link.close()
    assert client.stats() == before


@pytest.mark.parametrize("address", ["host", "host:", ":1", "host:x", "host:0", "host:65536"])
def test_invalid_address_is_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="host:port"):
        ReplayClient(address, tmp_path)


def test_server_without_a_folder_needs_a_secret_and_saves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(AuthError, match="folder"):
        ReplayServer({}, SMALL)
    monkeypatch.setenv("DINGSDK_SECRET", "y" * 32)
    with ReplayServer({}, SMALL) as server, ReplayClient(server.address) as client:
        client.insert(rows(0))
        client.save()
        assert client.stats()["count"] == 64


def test_taken_port_is_refused(server: ReplayServer, tmp_path: Path) -> None:
    _, port = parse_address(server.address)
    with pytest.raises(PortInUseError, match=f"{port}: it is in use; choose another port"):
        ReplayServer({"port": port}, SMALL, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_refused_config_or_address_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="replay_buffer_size"):
        ReplayServer({}, {**SMALL, "replay_buffer_size": -1}, tmp_path / "new")
    with pytest.raises(InsecureBindError, match="DINGSDK_SECRET_FILE"):
        ReplayServer({"host": "0.0.0.0"}, SMALL, tmp_path / "new")
    with pytest.raises(UnknownKeyError, match="port"):
        ReplayServer({"prot": 1}, SMALL, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_message_of_more_buffers_than_one_call_takes_arrives(pair: Pair) -> None:
    ours, theirs = pair
    buffers = [bytes([each % 256]) for each in range(2000)]
    with ThreadPoolExecutor(1) as other:
        received = other.submit(channels.Channel(theirs, 4000).receive, wire.Request, 20.0)
        channels.Channel(ours, 4000).send(wire.Update(), buffers, timeout_s=20.0)
        assert bytes(received.result()[1]) == b"".join(buffers)


def test_frame_that_is_damaged_or_of_another_kind_is_refused(server: ReplayServer) -> None:
    damaged = bytearray(frame_of(rows(0)))
    damaged[-1] ^= 1
    for frame, refusal in (
        (memoryview(damaged), DataCorruptError),
        (frame_of({"number": 1}), ProtocolError),
    ):
        with pytest.raises(refusal):
            server.buffer.insert("0" * 32, 1, 0, frame, 0.0)
    assert server.buffer.table.push_count == 0
