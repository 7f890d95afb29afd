"""The main function of a coordinator's process; started by ``Supervisor``."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dingsdk.pipeline.context import Evaluation, Reason, RunContext, RunStatus
from dingsdk.pipeline.worker import WorkerGroup
from dingsdk.pipeline.worker_process import HANDLED, crashes_recorded, leave
from dingsdk.plugins import Snapshot
from dingsdk.plugins.blame import encodable, error_text, raised_in, traceback_text
from dingsdk.runtime.files import guarded

if TYPE_CHECKING:
    from dingsdk.worker.comm.master import Master

TELL_S = 0.2
"""Interval at which the coordinator sends a report to the supervisor."""


@dataclass(frozen=True, slots=True)
class CoordinatorSpec:
    """The arguments of a coordinator process, as plain data.

    Attributes:
        crash_file: File to which the interpreter writes its stacks if it crashes.
        snapshot: The types that were registered in the parent.
        is_resumed: Whether it continues from a journal.
        rejoin_s: Seconds to wait for the workers of the previous coordinator.
    """

    cfg: Mapping[str, Any]
    run_dir: Path
    crash_file: Path
    snapshot: Snapshot
    is_resumed: bool
    rejoin_s: float


class Message(msgspec.Struct, tag=True, frozen=True):
    """A message between the supervisor and the coordinator."""


class Report(Message, frozen=True):
    """The state of the run; the first one says that the coordinator listens.

    Attributes:
        address: The address that workers connect to.
        workers: Ids of the workers that have joined.
        evaluations: Those since the previous report; in the first one, all of the run.
        is_ending: Whether the workers were told that the run is over; they end by themselves.
    """

    address: str
    status: RunStatus
    workers: list[str]
    evaluations: list[Evaluation]
    is_ending: bool = False


class Observed(Message, frozen=True):
    """Asks the supervisor to call a hook; paths are sent as text."""

    hook: str
    facts: dict[str, Any]


class RunEnded(Message, frozen=True):
    """The run is over."""

    reason: Reason
    status: RunStatus


class Failed(Message, frozen=True):
    """An error ended the run."""

    code: str
    text: str
    facts: dict[str, Any]
    notes: list[str]
    is_user_mistake: bool


class End(Message, frozen=True):
    """Asks the coordinator to end the training; ``interrupted`` ends the run at once."""

    reason: Reason


class Lose(Message, frozen=True):
    """A worker's process is dead."""

    worker_id: str
    reason: str


_MESSAGES = Report | Observed | RunEnded | Failed | End | Lose
encode: Callable[[Message], bytes] = msgspec.msgpack.Encoder(enc_hook=str).encode
"""Values that are not plain data are encoded as text."""
decode: Callable[[bytes], Message] = msgspec.msgpack.Decoder(_MESSAGES).decode


def coordinator_main(spec: CoordinatorSpec, link: Connection) -> None:
    """Coordinate the run until its end, or until the parent has ended; never returns."""
    leave(_run(spec, link))


class _Parent:
    """The link to the supervisor. Any thread may send."""

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._lock = threading.Lock()
        self.stop = threading.Event()
        self.reason: Reason | None = None
        self.lost: queue.SimpleQueue[Lose] = queue.SimpleQueue()

    def send(self, message: Message) -> None:
        with self._lock, contextlib.suppress(OSError):  # the parent has ended; `obey` exits soon
            self._link.send_bytes(encode(message))

    def obey(self) -> None:
        """Handle the messages of the supervisor; end this process if the supervisor has ended."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = decode(self._link.recv_bytes())
                if isinstance(message, End):
                    self.reason = message.reason
                    if message.reason == "interrupted":
                        self.stop.set()
                elif isinstance(message, Lose):
                    self.lost.put(message)
        os._exit(1)


class _Elsewhere(WorkerGroup):
    """The workers of a run whose supervisor starts and watches them."""

    def __init__(self, parent: _Parent, context: RunContext, master: Master) -> None:
        self._parent, self._context, self._master = parent, context, master
        self._address = ""
        self._sent = 0
        self._is_over = threading.Event()
        self._reporting = threading.Thread(target=self._run, name="reporting", daemon=True)

    def start(self, address: str) -> None:
        self._address = address
        self._report()
        self._reporting.start()

    def poll(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                lost = self._parent.lost.get_nowait()
                self._master.lose(lost.worker_id, lost.reason)

    def close(self, timeout_s: float) -> None:
        self._is_over.set()
        if self._address:
            self._reporting.join(timeout_s)

    def _run(self) -> None:
        is_ending = False
        while not is_ending:
            is_ending = self._is_over.wait(TELL_S)
            self._report(is_ending)

    def _report(self, is_ending: bool = False) -> None:
        evaluations = self._context.recorder.all_evaluations[self._sent :]
        self._sent += len(evaluations)
        status, workers = self._context.status(), list(self._master.workers)
        self._parent.send(Report(self._address, status, workers, list(evaluations), is_ending))


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
        parent.send(_failed(error))
        return 1
    return 0


def _coordinate(spec: CoordinatorSpec, parent: _Parent) -> None:
    from dingsdk.config import to_easydict
    from dingsdk.pipeline.parallel import parallel_pipeline
    from dingsdk.pipeline.saved_run import JournaledRun
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
        resumed=JournaledRun(spec.run_dir, dict(spec.cfg)) if spec.is_resumed else None,
        rejoin_s=spec.rejoin_s,
        workers=lambda master: _Elsewhere(parent, context, master),
        parent=parent,
    )
    result = parallel_pipeline(context)
    parent.send(RunEnded(result.reason, context.status()))


def _failed(error: BaseException) -> Failed:
    from dingsdk.errors import DingError

    notes = list(getattr(error, "__notes__", ()))
    if isinstance(error, DingError):
        facts = {k: encodable(v) if isinstance(v, str) else v for k, v in error.facts.items()}
        text = encodable(f"{error.message}{raised_in(error)}")
        return Failed(error.code, text, facts, list(map(encodable, notes)), error.is_user_mistake)
    text = f"the coordinator: {error_text(error)}"
    return Failed("DingError", text, {}, [traceback_text(error)], False)
