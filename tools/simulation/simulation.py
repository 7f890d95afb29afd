"""Simulates a whole parallel run with faults, in virtual time; one seed determines everything."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ParamSpec

from dingsdk.config import deep_merge_dicts, to_easydict
from dingsdk.data import SampleBatch
from dingsdk.errors import (
    CheckpointMissingError,
    ClosedError,
    ConflictError,
    DingError,
    PoisonTaskError,
    RunDirLockedError,
    StorageFullError,
    TaskFailedError,
    WorkerLostError,
)
from dingsdk.worker.comm import CommWorker, TaskAnswer, WorkerInfo
from dingsdk.worker.coordinator import Coordinator
from dingsdk.worker.coordinator.journal import OWNER_NAME, Journal
from dingsdk.worker.coordinator.live_payloads import LivePayloads
from dingsdk.worker.learner.checkpoint import Checkpoint, load_checkpoint
from dingsdk.worker.replay_buffer.home import Home, TableHome
from dingsdk.worker.replay_buffer.interface import RowListener
from tools.simulation.disk import SimulatedDisk, SimulatedFolder, SimulatedTransport
from tools.simulation.faults import (
    ENDING,
    OF_JOURNAL,
    OF_NETWORK,
    STORIES,
    SimulatedFault,
    random_faults,
    story_faults,
)
from tools.simulation.oracle import SampleOracle
from tools.simulation.workers import ROWS, STEP_S, WORKERS
from tools.simulation.world import (
    LinkFaults,
    ProcessKilled,
    SimulatedJob,
    SimulatedProcess,
    World,
)

CHECK_S = 1.0
LEASE_S = 6.0
PROGRESS_TIMEOUT_S = 8.0
START_TIMEOUT_S = 15.0
TICK_S = 0.5
LOST_WITHIN_S = 3 * LEASE_S + PROGRESS_TIMEOUT_S
"""How long after a fault its process may still be given up, and how soon it has to be."""
SETTLED_S = 45.0
"""Time after the last fault within which the run must work normally again."""
LATE_S = 4.0
"""How late a message, and the effects of a late message, may be."""
CLOSE_S = 10.0
REJOIN_S = 60.0
MOST_LOSSES = 3
"""``max_attempts`` for stories that kill the learner more often, or whose task kills workers."""
START = "coordinator-start"
JOURNAL = "journal"
SNAPSHOT_FACTS = 100
LATEST_S = 0.4
"""A file that becomes visible this late can still be read."""
TORN_WITHIN_S, TORN_AMONG = 15.0, 8
"""A ``tear`` kills its process in one of the next ``TORN_AMONG`` writes, each equally likely."""

P = ParamSpec("P")
TransportMaker = Callable[[SimulatedProcess, SimulatedDisk], SimulatedTransport]


class SimulationError(DingError, AssertionError):
    """A simulated run broke a promise. Facts: ``seed``, ``at``, ``faults``, ``why``."""


class SimulatedEnvError(RuntimeError):
    """The error that the env of a simulated worker raises."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a simulated run.

    Attributes:
        collectors: Number of collectors; there is one learner.
        capacity: Capacity of the replay buffer in rows.
        max_use: How often a sample may be trained on; None for no limit.
        batch_size: Rows of a batch; if on-policy, the least number of rows for a training.
        is_limited: Whether the buffer has a limiter, so that collectors wait for the learner.
        max_attempts: ``system.coordinator.max_attempts``.
        has_journal: Whether the coordinator keeps a journal, and can be restarted.
        on_policy: Whether each training takes all rows in the buffer, once; then the capacity and
            the limits of the buffer have no effect.
        max_policy_lag: How many iterations the policy of an on-policy row may be behind.
    """

    collectors: int = 4
    capacity: int = 64
    max_use: int | None = None
    batch_size: int = 8
    is_limited: bool = False
    max_attempts: int = 50
    has_journal: bool = False
    on_policy: bool = False
    max_policy_lag: int = 0


@functools.cache
def _compiled() -> Mapping[str, Any]:
    from dingsdk.pipeline.train import compile_run

    sets = (
        "policy.other.commander.type=naive",
        "system.learner.send_policy_freq=5",
        f"system.learner.progress_timeout_s={PROGRESS_TIMEOUT_S}",
        f"system.collector.progress_timeout_s={PROGRESS_TIMEOUT_S}",
        f"system.coordinator.lease_s={LEASE_S}",
        f"system.coordinator.start_timeout_s={START_TIMEOUT_S}",
        "system.coordinator.answer_timeout_s=20",
        "system.coordinator.learn_timeout_s=40",
        "system.coordinator.orphan_grace_s=20",
    )
    cfg: Mapping[str, Any] = compile_run("cartpole-dqn", "parallel", "in_memory", sets, 0)
    return cfg


def _config(setting: Setting) -> Any:
    buffer: dict[str, Any] = {"replay_buffer_size": setting.capacity, "seed": 1}
    if setting.max_use is not None:
        buffer |= {"type": "advanced", "max_use": setting.max_use}
        buffer["sampler"] = {"type": "proportional"}
    if setting.is_limited:
        rate = setting.batch_size / (ROWS * setting.collectors)
        buffer["limiter"] = {
            "type": "samples_per_insert",
            "samples_per_insert": rate,
            "min_size": setting.batch_size,
            "error_buffer": rate * ROWS * 2 * setting.collectors,
        }
    changes = {
        "policy": {
            "on_policy": setting.on_policy,
            "collect": {"n_sample": setting.batch_size},
            "learn": {"batch_size": setting.batch_size, "update_per_collect": 1},
            "other": {
                "replay_buffer": buffer,
                "commander": {"max_policy_lag": setting.max_policy_lag},
            },
        },
        "system": {
            "collector_num": setting.collectors,
            "coordinator": {"max_attempts": setting.max_attempts},
        },
    }
    return to_easydict(deep_merge_dicts(_compiled(), changes))


def _oracle(setting: Setting) -> SampleOracle:
    if setting.on_policy:
        return SampleOracle(None, 1, setting.max_policy_lag)
    rate = None
    if setting.is_limited:
        limiter = _config(setting)["policy"]["other"]["replay_buffer"]["limiter"]
        ratio = limiter["samples_per_insert"]
        rate = ratio, limiter["error_buffer"] - ratio * limiter["min_size"]
    return SampleOracle(setting.capacity, setting.max_use, rate=rate)


def _roles(setting: Setting) -> dict[str, str]:
    ids = [f"collector-{n}" for n in range(setting.collectors)]
    return {**dict.fromkeys(ids, "collector"), "learner-0": "learner"}


def plan(seed: int, until: float) -> tuple[Setting, list[SimulatedFault]]:
    """Return the setting and the faults of a seed.

    Successive seeds use the stories in turn, so a few dozen seeds cover all of them. About half of
    the seeds have random faults in addition.

    Args:
        seed: The seed.
        until: The time before which a story and the random faults begin.
    """
    chance = random.Random(f"plan {seed}")
    story = STORIES[seed % len(STORIES)]
    setting = Setting(
        collectors=chance.choice([2, 2, 4]),
        capacity=chance.choice([64, 64, 1024]),
        max_use=chance.choice([None, 1, 3]),
        is_limited=chance.random() < 0.3,
        has_journal=chance.random() < 0.4
        or any((step.kind, step.target) in OF_JOURNAL for step in story),
    )
    workers = list(_roles(setting))
    faults = story_faults(story, chance, workers, until)
    losses = sum((step.kind, step.target) == ("kill", "learner-0") for step in story)
    if any(step.kind == "kill" and (step.for_s or 0.0) > SETTLED_S for step in story):
        setting = replace(setting, is_limited=True)
    elif any(step.kind == "poison" for step in story) or losses > MOST_LOSSES:
        setting = replace(setting, max_attempts=MOST_LOSSES)
    elif chance.random() < 0.5 and not any(step.kind in ENDING for step in story):
        faults += random_faults(chance, [*workers, "learner-0"], until)
    if not setting.has_journal:
        faults = [each for each in faults if (each.kind, each.target) not in OF_JOURNAL]
    if chance.random() < 1 / 3:
        setting = replace(
            setting,
            on_policy=True,
            max_policy_lag=chance.choice([0, 1, 2]),
            batch_size=chance.choice([8, 12, 20]),
            capacity=1024,
            max_use=None,
            is_limited=False,
            # The learner may not reach a checkpoint between two losses.
            max_attempts=setting.max_attempts if losses <= MOST_LOSSES else Setting().max_attempts,
        )
    return setting, sorted(faults, key=lambda fault: fault.at)


class Simulation:
    """A coordinator, a learner and collectors in virtual time, each in its own simulated process.

    Coordinator, workers and replay buffer are those of real runs. The work itself only
    takes time: a collector stores one payload per second, the learner trains on one batch per
    second. The seed determines everything that happens.

    Args:
        seed: Determines the setting, the faults, the delays and the order of jobs.
        transport: Makes the transport of each process.
        faults: The faults; None to choose them by the seed.
        setting: The setting; None to choose it by the seed.
        duration_s: Virtual seconds in which faults begin.

    Example:
        ``Simulation(7, transport=SimulatedFlaskFS).run()`` raises ``SimulationError`` if a promise
        is broken.
    """

    def __init__(
        self,
        seed: int,
        *,
        transport: TransportMaker,
        faults: Sequence[SimulatedFault] | None = None,
        setting: Setting | None = None,
        duration_s: float = 20.0,
    ) -> None:
        chosen, planned = plan(seed, duration_s)
        if not getattr(transport, "has_network", True):
            # Its coordinator only dies together with the workers.
            left_out = {pair for pair in OF_JOURNAL if pair[0] != "crash"}
            planned = [each for each in planned if each.kind not in OF_NETWORK]
            planned = [each for each in planned if (each.kind, each.target) not in left_out]
            chosen = replace(chosen, has_journal=any(each.kind == "crash" for each in planned))
        self.seed = seed
        self.setting = chosen if setting is None else setting
        self.faults = planned if faults is None else list(faults)
        self._roles = _roles(self.setting)
        self._transport = transport
        self._duration_s = duration_s
        self.world = World(seed)
        self.disk = SimulatedDisk(self.world)
        self.oracle = _oracle(self.setting)
        self.disk.on_deleted = self._deleted
        self._saved: dict[str, int] = {}
        """Iteration of the newest checkpoint of each folder."""
        self.processes: dict[str, SimulatedProcess] = {}
        self.coordinator: _WatchedCoordinator
        self._workers: dict[str, CommWorker] = {}
        self._why = ""
        self._slow: dict[str, float] = {}
        self._hangs_until: dict[str, float] = {}
        self._repeats: dict[str, int] = {}
        self.harmed: set[str] = set()
        self._damaged: set[str] = set()
        """Which kinds of files were damaged."""
        self._is_ever_late = False
        self._poisoned = self._raising = self._conflicting = ""
        self._ends_by: type[DingError] | None = None
        """The error with which a fault makes the run end."""
        self._has_to_end_at = math.inf
        self._faulty_until: dict[str, float] = {}
        self._may_be_lost_until: dict[str, float] = {}
        self._unreachable_since: dict[str, float] = {}
        self._policies_read: dict[tuple[str, str], int] = {}
        self._deleted_at_start: list[str] = []
        self._close_began: float | None = None

    def run(self) -> None:
        """Simulate the run to its end.

        Raises:
            SimulationError: a promise was broken.
        """
        self._start_coordinator()
        for name in self._roles:
            self._start_worker(name)
        for fault in self.faults:
            self.world.at(fault.at, functools.partial(self._begin, fault))
        ends = [fault.at + fault.for_s for fault in self.faults]
        self._run_until(max([self._duration_s, *ends]) + SETTLED_S)
        if self._has_to_end_at < math.inf:
            self._run_until(self._has_to_end_at + 2 * CHECK_S)
        elif self._ends_by is None:
            before = self._progress()
            self._run_until(self.world.now + SETTLED_S / 3)
            self._check_progress(before, self._progress())
        self._close()

    def _run_until(self, until: float) -> None:
        while self.world.now < until and not self._has_ended:
            self._pass(min(until - self.world.now, CHECK_S))
            self.judge(self._check)
            self._raise()

    def _pass(self, seconds: float) -> None:
        self.judge(self.world.run, self.world.now + seconds)
        self._raise()

    @property
    def _has_ended(self) -> bool:
        return self._ends_by is not None and isinstance(self.coordinator.end.failure, self._ends_by)

    def fail(self, why: str, cause: BaseException | None = None) -> None:
        """Record that a promise was broken; the run ends with an error at the next check."""
        if not self._why:
            self._why, self._cause, self._failed_at = why, cause, self.world.now

    def judge(self, check: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call ``check``; if it raises AssertionError, record that a promise was broken."""
        try:
            check(*args, **kwargs)
        except AssertionError as error:
            self.fail(str(error), error)

    _cause: BaseException | None = None
    _failed_at = 0.0

    def _raise(self) -> None:
        if self._why:
            faults = "".join(f"\n  {fault}" for fault in self.faults) or " none"
            raise SimulationError(
                f"seed {self.seed}, {self._failed_at:.3f} s: {self._why}; {self.setting}; faults:"
                f"{faults}",
                seed=self.seed,
                at=self._failed_at,
                faults=tuple(self.faults),
                why=self._why,
            ) from self._cause

    # Called by the workers of the simulation.
    def work(self, worker: CommWorker, seconds: float) -> None:
        """Simulate work of a worker, which takes time."""
        name = worker.info.worker_id
        process, world = self.processes[name], self.world
        process.sleep(seconds * world.random.uniform(0.8, 1.2) * self._slow.get(name, 1.0))
        self.build(worker)
        if name == self._raising:
            self._has_to_end_at = min(self._has_to_end_at, world.now + LOST_WITHIN_S)
            raise SimulatedEnvError("on purpose")

    def build(self, worker: CommWorker) -> None:
        """Simulate that a worker prepares a task; it may hang."""
        name, world = worker.info.worker_id, self.world
        process = self.processes[name]
        while self._hangs_until.get(name, 0.0) > world.now:
            # Counts as unreachable only after the timeouts for progress and start.
            since = world.now + max(PROGRESS_TIMEOUT_S, START_TIMEOUT_S)
            self._unreachable_since.setdefault(name, since)
            process.sleep(self._hangs_until[name] - world.now)
            self._unreachable_since.pop(name, None)
        if name == self._poisoned:
            world.at(world.now, process.kill)
            world.at(world.now + 1.0, lambda: self._start_worker(name))
            process.sleep(0.5)

    def announcements(self, worker: CommWorker) -> list[dict[str, str]]:
        """Return a dict of extra facts for each announcement of a payload by a collector."""
        name = worker.info.worker_id
        found: list[dict[str, str]] = [{}] * (1 + self._repeats.get(name, 0))
        if name == self._conflicting:
            self._has_to_end_at = min(self._has_to_end_at, self.world.now + LOST_WITHIN_S)
            found.append({"digest": "test:of another payload"})
        return found

    def acknowledged(self, data_ids: Sequence[str]) -> None:
        """Record payloads that a collector considers acknowledged.

        The coordinator skips payloads that were lost, or became visible too late.
        """
        may_vanish = self.harmed | (set(data_ids) if self._is_ever_late else set())
        accepted = self.oracle.accepted
        known = [each for each in data_ids if each in accepted or each not in may_vanish]
        self.judge(self.oracle.acknowledge, known)

    def watch(self, home: Home, number: int, first_iter: int) -> None:
        """Report to the oracle what happens in the home of a learner that begins at a step."""
        self.oracle.begin_learner(number, first_iter)
        if isinstance(home, TableHome):
            home.buffer.add_listener(_Watched(self, number))
        report = home.report

        def made(confirmed: int = 0) -> dict[str, Any]:
            before, found = home._reported, report(confirmed)
            if home._reported > before:
                self.judge(self.oracle.reported, number, home._reports[-1], home.count())
            return found

        home.report = made  # type: ignore[method-assign]

    def read(self, home: int, data_id: str, lost: str = "") -> None:
        """Record that a home has read a payload; check that there is a reason if it is lost."""
        self.judge(self.oracle.tried, home, data_id, lost)
        if lost and data_id not in self.harmed and not self._is_ever_late:
            self.fail(f"payload {data_id!r} is lost without a reason")

    def trained(self, home: int, batch: SampleBatch, train_iter: int) -> None:
        """Record that a learner trains on a batch."""
        self.judge(self.oracle.trained, home, batch.columns["sample"].tolist(), train_iter)

    def _deleted(self, data_id: str) -> None:
        if self._is_up:
            self.judge(self.oracle.deleted, data_id)
        else:  # a starting coordinator deletes before the oracle knows which rows it has
            self._deleted_at_start.append(data_id)

    def policy_read(self, worker_id: str, path: str, found: Mapping[str, Any]) -> None:
        """Check that a policy is not older than the one that the worker read before."""
        version = int(found["iter"])
        if version < self._policies_read.get((worker_id, path), -1):
            self.fail(f"{worker_id} read version {version} of its policy after a newer one")
        self._policies_read[worker_id, path] = version

    def checkpoints(self, worker: CommWorker, task_id: str) -> SimulatedFolder:
        """Return the folder of a learner's checkpoints."""
        process = self.processes[worker.info.worker_id]
        return SimulatedFolder(process, self.disk, f"ckpt-{task_id}")

    def checkpoint_saved(self, folder: SimulatedFolder, iteration: int, home: int) -> None:
        """Record that the learner of a home saved a checkpoint as the newest."""
        self._saved[str(folder.path)] = iteration
        self.oracle.saved_by[iteration] = home

    def resumed_from(self, folder: SimulatedFolder) -> Checkpoint:
        """Return the checkpoint from which a learner resumes; check that none was lost."""
        saved = self._saved.get(str(folder.path), 0)
        try:
            found = load_checkpoint(folder)
        except CheckpointMissingError:
            if saved:
                self.fail(f"no checkpoint is left, and one was saved at iteration {saved}")
            return Checkpoint(iteration=0, envstep=0, meta={}, state={})
        if "damage_checkpoint" not in self._damaged and (found.skipped or found.iteration < saved):
            self.fail(
                f"the checkpoint of iteration {found.iteration} is loaded, {saved} was saved; "
                f"passed over: {found.skipped}"
            )
        return found

    # Processes.
    def _new_process(self, name: str) -> SimulatedProcess:
        process = SimulatedProcess(self.world, name, self._job_raised)
        self.processes[name] = process
        self.world.network.faults[name] = self.world.network.faults.get(name, LinkFaults())
        return process

    def _start_coordinator(self) -> None:
        process = self._new_process("coordinator")
        transport = self._transport(process, self.disk)
        journal = None
        if self.setting.has_journal:
            folder = SimulatedFolder(process, self.disk, JOURNAL, is_slow=False)
            self._epochs += 1
            owner = f"coordinator {self._epochs}"
            journal = Journal(folder, owner=owner, snapshot_facts=SNAPSHOT_FACTS)
        self._is_up = False
        made = _WatchedCoordinator(self, _config(self.setting), transport, journal)
        self.coordinator = made
        process.scheduler.spawn(functools.partial(self._open, made), START)

    _epochs = 0
    leader: Coordinator | None = None
    """The coordinator that took over the journal last."""
    _is_up = False
    _up_since = 0.0

    def _open(self, coordinator: _WatchedCoordinator) -> None:
        coordinator.start()
        self.judge(coordinator.tell_oracle)
        self._is_up, self._up_since = True, self.world.now
        while self._deleted_at_start:
            self._deleted(self._deleted_at_start.pop())

    def check_lease(self, worker: CommWorker) -> None:
        """Check that a worker stores nothing after its lease has ended."""
        since = max(worker._renewed_at, worker._job_started_at)
        silent_s = worker._clock() - since
        if silent_s > LEASE_S + STEP_S and not worker.is_stopping:
            self.fail(f"{worker.info.worker_id} works on {silent_s:.1f} s after its last renewal")

    def _restart_coordinator(self) -> None:
        if self.processes["coordinator"].is_dead:
            self._start_coordinator()

    def _start_worker(self, name: str) -> None:
        if name in self.processes and not self.processes[name].is_dead:
            return
        process = self._new_process(name)
        role = self._roles[name]
        worker_cls: Any = WORKERS[role]
        cfg = self.coordinator._cfg["system"][role]
        transport = self._transport(process, self.disk)
        worker = worker_cls(cfg, transport, name, self)
        worker.rejoin_s = REJOIN_S
        self._workers[name] = worker
        process.scheduler.spawn(lambda: worker.start("coordinator"), f"{name}-start")

    def _job_raised(self, job: SimulatedJob, error: BaseException) -> None:
        expected: tuple[type[BaseException], ...]
        expected = ProcessKilled, ClosedError, WorkerLostError, SimulatedEnvError
        name = job.process.name
        if job.process is not self.processes[name] or self._ends_by is RunDirLockedError:
            expected = *expected, RunDirLockedError
        if isinstance(error, WorkerLostError) and self._may_be_lost(name):
            # Its work has ended; the coordinator finds out when it next asks about its task.
            self._may_be_lost_until[name] = math.inf
        if job.name == START and isinstance(error, StorageFullError):
            # The disk was full at the start; as in a real run, the supervisor tries again.
            process, again = job.process, self.world.now + 1.0
            self.world.at(self.world.now, lambda: self._kill(process, again))
            return
        if not isinstance(error, expected):
            self.fail(f"job {job.name} raised {type(error).__name__}: {error}", error)

    # Faults.
    def _begin(self, fault: SimulatedFault) -> None:
        world, name = self.world, fault.target
        end = world.now + fault.for_s
        process = self.processes.get(name)
        link = world.network.faults[name] if process is not None else LinkFaults()
        may_lose = True
        match fault.kind:
            case "kill" if process is not None and not process.is_dead:
                self._kill(process, end)
            case "tear" if process is not None:
                self._tear(name, fault.for_s)
                end, may_lose = math.inf, False
            case "stop" if process is not None:
                process.resumes_at = max(end, process.resumes_at)
                self._unreachable_since.setdefault(name, world.now)
            case "crash" if self._is_up:
                self._crash(end)
            case "usurp" if process is not None and not process.is_dead and self._is_up:
                process.resumes_at = max(end, process.resumes_at)
                old = self.coordinator
                world.at(process.resumes_at + LOST_WITHIN_S, lambda: self._retire(old, process))
                self._start_coordinator()
            case "hang":
                self._hangs_until[name] = end
            case "slow":
                self._slow[name] = fault.amount
                world.at(end, lambda: self._slow.pop(name, None))
                may_lose = False
            case "jump" if process is not None:
                process.clock_offset_s += fault.amount
                # After a jump of its clock, it does not wait long enough for a late payload.
                self._is_ever_late |= self.disk.late_s > 0
                may_lose = name != "coordinator"
            case "cut":
                link.is_cut = True
                self._unreachable_since.setdefault(name, world.now)
                world.at(end, lambda: setattr(link, "is_cut", False))
            case "late":
                link.late_s = fault.amount
                world.at(end, lambda: setattr(link, "late_s", 0.0))
                may_lose = fault.amount > 1.0
            case "lost":
                link.lost_share = fault.amount
                world.at(end, lambda: setattr(link, "lost_share", 0.0))
                may_lose = fault.for_s > 1.0  # otherwise there is time to send everything again
            case "doubled":
                link.doubled_share = fault.amount
                world.at(end, lambda: setattr(link, "doubled_share", 0.0))
                may_lose = False
            case "repeat":
                self._repeats[name] = int(fault.amount)
                world.at(end, lambda: self._repeats.pop(name, None))
                may_lose = False
            case "stray" if process is not None and not process.is_dead:
                process.scheduler.spawn(lambda: self._answer_for_others(name), "stray")
                may_lose = False
            case "raise":
                self._raising, self._ends_by = name, TaskFailedError
            case "conflict":
                self._conflicting, self._ends_by = name, ConflictError
            case "unlock" if f"{JOURNAL}/{OWNER_NAME}" in self.disk.files:
                del self.disk.files[f"{JOURNAL}/{OWNER_NAME}"]
                self._ends_by = RunDirLockedError
                self._has_to_end_at = world.now + LEASE_S
            case "poison" if process is not None:
                self._poisoned, self._ends_by, end = name, PoisonTaskError, math.inf
                self._has_to_end_at = world.now + 4 * LOST_WITHIN_S
                world.at(world.now, lambda: None if process.is_dead else process.kill())
                world.at(world.now + 1.0, lambda: self._start_worker(name))
            case _:
                may_lose = False
                self._begin_of_disk(fault, end)
        if end < math.inf:
            world.at(end, lambda: self._unreachable_since.pop(name, None))
        if may_lose:
            self._allow_loss(name, end)

    def _answer_for_others(self, name: str) -> None:
        """Let a worker answer the tasks of all other workers, and a task that does not exist."""
        end, tasks = self._workers[name]._end, self.coordinator.master._open
        others = [each for other, ids in tasks.items() if other != name for each in ids]
        if end is None:
            return  # it has not started to join
        with suppress(DingError):  # the worker is lost, or the run ends
            for task_id in [*others, "t0"]:
                end.answer(TaskAnswer(task_id, True, {}))

    def _allow_loss(self, name: str, end: float) -> None:
        """Allow a worker to be given up after a fault; for the coordinator, all workers."""
        for each in self._roles if name == "coordinator" else [name]:
            until = self._may_be_lost_until.get(each, 0.0)
            self._may_be_lost_until[each] = max(until, end + LOST_WITHIN_S)
            self._faulty_until[each] = max(end, self._faulty_until.get(each, 0.0))

    def _tear(self, name: str, for_s: float) -> None:
        """Let a process die in the middle of one of its next writes, if it writes soon."""
        disk, world = self.disk, self.world
        disk.torn_writer, disk.writes_left = name, world.random.randrange(TORN_AMONG)

        def torn() -> None:
            end = world.now + for_s
            self._allow_loss(name, end)
            world.at(world.now, lambda: self._kill(self.processes[name], end))
            world.at(end, lambda: self._unreachable_since.pop(name, None))

        disk.on_torn = torn
        world.at(world.now + TORN_WITHIN_S, lambda: setattr(disk, "torn_writer", ""))

    def _retire(self, old: Coordinator, process: SimulatedProcess) -> None:
        """Check that a replaced coordinator has noticed it, and end its process."""
        if not process.is_dead and not isinstance(old.end.failure, RunDirLockedError):
            self.fail(f"a coordinator that was replaced has not noticed it: {old.end.failure}")
        process.kill()

    def _kill(self, process: SimulatedProcess, until: float) -> None:
        """Kill a process, and start it again at a time."""
        name = process.name
        process.kill()
        if name == "coordinator":
            self._is_up = False
            self.world.at(until, self._restart_coordinator)
        else:
            self.world.at(until, lambda: self._start_worker(name))
        self._unreachable_since.setdefault(name, self.world.now)

    def _crash(self, until: float) -> None:
        """Kill all processes and clear their memory; at ``until`` they restart from the disk."""
        disk, world = self.disk, self.world
        self.harmed.update(disk.payloads)
        disk.payloads.clear()
        disk.shared.clear()
        disk.damages_next = ""  # there is no older policy that could be read instead
        for name in [each for each in disk.files if each.startswith("shared/")]:
            del disk.files[name]
        self._policies_read.clear()
        # Workers start after the coordinator, which they join.
        starts = {"coordinator": until, **dict.fromkeys(self._roles, until + 0.5)}
        for name, at in starts.items():
            if not self.processes[name].is_dead:
                self._kill(self.processes[name], at)
            world.at(at, functools.partial(self._unreachable_since.pop, name, None))

    def _begin_of_disk(self, fault: SimulatedFault, end: float) -> None:
        disk, world = self.disk, self.world
        names = sorted(disk.payloads, key=lambda each: disk.payloads[each][2])
        match fault.kind:
            case "disk_full":
                disk.is_full = True
                world.at(end, lambda: setattr(disk, "is_full", False))
            case "disk_slow":
                before, disk.write_s = disk.write_s, fault.amount
                world.at(end, lambda: setattr(disk, "write_s", before))
            case "disk_late":
                disk.late_s = fault.amount
                self._is_ever_late |= fault.amount > LATEST_S
                world.at(end, lambda: setattr(disk, "late_s", 0.0))
            # At most one of each kind, and not the first, so that an older one is always whole.
            case "damage_policy" if fault.kind not in self._damaged and any(
                name.endswith(".ding") for name in disk.files
            ):
                self._damaged.add(fault.kind)
                disk.damages_next = r"[0-9]+-[0-9a-f]+\.ding"
            case "damage_checkpoint" if fault.kind not in self._damaged and self._saved:
                self._damaged.add(fault.kind)
                disk.damages_next = r"iteration_.*|latest\.json"
            case "lose_payload" | "damage_payload" | "swap_payload" if names:
                chosen = world.random.choice(names)
                self.harmed.add(chosen)
                batch, _, at, writer = disk.payloads[chosen]
                if fault.kind == "lose_payload":
                    del disk.payloads[chosen]
                elif fault.kind == "damage_payload":
                    disk.damaged.add(chosen)
                else:
                    other = SampleBatch({"sample": batch.columns["sample"] + (1 << 40)})
                    disk.payloads[chosen] = other, "test:another", at, writer

    # Checks.
    def lost(self, info: WorkerInfo, reason: str) -> None:
        """Check that there was a reason to give up a worker."""
        if self._close_began is None and not self._may_be_lost(info.worker_id):
            self.fail(f"{info.worker_id} was given up without a reason: {reason}")
        is_poisoned = info.worker_id == self._poisoned
        if self._may_be_lost_until.get(info.worker_id) == math.inf and not is_poisoned:
            self._may_be_lost_until[info.worker_id] = self.world.now + LOST_WITHIN_S

    def joined(self, worker_id: str) -> None:
        """Record that a worker was announced; from then on there is no reason to give it up."""
        if self.world.now >= self._faulty_until.get(worker_id, 0.0):
            until = self._may_be_lost_until.get(worker_id, 0.0)
            self._may_be_lost_until[worker_id] = min(until, self.world.now + LATE_S)

    def _may_be_lost(self, worker_id: str) -> bool:
        return self.world.now <= self._may_be_lost_until.get(worker_id, -1.0)

    def _check(self) -> None:
        coordinator = self.coordinator
        if self._has_ended or not self._is_up:
            return
        if self.world.now > self._has_to_end_at:
            self.fail(f"the run did not end by {self._ends_by} in time")
        if coordinator.end.failure is not None and self._close_began is None:
            self.fail(f"the run failed: {coordinator.end.failure}", coordinator.end.failure)
        coordinator.validate_state()
        coordinator.check_oracle()
        self._check_leases()
        self._restart_workers()

    def _restart_workers(self) -> None:
        """Restart the processes of workers that have ended, as a real run does."""
        for name, worker in self._workers.items():
            process = self.processes[name]
            if worker.is_over and not process.is_dead and process.resumes_at <= self.world.now:
                process.kill()
                self._start_worker(name)

    def _check_leases(self) -> None:
        now, silent_since = self.world.now, self._unreachable_since
        if not silent_since or "coordinator" in silent_since:
            return
        # If the coordinator was stopped or restarted, the time counts from when it continued.
        awake_at = max(self._up_since, self.processes["coordinator"].resumes_at)
        for name in self.coordinator.master.workers:
            since = max(awake_at, silent_since.get(name, now))
            if now - since > LOST_WITHIN_S:
                raise AssertionError(f"{name} cannot be reached since {since:.1f} s, and is joined")

    def _progress(self) -> dict[str, int]:
        """The progress of the run: train iterations, joined workers and acknowledged payloads."""
        found = {"train_iter": self.coordinator.status().train_iter}
        for name in self.coordinator.master.workers:
            found[name] = 0
        return {**found, "acknowledged": len(self.oracle.acknowledged)}

    def _check_progress(self, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        missing = self._roles.keys() - (before.keys() & after.keys())
        if missing:
            self.fail(f"{sorted(missing)} did not come back")
        tasks = {
            each.worker.worker_id for each in self.coordinator.state.running.values() if each.worker
        }
        idle = self._roles.keys() - tasks
        if len(idle) > 1:  # one may be between two tasks
            self.fail(f"{sorted(idle)} have no task")
        for name in ("train_iter", "acknowledged"):
            if after[name] <= before[name]:
                self.fail(f"{name} stands still at {after[name]}")
        self._raise()

    def _close(self) -> None:
        self._close_began = self.world.now
        if self._ends_by is None:  # the learner trains on until it is told
            self.world.network.faults["learner-0"].late_s = 0.3
        coordinator, stuck = self.coordinator, ["the close itself"]

        def close() -> None:
            stuck[:] = coordinator.close(CLOSE_S)

        self.processes["coordinator"].scheduler.spawn(close, "close")
        self._pass(2 * CLOSE_S)
        if stuck:
            self.fail(f"did not end within {CLOSE_S} s of the close: {stuck}")
        if self._ends_by is None and (payloads := coordinator.payloads) is not None:
            self.judge(self.oracle.closed, payloads.confirmed, payloads.trained_rows)
        for name, worker in self._workers.items():
            self.processes[name].scheduler.spawn(functools.partial(_close, worker), "close")
        self._pass(CLOSE_S)
        for process in self.processes.values():
            left = [job.name for job in process.jobs if not job.done]
            if left:
                self.fail(f"jobs that did not end after the close: {left}")
        self._raise()


class _WatchedCoordinator(Coordinator):
    """Reports joined and lost workers to the simulation, and payloads to the oracle."""

    def __init__(
        self,
        simulation: Simulation,
        cfg: Any,
        transport: SimulatedTransport,
        journal: Journal | None,
    ) -> None:
        self._simulation = simulation
        self._is_told = False
        self._home = 0
        self.payloads: LivePayloads | None = None
        super().__init__(cfg, transport, tick_s=TICK_S, journal=journal, rejoin_s=LEASE_S)
        self._watch_workers()

    def tell_oracle(self) -> None:
        """Report to the oracle the payloads and counts that this coordinator starts with."""
        simulation, oracle = self._simulation, self._simulation.oracle
        self._is_told, simulation.leader = True, self
        for each in self.state.buffers.values():
            live = list(each.live_ids())
            oracle.recovered(each.confirmed, live, each.counts())
            gone = set(live) - simulation.disk.payloads.keys() - simulation.harmed
            if gone:
                simulation.fail(f"the payloads {sorted(gone)} were deleted, and are still needed")
        if oracle.accepted and not self.state.buffers:
            simulation.fail("the buffer is forgotten")

    def check_oracle(self) -> None:
        """Check the counts and the live payloads of the buffer."""
        for each in self.state.buffers.values():
            self._simulation.oracle.check(list(each.live_ids()), each.counts())

    @property
    def _is_current(self) -> bool:
        return self._simulation.leader is self

    def _watch_workers(self) -> None:
        join, lose = self.dispatcher.join, self.dispatcher.lose

        def join_one(info: WorkerInfo) -> None:
            self._simulation.joined(info.worker_id)
            join(info)

        def lose_one(info: WorkerInfo, reason: str) -> None:
            if self._is_current:
                self._simulation.lost(info, reason)
            lose(info, reason)

        self.master._on_join, self.master._on_lost = join_one, lose_one

    def _new_payloads(self, state: Any) -> Any:
        self.payloads = payloads = super()._new_payloads(state)
        simulation, oracle = self._simulation, self._simulation.oracle
        push, restart, settle = payloads.push, payloads.restart, payloads.settle
        for_new_home = payloads.for_new_home

        def push_one(meta: Mapping[str, Any], envstep: int) -> bool:
            is_new = push(meta, envstep)
            if is_new and self._is_current:
                simulation.judge(oracle.accept, str(meta["data_id"]), int(meta["rows"]))
            elif is_new and self._is_told:
                simulation.fail(f"a coordinator that was replaced acknowledges {meta}")
            return is_new

        def restart_all() -> None:
            restart()
            if self._is_current:
                self._home = oracle.begin_home(payloads.trained_rows)

        def settle_all(info: Mapping[str, Any]) -> bool:
            returned = set(getattr(payloads, "_returned", ())) & set(payloads.live_ids())
            has_news = settle(info)
            if self._is_current:
                gone = sorted(returned.difference(payloads.live_ids()))
                simulation.judge(oracle.settled, payloads.confirmed, gone)
            return bool(has_news)

        payloads.push, payloads.restart = push_one, restart_all  # type: ignore[method-assign]
        payloads.settle = settle_all  # type: ignore[method-assign]
        payloads.for_new_home = lambda: {**for_new_home(), "number": self._home}  # type: ignore[method-assign]
        return payloads


class _Watched(RowListener):
    """Reports the rows of a home's table to the oracle."""

    def __init__(self, simulation: Simulation, home: int) -> None:
        self._simulation, self._home = simulation, home

    def on_insert(self, rows: Any) -> None:
        simulation = self._simulation
        simulation.judge(simulation.oracle.entered, self._home, rows.columns["sample"].tolist())

    def on_remove(self, rows: Any, reason: str) -> None:
        if reason == "cleared":
            return  # the home is closed
        simulation, samples = self._simulation, rows.columns["sample"].tolist()
        simulation.judge(simulation.oracle.departed, self._home, samples, reason)


def _close(worker: CommWorker) -> None:
    worker.close()


def shrink(error: SimulationError, make: Callable[..., Simulation]) -> list[SimulatedFault]:
    """Return fewer faults with which a simulation still fails.

    It runs the simulation without each fault in turn, and drops the faults that are not needed for
    a failure.

    Args:
        error: The error of the simulation.
        make: Called with ``faults``; returns the same simulation with these faults.
    """
    faults = list(error.facts["faults"])
    index = 0
    while index < len(faults):
        fewer = faults[:index] + faults[index + 1 :]
        try:
            make(faults=fewer).run()
        except SimulationError:
            faults = fewer
        else:
            index += 1
    return faults
