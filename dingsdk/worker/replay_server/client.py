"""The client of a replay server."""

from __future__ import annotations

import os
import random
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dingsdk import errors
from dingsdk.data import SampleBatch
from dingsdk.data.channel import Channel, Refused, decode_value, encode_value
from dingsdk.errors import (
    AuthError,
    BufferFullError,
    ClosedError,
    DataMissingError,
    DingError,
    ServerLostError,
)
from dingsdk.runtime import Buffer, PrivateDir, Secret, checked_timeout, find_secret, named_secret
from dingsdk.runtime.connections import parse_address
from dingsdk.runtime.deadline import Closing
from dingsdk.runtime.files import checked_path
from dingsdk.worker.replay_buffer.table import checked_size
from dingsdk.worker.replay_server.messages import (
    INFO_KIND,
    LARGEST,
    LONGEST_WAIT_S,
    ROWS_KIND,
    Ask,
    Done,
    Insert,
    Reply,
    Request,
    Sample,
    Save,
    Update,
)

FOLDER = "replay"
"""Folder of the server of a run, in the run folder."""
ADDRESS_NAME = "address"
PAUSE_S = (0.05, 1.0)
"""First and longest pause before another attempt to reach a server."""
_LONGEST_S = 1e6
"""Longest time for an exchange; sockets cannot wait for more than 24 days."""


