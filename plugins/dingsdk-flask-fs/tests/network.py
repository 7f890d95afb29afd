"""Test servers in place of a master."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable


def read_message(link: socket.socket) -> bytes:
    """Read one HTTP message; return no bytes at the end of the connection."""
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


class Impostor:
    """Accepts connections and runs the given behaviour on each."""

    def __init__(self, behaviour: Callable[[socket.socket, threading.Event], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._behaviour = behaviour
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(link,), daemon=True)
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


def read_request(link: socket.socket) -> None:
    """Read a whole request, because closing with unread bytes resets the connection."""
    with link.makefile("rb") as stream:
        length = 0
        while line := stream.readline().strip().lower():
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        stream.read(length)


def silent(link: socket.socket, over: threading.Event) -> None:
    over.wait(30.0)


def resetting(link: socket.socket, over: threading.Event) -> None:
    link.recv(10)


def half_closed(link: socket.socket, over: threading.Event) -> None:
    link.shutdown(socket.SHUT_WR)
    over.wait(30.0)


def dripping(link: socket.socket, over: threading.Event) -> None:
    read_request(link)
    for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 10_000:
        link.sendall(bytes([byte]))
        if over.wait(0.02):
            return


def endless(link: socket.socket, over: threading.Event) -> None:
    read_request(link)
    while not over.is_set():
        link.sendall(b"x" * 65536)


def boundless(link: socket.socket, over: threading.Event) -> None:
    read_request(link)
    link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")
    over.wait(30.0)


IMPOSTORS = [silent, resetting, half_closed, dripping, endless, boundless]
