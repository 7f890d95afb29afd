"""The master's end: a listening socket, and a link for each joined worker."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from dingsdk.errors import ClosedError, ProtocolError, WorkerLostError
from dingsdk.worker.comm import MasterEnd, MasterListener, TaskAnswer, TaskMessage, WorkerInfo
from dingsdk_example_transport.link import Link

SCHEME = "unix:"


class SocketMasterEnd(MasterEnd):
    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Held while a worker joins or leaves, so that the listener is called in that order.
        self._moving = threading.RLock()
        self._links: dict[str, Link] = {}
        self._joins: Counter[str] = Counter()
        self._open: set[Link] = set()
        self._threads: list[threading.Thread] = []
        self._server: socket.socket | None = None
        self._folder = ""
        self._is_closed = False

    def open(self, listener: MasterListener) -> str:
        # The mode of the folder is the access control: only its owner can connect. The path
        # of a socket must be short.
        self._folder = tempfile.mkdtemp(prefix="dingsdk-")
        path = str(Path(self._folder) / "socket")
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(path)
        self._server.listen()
        self._start(lambda: self._accept(listener), "socket-master")
        return SCHEME + path

    def send(self, worker_id: str, incarnation: int, task: TaskMessage) -> None:
        with self._lock:
            link = self._links.get(worker_id) if self._joins[worker_id] == incarnation else None
        if link is None:
            raise WorkerLostError(f"worker {worker_id!r} is not joined", worker_id=worker_id)
        try:
            link.send({"kind": "task", "task_id": task.task_id, "data": task.data})
        except OSError as error:
            raise WorkerLostError(f"{worker_id!r}: {error}", worker_id=worker_id) from error

    def drop(self, worker_id: str, incarnation: int, reason: str) -> None:
        # Remove the worker from the table first, so that late messages of its link are ignored.
        with self._lock:
            is_current = self._joins[worker_id] == incarnation
            link = self._links.pop(worker_id, None) if is_current else None
        if link is not None:
            link.cut()

    def close(self, timeout_s: float = 5.0) -> None:
        with self._lock:
            self._is_closed = True
            self._links.clear()
            links, threads = list(self._open), list(self._threads)
        if self._server is not None:
            with contextlib.suppress(OSError):
                self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            for link in links:
                with contextlib.suppress(OSError):
                    link.send({"kind": "closed"})
                link.cut()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout_s)
        shutil.rmtree(self._folder, ignore_errors=True)

    # Threads ----------------------------------------------------------------------------------
    def _accept(self, listener: MasterListener) -> None:
        server = self._server
        assert server is not None  # open made it
        with server:
            while True:
                try:
                    connected, _ = server.accept()
                except OSError:
                    return
                link = Link(connected)
                with self._lock:
                    if self._is_closed:
                        link.close()
                        return
                    self._open.add(link)
                self._start(lambda link=link: self._serve(link, listener), "socket-worker")

    def _serve(self, link: Link, listener: MasterListener) -> None:
        """Receive the messages of one worker until its link ends."""
        info: WorkerInfo | None = None
        try:
            first = link.receive()
            info = WorkerInfo(first["worker_id"], first["role"], first["resource"])
            self._join(link, info, listener)
            while True:
                message = link.receive()
                if self._holder(info.worker_id) is not link:
                    return
                self._report(info.worker_id, message, listener)
        except (EOFError, OSError, ProtocolError, KeyError, TypeError):
            return  # the worker left, or sent an invalid message: in both cases the link ends
        finally:
            if info is not None:
                self._leave(link, info.worker_id, listener)
            with self._lock:
                self._open.discard(link)
            link.close()

    def _report(self, worker_id: str, message: Any, listener: MasterListener) -> None:
        if message["kind"] == "renew":
            listener.worker_renewed(worker_id, message["progress"])
        elif message["kind"] == "answer":
            names = ("task_id", "completed", "result", "message", "traceback")
            listener.task_answered(worker_id, TaskAnswer(*(message[name] for name in names)))

    def _join(self, link: Link, info: WorkerInfo, listener: MasterListener) -> None:
        with self._moving:
            old = self._holder(info.worker_id)
            if old is not None:
                self.drop(info.worker_id, self._joins[info.worker_id], "replaced")
                listener.worker_left(info.worker_id, "replaced by a new incarnation")
            with self._lock:
                if self._is_closed:
                    raise EOFError("the master closed")
                self._joins[info.worker_id] += 1
                incarnation = self._joins[info.worker_id]
                self._links[info.worker_id] = link
            listener.worker_joined(replace(info, incarnation=incarnation))
        link.send({"kind": "welcome"})

    def _leave(self, link: Link, worker_id: str, listener: MasterListener) -> None:
        with self._moving:
            with self._lock:
                is_joined = self._links.get(worker_id) is link
                if is_joined:
                    del self._links[worker_id]
            if is_joined:
                listener.worker_left(worker_id, "its link ended")

    def _holder(self, worker_id: str) -> Link | None:
        with self._lock:
            return self._links.get(worker_id)

    def _start(self, function: Any, name: str) -> None:
        with self._lock:
            if self._is_closed:
                raise ClosedError("the master end is closed", what="master end")
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            thread = threading.Thread(target=function, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
