"""A proxy that simulates a bad network: it drops, delays, repeats, reorders and cuts messages.

It forwards HTTP requests and replies, one after the other on each connection. The faults come from
a list, one for each exchange in the order of their arrival. So a test can choose the faults, draw
them at random, or search for the fewest that cause a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import random
import re
import socket
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

from dingsdk.runtime.deadline import Closing

DELAY_S = 0.03
REORDER_S = 0.05
"""How long a reordered exchange waits for another one to pass it."""
DUPLICATE_S = 1.0
_GOLDEN = 0.6180339887
"""The fractional parts of its multiples are spread evenly over [0, 1)."""
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]{1,12})\r\n", re.IGNORECASE)


class Fault(enum.Enum):
    """What happens to one exchange."""

    PASS = "pass"
    DROP = "drop"  # the connection is cut before anything is forwarded
    DELAY = "delay"
    DUPLICATE = "duplicate"  # forwarded twice; the second reply is thrown away
    REORDER = "reorder"  # held until another exchange has passed
    CUT_REQUEST = "cut_request"  # a part of the request is forwarded, then both sides are cut
    LOSE_REPLY = "lose_reply"  # forwarded and processed; the connection is cut before the reply
    CUT_REPLY = "cut_reply"  # a part of the reply is returned, then both sides are cut


def seeded_faults(seed: int, count: int, rate: float = 0.5) -> list[Fault]:
    """Return random faults for ``count`` exchanges; a share of about ``rate`` does not pass."""
    chance = random.Random(seed)
    faults = [fault for fault in Fault if fault is not Fault.PASS]
    return [chance.choice(faults) if chance.random() < rate else Fault.PASS for _ in range(count)]


class _CutError(Exception):
    """The connection must be cut."""


class FaultProxy(Closing):
    """Listens on a free port of the loopback interface, and forwards to ``target``.

    Args:
        target: ``http://host:port``.
        faults: The fault of each exchange; exchanges after the last fault pass.

    Attributes:
        address: The address to connect to instead of ``target``.
        exchanges: The number of exchanges so far.
    """

    def __init__(self, target: str, faults: Iterable[Fault] = ()) -> None:
        parts = urlsplit(target)
        if parts.scheme != "http" or not parts.hostname or not parts.port:
            raise ValueError(f"{target!r} is no http://host:port")
        self._target = (parts.hostname, parts.port)
        self._faults: Iterator[Fault] = iter(faults)
        self._cuts = 0
        self._is_silent = False
        self.exchanges = 0
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._links: set[asyncio.Task[Any]] = set()
        self._passed, self._closed = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._run, args=(listener,), name="fault-proxy", daemon=True
        )
        self._thread.start()

    def silence(self, is_silent: bool = True) -> None:
        """Start or stop to swallow all messages. Swallowed messages are not delivered later."""
        asyncio.run_coroutine_threadsafe(self._silence(is_silent), self._loop).result()

    def close(self) -> None:
        """Cut all connections and stop. Idempotent."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._closed.set)
        self._thread.join(5.0)

    def _run(self, listener: socket.socket) -> None:
        # At its end the runner cancels the tasks of all connections.
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._listen(listener))

    async def _listen(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(self._serve, sock=listener)
        await self._closed.wait()
        server.close()

    async def _silence(self, is_silent: bool) -> None:
        self._is_silent = is_silent
        if not is_silent:
            for link in self._links:
                link.cancel()

    async def _serve(self, *client: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        sides: list[Any] = [client]
        try:
            sides.append(await asyncio.open_connection(*self._target))
            while True:
                await self._exchange(*sides[0], *sides[1])
        except (_CutError, OSError, EOFError, asyncio.CancelledError):
            pass  # both sides are cut below
        finally:
            self._links.discard(task)
            for _, writer in sides:
                writer.close()

    async def _exchange(
        self,
        client_reader: StreamReader,
        client_writer: StreamWriter,
        server_reader: StreamReader,
        server_writer: StreamWriter,
    ) -> None:
        request = await _read_message(client_reader)
        fault = await self._next_fault()
        if fault is Fault.CUT_REQUEST:
            server_writer.write(self._part(request))
            raise _CutError
        server_writer.write(request)
        reply = await _read_message(server_reader)
        if fault is Fault.DUPLICATE:
            await self._send_again(request)
        self._passed.set()
        if fault is Fault.LOSE_REPLY:
            raise _CutError
        if fault is Fault.CUT_REPLY:
            client_writer.write(self._part(reply))
            raise _CutError
        if self._is_silent:
            await _hold()
        client_writer.write(reply)

    async def _next_fault(self) -> Fault:
        """Return the fault of an exchange; handles DELAY, REORDER and DROP itself."""
        self.exchanges += 1
        if self._is_silent:
            await _hold()
        fault = next(self._faults, Fault.PASS)
        if fault is Fault.DELAY:
            await asyncio.sleep(DELAY_S)
        if fault is Fault.REORDER:
            self._passed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._passed.wait(), REORDER_S)
        if fault is Fault.DROP:
            raise _CutError
        return fault

    async def _send_again(self, request: bytes) -> None:
        reader, writer = await asyncio.open_connection(*self._target)
        writer.write(request)
        with contextlib.suppress(EOFError, OSError):  # its reply is not needed
            await asyncio.wait_for(_read_message(reader), DUPLICATE_S)
        writer.close()

    def _part(self, message: bytes) -> bytes:
        """Return the beginning of a message; each call cuts at a different place."""
        self._cuts += 1
        share = self._cuts * _GOLDEN % 1.0
        return message[: max(1, int(share * len(message)))]


async def _hold() -> None:
    """Wait until the connection is cut."""
    await asyncio.Event().wait()


async def _read_message(reader: StreamReader) -> bytes:
    """Return a whole HTTP message; its length comes from the Content-Length header."""
    head = await reader.readuntil(b"\r\n\r\n")
    found = _LENGTH.search(head)
    return head + await reader.readexactly(int(found[1]) if found else 0)
