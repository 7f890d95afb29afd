"""The transport contract: the one seam through which all workers talk.

A transport plugin provides the two ends of a connection (messages), a store for step
data and a store for policies (payloads), and the scheduler its roles run on. Nothing
else in the core knows which transport is in use.

Words: the *master* end stands in the coordinator, a *slave* end in each worker. Workers
dial out; the master never dials. A *message* is plain data that survives
``dingsdk.data.wire``; a *payload* is a SampleBatch or a set of tensors.

What every transport promises, in short; ``dingsdk.testing.RULES`` has it rule by rule, with a
number and a check for each:

- A joined worker is announced once; its messages arrive in the order it sent them.
- A task is delivered to the worker it was sent to, at most once per incarnation.
- After ``drop`` nothing of that incarnation is delivered any more, and every
  call of its slave end raises ``WorkerLostError`` until it joins again: from the first
  ``next_task`` or ``renew`` on, which ask the master.
- ``put`` makes a payload readable before it returns; it is immutable from then on.
- ``newest`` never returns an older version than it returned before, and each version whole.
- Every call returns or raises before its deadline; ``close`` is idempotent and wakes
  whoever waits with ``ClosedError``.
- Nothing received is executed: no pickles, no names to import, no addresses to dial.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from dingsdk.config import Configurable, PartSection
from dingsdk.data import FrameInfo, SampleBatch
from dingsdk.errors import DataMissingError
from dingsdk.worker.comm.scheduler import Scheduler

Place = Literal["threads", "processes"]
LEFT = "it left"
"""The reason of a worker that left of its own will, by closing its end."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Who joins: an id unique in the run, the name of its role, and what its host offers.

    ``incarnation`` is the master end's number of the join, higher than those of all joins of
    this id before, and 0 before the first: a worker that was lost and came back is another one,
    with none of its old work.
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
    """How a task ended. ``traceback`` is text, for people, when the task's code raised."""

    task_id: str
    completed: bool
    result: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""
    traceback: str = ""