class ReplayClient(Closing):
    """Inserts into a replay server and samples from it, over one connection.

    Thread-safe, but only one call runs at a time: a call that waits for rows blocks the calls of
    other threads. Use a separate client for each thread.

    If the connection is lost, a call connects again and is repeated until ``timeout_s`` is over. A
    repeated insert adds its rows only once. A sample whose answer was lost is drawn again, and the
    limiter counts both draws. Every call may raise ServerLostError (also a ConnectionError) if no
    server answers in time, AuthError if the server has another secret, ProtocolError if the
    address is not a replay server, and ClosedError after :meth:`close`.

    Example:
        >>> with ReplayClient("127.0.0.1:7000", "replay") as client:
        ...     client.insert(SampleBatch({"obs": observations, "reward": rewards}))
        ...     batch = client.sample(256, timeout_s=5.0)

    Args:
        address: ``host:port`` of the server. Empty: read at each connection from the file that the
            server writes to its folder.
        path: The server's folder, on a shared disk. The secret is read from it if no environment
            variable names one.
        timeout_s: Seconds for a call, in addition to the time that it waits for the limiter or
            for rows.
        max_message_bytes: Largest answer that is read, in bytes.

    Raises:
        AuthError: there is no secret.
        ProtocolError: the address is not valid, or there is neither address nor folder.
    """

    def __init__(
        self,
        address: str = "",
        path: str | Path | None = None,
        *,
        timeout_s: float = 10.0,
        max_message_bytes: int = 256 << 20,
    ) -> None:
        self.address = address
        self._path = None if path is None else checked_path(path, "path")
        if path is None or not isinstance(address, str) or address:
            parse_address(address)
            _secret_of(self._path)
        self._timeout_s = checked_timeout(timeout_s)
        self._max_bytes = max_message_bytes
        self._name = secrets.token_hex(16)
        self._lock = threading.Lock()
        self._number = 0
        self._channel: Channel | None = None
        self._is_closed = False

    def insert(self, rows: Any, *, env_step: int = 0, timeout_s: float = 0.0) -> None:
        """Add rows; once this returns, they survive a crash of the server, if it has a folder.

        Args:
            rows: A SampleBatch or a list of samples. Each call sends one message, so pass 64 rows
                or more.
            env_step: Env steps taken so far.
            timeout_s: Seconds to wait for the limiter.

        Raises:
            ConfigError: ``env_step`` is negative or not an integer, or the timeout is NaN or not a
                number.
            BufferFullError: the limiter did not admit the rows in time; nothing was inserted.
            SchemaMismatchError: the rows do not fit; nothing was inserted.
            StorageFullError: the server's disk is full; nothing was inserted.
            ServerLostError: the rows may or may not have been inserted.
        """
        env_step = checked_size(env_step, "env_step", most=LARGEST)
        timeout_s = checked_timeout(timeout_s)
        frame = encode_value(ROWS_KIND, rows)
        with self._lock:
            number = self._number = self._number + 1
            deadline = time.monotonic() + timeout_s
            while True:
                wait_s = min(max(0.0, deadline - time.monotonic()), LONGEST_WAIT_S)
                try:
                    self._exchange(Insert(number, env_step, wait_s), frame, wait_s)
                    return
                except BufferFullError:
                    if time.monotonic() >= deadline:
                        raise

    def sample(
        self, size: int, *, train_iter: int = 0, timeout_s: float = 0.0
    ) -> SampleBatch | list[Any] | None:
        """Return ``size`` rows as the caller's own copies, or None if that is impossible in time.

        Args:
            size: Number of rows; of sequences or episodes, if the buffer holds these.
            train_iter: Iteration of the learner, to compute the staleness.
            timeout_s: Seconds to wait for the rows and for the limiter.

        Raises:
            ConfigError: a number is negative or not an integer, or the timeout is NaN or not a
                number.
        """
        size = checked_size(size, most=LARGEST)
        train_iter = checked_size(train_iter, "train_iter", most=LARGEST)
        deadline = time.monotonic() + checked_timeout(timeout_s)
        while True:
            wait_s = min(max(0.0, deadline - time.monotonic()), LONGEST_WAIT_S)
            done, frame = self._call(Sample(size, train_iter, wait_s), wait_s=wait_s)
            if done.is_served:
                rows: SampleBatch | list[Any] = decode_value(ROWS_KIND, frame)
                return rows
            if time.monotonic() >= deadline:
                return None

    def update(self, info: Mapping[str, Any]) -> None:
        """Set the priorities of sampled rows, if the buffer uses priorities.

        Args:
            info: ``replay_unique_id``, ``replay_buffer_idx`` and ``priority``: arrays of equal
                length.

        Raises:
            InvalidPriorityError: one of the arrays is malformed; nothing was changed.
        """
        self._call(Update(), encode_value(INFO_KIND, dict(info)))

    def stats(self) -> dict[str, int]:
        """Return the counts of ``BufferStats``."""
        _, frame = self._call(Ask())
        return dict(decode_value(INFO_KIND, frame))

    def save(self, timeout_s: float = 60.0) -> None:
        """Let the server write a checkpoint, and wait for it.

        Raises:
            StorageFullError, RunFolderError: the checkpoint cannot be written.
        """
        self._call(Save(), wait_s=checked_timeout(timeout_s))

    def close(self) -> None:
        """Close the connection; running calls of other threads raise ClosedError. Idempotent."""
        self._is_closed = True
        channel = self._channel
        if channel is not None:
            channel.shut_down()
        with self._lock:
            self._disconnect()

    def _call(
        self, request: Request, frame: Sequence[Buffer] = (), wait_s: float = 0.0
    ) -> tuple[Done, memoryview]:
        with self._lock:
            return self._exchange(request, frame, wait_s)

    def _exchange(
        self, request: Request, frame: Sequence[Buffer], wait_s: float
    ) -> tuple[Done, memoryview]:
        """Send a request and return its answer; connect again as often as needed."""
        deadline = time.monotonic() + min(wait_s + self._timeout_s, _LONGEST_S)
        pause_s = PAUSE_S[0]
        while True:
            left_s = max(0.001, deadline - time.monotonic())
            try:
                channel = self._connected(left_s)
                channel.send(request, frame, timeout_s=left_s)
                answer, body = channel.receive(Reply, left_s)
                break
            except OSError as error:
                self._disconnect()
                if isinstance(error, AuthError) and self.address:
                    raise  # else another server may have the port of a dead one: read it again
                if self._is_closed:
                    raise ClosedError("the client is closed", what="replay client") from error
                pause_s = min(PAUSE_S[1], 2 * pause_s)
                pause_s *= random.uniform(0.5, 1.0)
                if time.monotonic() + pause_s >= deadline:
                    where = f"at {self.address}" if self.address else f"of {self._path}"
                    raise ServerLostError(
                        f"the replay server {where} cannot be reached: {error}",
                        address=self.address,
                    ) from error
                time.sleep(pause_s)
            except BaseException:
                self._disconnect()  # an answer may be on its way
                raise
        if isinstance(answer, Refused):
            raise _error_of(answer)
        return answer, body

    def _connected(self, timeout_s: float) -> Channel:
        if self._is_closed:
            raise ClosedError("the client is closed", what="replay client")
        if self._channel is None:
            address = self.address or _address_in(self._path)
            secret = _secret_of(self._path)
            self._channel = Channel.to_server(
                address, secret, self._name, self._max_bytes, timeout_s
            )
        return self._channel

    def _disconnect(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


def _error_of(answer: Refused) -> DingError:
    """Return the error that the server named; only names of error classes are looked up."""
    kind = getattr(errors, answer.code, None) if answer.code in errors.__all__ else None
    found: DingError = (kind or DingError)(answer.text)
    return found


def _address_in(path: Path | None) -> str:
    assert path is not None  # without a path, the address is set
    if os.path.isdir(path):
        with PrivateDir(path) as folder, suppress(DataMissingError):
            return folder.read(ADDRESS_NAME, 300).decode()
    raise ConnectionRefusedError(f"no server has written its address to {path} yet")


def secret_in(path: Path | None) -> Secret | None:
    """Return the secret that the environment names, else that of a server's folder, or None."""
    if path is None or not os.path.isdir(path):
        return named_secret()
    with PrivateDir(path) as folder:
        return find_secret(folder)


def _secret_of(path: Path | None) -> Secret:
    secret = secret_in(path)
    if secret is None:
        raise AuthError(
            "no secret for the replay server: set DINGSDK_SECRET_FILE to the file that the server "
            "names, or give its folder",
            reason="missing",
        )
    return secret
