"""The transport contract: the interface through which all workers communicate.

A transport plugin provides the two ends of a connection (messages), a store for step
data and a store for policies (payloads), and the scheduler its roles run on. The rest of
the core does not depend on the transport in use.

Terms: the coordinator has the *master* end, each worker has a *slave* end. Workers connect
to the master; the master never opens a connection. A *message* is plain data that
``dingsdk.data.wire`` can encode; a *payload* is a SampleBatch or a set of tensors.

Guarantees of every transport, in short; ``dingsdk.testing.RULES`` has the numbered rules with a
check for each:

- A joined worker is announced once; its messages arrive in the order it sent them.
- A task is delivered to the worker it was sent to, at most once per incarnation.
- After ``drop`` nothing from that incarnation is delivered any more. From its next ``next_task``
  or ``renew`` on, which ask the master, every call of its slave end raises ``WorkerLostError``
  until it joins again.
- A payload is readable when ``put`` returns; it is immutable from then on.
- ``newest`` returns complete versions only, and never an older version than before.
- Every call returns or raises before its deadline; ``close`` is idempotent and ends waiting
  calls with ``ClosedError``.
- Received data is never executed: no pickles, no names to import, no addresses to connect to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from dingsdk.config import Configurable, PartSection
from dingsdk.data import FrameInfo, SampleBatch
from dingsdk.errors import ConfigError, DataMissingError
from dingsdk.worker.comm.scheduler import Scheduler

Place = Literal["threads", "processes"]
LEFT = "it left"
"""The reason for a worker that left voluntarily, by closing its end."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker: an id unique in the run, the name of its role, and the resources of its host.

    ``incarnation`` is a number that the master end gives to the join; it is higher than for all
    earlier joins of this id, and 0 before the first. A worker that was lost and rejoined is a new
    incarnation, without its old work.
    """

    worker_id: str
    role: str
    resource: Mapping[str, Any] = field(default_factory=dict)
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """A task on its way to a worker."""

    task_id: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TaskAnswer:
    """How a task ended. ``traceback`` is text for people, if the task's code raised."""

    task_id: str
    completed: bool
    result: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""
    traceback: str = ""


class MasterListener(Protocol):
    """The reports of a master end, called from any thread. No method may block.

    The reports about one worker id come in order: an incarnation leaves before the next one joins.
    The ``reason`` of ``worker_left`` is text for people. Every reason but ``LEFT`` counts as a
    failure of the worker's task.
    """

    def worker_joined(self, info: WorkerInfo) -> None:
        """A worker joined."""

    def worker_renewed(self, worker_id: str, progress: int) -> None:
        """A worker renewed its lease, with its progress count."""

    def worker_left(self, worker_id: str, reason: str) -> None:
        """A worker left or was dropped."""

    def task_answered(self, worker_id: str, answer: TaskAnswer) -> None:
        """A worker answered a task."""


class MasterEnd(ABC):
    """The coordinator's end of all connections."""

    lease_s: float | None = None
    """Seconds of silence after which the master gives up a worker. Set before ``open``, and sent to
    workers when they join."""

    @abstractmethod
    def open(self, listener: MasterListener) -> str:
        """Accept workers from now on; return the address that they connect to.

        Workers that know the address may join, and be sent tasks, before this method returns.
        """

    @abstractmethod
    def send(self, worker_id: str, incarnation: int, task: TaskMessage) -> None:
        """Queue a task for one incarnation of a worker.

        Raises:
            WorkerLostError: this incarnation is not joined; a later one does not count.
            ProtocolError: the task is not plain data.
        """

    @abstractmethod
    def drop(self, worker_id: str, incarnation: int, reason: str) -> None:
        """Remove one incarnation of a worker; its late messages are refused.

        Unknown ids and earlier incarnations are ignored: a worker that has rejoined stays.
        """

    @abstractmethod
    def close(self, timeout_s: float = 5.0) -> None:
        """Disconnect all workers and release the address; idempotent."""


