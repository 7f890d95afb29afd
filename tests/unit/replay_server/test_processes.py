"""A replay server as a process: its imports, kills of either side, idle and greedy peers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import struct
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from dingsdk import ReplayClient
from dingsdk.data.channel import MAGIC, Channel
from dingsdk.errors import ServerLostError
from dingsdk.runtime import PrivateDir, find_secret
from tests.programs import python

from .serving import WAIT_S, ServerProcess, numbers, rows

SIZE = "replay_buffer_size=100000"


def test_server_imports_no_torch(tmp_path: Path) -> None:
    code = """
import os, signal, sys, threading
from pathlib import Path
from dingsdk import ReplayClient, ReplayServer
from dingsdk.data import SampleBatch
import numpy as np
cfg = {"type": sys.argv[2], "replay_buffer_size": 1000}
with ReplayServer({}, cfg, Path(sys.argv[1])) as server:
    with ReplayClient(server.address, sys.argv[1]) as client:
        client.insert(SampleBatch({"x": np.zeros(64)}))
        assert len(client.sample(8)) == 8
        client.save()
assert "torch" not in sys.modules, "torch"
from dingsdk.cli import replay_server
def use_and_interrupt():
    with ReplayClient(path=sys.argv[1]) as client:
        assert client.sample(65, timeout_s=0.5) is None  # it serves for as long as it is used
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=use_and_interrupt, daemon=True).start()
options = ["--data", sys.argv[1], "--set", "replay_buffer_size=1000"]
assert replay_server.replay_server.main(options, standalone_mode=False) == 130
assert "torch" not in sys.modules, "torch of the command"
"""
    done = python("-c", code, str(tmp_path), "naive")
    assert done.returncode == 0, done.stderr
    assert "rows: 64" in done.stdout


@pytest.mark.slow
def test_acknowledged_rows_survive_kills_of_the_server(tmp_path: Path) -> None:
    acknowledged: list[int] = []
    stop = threading.Event()

    def insert(client: ReplayClient) -> None:
        while not stop.is_set():
            first = len(acknowledged) * 64
            client.insert(rows(first), timeout_s=5.0)
            acknowledged.append(first)

    server = ServerProcess(tmp_path, SIZE)
    with server.client(timeout_s=60.0) as client:
        thread = threading.Thread(target=insert, args=(client,))
        thread.start()
        for is_saved in (True, False):
            done = len(acknowledged)
            while len(acknowledged) < done + 20:
                time.sleep(0.01)
            if is_saved:
                with server.client() as other:
                    other.save()
            server.end(signal.SIGKILL)
            server = ServerProcess(tmp_path, SIZE, port=server.port)
        stop.set()
        thread.join(60.0)
        with server:
            stats = client.stats()
            found = numbers(client.sample(stats["count"]))
            assert server.end(signal.SIGTERM) == 143
    assert stats["pushed"] == stats["count"] == len(acknowledged) * 64
    assert found == list(range(len(found)))


def _insert_for_ever(address: str, path: Path) -> None:
    with ReplayClient(address, path) as client:
        first = 0
        while True:
            client.insert(rows(first, 1000))
            first += 1000


@pytest.mark.slow
def test_killed_client_leaves_only_whole_inserts(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    with ServerProcess(tmp_path, SIZE) as server, server.client() as client:
        writer = spawn.Process(target=_insert_for_ever, args=(server.address, tmp_path))
        writer.start()
        while client.stats()["pushed"] < 5000:
            time.sleep(0.01)
        writer.kill()
        writer.join(10.0)
        writer.close()
        client.insert(rows(10_000_000, 64))
        stats = client.stats()
        assert stats["pushed"] % 1000 == 64
        assert stats["pushed"] == stats["count"] + stats["overwritten"]


@pytest.mark.slow
@pytest.mark.parametrize("is_connected", [False, True])
@pytest.mark.parametrize("code", [signal.SIGKILL, signal.SIGSTOP])
def test_calls_to_a_server_that_does_not_answer_time_out(
    tmp_path: Path, code: signal.Signals, is_connected: bool
) -> None:
    with ServerProcess(tmp_path, SIZE) as server, server.client(timeout_s=0.5) as client:
        if is_connected:
            client.insert(rows(0))
        if code == signal.SIGKILL:
            server.end(code)
        else:
            server.process.send_signal(code)
            os.waitid(os.P_PID, server.process.pid, os.WSTOPPED)
        begun = time.monotonic()
        for call in (lambda: client.insert(rows(64)), lambda: client.sample(8), client.stats):
            with pytest.raises(ServerLostError, match=str(server.port)):
                call()
        assert time.monotonic() - begun < 10.0
        if code == signal.SIGSTOP:
            server.process.send_signal(signal.SIGCONT)
            with server.client(timeout_s=WAIT_S) as other:
                other.insert(rows(128))
                # The insert without an answer may have been done, but only once.
                assert other.stats()["pushed"] - 64 * is_connected in (64, 128)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["naive", "advanced"])
def test_inserts_continue_while_a_checkpoint_is_written(tmp_path: Path, kind: str) -> None:
    """Passes if one of four saves is fast enough, as the machine may be busy during others."""
    with (
        ServerProcess(tmp_path, f"type={kind}", "replay_buffer_size=500000") as server,
        server.client() as client,
        server.client() as saver,
    ):
        for first in range(0, 500_000, 5000):
            client.insert(rows(first, 5000))
        found = []
        for _ in range(4):
            pauses: list[float] = []
            thread = threading.Thread(target=saver.save)
            thread.start()
            while thread.is_alive():
                begun = time.monotonic()
                client.insert(rows(0))
                pauses.append(time.monotonic() - begun)
            thread.join()
            found.append((len(pauses), sorted(pauses)[len(pauses) * 9 // 10], max(pauses)))
            if found[-1][0] > 10 and found[-1][1] < 0.1 and found[-1][2] < 0.5:
                return
    pytest.fail(f"inserts waited: {found}")


def test_strangers_do_not_keep_clients_out_and_announced_bytes_take_no_memory(
    tmp_path: Path,
) -> None:
    def memory_bytes() -> int:
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        return 1024 * next(int(n.split()[1]) for n in status.splitlines() if n.startswith("VmRSS"))

    with ServerProcess(tmp_path, SIZE) as server, ExitStack() as stack:
        for _ in range(300):
            place = "127.0.0.1", server.port
            stack.enter_context(socket.create_connection(place, 10.0))
        begun = time.monotonic()
        with server.client() as client:
            client.insert(rows(0))
        assert time.monotonic() - begun < 1.0

        with PrivateDir(tmp_path) as folder:
            secret = find_secret(folder)
        assert secret is not None
        before = memory_bytes()
        announced = struct.pack("<4sIQ", MAGIC, 64, 128 << 20) + b'{"type":"Update"}'.ljust(64)
        for _ in range(20):
            channel = Channel.to_server(server.address, secret, "0" * 32, 1 << 20, 10.0)
            stack.callback(channel.close)
            channel._sock.sendall(announced)
        with server.client() as client:
            assert client.stats()["pushed"] == 64
        assert memory_bytes() - before < 128 << 20  # 2.5 GiB were announced