class MasterListener(Protocol):
    """What a master end reports, from whichever thread it runs on. No method may block.

    What is reported of one worker id comes in its order: that an incarnation left, before the next
    one joins. The ``reason`` of ``worker_left`` is for people, but for ``LEFT``: a task is not
    blamed for it.
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
    """Set before ``open``: the silence, s, after which the master gives a worker up. Workers are
    told when they join."""

    @abstractmethod
    def open(self, listener: MasterListener) -> str:
        """Accept workers from now on; return the address that they dial."""

    @abstractmethod
    def send(self, worker_id: str, incarnation: int, task: TaskMessage) -> None:
        """Queue a task for a worker, as the incarnation that was announced.

        Raises:
            WorkerLostError: no such worker is joined; one that came back is another.
            ProtocolError: the task is no plain data.
        """

    @abstractmethod
    def drop(self, worker_id: str, incarnation: int, reason: str) -> None:
        """Forget a worker, as the incarnation that was announced: its late messages are refused.

        Unknown ids are ignored, and so are incarnations that are over: the worker that came back
        meanwhile is another.
        """

    @abstractmethod
    def close(self, timeout_s: float = 5.0) -> None:
        """Disconnect all workers and release the address; idempotent."""


class SlaveEnd(ABC):
    """A worker's end of its connection. One thread serves tasks; any may renew or answer.

    Where the end knows that another worker has joined under the id, its ``WorkerLostError`` has the
    fact ``replaced``: who is told so stays away, or the two would take the id from each other for
    ever. Where another master of the same run has taken over, it has the fact ``restarted``, and
    where the master has only not answered, ``silent``: who is told so joins again with the work
    that it has, which the master may let it go on with.
    """

    lease_s: float | None = None
    """Since ``join``: the lease that the master grants, s; None where it does not say."""
    asks_again = False
    """Whether ``next_task`` is called after each ``answer``, at once, as ``Slave`` does: an end may
    let the answer leave with that."""

    @abstractmethod
    def join(self, info: WorkerInfo, timeout_s: float) -> None:
        """Announce the worker; wait for the master until the deadline.

        Raises:
            WorkerLostError: no master answered in time.
        """

    @abstractmethod
    def next_task(self, timeout_s: float) -> TaskMessage | None:
        """Wait for the next task; None when the time is over."""

    @abstractmethod
    def answer(self, answer: TaskAnswer) -> None:
        """Hand an answer over; it may still be on its way when this returns.

        What is learned on the way, such as that the master gave the worker up, is raised by a
        later call: where messages travel, an answer that waited for its receipt would cost a
        round trip more than the task it belongs to.

        Raises:
            ProtocolError: the result is no plain data.
        """

    @abstractmethod
    def renew(self, progress: int) -> None:
        """Renew the worker's lease, with a count that grows as its work goes on."""

    def check(self) -> None:
        """Raise what is known here of the incarnation's end; ask nobody, wait for nothing.

        Called now and then while a task is served, which shall not outlive the run by much.
        Override it where an end learns so without a call of its worker's.

        Raises:
            WorkerLostError: the master gave it up.
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
        """Store a payload; the caller hands it over and never writes to it again.

        Returns:
            Where others can write to what the store keeps: size and digest of the payload.
            They travel with its announcement, to whoever reads it by ``get_verified``.
        """

    def put_soon(self, data_id: str, batch: SampleBatch) -> FrameInfo | None:
        """Store a payload as ``put`` does, at the latest when ``flush`` returns.

        Override both where many payloads together cost less than one by one.
        """
        return self.put(data_id, batch)

    def flush(self) -> None:
        """Store what ``put_soon`` has taken; called before these payloads are announced.

        Raises:
            StorageFullError: there is no room; the next call tries again.
            Exception: as ``put``; what is not stored by now never will be.
        """
        return

    @abstractmethod
    def get(self, data_id: str, timeout_s: float = 2.0) -> SampleBatch:
        """Return the payload, read-only.

        Raises:
            DataMissingError: it is not there before the deadline.
            DataCorruptError: what is there is not what was put.
        """

    def get_verified(self, data_id: str, digest: str, timeout_s: float = 2.0) -> SampleBatch:
        """Return the payload as ``get`` does, if it is the one of which ``put`` told the digest.

        Override it with ``put``.

        Raises:
            DataMissingError: as ``get``.
            DataCorruptError: another payload is there, whole or not.
        """
        return self.get(data_id, timeout_s)

    @abstractmethod
    def delete(self, data_ids: Iterable[str]) -> None:
        """Delete payloads; ids that are not there are ignored."""

    def has(self, data_id: str, timeout_s: float = 2.0) -> bool:
        """Return whether a payload is there, or comes before the deadline.

        Asked for every payload before it is acknowledged: override it where there is a cheaper
        way than to read it.
        """
        try:
            self.get(data_id, timeout_s)
        except DataMissingError:
            return False
        return True

    def sweep_orphans(self, is_live: Callable[[str], bool], grace_s: float) -> int:
        """Delete payloads that nobody announced, once they are ``grace_s`` old.

        A worker that dies between ``put`` and its report leaves one. Called by the coordinator
        alone, now and then. A store that cannot lose a worker so need not override it.

        Args:
            is_live: Whether a payload of that id may still be announced or read.
            grace_s: Age at which one that is not goes; it may count from the first sweep that
                finds it so.

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
        """Make a version the newest one; ``state`` may change afterwards without effect."""

    @abstractmethod
    def newest(
        self, policy_id: str, newer_than: int | None = None
    ) -> tuple[int, dict[str, Any]] | None:
        """Return (version, state), or None when there is none newer than ``newer_than``."""

    @abstractmethod
    def discard(self, policy_id: str) -> None:
        """Forget a policy; an unknown id is ignored.

        What is published under its id afterwards is another policy, whose versions start anew.
        """


