"""Peers that hang, drip and cut, replies that get lost, and closes at any moment."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dingsdk_flask_fs.transport import FlaskFSTransport

from dingsdk.errors import AuthError, ClosedError, PortInUseError, WorkerLostError
from dingsdk.worker.comm import TaskAnswer, TaskMessage, WorkerInfo

from .conftest import SECRET, Listener, Served, open_sockets


class Proxy:
    """Stands between a worker and its master; swallows the replies that a test names."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.swallow: list[bytes] = []
        self.swallowed: list[bytes] = []
        self._links: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            self._links.append(link)
            thread = threading.Thread(target=self._carry, args=(link,))
            self._threads.append(thread)
            thread.start()

    def _carry(self, link: socket.socket) -> None:
        with link, socket.create_connection(("127.0.0.1", self._port)) as master:
            self._links.append(master)
            try:
                while request := _message(link):
                    # The master's own name, as the client knows only the proxy's.
                    master.sendall(request)
                    reply = _message(master)
                    target = request.split(b" ", 2)[1]
                    if target in self.swallow:
                        self.swallow.remove(target)
                        self.swallowed.append(target)
                        return
                    link.sendall(reply)
            except OSError:
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in self._links:
            try:
                link.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in self._threads:
            thread.join(5.0)


def _message(link: socket.socket) -> bytes:
    """Read one HTTP message; empty at the end of the connection."""
    received = b""
    while b"\r\n\r\n" not in received:
        chunk = link.recv(65536)
        if not chunk:
            return b""
        received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            missing = int(line.split(b":")[1]) - len(body)
            while missing > 0:
                chunk = link.recv(missing)
                received, missing = received + chunk, missing - len(chunk)
    return received


@pytest.fixture
def proxy(served: Served) -> Iterator[Proxy]:
    made = Proxy(served.port)
    yield made
    made.close()


@pytest.mark.parametrize("kind", ["join", "turn", "answer", "renew", "leave"])
def test_lost_reply_has_no_second_effect(served: Served, proxy: Proxy, kind: str) -> None:
    proxy.swallow = [f"/v1/{kind}".encode()] * (3 if kind == "join" else 1)
    end = served.slave(address=proxy.address)
    for n in range(1, 4):
        served.end.send("w0", TaskMessage(f"t{n}", {"n": n}))
        task = end.next_task(5.0)
        assert task.task_id == f"t{n}"
        end.answer(TaskAnswer(task.task_id, True, {"n": n}))
        if kind == "answer":
            served.listener.expect(
                lambda events, n=n: ("answered", "w0", f"t{n}", {"n": n}) in events
            )
        end.renew(n)
    assert end.next_task(0.0) is None
    end.close()
    assert set(proxy.swallowed) == {f"/v1/{kind}".encode()}
    assert served.listener.of("joined") == [("w0",)]
    assert served.listener.of("answered") == [("w0", f"t{n}", {"n": n}) for n in range(1, 4)]
    assert [event[1] for event in served.listener.of("renewed")][-1] == 3
    assert served.listener.of("left") == [("w0", "it left")]


def test_answers_and_renewals_arrive_in_the_order_they_were_sent(served: Served) -> None:
    end = served.slave()
    for n in range(1, 51):
        end.answer(TaskAnswer(f"t{n}", True))
        if n % 10 == 0:
            end.renew(n)
    served.listener.expect(lambda events: len(events) == 56)
    order = [event[2] for event in served.listener.events if event[0] in ("answered", "renewed")]
    expected: list[Any] = []
    for n in range(1, 51):
        expected += [f"t{n}", n] if n % 10 == 0 else [f"t{n}"]
    assert order == expected
    end.close()


def test_answer_leaves_without_another_call(served: Served) -> None:
    end = served.slave()
    end.answer(TaskAnswer("t1", True))
    served.listener.expect(lambda events: ("answered", "w0", "t1", {}) in events)
    end.close()


def test_dropped_worker_is_told_and_joins_as_another_one(served: Served) -> None:
    end = served.slave()
    served.end.drop("w0", "silent")
    for call in (lambda: end.next_task(1.0), lambda: end.answer(TaskAnswer("t", True))):
        with pytest.raises(WorkerLostError):
            call()
    with pytest.raises(WorkerLostError):
        end.renew(1)
    with pytest.raises(WorkerLostError):
        served.end.send("w0", TaskMessage("t1", {}))
    end.join(WorkerInfo("w0", "collector"), 5.0)
    served.end.send("w0", TaskMessage("t1", {}))
    assert end.next_task(5.0).task_id == "t1"
    assert served.listener.of("answered") == []
    end.close()


