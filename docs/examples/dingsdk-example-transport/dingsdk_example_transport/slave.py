"""A worker's end: one link to the master, and a thread that receives its messages."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dingsdk.errors import ClosedError, ConfigError, DingError, ProtocolError, WorkerLostError
from dingsdk.worker.comm import SlaveEnd, TaskAnswer, TaskMessage, WorkerInfo
from dingsdk_example_transport.link import Link
from dingsdk_example_transport.master import SCHEME

RETRY_S = 0.02


@dataclass(eq=False)
class Incarnation:
    """The state of one join; it ends with its link."""

    link: Link
    is_welcome: bool = False
    end: DingError | None = None
    tasks: deque[TaskMessage] = field(default_factory=deque)


class SocketSlaveEnd(SlaveEnd):
    def __init__(self, address: str) -> None:
        if not address.startswith(SCHEME):
            raise ConfigError(f"{address!r} is no address like unix:/tmp/..", path="system")
        self._path = address.removeprefix(SCHEME)
        self._news = threading.Condition()
        self._worker_id = ""
        self._current: Incarnation | None = None
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def join(self, info: WorkerInfo, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        self._worker_id = info.worker_id
        hello = {"worker_id": info.worker_id, "role": info.role, "resource": info.resource}
        with self._news:
            # Before a connection: its join could arrive late, and replace another end's.
            if self._is_closed:
                raise self._closed()
        while True:
            made = self._try_join(hello, deadline)
            with self._news:
                if self._is_closed:
                    raise self._closed()
                if made is not None and made.is_welcome:
                    self._current = made
                    return
                if time.monotonic() >= deadline:
                    raise WorkerLostError(
                        f"no master at {self._path} within {timeout_s:.1f} s",
                        worker_id=info.worker_id,
                    )
                self._news.wait_for(lambda: self._is_closed, RETRY_S)

    def next_task(self, timeout_s: float) -> TaskMessage | None:
        with self._news:
            current = self._check()
            self._news.wait_for(
                lambda: bool(current.tasks or current.end) or self._is_closed, timeout_s
            )
            self._check()
            return current.tasks.popleft() if current.tasks else None

    def answer(self, answer: TaskAnswer) -> None:
        names = ("task_id", "completed", "result", "message", "traceback")
        self._send({"kind": "answer", **{name: getattr(answer, name) for name in names}})

    def renew(self, progress: int) -> None:
        self._send({"kind": "renew", "progress": progress})

    def close(self, timeout_s: float = 5.0) -> None:
        with self._news:
            self._is_closed = True
            self._news.notify_all()
            current, threads = self._current, list(self._threads)
        if current is not None:
            current.link.cut()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout_s)

    # -------------------------------------------------------------------------------------------
    def _try_join(self, hello: Mapping[str, Any], deadline: float) -> Incarnation | None:
        """Connect and ask to join; return the new incarnation, or None without a master."""
        connected = socket.socket(socket.AF_UNIX)
        try:
            connected.connect(self._path)
        except OSError:
            connected.close()
            return None
        made = Incarnation(Link(connected))
        thread = threading.Thread(
            target=self._take, args=(made,), name=f"{self._worker_id}-link", daemon=True
        )
        with self._news:
            if self._current is not None:
                self._current.link.cut()
            self._threads = [*(each for each in self._threads if each.is_alive()), thread]
            thread.start()
        try:
            made.link.send(hello)
        except OSError:
            return None
        except ProtocolError:
            made.link.cut()
            raise
        with self._news:
            self._news.wait_for(
                lambda: made.is_welcome or made.end is not None or self._is_closed,
                max(0.0, deadline - time.monotonic()),
            )
            if not made.is_welcome or self._is_closed:
                made.link.cut()
        return made

    def _take(self, made: Incarnation) -> None:
        name = self._worker_id
        end: DingError = WorkerLostError(f"the master gave {name!r} up", worker_id=name)
        try:
            while True:
                message = made.link.receive()
                if message["kind"] == "closed":
                    end = ClosedError("the master closed", what="master")
                    break
                with self._news:
                    if message["kind"] == "task":
                        made.tasks.append(TaskMessage(message["task_id"], message["data"]))
                    made.is_welcome = made.is_welcome or message["kind"] == "welcome"
                    self._news.notify_all()
        except (EOFError, OSError, ProtocolError, KeyError, TypeError) as error:
            end.__cause__ = error  # every error ends this incarnation
        finally:
            with self._news:
                made.end = end
                self._news.notify_all()
            made.link.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        with self._news:
            current = self._check()
        try:
            current.link.send(message)
        except OSError as error:
            with self._news:
                self._check()
            raise WorkerLostError(f"the master is gone: {error}") from error

    def _check(self) -> Incarnation:
        if self._is_closed:
            raise self._closed()
        if self._current is None:
            raise WorkerLostError("not joined", worker_id=self._worker_id)
        if self._current.end is not None:
            raise self._current.end
        return self._current

    def _closed(self) -> ClosedError:
        return ClosedError(f"the connection of {self._worker_id!r} is closed", what="slave end")