class SlaveEnd(ABC):
    """A worker's end of its connection. One thread serves tasks; any may renew or answer.

    If another worker has joined under the same id, ``WorkerLostError`` has the fact ``replaced``:
    the worker must then not rejoin, or the two would keep taking the id from each other. If another
    master of the same run has taken over, it has the fact ``restarted``; if the master only did not
    answer, ``silent``. In these two cases the worker rejoins with its current work, which the
    master may let it continue.
    """

    lease_s: float | None = None
    """Set by ``join``: the lease that the master grants, in seconds; None if it sends none."""

    @abstractmethod
    def join(self, info: WorkerInfo, timeout_s: float) -> None:
        """Announce the worker; wait up to ``timeout_s`` for the master.

        Raises:
            WorkerLostError: no master answered in time.
        """

    @abstractmethod
    def next_task(self, timeout_s: float) -> TaskMessage | None:
        """Wait for the next task; None after ``timeout_s``."""

    @abstractmethod
    def answer(self, answer: TaskAnswer) -> None:
        """Queue an answer for sending; it may not have arrived when this returns.

        The end may send it with its next request, about a second later at most. An error while it
        is sent, such as that the master gave up the worker, is raised by a later call: waiting for
        a confirmation would cost each task another round trip.

        Raises:
            ProtocolError: the result is not plain data.
        """

    @abstractmethod
    def renew(self, progress: int) -> None:
        """Renew the worker's lease, with a count that grows while its work makes progress."""

    def check(self) -> None:
        """Raise an error if this incarnation is known to be over; do not ask the master or wait.

        Called regularly while a task runs, so that the task ends soon after the run. Override it
        if the end can find this out without a call from its worker.

        Raises:
            WorkerLostError: the master gave up the worker.
            ClosedError: this end or the master closed.
        """
        return

    @abstractmethod
    def close(self, timeout_s: float = 5.0) -> None:
        """Leave the master, if joined."""


class StepDataStore(ABC):
    """Payloads by id: immutable, deleted once nobody needs them."""

    @abstractmethod
    def put(self, data_id: str, batch: SampleBatch) -> FrameInfo | None:
        """Store a payload; the caller must not write to it afterwards.

        Storing the same payload again changes nothing.

        Returns:
            Size and digest of the payload, if others can write to the store's data; else None.
            They are sent with the payload's announcement, and readers pass the digest to ``get``.

        Raises:
            ProtocolError: the id is not valid.
            ConflictError: another payload has this id; it stays.
            StorageFullError: no room now; nothing was stored, and the call may be repeated.
            ConfigError: the payload is larger than readers accept.
            SchemaMismatchError: a container cannot hold the batch.
        """

    def put_soon(self, data_id: str, batch: SampleBatch) -> FrameInfo | None:
        """Store a payload like ``put``, but at the latest when ``flush`` returns.

        Override both methods if storing many payloads together is cheaper.
        """
        return self.put(data_id, batch)

    def flush(self) -> None:
        """Store the payloads passed to ``put_soon``; called before they are announced.

        Raises:
            StorageFullError: there is no room; the next call tries again.
            Exception: as ``put``; payloads that are not stored yet are lost.
        """
        return

    @abstractmethod
    def get(self, data_id: str, timeout_s: float = 2.0, digest: str | None = None) -> SampleBatch:
        """Return the payload, read-only.

        Args:
            data_id: Id of the payload.
            timeout_s: How long to wait for a payload that is not there yet.
            digest: What ``put`` returned; None for a store that returns no digests.

        Raises:
            DataMissingError: there is no payload before the deadline.
            DataCorruptError: the stored payload differs from the one that was put.
        """

    @abstractmethod
    def delete(self, data_ids: Iterable[str]) -> None:
        """Delete payloads; unknown ids are ignored."""

    def has(self, data_id: str, timeout_s: float = 2.0) -> bool:
        """Return whether a payload is stored, or is stored before the deadline.

        Called for every payload before it is acknowledged: override it if there is a cheaper way
        than reading the payload.
        """
        try:
            self.get(data_id, timeout_s)
        except DataMissingError:
            return False
        return True

    def sweep_orphans(self, is_live: Callable[[str], bool], grace_s: float) -> int:
        """Delete payloads that were never announced, once they are ``grace_s`` seconds old.

        A worker that dies between ``put`` and its report leaves such a payload. Only the
        coordinator calls this, regularly. A store whose workers cannot die in this way need not
        override it.

        Args:
            is_live: Returns whether a payload with this id may still be announced or read.
            grace_s: Age at which any other payload is deleted; the age may count from the first
                sweep that finds it.

        Returns:
            Number of payloads deleted.
        """
        return 0

    @abstractmethod
    def __len__(self) -> int: ...


class PolicyStore(ABC):
    """The newest version of each policy."""

    @abstractmethod
    def publish(self, policy_id: str, state: Mapping[str, Any], version: int) -> None:
        """Make a version the newest one; ``state`` may change afterwards without effect.

        A version that is not newer than the newest one is ignored.

        Raises:
            ProtocolError: the id or the version is not valid.
            SchemaMismatchError: the state is not a flat mapping of tensors or arrays.
            StorageFullError: no room now; the newest version does not change.
            ConfigError: it is larger than readers accept.
        """

    @abstractmethod
    def newest(
        self, policy_id: str, newer_than: int | None = None
    ) -> tuple[int, dict[str, Any]] | None:
        """Return (version, state), or None if there is no version newer than ``newer_than``.

        If the newest version is damaged, the one before it is returned.

        Raises:
            DataCorruptError: all published versions are damaged.
        """

    @abstractmethod
    def discard(self, policy_id: str) -> None:
        """Delete a policy; an unknown id is ignored.

        A policy published under the same id afterwards is a new one, with its own versions.
        """


