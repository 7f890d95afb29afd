"""The comm learner: runs learners for a coordinator.

A task of a learner, step by step. Its messages are sent by ``LearnerRole``, and each is answered by
the function in brackets, while the learner's own loop runs on another thread, the *job*:

1. ``learner_start_task`` (``deal_with_learner_start``) builds the publisher of the policy, the
   learner, and the home of its samples, and starts the job (``_train``).
2. In the job, hooks of the learner load a checkpoint, if there is one, and publish the first policy
   (``send_policy``), so that collectors can begin.
3. ``learner_learn_task`` (``deal_with_learner_learn``) comes a few dozen times a second. It brings
   announcements of payloads for the home (``Home.announce``), and wakes a job that waits. The
   answer (``_info``) has the learner's progress, and which payloads the home has inserted and no
   longer needs (``Home.report``).
4. Meanwhile, in the job, the learner gets each batch by ``get_batch``: the home loads what was
   announced (``_load_payload``), inserts it, and draws a batch (``Home.sample``); without a batch
   the job waits for announcements. After each iteration, hooks call ``send_learn_info``, which
   gives the home its priorities, and at intervals ``send_policy``.
5. After the last iteration an answer says so, and ``learner_close_task``
   (``deal_with_learner_close``) ends the job and returns the last ``_info``. It also comes earlier,
   when the run ends.

After a restart of the coordinator, ``learner_go_on_task`` (``deal_with_learner_go_on``) comes in
place of the first step; the job has continued.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from dingsdk.config import Count, Positive, deep_merge_dicts
from dingsdk.data import SampleBatch
from dingsdk.errors import (
    ConfigError,
    TaskFail,
    WorkerCrashedError,
    WorkerLostError,
)
from dingsdk.plugins import default_manager
from dingsdk.policy import create_policy
from dingsdk.runtime.deadline import returns_within, warn_of_left
from dingsdk.runtime.files import Patience
from dingsdk.worker.collector.dataset import no_batch, push_recorded
from dingsdk.worker.collector.factory import takes_env_steps
from dingsdk.worker.comm.hooks import SaveAtIntervalsHook, sending_hooks
from dingsdk.worker.comm.publisher import PolicyPublisher
from dingsdk.worker.comm.slave import CLOSE_TIMEOUT_S, TaskFunctions
from dingsdk.worker.comm.transport import Transport
from dingsdk.worker.comm.worker import REPLAY_PAUSE_S, REPLAY_WAIT_S, CommWorker
from dingsdk.worker.factory import create_buffer, create_learner
from dingsdk.worker.learner.aggregator import RANK_S, LearnerAggregator
from dingsdk.worker.learner.checkpoint import can_resume, load_checkpoint
from dingsdk.worker.learner.hooks import LearnerHook
from dingsdk.worker.learner.remote_ranks import RemoteRanks
from dingsdk.worker.player_folder import player_folder
from dingsdk.worker.replay_buffer.config import PATH
from dingsdk.worker.replay_buffer.home import Home, Load, TableHome, TrainingHome
from dingsdk.worker.replay_buffer.pace import EpisodePace
from dingsdk.worker.replay_buffer.table import Table
from dingsdk.worker.replay_server import ReplayClient
from dingsdk.worker.replay_server.home import ServedHome

_log = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 0.5
"""How long to wait for the announced payloads of one message; missing ones are then given up."""
PART_CLOSE_S = 4.0
"""How long hooks, and the buffer, may take to close: less than a job may take to stop
(``CLOSE_TIMEOUT_S``)."""


class BaseCommLearner(CommWorker):
    """Builds the learner of each task with the home of its samples, and publishes its policies.

    The policy's ``observe`` gets each payload once, from the home: when its rows are inserted, or
    after the training on them if the policy is on-policy. It gets the samples of a data set when
    the first policy is published.

    A subclass may override ``get_data``, ``load_data_fn``, ``send_policy`` and
    ``send_learn_info``, which the learner calls.
    """

    role = "learner"
    learner_num = 1
    """Number of processes that train together (``system.learner_num``); this is the first one."""
    remote_ranks: RemoteRanks | None = None
    """The other processes, if they were started elsewhere (by torchrun or by hand)."""
    replay: ReplayClient | None = None
    """Replay server to sample rows from, used instead of the step data store; None for no
    server."""

    class Config(CommWorker.Config, frozen=True, kw_only=True):
        """Section ``system.learner``.

        Attributes:
            send_policy_freq: Train iterations from one published policy to the next. If the
                replay buffer has a smaller ``max_staleness``, that is used.
            save_every_s: Seconds between two checkpoints from which a run continues whose learner
                was killed, or more if saving would take over 2 % of the time. None for only those
                of the learner's hooks.
        """

        type: str = "base"
        progress_timeout_s: Positive = 120.0
        send_policy_freq: Count = 10
        save_every_s: Positive | None = 60.0

    def __init__(self, cfg: Mapping[str, Any], transport: Transport, worker_id: str) -> None:
        super().__init__(cfg, transport, worker_id)
        self._learner: Any = None
        self._ranks: LearnerAggregator | None = None
        self._home: Home | None = None
        """Where the samples are that the task trains on."""
        self._publisher: PolicyPublisher
        self._load_until = 0.0
        self._phase: Literal["loads", "trains", "done"] = "loads"
        """The job loads its checkpoint, trains, or its training is over and the hooks after it have
        saved the result."""
        self._starved_at = -1
        """Announcements that the home had taken when the job began to wait for more; -1: it does
        not wait."""
        self._trained_rows = self._earlier_rows = 0
        """Rows that it has trained on, and those that were reported when this task began."""
        self._checkpoint: Mapping[str, Any] = {}
        """What the checkpoint that the task continues from has besides the policy."""

    def _tasks(self) -> TaskFunctions:
        return {
            "resource": lambda task: self.deal_with_resource(),
            "learner_start_task": lambda task: self.deal_with_learner_start(task["task_info"]),
            "learner_learn_task": lambda task: self.deal_with_learner_learn(task["data"]),
            "learner_go_on_task": lambda task: self.deal_with_learner_go_on(
                task["task_id"], int(task.get("confirmed", 0))
            ),
            "learner_close_task": lambda task: self.deal_with_learner_close(),
        }

    def deal_with_learner_start(self, task_info: Mapping[str, Any]) -> Mapping[str, Any]:
        """Build the task's learner and run it; raises as ``building``."""
        with self.building(task_info):
            self._phase, self._checkpoint, self._starved_at = "loads", {}, -1
            self._close_home()
            self._publisher = self._create_publisher(task_info)
            self._learner = self._create_learner(task_info)
            self._earlier_rows = int(task_info["home"]["trained_rows"])
            saved = int(self._checkpoint.get("trained_rows", 0))
            self._trained_rows = max(0, saved - self._earlier_rows)
            limit_s = self.storage_timeout_s
            self._learner.patience = Patience(limit_s, self._stops_after, self._clock)
            try:
                self._home = self._create_home(task_info)
                self._home.restore_uses(self._checkpoint.get("uses", {}))
            except BaseException:
                self._learner.close()
                raise
            self._home.observe = getattr(self._learner.policy, "observe", None)
        self.start_job(self._train, self._learner.close, f"{self.info.worker_id}-learner")
        return {"message": "learner task has started"}

    def deal_with_learner_learn(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take announcements; answer after ``Home.exchange_s``, or sooner if it has no data.

        Returns:
            The learner's ``info``, and ``held_up_by``: why it waits for storage, or "".
        """
        home = self._the_home()
        self._learner.collector_envstep = int(data["env_steps"])
        with self.condition:
            if data["announcements"]:
                home.announce(data["announcements"])
                self._load_until = self._clock() + LOAD_TIMEOUT_S
                self.condition.notify_all()
            self._wait_for_checkpoint()
            self.task_wait(lambda: self._has_no_batch(home), home.exchange_s)
        self.raise_job_error()
        info = self._info(int(data["confirmed"]))
        return {"info": info, "held_up_by": self._publisher.held_up_by, **self.task_ids()}

    def deal_with_learner_go_on(self, task_id: str, confirmed: int) -> Mapping[str, Any]:
        """Continue for a new coordinator, which has processed the reports up to ``confirmed``.

        Returns:
            The learner's ``info``, and ``known``: ids of the payloads that its home has.

        Raises:
            TaskFail: the learner belongs to another task.
        """
        self.go_on_with_job(task_id)
        with self.condition:
            self._wait_for_checkpoint()
        info = self._info(confirmed)
        return {"info": info, "known": self._the_home().known_ids(), **self.task_ids()}

    def deal_with_learner_close(self) -> Mapping[str, Any]:
        """Stop the learner after its iteration; its after_run hooks run (checkpoint, policy).

        Returns:
            The task's ids, and the learner's last ``info``.
        """
        if not self.stop_job():
            raise TaskFail({"message": "stuck"}, f"{self.info.worker_id}: the learner hangs")
        answer = {"info": self._info(), **self.task_ids()}
        self._learner = None
        self._close_home()
        self.raise_job_error()
        return answer

    def _wait_for_checkpoint(self) -> None:
        """Wait, with the condition held, until the learner's iteration is that of its checkpoint.

        The coordinator assumes that the first iteration reported is the checkpoint's.
        """
        self.task_wait(lambda: self._phase != "loads", math.inf)

    def _info(self, confirmed: int = 0) -> dict[str, Any]:
        """Return the learner's info, and the reports that the coordinator has not confirmed."""
        home, is_done = self._the_home(), self._phase == "done"
        is_idle = self._has_no_batch(home) or home.is_idle
        return {
            **self._learner.learn_info,
            "learner_done": is_done,
            "priority_info": {},  # priorities stay in this process
            **home.report(confirmed),
            "trained_rows": self._trained_rows,
            "is_idle": is_idle,
            "lag": list(self._publisher.lags.lag or ()),
        }

    def _has_no_batch(self, home: Home) -> bool:
        """Return whether the job waits for announcements, or its training is over."""
        return self._starved_at == home.announced or self._phase == "done"

    def _the_home(self) -> Home:
        if self._home is None:
            raise TaskFail({"message": "no learner"}, "this learner has no task")
        return self._home

    # Built for each task.
    def _create_learner(self, task_info: Mapping[str, Any]) -> Any:
        """Build the task's learner with its policy and connect it with this worker."""
        # The run folder in the task is a path on the master's host.
        cfg = deep_merge_dicts({}, task_info["learner_cfg"])
        cfg.pop("exp_name", None)
        folder = player_folder(self.run_dir, task_info.get("player"))
        left = int(cfg["train_iterations"])
        checkpoints = _checkpoint_folder(self.run_dir, task_info)
        if checkpoints is not None:
            loading = {"load_path": str(checkpoints), "restores_settings": True}
            cfg["hook"]["load_ckpt_before_run"] = {"priority": 20, "ext_args": loading}
            found = load_checkpoint(checkpoints)
            left -= found.iteration
            self._checkpoint = found.meta
            cfg["train_iterations"] = max(1, left)
        elif task_info.get("resume"):
            text = "%s begins with new weights: there is no checkpoint in %s"
            _log.warning(text, self.info.worker_id, folder / "ckpt")
        learner: Any = create_learner(cfg, exp_name=str(folder))
        try:
            self._connect(learner, task_info, left)
        except BaseException:
            learner.close()
            raise
        return learner

    def _connect(self, learner: Any, task_info: Mapping[str, Any], left: int) -> None:
        """Give a new learner its policy, and connect it with this worker and the other ranks."""
        learner.hook_close_s = PART_CLOSE_S
        learner.checkpoint_meta = self._checkpoint_meta
        if left < 1:
            learner.train_iterations = 0  # not allowed in a config

        def send_policy(state: Mapping[str, Any]) -> None:
            self.note_loaded()  # the hooks that load a checkpoint run before this one
            self.send_policy(state)

        learner.get_data = self.data_source
        learner.send_policy = send_policy
        learner.send_learn_info = self.send_learn_info
        policy_cfg, seed = task_info["policy"], task_info.get("seed")
        learner.policy = create_policy(policy_cfg, enable_field=["learn"], seed=seed).learn_mode
        if self.learner_num > 1:
            rank_s = self._joined().lease_s or RANK_S
            try:
                self._ranks = LearnerAggregator(
                    learner.policy, policy_cfg, self.learner_num, rank_s, self.remote_ranks, seed
                )
            except WorkerCrashedError as error:
                raise _rank_lost(self.info.worker_id, error, "the start of the task") from error
            learner.policy = self._ranks.learn_mode
        for hook in self.hooks4call:
            learner.register_hook(hook)
        if self._cfg.save_every_s is not None:
            learner.register_hook(SaveAtIntervalsHook(self._cfg.save_every_s, self._clock))
        learner.setup_dataloader()

    def _checkpoint_meta(self) -> dict[str, Any]:
        """Return what another learner needs that continues from a checkpoint of this one."""
        rows = self._earlier_rows + self._trained_rows
        return {"trained_rows": rows, "uses": self._the_home().uses()}

    @property
    def hooks4call(self) -> list[LearnerHook]:
        """The hooks that make a learner publish its policy and report."""
        return sending_hooks(self._publisher.send_policy_freq)

    def _create_publisher(self, task_info: Mapping[str, Any]) -> PolicyPublisher:
        policy_id, freq = str(task_info["policy_id"]), None
        if not task_info["policy"].get("on_policy"):
            # Otherwise the rows of the newest published policy could all be stale, and no training
            # would follow after which another one is published.
            staleness = (task_info.get("replay_buffer_cfg") or {}).get("max_staleness") or math.inf
            freq = int(min(self._cfg.send_policy_freq, staleness))
        return PolicyPublisher(self, policy_id, freq)

    def _create_home(self, task_info: Mapping[str, Any]) -> Home:
        policy_cfg = task_info["policy"]
        if policy_cfg.get("on_policy"):
            trainings = int(policy_cfg["learn"].get("update_per_collect", 1))
            return TrainingHome(self._load_payload, trainings)
        if self.replay is not None:
            kind = default_manager().class_of("buffers", task_info["replay_buffer_cfg"], PATH)
            wait_s = 0.0 if self.scheduler.is_cooperative else REPLAY_WAIT_S
            return ServedHome(self.replay, wait_s, REPLAY_PAUSE_S, getattr(kind, "draws", "rows"))
        resumes = _checkpoint_folder(self.run_dir, task_info) is not None
        return _table_home(task_info, self._learner, self._load_payload, resumes)

    # Run in the job of a task: the learner, and what it calls.
    def _train(self) -> None:
        """Run the learner.

        Raises:
            WorkerLostError: a process that trains with it died or hangs; a checkpoint was saved,
                from which the task starts again.
        """
        try:
            self._learner.start()
        except WorkerCrashedError as error:
            if not error.facts.get("traceback"):
                self._learner.save_checkpoint()
            start = f"the checkpoint of iteration {self._learner.train_iter}"
            raise _rank_lost(self.info.worker_id, error, start) from error

    def note_loaded(self) -> None:
        """Record that the learner has loaded its checkpoint, if it continues from one."""
        if self._phase == "loads":
            # Statistics change in place, so that the policy that is published next has them.
            self._the_home().observe_dataset()
            with self.condition:
                self._phase = "trains"
                self.condition.notify_all()

    @property
    def data_source(self) -> Callable[[int], Any]:
        """The function that the learner gets its data from.

        It is ``get_data`` if a subclass overrides that or ``load_data_fn``, else ``get_batch``,
        which makes no dict for each row.
        """
        own, base = type(self), BaseCommLearner
        is_own = own.get_data is not base.get_data or own.load_data_fn is not base.load_data_fn
        return self.get_data if is_own else self.get_batch

    def get_data(self, batch_size: int) -> list[Callable[[], dict[str, Any]]] | None:
        """Return callables for the rows of the next batch; None: the task is over.

        Raises:
            ConfigError: the buffer holds episodes, or samples that are lists.
        """
        batch = self.get_batch(batch_size)
        if isinstance(batch, list):
            raise ConfigError(
                "a learner that overrides get_data or load_data_fn trains on single rows, and the "
                "replay buffer holds episodes, or samples that are lists; choose another buffer",
                path="policy.other.replay_buffer.type",
            )
        if batch is None:
            return None
        load = partial(self.load_data_fn, lambda: batch)
        return [partial(load, {"index": index}) for index in range(len(batch))]

    @staticmethod
    def load_data_fn(
        path: Callable[[], SampleBatch],
        meta: Mapping[str, Any],
        decompressor: Callable[[Any], Any] | None = None,
    ) -> dict[str, Any]:
        """Return one row of a batch, with its sampling data (replay ids, IS weights).

        Args:
            path: Returns the batch, which all its rows share.
            meta: ``index``, the row's place in the batch.
            decompressor: Called with the row; None returns the row unchanged.

        Differs from the reference: there each row is a file, which is read and unpacked here.
        """
        row = dict(path()[int(meta["index"])])
        return row if decompressor is None else dict(decompressor(row))

    def get_batch(self, batch_size: int) -> SampleBatch | list[Any] | None:
        """Wait for the next batch of the home and return it in columns; None: the task is over.

        Returns a list of episodes if the replay buffer holds episodes, and a list of samples if
        samples are or contain lists.
        """
        self.yield_turn()
        home, train_iter = self._the_home(), self._learner.train_iter
        while not self.is_stopping:
            announced = home.announced
            batch = home.sample(batch_size, train_iter)
            if batch is not None:
                self._trained_rows += home.rows_of(batch)
                self._publisher.lags.count(batch, train_iter)
                return batch
            if home.dataset_rows:
                raise no_batch(cast(TableHome, home).buffer, train_iter)
            self._publisher.before_wait(self._learner)
            self._wait_for_samples(home, announced)
        return None

    def _wait_for_samples(self, home: Home, announced: int) -> None:
        """Wait until the home, without a batch after ``announced`` announcements, may have one."""
        if home.retry_s is not None:
            self._publisher.while_waiting(self._learner)
            self.pause(home.retry_s, lambda: home.announced > announced)
            return
        with self.condition:
            self._starved_at = announced
            self.condition.notify_all()
            meanwhile = partial(self._publisher.while_waiting, self._learner)
            self.job_wait(lambda: home.announced > announced, meanwhile)
            self._starved_at = -1

    def _load_payload(self, data_id: str, digest: str | None) -> SampleBatch:
        timeout_s = max(0.0, self._load_until - self._clock())
        return self.data_store.get(data_id, timeout_s, digest)

    def send_learn_info(self, info: Mapping[str, Any]) -> None:
        """Report ``BaseLearner.learn_info`` of the last iteration."""
        self.advance()
        priorities = info.get("priority_info")
        home = self._the_home()
        # Rows of a buffer without priorities have no ids.
        if priorities and None not in priorities["replay_unique_id"]:
            home.update(priorities)
        if info["learner_done"]:
            home.end_batch(is_last=True)
            with self.condition:
                self._phase = "done"
                self.condition.notify_all()

    def send_policy(self, state: Mapping[str, Any]) -> None:
        """Publish ``{'model': tensors, 'iter': version}``.

        If the disk is full, the previous version stays the newest. It is tried again after
        ``send_policy_freq`` iterations, and while the learner waits for data.
        """
        is_last = bool(self._learner.learn_info["learner_done"])
        self._publisher.publish(state["model"], int(state["iter"]), is_last=is_last)

    def _stops_after(self, seconds: float) -> bool:
        """Wait; return whether the job has to stop."""
        self.pause(seconds)
        return self.is_stopping

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        has_ended = super().close(timeout_s)
        if self.replay is not None:
            self.replay.close()
        return has_ended

    def stop_job(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Stop the learner, then the processes that train with it."""
        is_over = super().stop_job(timeout_s)
        if is_over and self._ranks is not None:
            self._ranks.close()
            self._ranks = None
        return is_over

    def _close_home(self) -> None:
        home, self._home = self._home, None
        if home is not None and not returns_within(PART_CLOSE_S, home.close):
            warn_of_left("policy.other.replay_buffer")


def _checkpoint_folder(run_dir: Path, task_info: Mapping[str, Any]) -> Path | None:
    """Return the folder of the checkpoints to continue from; None for new weights."""
    found = player_folder(run_dir, task_info.get("player")) / "ckpt"
    return found if task_info.get("resume") and can_resume(found) else None


def _table_home(task: Mapping[str, Any], learner: Any, load: Load, resumes: bool) -> TableHome:
    """Return the home that holds the table of a task's replay buffer.

    ``resumes``: whether the learner continues from a checkpoint of the run.
    """
    buffer_cfg, policy_cfg, home = task["replay_buffer_cfg"], task["policy"], task["home"]
    buffer = create_buffer(buffer_cfg, tb_logger=learner.tb_logger, exp_name=learner.exp_name)
    buffer.clear()  # rows on disk, of a learner that was lost, are announced again
    if (demonstrations := task.get("demonstrations")) is not None:
        from dingsdk.worker.demonstrations import add_demonstrations

        buffer = add_demonstrations(buffer, demonstrations, buffer_cfg, policy_cfg)
    pace = None if home["pace"] is None else EpisodePace(**home["pace"])
    table = TableHome(cast(Table, buffer), load, pace, home["counts"])
    if not takes_env_steps(policy_cfg):
        # A run that continues has the statistics of the data set in its checkpoint. Others may
        # load one too, of another run, so the data set is observed after that.
        keep = None if resumes else table.unobserved.append
        table.dataset_rows = push_recorded(buffer, policy_cfg, keep)
    return table


def _rank_lost(worker_id: str, error: WorkerCrashedError, start: str) -> Exception:
    """Return the error for a lost rank, which makes the task start again from ``start``."""
    if error.facts.get("traceback"):
        return error  # its code raised an error, and would raise it again
    text = f"{error}; {worker_id} and its ranks begin again from {start}"
    return WorkerLostError(text, worker_id=worker_id)