class WorkerHandle(Protocol):
    """A worker that was started; calls do not wait unless they say so."""

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative where it was killed, by the number of a signal."""

    def messages(self) -> Iterable[dict[str, Any]]:
        """Return what it has told since: ``{"event": "joined"}`` and ``{"event": "failed", ...}``,
        with ``text``, ``traceback`` and ``is_user_mistake``."""

    def send_stop(self) -> None:
        """Tell it to end."""

    def kill(self) -> None:
        """End it by force."""

    def join(self, timeout_s: float) -> None:
        """Wait for its end."""

    def close(self) -> None:
        """Release what it cost, once it has ended."""


class Transport(Configurable, ABC):
    """What a plugin registers under kind ``transports``: the fabric of one run.

    Args:
        cfg: The config section ``system.transport``.
        run_dir: Folder of the run, for transports that keep files.
    """

    class Config(PartSection, frozen=True, kw_only=True):
        """Section ``system.transport``.

        Attributes:
            workers: Where the workers of a run are, one of the class's ``places``; empty: the
                first of them.
        """

        workers: str = ""

    places: ClassVar[tuple[Place, ...]] = ("threads",)
    """Where the workers of a run can be, the default first: threads of the master's process, or
    processes, on any host."""

    starts_workers: ClassVar[bool] = False
    """Whether ``launch`` and ``start_worker`` start the workers of ``dingsdk train``; without, they
    are child processes of the one that was asked to train."""

    @classmethod
    def takes_turns(cls, section: Mapping[str, Any]) -> bool:
        """Whether all jobs of a run take turns, so that their schedule can be recorded."""
        return False

    @classmethod
    def section_at(cls, section: Mapping[str, Any], address: str) -> Mapping[str, Any]:
        """Return the section of a master that shall be at an address where one was before.

        Without, workers are started again with a coordinator that is. Override it where addresses
        are chosen.
        """
        return section

    def __init__(self, cfg: Mapping[str, Any], run_dir: Path) -> None:
        self.cfg = self.read(cfg, "system.transport")
        self.run_dir = run_dir

    @property
    @abstractmethod
    def scheduler(self) -> Scheduler:
        """What this process's roles run on."""

    @abstractmethod
    def master_end(self) -> MasterEnd:
        """Return the coordinator's end, which is not open yet."""

    @abstractmethod
    def slave_end(self, address: str) -> SlaveEnd:
        """Return an unjoined end that dials ``address`` (from the worker's own config)."""

    @abstractmethod
    def data_store(self) -> StepDataStore:
        """Return a store for payloads of step data."""

    @abstractmethod
    def policy_store(self) -> PolicyStore:
        """Return a store for policy versions."""

    @abstractmethod
    def close(self, timeout_s: float = 5.0) -> None:
        """Close every end and store that this object gave out."""

    def remove_data(self) -> None:
        """Remove the files of the run; called by its master's process after the last close."""

    def launch(self, workers: Sequence[tuple[str, str]]) -> None:
        """Start what the processes of a run need before the first of them starts.

        Called where ``starts_workers``, in the process that was asked to train, with role and id of
        each worker.

        Raises:
            ConfigError: there is no room for them.
        """
        raise NotImplementedError(f"{type(self).__name__} starts no workers")

    def start_worker(self, spec: Any) -> WorkerHandle:
        """Start one of the workers that were launched, or start it again.

        ``spec`` is a ``dingsdk.pipeline.worker_process.WorkerSpec``, which can be pickled.
        """
        raise NotImplementedError(f"{type(self).__name__} starts no workers")

    def keep_data(self) -> None:
        """Make the files of a run last until it is resumed.

        Called in place of ``remove_data`` where that is possible. Override it where what the
        transport keeps would be in the way until then, or would not last.
        """

    def joining_note(self) -> str:
        """Return what workers elsewhere need besides the address, for people to read."""
        return ""
