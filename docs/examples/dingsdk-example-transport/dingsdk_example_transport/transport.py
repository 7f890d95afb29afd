"""The transport: creates the two ends and the two stores."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from dingsdk.runtime import PrivateDir
from dingsdk.worker.comm import (
    MasterEnd,
    Place,
    Scheduler,
    SlaveEnd,
    ThreadScheduler,
    Transport,
)
from dingsdk_example_transport.master import SocketMasterEnd
from dingsdk_example_transport.slave import SocketSlaveEnd
from dingsdk_example_transport.stores import FileDataStore, FilePolicyStore


class UnixSocketTransport(Transport):
    """Workers of one host over a Unix socket; payloads in the run folder."""

    config: ClassVar[dict[str, Any]] = {"type": "unix_socket"}
    places: ClassVar[tuple[Place, ...]] = ("threads", "processes")

    def __init__(self, cfg: Mapping[str, Any], run_dir: Path) -> None:
        super().__init__({**self.default_config(), **cfg}, run_dir)
        self._scheduler = ThreadScheduler()
        self._ends: list[SocketMasterEnd | SocketSlaveEnd] = []
        with PrivateDir(Path(run_dir) / "transport") as folder:
            self._data, self._policies = folder.sub("data"), folder.sub("policies")

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    def master_end(self) -> MasterEnd:
        end = SocketMasterEnd()
        self._ends.append(end)
        return end

    def slave_end(self, address: str) -> SlaveEnd:
        end = SocketSlaveEnd(address)
        self._ends.append(end)
        return end

    def data_store(self) -> FileDataStore:
        return FileDataStore(self._data)

    def policy_store(self) -> FilePolicyStore:
        return FilePolicyStore(self._policies)

    def close(self, timeout_s: float = 5.0) -> None:
        for end in reversed(self._ends):  # workers leave before their master does
            end.close(timeout_s)
        self._scheduler.close(timeout_s)
        self._data.close()
        self._policies.close()

    def remove_data(self) -> None:
        shutil.rmtree(Path(self.run_dir) / "transport", ignore_errors=True)
