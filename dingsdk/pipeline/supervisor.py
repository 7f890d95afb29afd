"""Runs the coordinator of a parallel run in a process of its own, and restarts it if it dies.

The process that called ``train`` is the supervisor: it starts the coordinator and the workers, and
restarts those that die. A new coordinator continues from the journal, at the address of the
previous one, unless the run keeps no journal. Workers that are still running join it again and keep
their tasks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dingsdk.config import to_plain
from dingsdk.errors import DingError, StorageFullError
from dingsdk.pipeline.context import Reason, RunContext, RunResult, RunStatus
from dingsdk.pipeline.coordinator_process import (
    CoordinatorSpec,
    Message,
    Observed,
    Order,
    Report,
    coordinator_main,
)
from dingsdk.pipeline.parallel import remove_served, worker_config
from dingsdk.pipeline.process_group import (
    KILL_S,
    Child,
    LinkedProcess,
    ProcessWorkers,
    start_worker,
)
from dingsdk.pipeline.results import prepare_curve
from dingsdk.pipeline.run_folder import JOURNAL_FOLDER
from dingsdk.pipeline.worker import leave_data, make_transport, transport_class, worker_ids
from dingsdk.plugins import default_manager, observe
from dingsdk.runtime.files import Folder
from dingsdk.worker.comm.transport import Transport

_log = logging.getLogger(__name__)

POLL_S = 0.1
"""Longest wait for a message of the coordinator between two checks of the workers."""
NO_ROOM_PAUSE_S = 1.0
"""Pause before the coordinator is started again after its storage was full."""
CLOSE_S, INTERRUPTED_CLOSE_S = (10.0, 8.0), (5.0, 3.0)
"""How long the coordinator, then the workers may take to end; shorter after an interrupt."""


class Supervisor:
    """Starts the processes of one run, and watches them until the run ends."""

    def __init__(self, context: RunContext, clock: Callable[[], float] = time.monotonic) -> None:
        self._context = context
        self._clock = clock
        self._cfg = context.cfg
        budget = int(context.cfg.system.restarts)
        self._coordinator = Child("coordinator", context.run_dir, budget)
        self._transport: Transport | None = None
        self._workers: Any = None
        self._address = ""
        self._no_room_since: float | None = None
        self._stopped_at: float | None = None
        self._is_ending = False
        self._status = RunStatus()
        self._reason: Reason | None = None
        self._has_prepared = False

    @property
    def workers(self) -> set[str]:
        """Ids of the workers that have joined, from the newest report of the coordinator."""
        return {each.worker_id for each in self._status.connected}

    def run(self) -> RunResult:
        """Train; raises the same errors as ``parallel_pipeline``."""
        context = self._context
        context.status = lambda: self._status
        try:
            if transport_class(self._cfg).starts_workers:
                self._transport = make_transport(self._cfg, context.run_dir)
                self._transport.launch(worker_ids(self._cfg))
            self._start()
            if self._transport is None:
                self._make_workers()
                self._workers.prepare()
            while self._reason is None:
                self._look()
        except BaseException:
            self._send(Order("interrupted"))
            raise
        finally:
            self._close()
        return context.finish(self._reason, "parallel")

    def lose(self, worker_id: str, reason: str) -> None:
        """Tell the coordinator that a worker's process is dead."""
        self._send(Order(lost=worker_id, why=reason))

    def _look(self) -> None:
        """Handle the messages of the coordinator, and restart processes that died."""
        context, child = self._context, self._coordinator
        process, code = child.process, child.exit_code
        if process is not None:
            messages = process.received(POLL_S)
            # It may be silent while it ends the run.
            child.watch(self._clock(), is_heard=bool(messages) or self._is_ending)
            for message in messages:
                self._take(message)
        elif self._clock() >= child.start_at:
            self._start()
        else:
            context.stop.wait(POLL_S)
        if self._reason is not None or process is not child.process:
            return
        if context.stop.is_set():
            self._stop()
        elif code is not None:
            self._restart(code)
        elif self._workers is not None and not self._is_ending:
            self._workers.poll()
            reason = context.why_end(self._status.env_steps, self._status.train_iter)
            if reason == "stopped":
                self._send(Order(reason))

    def _stop(self) -> None:
        """End the run as interrupted: by the coordinator if it answers in time, else directly."""
        now, process = self._clock(), self._coordinator.process
        if self._stopped_at is None:
            self._stopped_at = now
            self._send(Order("interrupted"))
        is_dead = process is None or process.exit_code is not None
        is_late = now - self._stopped_at > INTERRUPTED_CLOSE_S[0]
        if is_dead or is_late or not self._context.has_begun:
            self._reason = "interrupted"

    def _take(self, message: Message) -> None:
        if isinstance(message, Report):
            self._follow(message)
        elif isinstance(message, Observed):
            getattr(observe(), message.hook)(**message.facts)
        elif isinstance(message, DingError):
            self._fail(self._explained(message))

    def _fail(self, error: DingError) -> None:
        """Raise the error, or start the coordinator again if its storage was full on a restart."""
        child, now = self._coordinator, self._clock()
        has_room = child.has_joined or not isinstance(error, StorageFullError)
        since = self._no_room_since = now if self._no_room_since is None else self._no_room_since
        limit_s = float(self._cfg.system.coordinator.storage_timeout_s)
        if has_room or not self._context.has_begun or now - since > limit_s:
            raise error
        if now == since:
            _log.warning("the coordinator waits for up to %.0f s: %s", limit_s, error)
        child.process.end(KILL_S)
        child.close()
        child.start_at = now + NO_ROOM_PAUSE_S

    def _follow(self, report: Report) -> None:
        """Take over a report; the first one of a coordinator may repeat known evaluations."""
        context, recorder = self._context, self._context.recorder
        is_open = self._coordinator.has_joined
        self._status, self._is_ending = report.status, report.is_ending
        self._reason = report.reason
        if not context.has_begun:
            recorder.resume(report.evaluations, report.status.elapsed_s)
        else:
            known = 0 if is_open else len(recorder.all_evaluations)
            for each in report.evaluations[known:]:
                recorder.take(each)
        if not is_open:
            self._open(report.address)
        status = report.status
        is_done = context.is_limit_reached(status.env_steps, status.train_iter)
        if (is_done or report.is_ending) and not self._has_prepared:
            # During the last evaluation: earlier it would take a core from the workers.
            self._has_prepared = True
            threading.Thread(target=prepare_curve, name="curve", daemon=True).start()

    def _open(self, address: str) -> None:
        self._coordinator.joined_at = self._clock()
        self._no_room_since = None
        self._context.has_begun = True
        if address == self._address:
            return
        if self._address:
            self._workers.close(INTERRUPTED_CLOSE_S[1])  # they do not know the new address
        if self._address or self._workers is None:
            self._make_workers()
        self._address = address
        self._workers.start(address)

    def _make_workers(self) -> None:
        cfg = worker_config(self._context.cfg, self._context.run_dir)
        start = start_worker if self._transport is None else self._transport.start_worker
        self._workers = ProcessWorkers(
            cfg, self._context.run_dir, worker_ids(cfg), self, start=start
        )

    def _start(self) -> None:
        """Start the coordinator; after a death, another one continues its run."""
        context = self._context
        self._is_ending = False
        spec = CoordinatorSpec(
            role="coordinator",
            worker_id="coordinator",
            cfg=to_plain(self._cfg),
            address="",
            run_dir=context.run_dir,
            snapshot=default_manager().snapshot(),
            is_resumed=context.has_begun or context.resumed is not None,
            rejoin_s=self._cfg.system.coordinator.lease_s if context.has_begun else 0.0,
        )
        process = LinkedProcess(coordinator_main, spec)
        self._coordinator.started(process, self._clock())

    def _restart(self, code: int) -> None:
        """Note the death of the coordinator, so that another one is started, or end the run."""
        why_final = "" if self._context.has_begun else "cannot start"
        if not (why_final or (self._context.run_dir / JOURNAL_FOLDER).is_dir()):
            why_final = "died, and the run keeps no journal to continue from"
        self._coordinator.died(code, self._clock(), why_final)
        section = transport_class(self._cfg).section_at(self._cfg.system.transport, self._address)
        self._cfg.system.transport.update(section)

    def _send(self, message: Message) -> None:
        if self._coordinator.process is not None:
            self._coordinator.process.send(message)

    def _close(self) -> None:
        context, child = self._context, self._coordinator
        is_urgent = context.stop.is_set() or self._reason is None
        coordinator_s, workers_s = INTERRUPTED_CLOSE_S if is_urgent else CLOSE_S
        code: int | None = 0
        if child.process is not None:
            if self._stopped_at is not None:  # it has ended, or `_stop` waited long enough
                coordinator_s = KILL_S if context.has_begun else 0.0
            code = child.process.end(coordinator_s)
        if self._workers is not None:
            self._workers.close(workers_s)
        child.close()  # a file with a crash report stays
        if not context.has_begun and context.resumed is None:
            # The coordinator was ended before the run began, and may have left a journal.
            with Folder(context.run_dir) as folder:
                folder.remove_tree(JOURNAL_FOLDER)
            self._leave_data()
        elif code != 0:
            self._leave_data()
        if self._transport is not None:
            self._transport.close()
        remove_served(context.run_dir)

    def _leave_data(self) -> None:
        """Keep or remove the run's data, after a coordinator that was killed before it did so."""
        with suppress(DingError):
            transport = make_transport(self._cfg, self._context.run_dir)
            transport.close()
            leave_data(transport, is_kept=(self._context.run_dir / JOURNAL_FOLDER).is_dir())

    def _explained(self, error: DingError) -> DingError:
        """Add the crash report of its worker to an error without notes."""
        worker_id = str(error.facts.get("worker_id", ""))
        report = self._workers.crash_report(worker_id) if self._workers is not None else ""
        if report and not getattr(error, "__notes__", ()):
            error.add_note(f"raised by the worker:\n{report}")
        return error
