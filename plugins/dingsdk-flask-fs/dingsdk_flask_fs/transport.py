"""The flask_fs transport: messages over HTTP, payloads in a folder that all workers share."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from dingsdk.config import Whole
from dingsdk.errors import ConfigError
from dingsdk.runtime import PrivateDir, check_reach, format_address
from dingsdk.worker.comm.files import (
    DATA_FOLDERS,
    POLICY_FOLDER,
    FileDataStore,
    FilePolicyStore,
)
from dingsdk.worker.comm.requests import (
    EPOCH_FILE,
    FILE_VARIABLE,
    RequestHandler,
    RequestSlaveEnd,
    RequestTransport,
    Secret,
    create_secret,
    find_run_secret,
    named_secret,
)
from dingsdk.worker.comm.requests import FILE_NAME as SECRET_NAME
from dingsdk_flask_fs.app import create_app, is_wildcard, own_names
from dingsdk_flask_fs.auth import Verifier
from dingsdk_flask_fs.connection import Connection
from dingsdk_flask_fs.folder_lock import LOCK_NAME, folder_lock
from dingsdk_flask_fs.guard import Guard
from dingsdk_flask_fs.server import HttpServer

TYPE_KEY = "flask_fs"
MIN_FREE_THREADS = 4
"""Fewest threads that are reserved for requests that do not wait."""


class FlaskFSTransport(RequestTransport):
    """Workers as processes on any hosts: signed HTTP, and a folder for payloads and policies."""

    contract_capabilities: ClassVar[frozenset[str]] = frozenset(
        {"many_processes", "survives_faults"}
    )
    """Optional capabilities that `dingsdk check` tests besides the rules for all transports."""

    class Config(RequestTransport.Config, frozen=True, kw_only=True):
        """Section ``system.transport``.

        Attributes:
            host: Address that the coordinator listens on.
            port: TCP port that the coordinator listens on; 0 for any free port.
            data_dir: Folder that all workers share; if empty, ``<run folder>/transport``.
            keep_data: Whether the files in ``data_dir`` stay after the run.
            allowed_hosts: Further host names that workers may use for the coordinator.
            threads: Requests served at once; up to three quarters of them may wait for tasks.
            max_connections: Connections of workers that may be open at once.
            min_free_bytes: Collectors wait while the disk of ``data_dir`` has fewer free bytes.
            durability: With ``process``, payloads and policies survive the end of a process; with
                ``power``, also a power cut, at a third of the speed.
            digest: Digest of payloads: xxh3 detects damage, sha256 also detects forgeries.
        """

        type: str = TYPE_KEY
        host: str = "127.0.0.1"
        port: Annotated[int, Meta(ge=0, le=65535)] = 0
        data_dir: str = ""
        keep_data: bool = False
        allowed_hosts: list[str] = msgspec.field(default_factory=list)
        threads: Annotated[int, Meta(ge=5, le=4096)] = 96
        max_connections: Annotated[int, Meta(ge=8)] = 512
        min_free_bytes: Whole = 128 << 20
        durability: Literal["process", "power"] = "process"
        digest: Literal["xxh3-128", "sha256"] = "xxh3-128"

    @classmethod
    def section_at(cls, section: Mapping[str, Any], address: str) -> Mapping[str, Any]:
        return {**section, "port": parse_address(address)[1]}

    def __init__(self, cfg: Mapping[str, Any], run_dir: Path) -> None:
        super().__init__(cfg, run_dir)
        self.data_dir = Path(self.cfg.data_dir or Path(run_dir) / "transport")

    def listen(
        self, begin: Callable[[int], RequestHandler], until_close: ExitStack
    ) -> tuple[RequestHandler, HttpServer, str]:
        """Serve on ``http://host:port``.

        Raises:
            AuthError: the secret cannot be used.
            InsecureBindError: other hosts could reach the address, and the user set no secret.
            PortInUseError: the address is in use.
            RunDirLockedError: another run uses the folder.
        """
        cfg, host = self.cfg, self.cfg.host.strip("[]")
        until_close.enter_context(folder_lock(self.folder.path))
        secret = create_secret(self.folder)
        check_reach(host, secret, "system.transport.host")
        with ExitStack() as undo:
            server = HttpServer(
                host,
                cfg.port,
                threads=cfg.threads,
                connections=cfg.max_connections,
                max_bytes=cfg.max_message_bytes,
                read_s=cfg.request_timeout_s,
            )
            undo.callback(server.close)
            max_polls = max(1, cfg.threads - max(MIN_FREE_THREADS, cfg.threads // 4))
            handler = begin(max_polls)
            verifier = Verifier(secret)
            guard = Guard(
                verifier,
                own_names(host) | set(cfg.allowed_hosts),
                any_address=is_wildcard(host),
                max_bytes=cfg.max_message_bytes,
            )
            server.start(create_app(handler, guard, verifier))
            undo.pop_all()
        name = socket.gethostname() if is_wildcard(host) else host
        return handler, server, f"http://{format_address(name, server.port)}"

    def make_slave_end(self, address: str) -> RequestSlaveEnd[Secret]:
        host, port = parse_address(address)
        folder = self.folder

        def connect() -> Connection:
            return Connection(host, port, self.cfg.max_message_bytes)

        return self.slave_end_of(
            format_address(host, port), connect, lambda run: find_run_secret(folder, run)
        )

    def make_data_store(self) -> FileDataStore:
        store = FileDataStore(
            self.data_dir,
            max_payload_bytes=self.cfg.max_payload_bytes,
            min_free_bytes=self.cfg.min_free_bytes,
            is_durable=self.cfg.durability == "power",
            algorithm=self.cfg.digest,
        )
        return self.until_close.enter_context(closing(store))

    def make_policy_store(self) -> FilePolicyStore:
        store = FilePolicyStore(
            self.data_dir,
            keep_versions=self.cfg.keep_policy_versions,
            max_policy_bytes=self.cfg.max_policy_bytes,
            min_free_bytes=self.cfg.min_free_bytes,
            is_durable=self.cfg.durability == "power",
        )
        return self.until_close.enter_context(closing(store))

    def remove_data(self) -> None:
        if not self.cfg.keep_data:
            _remove_files(self.data_dir)

    def joining_note(self) -> str:
        found = named_secret()
        return f"secret: {found.source if found else self.data_dir / SECRET_NAME}"

    @cached_property
    def folder(self) -> PrivateDir:
        return self.until_close.enter_context(PrivateDir(self.data_dir))


def _remove_files(path: Path) -> None:
    """Remove a run's files from the folder that its workers shared, and the folder if empty.

    Files of others stay, and so does a secret file that the user named.

    Raises:
        RunDirLockedError: another run uses the folder.
        RunFolderError: a file cannot be removed, or the folder is not ours.
    """
    if not os.path.isdir(path):
        return
    with PrivateDir(path, create=False) as root, folder_lock(path):
        for name in (*DATA_FOLDERS, POLICY_FOLDER):
            root.remove_tree(name)
        root.unlink(EPOCH_FILE)
        root.unlink(LOCK_NAME)
        named = Path(os.environ.get(FILE_VARIABLE, ""))
        if named.resolve() != (path / SECRET_NAME).resolve():
            root.unlink(SECRET_NAME)
        root.sweep()
    with contextlib.suppress(OSError):  # not empty: it has files of others
        path.rmdir()


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of ``http://host:port``. Raises ConfigError."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host and port and address == f"http://{format_address(host, port)}":
        return host, port
    raise ConfigError(
        f"{address!r} is no address of a coordinator; it prints one like http://127.0.0.1:7235",
        path="system.transport",
    )
