"""The flask_fs transport: messages over HTTP, payloads in a folder that all workers share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from dingsdk.data import PrivateDir
from dingsdk.errors import ConfigError
from dingsdk.worker.comm import (
    MasterEnd,
    Place,
    PolicyStore,
    Scheduler,
    SlaveEnd,
    StepDataStore,
    ThreadScheduler,
    Transport,
)
from dingsdk_flask_fs.leavings import remove_leavings
from dingsdk_flask_fs.master_end import HttpMasterEnd
from dingsdk_flask_fs.secret import FILE_NAME as SECRET_NAME
from dingsdk_flask_fs.secret import find_secret, named_secret
from dingsdk_flask_fs.slave_end import HttpSlaveEnd

TYPE_KEY = "flask_fs"
_T = TypeVar("_T")


class FlaskFSTransport(Transport):
    """One object a process; the README lists the config keys."""

    config: ClassVar[dict[str, Any]] = {
        "type": TYPE_KEY,
        "host": "127.0.0.1",  # address that the master listens on
        "port": 0,  # 0: any free one
        "data_dir": "",  # folder that all workers share; <run folder>/transport when empty
        "keep_data": False,  # leave what is in it at the end of the run
        "allowed_hosts": [],  # further names that workers dial the master by
        "threads": 96,  # requests served at once; 3 in 4 may wait for tasks
        "max_connections": 512,
        "max_payload_bytes": 256 << 20,
        "max_policy_bytes": 2 << 30,
        "min_free_bytes": 128 << 20,  # of the shared folder's disk; below it nothing is written
        "keep_policy_versions": 3,
        "durability": "process",  # or power: payloads and policies survive a power cut
        "digest": "xxh3-128",  # of payloads; or sha256, which cannot be made to fit
        "max_message_bytes": 4 << 20,
        "request_timeout_s": 10.0,
        "lost_after_s": 15.0,  # silence after which a worker gives its master up
    }

    places: ClassVar[tuple[Place, ...]] = ("processes", "threads")

    def __init__(self, cfg: Mapping[str, Any], run_dir: Path) -> None:
        super().__init__({**self.default_config(), **cfg}, run_dir)
        _check_config(self.cfg)
        self.data_dir = Path(self.cfg["data_dir"] or Path(run_dir) / "transport")
        self._lock = threading.Lock()
        self._folder: PrivateDir | None = None
        self._masters: list[HttpMasterEnd] = []
        self._slaves: list[HttpSlaveEnd] = []
        self._data_store: StepDataStore | None = None
        self._policy_store: PolicyStore | None = None
        self._scheduler = ThreadScheduler()

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    def master_end(self) -> MasterEnd:
        end = HttpMasterEnd(self.cfg, self._own_folder())
        with self._lock:
            self._masters.append(end)
        return end

    def slave_end(self, address: str) -> SlaveEnd:
        host, port = parse_address(address)
        folder = self._own_folder()
        end = HttpSlaveEnd(
            host,
            port,
            lambda: find_secret(folder),
            max_bytes=int(self.cfg["max_message_bytes"]),
            request_timeout_s=float(self.cfg["request_timeout_s"]),
            lost_after_s=float(self.cfg["lost_after_s"]),
        )
        with self._lock:
            self._slaves.append(end)
        return end

    def data_store(self) -> StepDataStore:
        from dingsdk_flask_fs.data_store import FileDataStore

        with self._lock:
            if self._data_store is None:
                self._data_store = FileDataStore(
                    self.data_dir,
                    max_payload_bytes=int(self.cfg["max_payload_bytes"]),
                    min_free_bytes=int(self.cfg["min_free_bytes"]),
                    is_durable=self.cfg["durability"] == "power",
                    algorithm=str(self.cfg["digest"]),
                )
            return self._data_store

    def policy_store(self) -> PolicyStore:
        from dingsdk_flask_fs.policy_store import FilePolicyStore

        with self._lock:
            if self._policy_store is None:
                self._policy_store = FilePolicyStore(
                    self.data_dir,
                    keep_versions=int(self.cfg["keep_policy_versions"]),
                    max_policy_bytes=int(self.cfg["max_policy_bytes"]),
                    min_free_bytes=int(self.cfg["min_free_bytes"]),
                    is_durable=self.cfg["durability"] == "power",
                )
            return self._policy_store

    def abandon_worker(self, worker_id: str) -> None:
        """Cut a worker off from this process's master as if its host had died."""
        for end in self._masters:
            end.abandon_worker(worker_id)

    def close(self, timeout_s: float = 5.0) -> None:
        with self._lock:
            slaves, self._slaves = self._slaves, []
            masters, self._masters = self._masters, []
            folder, self._folder = self._folder, None
        for slave in slaves:
            slave.close(timeout_s)
        for master in masters:
            master.close(timeout_s)
        self._scheduler.close(timeout_s)
        for store in (self._data_store, self._policy_store):
            _close(store)
        if folder is not None:
            folder.close()

    def remove_data(self) -> None:
        if not self.cfg["keep_data"]:
            remove_leavings(self.data_dir)

    def joining_note(self) -> str:
        found = named_secret()
        return f"secret: {found.source if found else self.data_dir / SECRET_NAME}"

    def _own_folder(self) -> PrivateDir:
        with self._lock:
            if self._folder is None:
                self._folder = PrivateDir(self.data_dir)
            return self._folder


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


_CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "port": (lambda value: type(value) is int and 0 <= value < 65536, "in [0, 65535]"),
    "threads": (lambda value: type(value) is int and 5 <= value <= 4096, "in [5, 4096]"),
    "max_connections": (lambda value: type(value) is int and value >= 8, ">= 8"),
    "max_payload_bytes": (lambda value: type(value) is int and value >= 1 << 20, ">= 2**20"),
    "max_policy_bytes": (lambda value: type(value) is int and value >= 1 << 20, ">= 2**20"),
    "min_free_bytes": (lambda value: type(value) is int and value >= 0, ">= 0"),
    "keep_policy_versions": (lambda value: type(value) is int and value >= 2, ">= 2"),
    "durability": (lambda value: value in ("process", "power"), "process or power"),
    "digest": (lambda value: value in ("xxh3-128", "sha256"), "xxh3-128 or sha256"),
    "max_message_bytes": (
        lambda value: type(value) is int and (64 << 10) <= value <= (1 << 30),
        "in [65536, 2**30]",
    ),
    "request_timeout_s": (lambda value: 0 < float(value) <= 3600, "in (0, 3600]"),
    "lost_after_s": (lambda value: 0 < float(value) <= 3600, "in (0, 3600]"),
}


def _check_config(cfg: Mapping[str, Any]) -> None:
    for key, (is_good, what) in _CHECKS.items():
        try:
            good = is_good(cfg[key])
        except (TypeError, ValueError):
            good = False
        if not good:
            path = f"system.transport.{key}"
            raise ConfigError(f"{path} must be {what}, found {cfg[key]!r:.80}", path=path)


def _close(store: object) -> None:
    close = getattr(store, "close", None)
    if close is not None:
        close()
