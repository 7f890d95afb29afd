"""The replay server: a replay buffer that any number of clients use over a socket."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from dingsdk.config import Configurable, Positive, Section
from dingsdk.data.channel import Channel, Refused, decode_value, encode_value
from dingsdk.errors import (
    AuthError,
    BufferClosedError,
    DingError,
    PortInUseError,
    ProtocolError,
    wrong_type,
)
from dingsdk.runtime import (
    Connections,
    PrivateDir,
    Secret,
    check_reach,
    create_secret,
    format_address,
    listen,
    why_not_bound,
)
from dingsdk.runtime.deadline import Closing
from dingsdk.runtime.files import checked_path
from dingsdk.worker.replay_server.client import ADDRESS_NAME, secret_in
from dingsdk.worker.replay_server.messages import (
    INFO_KIND,
    ROWS_KIND,
    Ask,
    Done,
    Insert,
    Request,
    Sample,
    Save,
    Update,
)
from dingsdk.worker.replay_server.served_buffer import ServedBuffer

_log = logging.getLogger(__name__)

IDLE_S = 3600.0
"""A connection without a request for this long is closed; the client then connects again."""
CLOSE_S = 5.0
"""How long to wait for a running save and for the connections to end."""


class ReplayServerSection(Section, frozen=True, kw_only=True):
    """Settings of a replay server.

    Attributes:
        host: Address to listen on.
        port: TCP port to listen on; 0 for any free port.
        max_connections: Largest number of clients that are connected.
        max_message_bytes: Largest message (an inserted batch) that is read, in bytes.
        request_timeout_s: Seconds to receive the rest of a request, or to send an answer.
        save_every_s: Seconds between two checkpoints, while rows are inserted.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    max_connections: Annotated[int, Meta(ge=1, le=4096)] = 256
    max_message_bytes: Annotated[int, Meta(ge=64 << 10, le=2 << 30)] = 256 << 20
    request_timeout_s: Positive = 30.0
    save_every_s: Positive = 60.0


