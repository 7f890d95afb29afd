"""Starts workers as processes of this host, restarts them when they die, and ends them."""

from __future__ import annotations

import logging
import math
import multiprocessing.connection
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dingsdk.config import to_plain
from dingsdk.errors import ConfigError, WorkerCrashedError, message_of
from dingsdk.pipeline.worker import WorkerGroup
from dingsdk.pipeline.worker_process import (
    HANDLED,
    OUT_OF_MEMORY,
    WorkerSpec,
    crash_file,
    worker_main,
)
from dingsdk.plugins import default_manager
from dingsdk.runtime.files import open_private
from dingsdk.runtime.spawn import (
    UNGUARDED,
    UNGUARDED_TEXT,
    how_it_ended,
    process_context,
    signals_blocked,
)
from dingsdk.worker.comm.transport import STOPPED_S, WorkerHandle

if TYPE_CHECKING:
    from dingsdk.pipeline.supervisor import Supervisor
    from dingsdk.worker.comm.master import Master

_log = logging.getLogger(__name__)

HEALTHY_S = 60.0
"""If a process was joined for this time, its earlier deaths do not count any more."""
BACKOFF_S = (0.2, 5.0)
"""Pause before a dead worker is restarted: base, doubled with each death, and longest pause."""
START_S = 300.0
"""How long a process may take to start and to join, on a busy machine, before it is killed."""
SILENT_S = 30.0
"""How long a process that has joined may be silent before it is killed, and another one started.
Workers look for a coordinator for longer (``system.rejoin_s``), so they join the new one."""
KILL_S = 1.0
"""How long a killed process may take to end."""
SERVER_LOST = 255
"""Exit code of a process whose fork server has ended."""
CRASH_BYTES = 64 << 10
"""How much of a crash report is read."""


class LinkedProcess(WorkerHandle):
    """A process of this host that runs ``main(spec, link)``, and our end of the link.

    Raises:
        ConfigError: the script that started the run was read from standard input, or the config in
            ``spec`` cannot be pickled.
        OSError: no process could be started.
    """

    def __init__(self, main: Callable[..., None], spec: WorkerSpec) -> None:
        context = process_context("system.transport.type")
        self._link, theirs = context.Pipe()
        # Not a daemon: env managers may have processes of their own.
        self._process = context.Process(
            target=main, args=(spec, theirs), name=spec.worker_id, daemon=False
        )
        self._exit_code: int | None = None
        try:
            with signals_blocked(HANDLED):  # until the child has installed its signal handlers
                self._process.start()
        except BaseException as error:
            self._link.close()
            if not isinstance(error, Exception) or isinstance(error, OSError):
                raise
            # The errors of pickle differ between versions of Python.
            raise ConfigError(
                f"the config cannot be handed to a worker process: {message_of(error)}; it must "
                "be plain data, and functions at the top level of a module",
                path="config",
            ) from error
        finally:
            theirs.close()

    @property
    def exit_code(self) -> int | None:
        """None while the process runs; negative if a signal killed it: minus the signal number."""
        if self._exit_code is None:
            self._exit_code = self._process.exitcode
            if self._exit_code == SERVER_LOST and self._process.pid is not None:
                with suppress(ProcessLookupError):  # it may be alive
                    os.kill(self._process.pid, signal.SIGKILL)
        return self._exit_code

    def received(self, timeout_s: float = 0.0) -> list[Any]:
        """Return the messages of the process; wait up to ``timeout_s`` for the first one."""
        found: list[Any] = []
        with suppress(EOFError, OSError):
            multiprocessing.connection.wait([self._link, self._process.sentinel], timeout_s)
            while self._link.poll():
                found.append(self._link.recv())
        return found

    def messages(self) -> list[dict[str, Any]]:
        return self.received()

    def send_stop(self) -> None:
        self.send("")

    def send(self, message: Any) -> None:
        """Send a message to the process, unless it has ended."""
        with suppress(OSError):
            self._link.send(message)

    def kill(self) -> None:
        self._process.kill()

    def join(self, timeout_s: float) -> None:
        self._process.join(timeout_s)

    def end(self, timeout_s: float) -> int | None:
        """Wait for the process to end, kill it after the timeout, and return its exit code."""
        if self.exit_code is None:
            self.join(timeout_s)
        if self.exit_code is None:
            self.kill()
            self.join(KILL_S)
        self.close()
        return self.exit_code

    def close(self) -> None:
        self._link.close()
        if self.exit_code is not None:
            self._process.close()


