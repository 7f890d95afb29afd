"""The flask_fs transport: messages over HTTP, payloads in a folder that all workers share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from dingsdk.config import Whole
from dingsdk.data import PrivateDir
from dingsdk.errors import ConfigError
from dingsdk.worker.comm import (
    PolicyStore,
    StepDataStore,
    Transport,
)
from dingsdk.worker.comm.requests import (
    EPOCH_FILE,
    FILE_VARIABLE,
    RequestSlaveEnd,
    RequestTransport,
    find_secret,
    named_secret,
)
from dingsdk.worker.comm.requests import FILE_NAME as SECRET_NAME
from dingsdk_flask_fs.auth import Signer
from dingsdk_flask_fs.connection import Connection
from dingsdk_flask_fs.folder_lock import LOCK_NAME, folder_lock
from dingsdk_flask_fs.master_end import HttpMasterEnd

if TYPE_CHECKING:
    from dingsdk.worker.comm.files import FileDataStore, FilePolicyStore

TYPE_KEY = "flask_fs"


class FlaskFSTransport(RequestTransport):
    """Workers as processes on any hosts: signed HTTP, and a folder for payloads and policies."""

    contract_capabilities: ClassVar[frozenset[str]] = frozenset(
        {"many_processes", "survives_faults"}
    )
    """Optional capabilities that `dingsdk check` tests besides the rules for all transports."""

    class Config(Transport.Config, frozen=True, kw_only=True):
        """Section ``system.transport``.

        Attributes:
            host: Address that the coordinator listens on.
            port: TCP port that the coordinator listens on; 0 for any free port.
            data_dir: Folder that all workers share; if empty, ``<run folder>/transport``.
            keep_data: Whether the files in ``data_dir`` stay after the run.
            allowed_hosts: Further host names that workers may use for the coordinator.
            threads: Requests served at once; up to three quarters of them may wait for tasks.
            max_connections: Connections that may be open at once.
            max_payload_bytes: Largest payload that is written or read, in bytes.
            max_policy_bytes: Largest policy that is written or read, in bytes.
            min_free_bytes: Collectors wait while the disk of ``data_dir`` has fewer free bytes.
            keep_policy_versions: Number of versions of a policy to keep on disk.
            durability: With ``process``, payloads and policies survive the end of a process; with
                ``power``, also a power cut, at a third of the speed.
            digest: Digest of payloads: xxh3 detects damage, sha256 also detects forgeries.
            max_message_bytes: Largest message, in bytes.
            request_timeout_s: Seconds for a request to arrive, and for an immediate answer.
            lost_after_s: Seconds of silence after which a worker gives up its coordinator.
        """

        type: str = TYPE_KEY
        host: str = "127.0.0.1"
        port: Annotated[int, Meta(ge=0, le=65535)] = 0
        data_dir: str = ""
        keep_data: bool = False
        allowed_hosts: list[str] = msgspec.field(default_factory=list)
        threads: Annotated[int, Meta(ge=5, le=4096)] = 96
        max_connections: Annotated[int, Meta(ge=8)] = 512
        max_payload_bytes: Annotated[int, Meta(ge=1 << 20)] = 256 << 20
        max_policy_bytes: Annotated[int, Meta(ge=1 << 20)] = 2 << 30
        min_free_bytes: Whole = 128 << 20
        keep_policy_versions: Annotated[int, Meta(ge=2)] = 3
        durability: Literal["process", "power"] = "process"
        digest: Literal["xxh3-128", "sha256"] = "xxh3-128"
        max_message_bytes: Annotated[int, Meta(ge=64 << 10, le=1 << 30)] = 4 << 20
        request_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 10.0
        lost_after_s: Annotated[float, Meta(gt=0, le=3600)] = 15.0

    @classmethod
    def section_at(cls, section: Mapping[str, Any], address: str) -> Mapping[str, Any]:
        return {**section, "port": parse_address(address)[1]}

    def __init__(self, cfg: Mapping[str, Any], run_dir: Path) -> None:
        super().__init__(cfg, run_dir)
        self.data_dir = Path(self.cfg.data_dir or Path(run_dir) / "transport")
        self._folder: PrivateDir | None = None
        self._data_store: FileDataStore | None = None
        self._policy_store: FilePolicyStore | None = None

    def make_master_end(self) -> HttpMasterEnd:
        return HttpMasterEnd(self.cfg, self._own_folder())

    def make_slave_end(self, address: str) -> RequestSlaveEnd[Signer]:
        host, port = parse_address(address)
        folder = self._own_folder()

        def find_signer() -> Signer | None:
            secret = find_secret(folder)
            return None if secret is None else Signer(secret)

        return RequestSlaveEnd(
            f"{host}:{port}",
            lambda: Connection(host, port, self.cfg.max_message_bytes),
            self._scheduler,
            find_signer,
            max_bytes=self.cfg.max_message_bytes,
            request_timeout_s=self.cfg.request_timeout_s,
            lost_after_s=self.cfg.lost_after_s,
        )

    def data_store(self) -> StepDataStore:
        from dingsdk.worker.comm.files import FileDataStore

        with self._lock:
            if self._data_store is None:
                self._data_store = FileDataStore(
                    self.data_dir,
                    max_payload_bytes=self.cfg.max_payload_bytes,
                    min_free_bytes=self.cfg.min_free_bytes,
                    is_durable=self.cfg.durability == "power",
                    algorithm=self.cfg.digest,
                )
            return self._data_store

    def policy_store(self) -> PolicyStore:
        from dingsdk.worker.comm.files import FilePolicyStore

        with self._lock:
            if self._policy_store is None:
                self._policy_store = FilePolicyStore(
                    self.data_dir,
                    keep_versions=self.cfg.keep_policy_versions,
                    max_policy_bytes=self.cfg.max_policy_bytes,
                    min_free_bytes=self.cfg.min_free_bytes,
                    is_durable=self.cfg.durability == "power",
                )
            return self._policy_store

    def release(self) -> None:
        for each in (self._data_store, self._policy_store, self._folder):
            if each is not None:
                each.close()

    def remove_data(self) -> None:
        if not self.cfg.keep_data:
            _remove_files(self.data_dir)

    def joining_note(self) -> str:
        found = named_secret()
        return f"secret: {found.source if found else self.data_dir / SECRET_NAME}"

    def _own_folder(self) -> PrivateDir:
        with self._lock:
            if self._folder is None:
                self._folder = PrivateDir(self.data_dir)
            return self._folder


def _remove_files(path: Path) -> None:
    """Remove a run's files from the folder that its workers shared, and the folder if empty.

    Files of others stay, and so does a secret file that the user named.

    Raises:
        RunDirLockedError: another run uses the folder.
        RunFolderError: a file cannot be removed, or the folder is not ours.
    """
    from dingsdk.worker.comm.files import DATA_FOLDERS, POLICY_FOLDER

    if not path.is_dir():
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
    if host and port and address in (f"http://{host}:{port}", f"http://[{host}]:{port}"):
        return host, port
    raise ConfigError(
        f"{address!r} is no address of a coordinator; it prints one like http://127.0.0.1:7235",
        path="system.transport",
    )