class ReplayServer(Configurable, Closing):
    """Serves one replay buffer; each connection has a thread.

    Example:
        >>> buffer = {"type": "naive", "replay_buffer_size": 100_000}
        >>> with ReplayServer({}, buffer, Path("replay")) as server:
        ...     print(server.address)

    Args:
        cfg: Section of the server, see ``ReplayServerSection``.
        buffer_cfg: Config of the replay buffer, as ``policy.other.replay_buffer``.
        path: Folder of the log, the checkpoints and the secret. None: nothing is stored, and an
            environment variable must give the secret.
        run: Id of the run whose buffer it is, if any; a folder of another run is refused.

    Attributes:
        address: ``host:port``, for clients.
        secret: The secret that clients must know.

    Raises:
        ConfigError: a config is not valid.
        AuthError: there is no secret, or it cannot be used.
        InsecureBindError: other machines could reach the address, and no secret was set.
        PortInUseError: the address is in use.
        CheckpointError, RunFolderError: as ``ServedBuffer``.
    """

    Config: ClassVar[type[ReplayServerSection]] = ReplayServerSection

    def __init__(
        self,
        cfg: Mapping[str, Any],
        buffer_cfg: Mapping[str, Any],
        path: str | Path | None = None,
        run: str = "",
    ) -> None:
        self.cfg: ReplayServerSection = self.read(cfg)
        if not isinstance(run, str):
            raise wrong_type("run", "an id", run)
        secret = secret_in(None if path is None else checked_path(path, "path"))
        check_reach(self.cfg.host, secret, "host")
        self._lock = threading.Lock()
        self._stop = threading.Event()
        with ExitStack() as undo:
            undo.callback(self._stop.set)
            self._listener = undo.enter_context(_listen(self.cfg.host, self.cfg.port))
            self.buffer = undo.enter_context(closing(ServedBuffer(buffer_cfg, path, run)))
            # Written last: a server that is refused leaves no secret.
            self.secret = secret or _create_secret(path)
            host = socket.gethostname() if self.cfg.host in {"", "0.0.0.0", "::"} else self.cfg.host
            self.address = format_address(host, self._listener.getsockname()[1])
            if path is not None:
                with PrivateDir(path) as folder:
                    folder.write_atomic(ADDRESS_NAME, [self.address.encode()])
            # Counted before the thread starts, so that rows inserted in between are saved too.
            counted = (self.buffer.table.push_count,)
            self._saver = threading.Thread(
                target=self._save, args=counted, name="replay-save", daemon=True
            )
            self._saver.start()
            self._connections = Connections(
                self._listener,
                lambda sock: Channel(sock, self.cfg.max_message_bytes),
                lambda channel: channel.welcome(self.secret),
                self._serve,
                most=self.cfg.max_connections,
                name="replay",
            )
            undo.pop_all()

    def close(self, *, has_checkpoint: bool = True) -> None:
        """End all connections, write a checkpoint and close the buffer. Idempotent.

        Args:
            has_checkpoint: Whether to write a checkpoint; without one, the next start reads more
                of the log.

        Raises:
            StorageFullError, RunFolderError: the checkpoint cannot be written; the log is kept.
        """
        with self._lock:
            if self._stop.is_set():
                return
            self._stop.set()
        self._connections.shut_down()
        try:
            if has_checkpoint:
                self.buffer.save()
        finally:
            self.buffer.close()  # ends the calls that wait for rows
            deadline = time.monotonic() + CLOSE_S
            self._saver.join(CLOSE_S)
            self._connections.close(max(0.0, deadline - time.monotonic()))

    def _save(self, saved: int) -> None:
        due_s = time.monotonic() + self.cfg.save_every_s
        while not self._stop.wait(min(1.0, max(0.0, due_s - time.monotonic()))):
            if time.monotonic() < due_s and not self.buffer.is_save_due:
                continue
            due_s = time.monotonic() + self.cfg.save_every_s
            if self.buffer.table.push_count != saved:
                saved = self.buffer.table.push_count
                try:
                    self.buffer.save()
                except DingError as error:
                    _log.warning("no checkpoint: %s", error)

    def _serve(self, channel: Channel, client: str) -> None:
        while not self._stop.is_set():
            request, frame = channel.receive(Request, self.cfg.request_timeout_s, IDLE_S)
            head, parts = self._answer(client, request, frame)
            channel.send(head, parts, timeout_s=self.cfg.request_timeout_s)

    def _answer(self, client: str, request: Request, frame: memoryview) -> tuple[Any, list[Any]]:
        """Return head and frame of the answer to a request."""
        buffer = self.buffer
        try:
            if isinstance(request, Insert):
                buffer.insert(client, request.number, request.env_step, frame, request.timeout_s)
            elif isinstance(request, Sample):
                # If the answer is lost, so are the rows, but the limiter has counted the sample.
                rows = buffer.table.sample(
                    request.size,
                    cur_learner_iter=request.train_iter,
                    timeout_s=request.timeout_s or None,
                )
                return (
                    (Done(False), []) if rows is None else (Done(), encode_value(ROWS_KIND, rows))
                )
            elif isinstance(request, Update):
                info = decode_value(INFO_KIND, frame)
                if not isinstance(info, dict):
                    raise ProtocolError("an update is a dict of columns", where="frame")
                buffer.table.update(info)
            elif isinstance(request, Ask):
                return Done(), encode_value(INFO_KIND, buffer.figures())
            elif isinstance(request, Save):
                buffer.save()
        except BufferClosedError as error:
            raise ConnectionAbortedError("the server ends") from error
        except DingError as error:
            return Refused(error.code, str(error)), []
        return Done(), []


def _listen(host: str, port: int) -> socket.socket:
    try:
        return listen(host, port)
    except OSError as error:
        raise PortInUseError(
            f"cannot listen on {format_address(host, port)}: {why_not_bound(error)}", port=port
        ) from error


def _create_secret(path: str | Path | None) -> Secret:
    if path is None:
        raise AuthError(
            "a replay server without a folder needs a secret: set DINGSDK_SECRET_FILE or "
            "DINGSDK_SECRET, or give it a folder",
            reason="missing",
        )
    with PrivateDir(path) as folder:
        return create_secret(folder)