def test_drop_wakes_a_waiting_worker_at_once(served: Served) -> None:
    end = served.slave()
    timer = threading.Timer(0.2, served.end.drop, ("w0", "silent"))
    timer.start()
    started = time.monotonic()
    with pytest.raises(WorkerLostError):
        end.next_task(20.0)
    assert time.monotonic() - started < 5.0
    timer.join()
    end.close()


def test_restarted_master_refuses_the_old_epoch_and_takes_the_worker_back(
    served: Served, transport: FlaskFSTransport, tmp_path: Path
) -> None:
    end = served.slave()
    served.end.close()
    again = FlaskFSTransport({"port": served.port, "threads": 8}, tmp_path / "run")
    listener = Listener()
    master = again.master_end()
    master.open(listener)
    with pytest.raises((WorkerLostError, ClosedError)):
        _ask_until_told(end)
    assert listener.events == []
    end.join(WorkerInfo("w0", "collector"), 5.0)
    assert end._epoch == 2
    assert listener.events == [("joined", "w0")]
    end.close()
    again.close()


def _ask_until_told(end: Any) -> None:
    for _ in range(10):
        end.next_task(1.0)


def test_worker_with_another_secret_is_told_so(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DINGSDK_SECRET", "another secret of good length")
    end = served.transport.slave_end(served.address)
    with pytest.raises(AuthError, match="secret is another one, or the clocks differ"):
        end.join(WorkerInfo("w0", "collector"), 5.0)
    assert served.listener.events == []


# Peers that are none ----------------------------------------------------------------------------


class Impostor:
    """Accepts connections and does to each what a test says."""

    def __init__(self, behaviour: Callable[[socket.socket, threading.Event], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._behaviour = behaviour
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(link,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, link: socket.socket) -> None:
        with link:
            try:
                self._behaviour(link, self._over)
            except OSError:
                return

    def close(self) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5.0)


def silent(link: socket.socket, over: threading.Event) -> None:
    over.wait(30.0)


def resetting(link: socket.socket, over: threading.Event) -> None:
    link.recv(10)


def half_closed(link: socket.socket, over: threading.Event) -> None:
    link.shutdown(socket.SHUT_WR)
    over.wait(30.0)


def dripping(link: socket.socket, over: threading.Event) -> None:
    link.recv(65536)
    for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 10_000:
        link.sendall(bytes([byte]))
        if over.wait(0.02):
            return


def endless(link: socket.socket, over: threading.Event) -> None:
    link.recv(65536)
    while not over.is_set():
        link.sendall(b"x" * 65536)


def boundless(link: socket.socket, over: threading.Event) -> None:
    link.recv(65536)
    link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")
    over.wait(30.0)


IMPOSTORS = [silent, resetting, half_closed, dripping, endless, boundless]


@pytest.fixture(params=IMPOSTORS, ids=lambda behaviour: behaviour.__name__)
def impostor(request: pytest.FixtureRequest) -> Iterator[Impostor]:
    made = Impostor(request.param)
    yield made
    made.close()


def test_no_peer_keeps_a_join_beyond_its_deadline(
    transport: FlaskFSTransport, impostor: Impostor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DINGSDK_SECRET", SECRET)
    end = transport.slave_end(impostor.address)
    started = time.monotonic()
    with pytest.raises(WorkerLostError):
        end.join(WorkerInfo("w0", "collector"), 0.5)
    assert time.monotonic() - started < 3.0
    end.close()


@pytest.mark.parametrize("answer", [b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"inc":1}'])
def test_answer_that_is_not_signed_is_not_believed(
    transport: FlaskFSTransport, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setenv("DINGSDK_SECRET", SECRET)

    def pose(link: socket.socket, over: threading.Event) -> None:
        link.recv(65536)
        link.sendall(answer)

    impostor = Impostor(pose)
    end = transport.slave_end(impostor.address)
    with pytest.raises(AuthError, match="did not sign"):
        end.join(WorkerInfo("w0", "collector"), 5.0)
    impostor.close()


def test_redirect_is_not_followed(
    transport: FlaskFSTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DINGSDK_SECRET", SECRET)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    trap = socket.create_server(("127.0.0.1", 0))
    target = f"http://127.0.0.1:{trap.getsockname()[1]}/v1/join".encode()

    def redirect(link: socket.socket, over: threading.Event) -> None:
        link.recv(65536)
        link.sendall(
            b"HTTP/1.1 307 Moved\r\nLocation: " + target + b"\r\nContent-Length: 0\r\n\r\n"
        )

    impostor = Impostor(redirect)
    end = transport.slave_end(impostor.address)
    with pytest.raises(AuthError):
        end.join(WorkerInfo("w0", "collector"), 5.0)
    trap.settimeout(0.1)
    with pytest.raises(TimeoutError):
        trap.accept()
    trap.close()
    impostor.close()


def test_hanging_and_dripping_clients_do_not_hold_up_others(served: Served) -> None:
    links = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(50)]
    for n, link in enumerate(links):
        link.sendall(b"POST /v1/join HTTP/1.1\r\nContent-Length: 1000\r\n"[: 10 + n])
    end = served.slave()
    started = time.monotonic()
    for n in range(50):
        end.renew(n)
    assert time.monotonic() - started < 5.0
    end.close()
    for link in links:
        link.close()


# Closing ------------------------------------------------------------------------------------------


def test_close_wakes_whoever_waits(served: Served) -> None:
    end = served.slave()
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            end.next_task(20.0)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    served.listener.expect(lambda events: ("joined", "w0") in events)
    started = time.monotonic()
    closers = [threading.Thread(target=end.close) for _ in range(8)]
    for closer in closers:
        closer.start()
    for each in (*closers, thread):
        each.join(5.0)
        assert not each.is_alive()
    assert time.monotonic() - started < 2.0
    assert [type(error) for error in raised] == [ClosedError]
    served.listener.expect(lambda events: ("left", "w0", "it left") in events)
    for call in (lambda: end.next_task(1.0), lambda: end.renew(1)):
        with pytest.raises(ClosedError):
            call()


def test_close_ends_a_join_that_finds_no_master(transport: FlaskFSTransport) -> None:
    end = transport.slave_end("http://127.0.0.1:9")
    timer = threading.Timer(0.2, end.close)
    timer.start()
    started = time.monotonic()
    with pytest.raises(ClosedError):
        end.join(WorkerInfo("w0", "collector"), 30.0)
    assert time.monotonic() - started < 3.0
    timer.join()


def test_close_returns_while_a_silent_peer_holds_a_renewal(
    served: Served, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = served.slave(address=proxy.address)
    served.end._server._is_stopped = True  # the master's loop stands still from here on
    served.end._server._server.pull_trigger()
    served.end._server._loop.join(5.0)
    raised: list[BaseException] = []

    def renew() -> None:
        try:
            end.renew(1)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=renew)
    thread.start()
    threading.Event().wait(0.2)
    started = time.monotonic()
    end.close()
    thread.join(5.0)
    assert time.monotonic() - started < 5.0
    assert [type(error) for error in raised] == [ClosedError]


def test_master_closed_while_workers_wait_ends_their_wait(served: Served) -> None:
    end = served.slave()
    timer = threading.Timer(0.2, served.end.close)
    timer.start()
    started = time.monotonic()
    with pytest.raises(ClosedError):
        end.next_task(20.0)
    assert time.monotonic() - started < 5.0
    timer.join()
    served.end.close()
    end.close()


def test_port_in_use_is_reported_and_leaves_nothing(served: Served, tmp_path: Path) -> None:
    threads, sockets = set(threading.enumerate()), open_sockets()
    other = FlaskFSTransport({"port": served.port}, tmp_path / "other")
    started = time.monotonic()
    with pytest.raises(PortInUseError) as caught:
        other.master_end().open(Listener())
    assert time.monotonic() - started < 1.0
    assert caught.value.port == served.port
    assert set(threading.enumerate()) == threads
    assert open_sockets() == sockets
    other.close()


def test_ipv6_loopback_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this host has no IPv6")
    transport = FlaskFSTransport({"host": "::1"}, tmp_path)
    served = Served(transport)
    assert served.address == f"http://[::1]:{served.port}"
    served.slave().renew(1)
    assert served.listener.of("renewed") == [("w0", 1)]
    transport.close()


def test_closed_port_can_be_had_again_at_once(served: Served, tmp_path: Path) -> None:
    served.slave().close()
    served.end.close()
    other = FlaskFSTransport({"port": served.port}, tmp_path / "other")
    other.master_end().open(Listener())
    other.close()


def test_many_starts_and_stops_leave_no_thread_port_or_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DINGSDK_SECRET", SECRET)
    counts = []
    for _ in range(20):
        transport = FlaskFSTransport({}, tmp_path / "run")
        served = Served(transport)
        ends = [served.slave(f"w{n}") for n in range(2)]
        served.end.send("w1", TaskMessage("t1", {}))
        assert ends[1].next_task(5.0).task_id == "t1"
        transport.close()
        files = sum(path.is_file() for path in tmp_path.rglob("*"))
        counts.append((threading.active_count(), open_sockets(), files, _descriptors()))
    assert counts == [counts[0]] * 20


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
