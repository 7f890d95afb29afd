"""The roles of learners and collectors: how their workers are created, and their tasks driven."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, cast

from dingsdk.data import derive_seed
from dingsdk.plugins import default_manager
from dingsdk.worker.comm.allowed_imports import named_modules
from dingsdk.worker.comm.slave import Slave
from dingsdk.worker.comm.transport import Transport
from dingsdk.worker.commander.base import BaseParallelCommander, Task
from dingsdk.worker.coordinator.live_payloads import MOST_ANNOUNCED, PAYLOAD_ROWS, LivePayloads
from dingsdk.worker.coordinator.role import WAIT_S, Role, extra_roles
from dingsdk.worker.coordinator.tasks import TaskState
from dingsdk.worker.factory import create_comm_collector, create_comm_learner
from dingsdk.worker.inference.client import InferenceClient
from dingsdk.worker.replay_buffer.pace import EpisodePace
from dingsdk.worker.replay_server import ReplayClient
from dingsdk.worker.replay_server.client import FOLDER

if TYPE_CHECKING:
    from dingsdk.worker.coordinator.coordinator import Coordinator

LAST_ANSWERS = 3
"""Answers taken from a collector that is done but has not ended, before it is closed."""
REFUSED_PAUSE_S = 0.05
"""Longest wait of a collector between two checks whether the journal has room again."""


class LearnerRole(Role):
    """Train for a coordinator until the run ends. Ctrl-C saves a checkpoint and leaves.

    Several learners can train together, on one host or on several. Start them with torchrun, or
    with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in their environment: see
    system.learner_num.
    """

    name: ClassVar[str] = "learner"
    ends_run: ClassVar[bool] = True
    resumes: ClassVar[bool] = True
    rejoins: ClassVar[bool] = True

    @property
    def worker_num(self) -> int:
        # Each worker counts once for all its system.learner_num processes.
        section = self.run_cfg.get("policy", {}).get("other", {}).get("commander")
        if section is None:
            return 1
        commander = default_manager().class_of("commanders", section, "policy.other.commander")
        return int(commander.policy_num(self.run_cfg))

    def create_worker(self, transport: Transport, worker_id: str) -> Slave:
        cfg = _comm_section(self)
        worker: Any = create_comm_learner(cfg, transport=transport, worker_id=worker_id)
        worker.learner_num = int(self.run_cfg["system"]["learner_num"])
        worker.replay = _replay_of(self, transport)
        return cast(Slave, worker)

    def next_task(self, commander: BaseParallelCommander) -> Task | None:
        return commander.get_learner_task()

    def task_failed(self, commander: BaseParallelCommander, task: Mapping[str, Any]) -> None:
        commander.notify_fail_learner_task(task)

    def retried(self, state: TaskState) -> Mapping[str, Any]:
        # The learner finds its own checkpoints, which may be on another host.
        return {**state.task, "resume": True}

    def drive(self, coordinator: Coordinator, state: TaskState, task: Mapping[str, Any]) -> None:
        """Start a learner, exchange messages with it until it is done, then close it."""
        with coordinator.condition:
            home = coordinator.state.buffers[state.buffer_id].for_new_home()
        pace = EpisodePace.of(self.run_cfg)
        home["pace"] = None if pace is None else dataclasses.asdict(pace)
        start = {"name": "learner_start_task", "task_info": {**task, "home": home}}
        coordinator.ask(state, start, "start_timeout_s")
        coordinator.deal_with_task_started(state)
        self._train(coordinator, state)

    def go_on(self, coordinator: Coordinator, state: TaskState) -> None:
        """Take what the learner reports and has from an earlier coordinator, then as ``drive``."""
        with coordinator.condition:
            payloads = coordinator.state.payloads_of(state)
            confirmed = 0 if payloads is None else payloads.to_confirm
        kept = {"name": "learner_go_on_task", "task_id": state.task_id, "confirmed": confirmed}
        answer = coordinator.ask(state, kept, "learn_timeout_s")
        coordinator.deal_with_task_started(state)
        coordinator.deal_with_learner_send_info(state.task_id, state.buffer_id, answer["info"])
        if payloads is not None:
            with coordinator.condition:
                payloads.rejoin(answer["known"])
        self._train(coordinator, state)

    def _train(self, coordinator: Coordinator, state: TaskState) -> None:
        """Pass announcements on to the learner, and its reports to the coordinator."""
        ids, is_done = (state.task_id, state.buffer_id), False
        while not is_done and not coordinator.is_ending:
            with coordinator.condition:
                payloads = coordinator.state.payloads_of(state)
                if payloads is None:  # the buffer is closed
                    break
                confirmed = payloads.to_confirm
                env_steps = coordinator.state.env_steps_of(state)
            news = coordinator.deal_with_learner_get_data(*ids, MOST_ANNOUNCED, state.progress)
            data = {"announcements": news or [], "confirmed": confirmed, "env_steps": env_steps}
            learn = {"name": "learner_learn_task", "data": data}
            answer = coordinator.ask(state, learn, "learn_timeout_s")
            coordinator.deal_with_learner_send_info(*ids, answer["info"])
            coordinator.deal_with_storage(state, answer["held_up_by"])
            is_done = coordinator.deal_with_learner_judge_finish(state.task_id, answer["info"])
            if answer["info"]["is_idle"] and not is_done:
                self._wait_for_news(coordinator, state, payloads)
        finished = coordinator.ask(state, {"name": "learner_close_task"})
        coordinator.deal_with_learner_send_info(*ids, finished["info"])
        coordinator.deal_with_learner_finish_task(state.task_id, finished, has_trained_out=is_done)

    def _wait_for_news(
        self, coordinator: Coordinator, state: TaskState, payloads: LivePayloads
    ) -> None:
        """Wait until a learner that has nothing to train on can be told something."""

        def can_go_on() -> bool:
            is_closed = coordinator.state.payloads_of(state) is not payloads
            return coordinator.is_ending or is_closed or payloads.has_news

        with _waiting(state, "samples to train on"), coordinator.condition:
            coordinator.condition.wait_for(can_go_on, WAIT_S)


class CollectorRole(Role):
    """Collect for a coordinator until the run ends. Ctrl-C leaves the run."""

    name: ClassVar[str] = "collector"
    rejoins: ClassVar[bool] = True

    @property
    def worker_num(self) -> int:
        return int(self.run_cfg["system"]["collector_num"])

    def create_worker(self, transport: Transport, worker_id: str) -> Slave:
        cfg = _comm_section(self)
        worker: Any = create_comm_collector(cfg, transport=transport, worker_id=worker_id)
        worker.replay = _replay_of(self, transport)
        if "inference" in extra_roles(self.run_cfg):
            worker.inference = InferenceClient(transport.run_dir, worker_id)
        return cast(Slave, worker)

    def next_task(self, commander: BaseParallelCommander) -> Task | None:
        return commander.get_collector_task()

    def task_failed(self, commander: BaseParallelCommander, task: Mapping[str, Any]) -> None:
        commander.notify_fail_collector_task(task)

    def can_run(self, state: TaskState, buffers: Mapping[str, LivePayloads]) -> bool:
        # The buffer is opened and closed with its learner's task.
        return state.buffer_id in buffers

    def retried(self, state: TaskState) -> Mapping[str, Any]:
        cfg = state.task["collector_cfg"]
        if cfg.get("seed") is None or state.is_evaluation:
            return state.task
        # Another seed, so that the episodes sampled by the lost worker are not repeated.
        seed = derive_seed(int(cfg["seed"]), "attempt", state.attempt)
        return {**state.task, "collector_cfg": {**cfg, "seed": seed}}

    def drive(self, coordinator: Coordinator, state: TaskState, task: Mapping[str, Any]) -> None:
        """Start a collector, process its reports until it is done, then close it."""
        with coordinator.condition:
            payloads = coordinator.state.payloads_of(state)
            if payloads is not None and not state.is_evaluation:
                task = {**task, "payload_rows": PAYLOAD_ROWS}
            if payloads is None or payloads.admission is None or state.is_evaluation:
                task = {**task, **coordinator.limits.of(state)}
            else:
                task = {**task, "step_limit": 0}  # others would wait while it builds its envs
        start = {"name": "collector_start_task", "task_info": task}
        coordinator.ask(state, start, "start_timeout_s")
        coordinator.deal_with_task_started(state)
        self._collect(coordinator, state)

    def go_on(self, coordinator: Coordinator, state: TaskState) -> None:
        """As ``drive``, for a collector that is collecting already."""
        kept = {"name": "collector_go_on_task", "task_id": state.task_id}
        answer = coordinator.ask(state, kept)
        coordinator.deal_with_task_started(state)
        state.step_limit = answer.get("step_limit") or 0
        with coordinator.condition:
            payloads = coordinator.state.payloads_of(state)
            admission = None if payloads is None else payloads.admission
            if admission is not None and not state.is_evaluation:
                used, policy_iter = answer.get("delivered_steps", 0), answer.get("policy_iter", 0)
                admission.rejoin(state.task_id, int(state.step_limit), int(used), int(policy_iter))
        self._collect(coordinator, state)

    def _collect(self, coordinator: Coordinator, state: TaskState) -> None:
        coordinator.deal_with_collecting()
        is_done, starved_at = False, None
        answers_left = LAST_ANSWERS
        while answers_left and not coordinator.must_end(state):
            answer = coordinator.ask(state, self._demand(coordinator, state, starved_at))
            coordinator.deal_with_storage(state, str(answer.get("held_up_by", "")))
            reports, starved_at = answer["reports"], answer.get("starved_at")
            state.waiting = {str(r["data_id"]): int(r["rows"]) for r in reports if "data_id" in r}
            for report in reports:
                if "data_id" in report:
                    _acknowledge(coordinator, state, report)
                is_done |= coordinator.deal_with_collector_judge_finish(state.task_id, report)
            if answer["has_ended"]:
                break
            # A collector that is done may still have samples to send.
            answers_left -= is_done
        finished = coordinator.ask(state, {"name": "collector_close_task"})
        coordinator.deal_with_collector_finish_task(state.task_id, finished)

    def _demand(
        self, coordinator: Coordinator, state: TaskState, starved_at: int | None
    ) -> dict[str, Any]:
        """Return the next message to a collector; wait while it can take no env step.

        Args:
            starved_at: Env steps that it has taken if it waits for a higher limit; None if it does
                not.
        """
        demand: dict[str, Any] = {"name": "collector_data_task"}

        def can_go_on() -> bool:
            demand.update(coordinator.limits.of(state))
            demand["ends_now"] = coordinator.end.wants_end_of(state)
            limit = demand["step_limit"]
            is_starved = None not in (starved_at, limit) and limit <= starved_at
            return not is_starved or demand["ends_now"] or coordinator.must_end(state)

        with coordinator.condition:
            coordinator.condition.wait_for(can_go_on, WAIT_S)
            demand["is_held_up"] = bool(coordinator.state.outage.text)
            setting = coordinator.state.commander.get_collect_setting(state.task_id)
            if setting not in (None, state.collect_setting):
                demand["collect_setting"] = state.collect_setting = setting
        return demand


def _replay_of(role: Role, transport: Transport) -> ReplayClient | None:
    """Return a worker's client of the run's replay server, if it has one."""
    section = role.run_cfg["system"].get("replay") or {}
    if section.get("type") != "server":
        return None
    own = "" if section["address"] else transport.run_dir / FOLDER
    return ReplayClient(
        section["address"], section["path"] or own or None, timeout_s=section["timeout_s"]
    )


def _comm_section(role: Role) -> dict[str, Any]:
    """Return the section of a comm worker; its tasks may import the modules of this config."""
    section = {"type": "base", **role.run_cfg["system"].get(role.name, {})}
    section["allowed_modules"] = sorted(
        named_modules(role.run_cfg).union(section.get("allowed_modules") or ())
    )
    return section


def _acknowledge(coordinator: Coordinator, state: TaskState, report: Mapping[str, Any]) -> None:
    """Add a payload once the buffer admits it; until then the worker's report queue fills.

    There is no deadline: a collector waits as long as its learner needs, and the learner has its
    own deadlines. At the end of the run the payload is left unacknowledged.
    """
    rows = int(report["rows"])

    def can_go_on() -> bool:
        payloads = coordinator.state.payloads_of(state)
        return coordinator.is_ending or payloads is None or payloads.can_push(rows)

    def is_done() -> bool:
        ids = (state.task_id, state.buffer_id, str(report["data_id"]))
        return coordinator.is_ending or coordinator.deal_with_collector_send_data(*ids, report)

    if is_done():
        return
    with _waiting(state, f"room for {rows} rows in the replay buffer"):
        while True:
            with coordinator.condition:
                if coordinator.state.outage.text:  # the buffer has room, the disk has none
                    coordinator.condition.wait_for(lambda: coordinator.is_ending, REFUSED_PAUSE_S)
                coordinator.condition.wait_for(can_go_on, WAIT_S)
            # Another collector may take the room between the wait and the push.
            if is_done():
                return


@contextmanager
def _waiting(state: TaskState, what: str) -> Iterator[None]:
    """Record what a driver waits for, for the warning that a run makes no progress."""
    state.waits_for = what
    try:
        yield
    finally:
        state.waits_for = ""