start_worker: Callable[[WorkerSpec], WorkerHandle] = partial(LinkedProcess, worker_main)
"""Starts a worker as a process of this host."""


def take_crash_report(path: Path) -> str:
    """Return the crash report of a process; remove the file if it is empty (no crash)."""
    report = ""
    with suppress(OSError):
        with open(path, encoding="utf-8", errors="replace", opener=open_private) as file:
            report = file.read(CRASH_BYTES)
        if not report:
            path.unlink()
    return report


class Child:
    """A process of a run that is started again when it dies, within its budget of restarts.

    Args:
        worker_id: Its id in the run.
        run_dir: The run folder, which has its crash report.
        budget: How often in a row it may die: ``system.restarts``.
        role: Its role, if it is a worker.

    Attributes:
        name: What messages call it.
        process: The process, or None while there is none.
        start_at: When it is to be started again.
        heard_at: When it was last known to work.
        joined_at: When it joined the run; infinite before that.
        failure: Why it failed or was killed, as in the messages of a ``WorkerHandle``.
    """

    def __init__(self, worker_id: str, run_dir: Path, budget: int, role: str = "") -> None:
        self.worker_id = worker_id
        self.role = role
        self.name = f"worker {worker_id}" if role else f"the {worker_id}"
        self.process: Any = None
        self.start_at = 0.0
        self.crash_report = ""
        self._deaths = 0
        self._looked_at = 0.0
        self._crash_file = crash_file(run_dir, worker_id)
        self._budget = budget

    def started(self, process: Any, now: float) -> None:
        """Note that the process was started."""
        self.process = process
        self.joined_at, self.heard_at, self._looked_at = math.inf, now, now
        self.failure: dict[str, Any] = {}

    def listen(self, now: float) -> None:
        """Take the messages of a worker."""
        for message in () if self.process is None else self.process.messages():
            if message["event"] == "joined":
                self.joined_at = self.heard_at = now
            else:
                self.failure = message

    @property
    def has_joined(self) -> bool:
        """Whether the process has joined the run."""
        return self.joined_at < math.inf

    def watch(self, now: float, *, is_heard: bool) -> None:
        """Kill the process if it was not heard for too long."""
        looked_at, self._looked_at = self._looked_at, now
        if is_heard:
            self.heard_at = now
        elif now - looked_at > STOPPED_S:  # this process was stopped, and maybe that one too
            self.heard_at += now - looked_at
        limit_s = SILENT_S if self.has_joined else START_S
        if now - self.heard_at > limit_s:
            what = "been silent for" if self.has_joined else "not joined the run within"
            self.kill(f"has {what} {limit_s:.0f} s")

    @property
    def exit_code(self) -> int | None:
        """As of ``LinkedProcess``; read before its messages, so that none comes after it."""
        code: int | None = None if self.process is None else self.process.exit_code
        return code

    def kill(self, why: str = "") -> None:
        """Kill the process; ``why`` is logged."""
        if self.process is not None and self.exit_code is None:
            failure = {"text": f"killed because it {why}"}
            if why and self.failure != failure:  # else it was told, and takes a moment to end
                _log.warning("%s %s; its process is killed", self.name, why)
                self.failure = failure
            self.process.kill()

    def close(self) -> None:
        """Release the process; keep its crash report, or remove the file if there is none."""
        if self.process is not None:
            self.process.close()
            self.process = None
        self.crash_report = take_crash_report(self._crash_file)

    def died(self, code: int, now: float, why_final: str = "") -> str:
        """Release a dead process, and set when it is started again; return why it died.

        A minute of work resets the count of deaths.

        Args:
            why_final: Why it cannot be started again, for the error; empty if it can.

        Raises:
            WorkerCrashedError: it cannot be started again, or died too often.
        """
        self.close()
        reason = self.failure.get("text") or how_it_ended(code)
        self.crash_report = self.failure.get("traceback") or self.crash_report
        if why_final:
            raise self.crashed(f"{self.name} {why_final}: {reason}", code)
        self._deaths = 1 if now - self.joined_at >= HEALTHY_S else self._deaths + 1
        if self._deaths > self._budget:
            often = "once" if self._deaths == 1 else f"{self._deaths} times in a row"
            raise self.crashed(
                f"{self.name} died {often}, at last by: {reason} "
                f"(system.restarts is {self._budget})",
                code,
            )
        base, most = BACKOFF_S
        self.start_at = now + min(most, base * 2**self._deaths)
        _log.warning("%s died: %s; it is started again", self.name, reason)
        return str(reason)

    def crashed(self, text: str, code: int) -> WorkerCrashedError:
        """Return the error for a process whose death ends the run, with its crash report."""
        is_user_mistake = bool(self.failure.get("is_user_mistake"))
        if code == UNGUARDED:
            text, is_user_mistake = UNGUARDED_TEXT, True
        error = WorkerCrashedError(
            text, worker_id=self.worker_id, exit_code=code, traceback=self.crash_report
        )
        error.is_user_mistake = is_user_mistake
        return error