class WorkerHandle(Protocol):
    """A worker that was started; no method waits, except ``join``."""

    @property
    def exit_code(self) -> int | None:
        """None while it runs; the negative number of the signal if a signal killed it."""

    def messages(self) -> Iterable[dict[str, Any]]:
        """Return its messages since the last call.

        They are ``{"event": "joined"}`` and ``{"event": "failed", ...}``, the latter with ``text``,
        ``traceback`` and ``is_user_mistake``.
        """

    def send_stop(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it by force."""

    def join(self, timeout_s: float) -> None:
        """Wait until it has ended."""

    def close(self) -> None:
        """Release its resources after it has ended."""


STOPPED_S = 5.0
"""A wait that lasts this much longer than its limit does not count: the process was stopped, and
maybe the other side with it."""


class Transport(Configurable, ABC):
    """The connections and stores of one run; plugins register it under kind ``transports``.

    Args:
        cfg: The config section ``system.transport``.
        run_dir: Folder of the run, for transports that keep files.
    """

    class Config(PartSection, frozen=True, kw_only=True):
        """Section ``system.transport``.

        Attributes:
            workers: Where the workers of a run are: one of the transport's ``places``. Empty: the
                first of them.
        """

        workers: str = ""

    places: ClassVar[tuple[Place, ...]] = ("threads",)
    """Where the workers of a run can be, the default first: threads of the master's process, or
    processes on any host."""

    starts_workers: ClassVar[bool] = False
    """Whether ``launch`` and ``start_worker`` start the workers of ``dingsdk train``; if False, the
    training process starts them as child processes."""

    @classmethod
    def place_of(cls, section: Mapping[str, Any], *, is_elsewhere: bool = False) -> Place:
        """Return where the workers of a run are: as its config says, else the first of ``places``.

        Args:
            section: Section ``system.transport``.
            is_elsewhere: Whether the user starts the workers, as processes.

        Raises:
            ConfigError: the transport cannot reach workers in that place.
        """
        asked = "processes" if is_elsewhere else section.get("workers") or cls.places[0]
        for place in cls.places:
            if place == asked:
                return place
        raise ConfigError(
            f"the transport {section['type']!r} runs workers as {' or '.join(cls.places)}, not as "
            f"{asked}; for workers in processes of their own choose another one, such as flask_fs",
            path="system.transport.type" if is_elsewhere else "system.transport.workers",
        )

    @classmethod
    def section_at(cls, section: Mapping[str, Any], address: str) -> Mapping[str, Any]:
        """Return the section for a restarted master that must use an earlier master's address.

        Override it if the transport has addresses that can be chosen. Without that, workers are
        restarted together with their coordinator.
        """
        return section

    def __init__(self, cfg: Mapping[str, Any], run_dir: Path) -> None:
        self.cfg = self.read(cfg, "system.transport")
        self.run_dir = run_dir

    @property
    @abstractmethod
    def scheduler(self) -> Scheduler:
        """The scheduler that this process's roles run on."""

    @abstractmethod
    def master_end(self) -> MasterEnd:
        """Return the coordinator's end, which is not open yet."""

    @abstractmethod
    def slave_end(self, address: str) -> SlaveEnd:
        """Return an unjoined end that connects to ``address`` (from the worker's own config)."""

    @abstractmethod
    def data_store(self) -> StepDataStore:
        """Return a store for payloads of step data; workers call it after ``slave_end``."""

    @abstractmethod
    def policy_store(self) -> PolicyStore:
        """Return a store for policy versions; workers call it after ``slave_end``."""

    @abstractmethod
    def close(self, timeout_s: float = 5.0) -> None:
        """Close every end and store that this object created."""

    def remove_data(self) -> None:
        """Remove the files of the run; called by its master's process after the last close."""

    def launch(self, workers: Sequence[tuple[str, str]]) -> None:
        """Prepare to start the workers of a run, given as (role, id).

        Called if ``starts_workers``, in the training process, before the first ``start_worker``.

        Raises:
            ConfigError: there is no room for the workers.
        """
        raise NotImplementedError(f"{type(self).__name__} starts no workers")

    def start_worker(self, spec: Any) -> WorkerHandle:
        """Start or restart one of the workers that were passed to ``launch``.

        ``spec`` is a ``dingsdk.pipeline.worker_process.WorkerSpec``, which can be pickled.
        """
        raise NotImplementedError(f"{type(self).__name__} starts no workers")

    def keep_data(self) -> None:
        """Keep the files of a run until it is resumed.

        Called instead of ``remove_data`` if the run can be resumed. Override it if the transport's
        files would otherwise be in the way until then, or would not last.
        """

    def joining_note(self) -> str:
        """Return text for people: what workers on other hosts need besides the address."""
        return ""
