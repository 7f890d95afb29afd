"""The simulated disk that processes share, and the base class of simulated transports."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from dingsdk.data import FrameInfo, SampleBatch
from dingsdk.errors import (
    ConflictError,
    DataCorruptError,
    DataMissingError,
    RunFolderError,
    StorageFullError,
)
from dingsdk.runtime import PrivateDir
from dingsdk.runtime.files import Buffer
from dingsdk.worker.comm import PolicyStore, Scheduler, StepDataStore, Transport
from dingsdk.worker.comm.files.policy_store import FilePolicyStore
from tools.simulation.world import ProcessKilled, SimulatedProcess, World

POLL_S = 0.1


class SimulatedDisk:
    """The files that all processes share.

    Attributes:
        payloads: Data id -> content, digest, time of the write, and name of the process.
        files: Content of all other files, by name.
        folders: Paths of the subfolders.
        shared: Shared objects that are not files, by name.
        is_full: Whether nothing can be written.
        write_s: How long a write takes.
        late_s: How long after the write a payload becomes visible to half of the other processes.
        damaged: Data ids of payloads that cannot be read.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.payloads: dict[str, tuple[SampleBatch, str, float, str]] = {}
        self.files: dict[str, bytes] = {}
        self.folders: set[str] = set()
        self.shared: dict[str, object] = {}
        self.is_full = False
        self.write_s = 0.002
        self.late_s = 0.0
        self.damaged: set[str] = set()
        self.torn_writer = ""
        """Name of the process that dies in the middle of one of its next writes."""
        self.writes_left = 0
        """How many writes it completes before that."""
        self.damages_next = ""
        """Pattern of file names; the next written file with such a name is damaged."""
        self.on_torn: Callable[[], object] = lambda: None
        self.on_deleted: Callable[[str], None] = lambda data_id: None


class SimulatedFolder(PrivateDir):
    """A folder of the simulated disk, as one process sees it.

    It has the methods that journals, checkpoints and the policy stores of file transports use.

    Args:
        process: The process.
        disk: The disk.
        name: Name of the folder.
        is_slow: Whether an atomic write takes time.
    """

    def __init__(
        self, process: SimulatedProcess, disk: SimulatedDisk, name: str, is_slow: bool = True
    ) -> None:
        self._process = process
        self._disk = disk
        self._is_slow = is_slow
        self._prefix = f"{name}/"
        self.path = Path(name)

    def sub(self, name: str, create: bool = True) -> Self:
        path = self._prefix + name
        if create:
            self._disk.folders.add(path)
        elif path not in self._disk.folders:
            raise DataMissingError(f"no folder {path}", data_id=name)
        return type(self)(self._process, self._disk, path)

    def names(self) -> list[str]:
        prefix, start = self._prefix, len(self._prefix)
        found = (each[start:] for each in self._disk.files if each.startswith(prefix))
        return sorted(each for each in found if "/" not in each)

    def read(self, name: str, max_bytes: int) -> bytes:
        content = self._disk.files.get(self._prefix + name)
        if content is None:
            raise DataMissingError(f"no file {name}", data_id=name)
        return content

    def view(self, name: str, max_bytes: int, map_above: int = 0) -> memoryview:
        return memoryview(self.read(name, max_bytes))

    def append(self, name: str, buffers: Sequence[Buffer], at: int, durable: bool = False) -> int:
        disk, path = self._disk, self._prefix + name
        self._check(path)
        before = disk.files.get(path, b"")
        if len(before) != at:
            raise RunFolderError(f"{path} has {len(before)} bytes in place of {at}", path=path)
        content = b"".join(bytes(each) for each in buffers)
        self._write(path, before, content)
        return len(content)

    def write_atomic(self, name: str, buffers: Sequence[Buffer], durable: bool = False) -> None:
        disk, path = self._disk, self._prefix + name
        content = b"".join(bytes(each) for each in buffers)
        if self._is_slow:
            self._process.sleep(disk.write_s)
        if disk.damages_next and re.fullmatch(disk.damages_next, name):
            disk.damages_next = ""
            content = content[:-1] + bytes([content[-1] ^ 1])
        self._check(path)
        self._write(f"{path}.tmp", b"", content)
        disk.files[path] = disk.files.pop(f"{path}.tmp")

    def unlink(self, name: str) -> bool:
        self._check(name)
        return self._disk.files.pop(self._prefix + name, None) is not None

    def sweep(self) -> int:
        return sum(self.unlink(name) for name in self.names() if name.endswith(".tmp"))

    def remove_tree(self, name: str) -> bool:
        path = self._prefix + name
        for each in [each for each in self._disk.files if each.startswith(f"{path}/")]:
            del self._disk.files[each]
        self._disk.folders.discard(path)
        return True

    def free_bytes(self) -> int:
        return 0 if self._disk.is_full else 1 << 40

    def close(self) -> None:
        pass

    def _check(self, path: str) -> None:
        if self._process.is_dead:
            raise ProcessKilled
        if self._disk.is_full:
            raise StorageFullError(f"no space left for {path}", path=path, reason="ENOSPC")

    def _write(self, path: str, before: bytes, content: bytes) -> None:
        """Write all of the content, or only a part if the process dies in this write."""
        disk, random = self._disk, self._disk.world.random
        is_last = disk.torn_writer == self._process.name and disk.writes_left == 0
        disk.writes_left -= disk.torn_writer == self._process.name
        disk.files[path] = before + content
        if is_last:
            disk.torn_writer = ""
            disk.files[path] = before + content[: random.randint(0, len(content))]
            self._process.is_dead = True
            disk.on_torn()
            raise ProcessKilled