class ProcessWorkers(WorkerGroup):
    """One process per worker.

    A worker that dies, hangs or does not join is started again, at most ``system.restarts`` times
    in a row; a minute of work resets the count. A worker that cannot start ends the run, because it
    would fail again.
    """

    def __init__(
        self,
        cfg: Any,
        run_dir: Path,
        workers: Sequence[tuple[str, str]],
        master: Master | Supervisor,
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[WorkerSpec], WorkerHandle] = start_worker,
    ) -> None:
        self._cfg = cfg
        self._run_dir = run_dir
        self._master = master
        self._clock = clock
        self._start_process = start
        budget = int(cfg.system.restarts)
        self._members = [Child(name, run_dir, budget, role) for role, name in workers]
        self._address = ""

    def prepare(self) -> None:
        """Start the processes, so that they import; they connect only after ``start``.

        Only for processes of this host. Imports take most of the time until the first env step, so
        workers and coordinator import at the same time.
        """
        for member in self._members:
            self._start(member)

    def start(self, address: str) -> None:
        self._address = address
        for member in self._members:
            member.heard_at = self._clock()
            if member.process is None:
                self._start(member)
            else:
                member.process.send(address)

    def poll(self) -> None:
        now = self._clock()
        for member in self._members:
            code = member.exit_code
            member.listen(now)
            if code is not None:
                self._handle_death(member, code, now)
            elif member.process is not None:
                # One that has no address yet cannot join.
                is_heard = not self._address or member.worker_id in self._master.workers
                member.watch(now, is_heard=is_heard)
            elif now >= member.start_at:
                self._start(member)

    def close(self, timeout_s: float) -> None:
        running = [member for member in self._members if member.process is not None]
        for member in running:
            member.listen(self._clock())
            if member.has_joined and member.process is not None:
                member.process.send_stop()
            else:
                member.kill()  # it has not joined, so no work is lost
        self._join(running, timeout_s)
        for member in running:
            member.kill("does not end")
        self._join(running, KILL_S)
        for member in running:
            member.close()

    def crash_report(self, worker_id: str) -> str:
        """Return the crash report of a dead worker, ``""`` if there is none."""
        found = {each.worker_id: each.crash_report for each in self._members}
        return found.get(worker_id, "")

    def _start(self, member: Child) -> None:
        spec = WorkerSpec(
            role=member.role,
            worker_id=member.worker_id,
            cfg=to_plain(self._cfg),
            address=self._address,
            run_dir=self._run_dir,
            snapshot=default_manager().snapshot(),
        )
        member.started(self._start_process(spec), self._clock())

    def _handle_death(self, member: Child, code: int, now: float) -> None:
        """Schedule a restart of a dead worker, or end the run."""
        if code == OUT_OF_MEMORY:
            member.close()
            text = "%s is started again: it was over its memory limit"
            _log.warning(text, member.name)
            return  # it is started at once: the pause after an earlier death is over
        why_final = "cannot start" if not member.has_joined and code > 0 else ""
        self._master.lose(member.worker_id, member.died(code, now, why_final))

    def _join(self, members: Sequence[Child], timeout_s: float) -> None:
        deadline = self._clock() + timeout_s
        for member in members:
            if member.process is not None:
                member.process.join(max(0.0, deadline - self._clock()))
