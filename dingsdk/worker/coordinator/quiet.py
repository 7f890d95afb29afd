"""A run that makes no progress: what it waits for."""

from __future__ import annotations

from collections.abc import Callable

from dingsdk.worker.coordinator.scheduler_state import SchedulerState


class QuietWatch:
    """Tells once, each time that a run has made no progress for ``limit_s``. The caller locks."""

    def __init__(self, state: SchedulerState, limit_s: float, clock: Callable[[], float]) -> None:
        self.limit_s = limit_s
        self._state = state
        self._clock = clock
        self._progress: object = None
        self._since = clock()
        self._has_said = False

    def look(self) -> str:
        """Return what a quiet run waits for; empty if there is progress, or it was told before.

        Also empty if the run waits for free storage: ``StorageOutage`` logs that.
        """
        state = self._state
        running = [(task.task_id, task.progress) for task in state.running.values()]
        progress = (state.totals.ended_env_steps, running)
        if progress != self._progress:
            self._progress, self._since, self._has_said = progress, self._clock(), False
        if self._has_said or self._clock() - self._since < self.limit_s:
            return ""
        self._has_said = True
        return "" if state.outage.text else self._causes()

    def _causes(self) -> str:
        state, causes = self._state, []
        joined = state.pool.counts()
        for name, role in state.roles.items():
            if role.worker_num and not joined[name]:
                causes.append(f"no {name} has joined")
            elif state.idle(name) is not None and not state.queues[name]:
                commander = state.commander
                kind = getattr(commander, "config", {}).get("type", type(commander).__name__)
                causes.append(f"commander {kind!r} has issued no task for an idle {name}")
        for task in state.running.values():
            worker_id = "" if task.worker is None else task.worker.worker_id
            what = f"waits for {task.waits_for}" if task.waits_for else "has reported no progress"
            causes.append(f"{task.kind} {worker_id} {what}")
        rows = sum(each.count() for each in state.buffers.values())
        return "; ".join([*causes, f"the replay buffer holds {rows} rows"])