class SimulatedDataStore(StepDataStore):
    """Payloads on the simulated disk, as one process sees them."""

    def __init__(self, process: SimulatedProcess, disk: SimulatedDisk) -> None:
        self._process = process
        self._disk = disk

    def put(self, data_id: str, batch: SampleBatch) -> FrameInfo:
        disk = self._disk
        self._process.sleep(disk.write_s)
        if disk.is_full:
            raise StorageFullError("no space left", path=data_id, reason="ENOSPC")
        info = FrameInfo(len(batch), f"test:{zlib.crc32(batch.columns['sample']):x}")
        found = disk.payloads.get(data_id)
        if found is not None and found[1] != info.digest:
            raise ConflictError(f"payload {data_id!r} exists", data_id=data_id)
        name, now = self._process.name, disk.world.now
        disk.payloads.setdefault(data_id, (batch.freeze(), info.digest, now, name))
        self._process.sleep(disk.write_s)  # it may die after the write, before ``put`` returns
        return info

    def get(self, data_id: str, timeout_s: float = 2.0, digest: str | None = None) -> SampleBatch:
        if not self.has(data_id, timeout_s):
            raise DataMissingError(f"no payload {data_id!r}", data_id=data_id)
        if data_id in self._disk.damaged:
            raise DataCorruptError(f"payload {data_id!r} is damaged", where=data_id)
        if digest not in (None, self._disk.payloads[data_id][1]):
            raise DataCorruptError(f"payload {data_id!r} is another one", where=data_id)
        return self._disk.payloads[data_id][0]

    def has(self, data_id: str, timeout_s: float = 2.0) -> bool:
        if self._is_seen(data_id):
            return True
        if timeout_s <= 0:
            return False
        clock = self._process.scheduler.clock
        deadline = clock() + timeout_s
        while not self._is_seen(data_id) and clock() < deadline:
            self._process.sleep(POLL_S)
        return self._is_seen(data_id)

    def delete(self, data_ids: Iterable[str]) -> None:
        for data_id in data_ids:
            if self._disk.payloads.pop(data_id, None) is not None:
                self._disk.on_deleted(data_id)

    def sweep_orphans(self, is_live: Any, grace_s: float) -> int:
        now = self._disk.world.now
        payloads = self._disk.payloads
        ripe = [
            name
            for name, (_, _, written_at, _) in payloads.items()
            if now - written_at >= grace_s and not is_live(name)
        ]
        self.delete(ripe)
        return len(ripe)

    def __len__(self) -> int:
        return len(self._disk.payloads)

    def _is_seen(self, data_id: str) -> bool:
        found = self._disk.payloads.get(data_id)
        if found is None:
            return False
        batch, _, written_at, writer = found
        if writer == self._process.name or not self._disk.late_s:
            return True
        # About half of the processes see it at once; which ones depends on the payload.
        key = f"{batch.columns['sample'][0]} {self._process.name}"
        is_late = zlib.crc32(key.encode()) >= 2**31
        return self._disk.world.now >= written_at + self._disk.late_s * is_late


class SimulatedTransport(Transport):
    """The transport of one process of a simulation; a subclass provides the two ends.

    The ends must wait only with ``process.scheduler``, and communicate only with
    ``process.listen`` and ``SimulatedLink``. A real transport that is written like this can use
    its own ends.

    Args:
        process: The process.
        disk: The disk that all processes share.

    Attributes:
        has_network: Whether its ends communicate over a network. If not, simulations have no
            network faults, and the coordinator is not restarted alone.
    """

    has_network: ClassVar[bool] = True

    def __init__(self, process: SimulatedProcess, disk: SimulatedDisk) -> None:
        super().__init__({}, Path("simulated"))
        self.process = process
        self.disk = disk

    @property
    def scheduler(self) -> Scheduler:
        return self.process.scheduler

    def data_store(self) -> StepDataStore:
        return SimulatedDataStore(self.process, self.disk)

    def policy_store(self) -> PolicyStore:
        return FilePolicyStore(SimulatedFolder(self.process, self.disk, "shared"))

    def close(self, timeout_s: float = 5.0) -> None:
        pass
