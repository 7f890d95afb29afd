"""The main function of a coordinator's process; started by ``Supervisor``."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import msgspec

from dingsdk import errors
from dingsdk.errors import DingError, error_text, traceback_text
from dingsdk.pipeline.context import Evaluation, Reason, RunContext, RunStatus
from dingsdk.pipeline.worker import WorkerGroup
from dingsdk.pipeline.worker_process import HANDLED, WorkerSpec, crashes_recorded, leave
from dingsdk.runtime.files import guarded

if TYPE_CHECKING:
    from dingsdk.worker.comm.master import Master

TELL_S = 0.2
"""Shortest time between two reports of the coordinator to the supervisor."""


@dataclass(frozen=True, slots=True)
class CoordinatorSpec(WorkerSpec):
    """The arguments of a coordinator process, as plain data; it has no address.

    Attributes:
        is_resumed: Whether it continues from a journal.
        rejoin_s: Seconds to wait for the workers of the previous coordinator.
    """

    is_resumed: bool
    rejoin_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """The state of the run; the first one says that the coordinator listens.

    Attributes:
        address: The address that workers connect to.
        evaluations: Evaluations since the previous report; in the first report, all of the run.
        is_ending: Whether the workers were told that the run is over; they end by themselves.
        reason: How the run ended, in the last report; None before.
    """

    address: str
    status: RunStatus
    evaluations: list[Evaluation]
    is_ending: bool = False
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """Asks the supervisor to call a hook."""

    hook: str
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Order:
    """What the supervisor tells the coordinator.

    Attributes:
        end: The reason to end the training, or None; ``interrupted`` ends the run at once.
        lost: Id of a worker whose process is dead, and ``why``; or empty.
    """

    end: Reason | None = None
    lost: str = ""
    why: str = ""


Message = Report | Observed | DingError | Order
"""What crosses the link; an error ended the run."""


def coordinator_main(spec: CoordinatorSpec, link: Connection) -> None:
    """Coordinate the run until its end, or until the parent has ended; never returns."""
    leave(_run(spec, link))


class _Parent(WorkerGroup):
    """The supervisor: it starts and watches the workers, and calls hooks. Any thread may send."""

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._lock = threading.Lock()
        self.stop = threading.Event()
        self.reason: Reason | None = None
        self.lost: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._address = ""
        self._sent = 0
        self._due_at = 0.0

    def send(self, message: Message) -> None:
        with self._lock, contextlib.suppress(OSError):  # the parent has ended; `obey` exits soon
            self._link.send(message)

    def obey(self) -> None:
        """Handle the messages of the supervisor; end this process if the supervisor has ended."""
        with contextlib.suppress(EOFError, OSError):
            while isinstance(order := self._link.recv(), Order):
                if order.end is not None:
                    self.reason = order.end
                    if order.end == "interrupted":
                        self.stop.set()
                else:
                    self.lost.put(order)
        os._exit(1)

    def manage(self, context: RunContext, master: Master) -> _Parent:
        """Be the group of workers of a run."""
        self._context, self._master = context, master
        return self

    def start(self, address: str) -> None:
        self._address = address
        self.report()

    def poll(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                order = self.lost.get_nowait()
                self._master.lose(order.lost, order.why)
        if time.monotonic() >= self._due_at:
            self.report()

    def close(self, timeout_s: float) -> None:
        if self._address:
            self.report(is_ending=True)

    def report(self, reason: Reason | None = None, *, is_ending: bool = False) -> None:
        """Send a report, now; ``reason`` says how the run ended."""
        self._due_at = time.monotonic() + TELL_S
        evaluations = list(self._context.recorder.all_evaluations[self._sent :])
        self._sent += len(evaluations)
        status = self._context.status()
        self.send(Report(self._address, status, evaluations, is_ending, reason))


class _Observers:
    """Forwards hook calls to the supervisor, whose process has the plugins and callbacks."""

    def __init__(self, parent: _Parent) -> None:
        self._parent = parent

    def __getattr__(self, hook: str) -> Callable[..., None]:
        return lambda **facts: self._parent.send(Observed(hook, facts))


@dataclass(slots=True, kw_only=True)
class _Context(RunContext):
    """The context in the coordinator's process; the supervisor asks plugins whether to stop."""

    parent: _Parent

    def why_end(self, env_steps: int, train_iter: int) -> Reason | None:
        if self.is_limit_reached(env_steps, train_iter):
            return "limit"
        return self.parent.reason


def _run(spec: CoordinatorSpec, link: Connection) -> int:
    parent = _Parent(link)
    for number in HANDLED:
        signal.signal(number, signal.SIG_IGN)  # only the parent reacts to signals
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    threading.Thread(target=parent.obey, name="parent-watch", daemon=True).start()
    try:
        with guarded(spec.run_dir), crashes_recorded(spec.crash_file):
            _coordinate(spec, parent)
    except BaseException as error:
        parent.send(sendable(error))
        return 1
    return 0


def _coordinate(spec: CoordinatorSpec, parent: _Parent) -> None:
    from dingsdk.config import to_easydict
    from dingsdk.pipeline.parallel import parallel_pipeline
    from dingsdk.pipeline.saved_run import SavedRun
    from dingsdk.plugins import default_manager

    manager = default_manager()
    manager.restore(spec.snapshot)
    cfg = to_easydict(spec.cfg)
    manager.configure(cfg)
    manager.observers = _Observers(parent)  # type: ignore[assignment]

    context = _Context(
        cfg=cfg,
        run_dir=spec.run_dir,
        stop=parent.stop,
        resumed=SavedRun(spec.run_dir, dict(spec.cfg)) if spec.is_resumed else None,
        rejoin_s=spec.rejoin_s,
        workers=lambda master: parent.manage(context, master),
        parent=parent,
    )
    parent.report(parallel_pipeline(context).reason, is_ending=True)


def sendable(error: BaseException) -> DingError:
    """Return an error for the parent, which may lack its class and the classes of its facts."""
    found, notes = error, getattr(error, "__notes__", ())
    if not isinstance(found, DingError):
        found = DingError(f"the coordinator: {error_text(error)}")
        notes = [traceback_text(error)]
    facts = msgspec.to_builtins(dict(found.facts), enc_hook=str)
    sent: DingError = getattr(errors, found.code, DingError)(found.message, **facts)
    sent.is_user_mistake = found.is_user_mistake
    for note in notes:
        sent.add_note(note)
    return sent
