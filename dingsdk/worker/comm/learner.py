"""The comm learner: runs learners for a coordinator."""

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
from dingsdk.policy import create_policy
from dingsdk.runtime.deadline import returns_within, warn_of_left
from dingsdk.runtime.files import Patience
from dingsdk.worker.collector.dataset import no_batch
from dingsdk.worker.comm.hooks import SaveAtIntervalsHook
from dingsdk.worker.comm.slave import CLOSE_TIMEOUT_S, TaskFunctions
from dingsdk.worker.comm.training import OffPolicyTraining, OnPolicyTraining, Training
from dingsdk.worker.comm.transport import Transport
from dingsdk.worker.comm.worker import CommWorker
from dingsdk.worker.factory import create_learner
from dingsdk.worker.learner.aggregator import RANK_S, LearnerAggregator
from dingsdk.worker.learner.checkpoint import can_resume, load_checkpoint
from dingsdk.worker.learner.hooks import LearnerHook
from dingsdk.worker.learner.remote_ranks import RemoteRanks
from dingsdk.worker.player_folder import player_folder
from dingsdk.worker.replay_buffer.home import Home, TableHome
from dingsdk.worker.replay_server import ReplayClient

_log = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 0.5
"""How long to wait for the announced payloads of one message; missing ones are then given up."""
PART_CLOSE_S = 4.0
"""How long hooks, and the buffer, may take to close: less than a job may take to stop
(``CLOSE_TIMEOUT_S``)."""


class BaseCommLearner(CommWorker):
    """Builds the learner of each task with the home of its samples, and publishes its policies.

    A task has two sides. The *job* is the learner's loop on its own thread (``_train``): it gets
    each batch from the home by ``get_batch``, trains, and calls ``send_policy`` and
    ``send_learn_info``. The *tasks* of the coordinator (``deal_with_...``) come a few dozen times a
    second: they bring announcements of payloads for the home, and answer with what the home has
    inserted and no longer needs, and with the learner's progress.

    Whether the policy is on-policy decides which ``Training`` a task has: it makes the home of the
    samples and publishes the policy.

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
        self._training: Training
        self._home: Home | None = None
        """Where the samples are that the task trains on."""
        self._load_until = 0.0
        self._state: Literal["loads", "trains", "waits", "done"] = "loads"
        """The job loads its checkpoint, trains, waits for samples, or its training is over and the
        hooks after it have saved the result."""
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
            self._state, self._checkpoint = "loads", {}
            self._close_home()
            self._training = self._create_training(task_info)
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
        """Take new announcements; answer when it has no data, or after
        ``Training.exchange_s``.

        Returns:
            The learner's ``info``, and ``held_up_by``: why it waits for storage, or "".
        """
        home = self._the_home()
        self._learner.collector_envstep = int(data["env_steps"])
        with self.condition:
            if data["announcements"]:
                home.announce(data["announcements"])
                self._load_until = self._clock() + LOAD_TIMEOUT_S
                self._state = "trains" if self._state == "waits" else self._state
                self.condition.notify_all()
            self._wait_for_checkpoint()
            self.task_wait(lambda: self._state in ("waits", "done"), self._training.exchange_s)
        self.raise_job_error()
        info = self._info(int(data["confirmed"]))
        return {"info": info, "held_up_by": self._training.held_up_by, **self.task_ids()}

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
        self.task_wait(lambda: self._state != "loads", math.inf)

    def _info(self, confirmed: int = 0) -> dict[str, Any]:
        """Return the learner's info, and the reports that the coordinator has not confirmed."""
        home, state = self._the_home(), self._state
        is_idle = state in ("waits", "done") or home.is_idle
        counts = home.report()
        return {
            **self._learner.learn_info,
            "learner_done": state == "done",
            "priority_info": {},  # priorities stay in this process
            "reports": home.reports(confirmed),
            "trained_rows": self._trained_rows,
            "dataset_rows": home.dataset_rows,
            "count": home.count(),
            "counts": counts,
            "figures": home.figures(),
            "is_idle": is_idle,
            "lag": list(self._training.lags.lag or ()),
        }

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

        def publish(state: Mapping[str, Any]) -> None:
            self.note_begin()  # the hooks that load a checkpoint run before this one
            # In place, so that the state has the new statistics.
            self._training.observe_dataset(learner.policy)
            self.send_policy(state)

        learner.get_data = self.data_source
        learner.send_policy = publish
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
        return self._training.hooks()

    def _create_training(self, task_info: Mapping[str, Any]) -> Training:
        policy_id = str(task_info["policy_id"])
        if task_info["policy"].get("on_policy"):
            return OnPolicyTraining(self, policy_id)
        # Otherwise the rows of the newest published policy could all be stale, and no training
        # would follow after which another one is published.
        staleness = (task_info.get("replay_buffer_cfg") or {}).get("max_staleness") or math.inf
        freq = int(min(self._cfg.send_policy_freq, staleness))
        return OffPolicyTraining(self, policy_id, freq)

    def _create_home(self, task_info: Mapping[str, Any]) -> Home:
        resumes = _checkpoint_folder(self.run_dir, task_info) is not None
        return self._training.create_home(task_info, self._learner, self._load_payload, resumes)

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

    def note_begin(self) -> None:
        """Record that the learner has loaded its checkpoint, if it continues from one."""
        if self._state == "loads":
            with self.condition:
                self._state = "trains"
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
                self._training.lags.count(batch, train_iter)
                return batch
            if home.dataset_rows:
                raise no_batch(cast(TableHome, home).buffer, train_iter)
            self._training.before_wait(self._learner)
            self._wait_for_samples(home, announced)
        return None

    def _wait_for_samples(self, home: Home, announced: int) -> None:
        """Wait until the home, which had taken ``announced`` announcements, may have a batch."""
        if home.retry_s is not None:
            self._training.while_waiting(self._learner)
            self.pause(home.retry_s, lambda: home.announced > announced)
            return
        with self.condition:
            if home.announced > announced:
                return  # some arrived since the job looked
            self._state = "waits"
            self.condition.notify_all()
            meanwhile = partial(self._training.while_waiting, self._learner)
            self.job_wait(lambda: self._state == "trains", meanwhile)

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
                self._state = "done"
                self.condition.notify_all()

    def send_policy(self, state: Mapping[str, Any]) -> None:
        """Publish ``{'model': tensors, 'iter': version}``.

        If the disk is full, the previous version stays the newest. It is tried again after
        ``send_policy_freq`` iterations, and while the learner waits for data.
        """
        self._training.publish(state, is_last=bool(self._learner.learn_info["learner_done"]))

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


def _rank_lost(worker_id: str, error: WorkerCrashedError, start: str) -> Exception:
    """Return the error for a lost rank, which makes the task start again from ``start``."""
    if error.facts.get("traceback"):
        return error  # its code raised an error, and would raise it again
    text = f"{error}; {worker_id} and its ranks begin again from {start}"
    return WorkerLostError(text, worker_id=worker_id)
