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
    StorageFullError,
    TaskFail,
    WorkerCrashedError,
    WorkerLostError,
)
from dingsdk.policy import create_policy
from dingsdk.runtime.deadline import returns_within, warn_of_left
from dingsdk.runtime.files import Patience
from dingsdk.worker.collector.dataset import no_batch, push_recorded
from dingsdk.worker.collector.factory import takes_env_steps
from dingsdk.worker.comm.publisher import PolicyPublisher
from dingsdk.worker.comm.slave import CLOSE_TIMEOUT_S, TaskFunctions
from dingsdk.worker.comm.transport import Transport
from dingsdk.worker.comm.worker import REPLAY_PAUSE_S, REPLAY_WAIT_S, CommWorker
from dingsdk.worker.factory import create_buffer, create_learner
from dingsdk.worker.learner.aggregator import RANK_S, LearnerAggregator
from dingsdk.worker.learner.checkpoint import can_resume, load_checkpoint, save_pause
from dingsdk.worker.learner.hooks import LearnerHook
from dingsdk.worker.learner.remote_ranks import RemoteRanks
from dingsdk.worker.player_folder import player_folder
from dingsdk.worker.policy_lag import LagCounter
from dingsdk.worker.replay_buffer.home import Home, TableHome, TrainingHome
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


class SendPolicyHook(LearnerHook):
    """Publishes the policy every ``send_policy_freq`` iterations.

    The version is the number of updates that the weights have seen. (The reference stamps
    the weights of update k+1 with k, because after_iter hooks run before the counter moves.)
    """

    def __init__(
        self,
        name: str,
        priority: float = 100,
        *,
        position: str,
        ext_args: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, priority, position=position)
        self._freq = int((ext_args or {}).get("send_policy_freq", 1))

    def __call__(self, engine: Any) -> None:
        updates = engine.train_iter + (1 if self.position == "after_iter" else 0)
        if engine.rank == 0 and updates % self._freq == 0:
            engine.send_policy({"model": engine.policy.state_dict()["model"], "iter": updates})


class SendLearnInfoHook(LearnerHook):
    """Reports ``learn_info`` after each iteration and at the end."""

    def __call__(self, engine: Any) -> None:
        engine.send_learn_info(engine.learn_info)


class BaseCommLearner(CommWorker):
    """Builds the learner of each task with the home of its samples, and publishes its policies.

    A task has two sides. The *job* is the learner's loop on its own thread (``_train``): it gets
    each batch from the home by ``get_batch``, trains, and calls ``send_policy`` and
    ``send_learn_info``. The *tasks* of the coordinator (``deal_with_...``) come a few dozen times a
    second: they bring announcements of payloads for the home, and answer with what the home has
    inserted and no longer needs, and with the learner's progress.

    On-policy or not decides three things: which home the samples have, when the policy is published
    (after each training, or every ``send_policy_freq`` iterations), and how long a task waits.

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
    exchange_s = 0.025
    """How long the learner trains between two exchanges with the coordinator, if it has data."""
    training_s = 0.1
    """The same for an on-policy learner: during a training there is nothing to announce."""
    replay: ReplayClient | None = None
    """Replay server to sample rows from, used instead of the step data store; None for no
    server."""

    class Config(CommWorker.Config, frozen=True, kw_only=True):
        """Section ``system.learner``.

        Attributes:
            send_policy_freq: Train iterations from one published policy to the next.
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
        self._policies = PolicyPublisher(self)
        self._learner: Any = None
        self._ranks: LearnerAggregator | None = None
        self._is_on_policy = False
        self._home: Home | None = None
        """Where the samples are that the task trains on."""
        self._load_until = 0.0
        self._begin()

    def _begin(self) -> None:
        """Reset the state of an earlier task."""
        self._sent_iter = self._read_iter = -1
        """Version of the policy that was published last, and that was last checked to be
        readable."""
        self._state: Literal["loads", "trains", "waits", "done"] = "loads"
        """The job loads its checkpoint, trains, waits for samples, or its training is over and the
        hooks after it have saved the result."""
        self._recorded: list[Any] = []
        """Samples of the task's data set for ``observe`` of the policy."""
        self._trained_rows = 0
        """Rows that it has trained on in this task."""
        self._lags = LagCounter(self._cfg.send_policy_freq)
        self._saved_iter = 0
        """Iteration of the last checkpoint of ``save_every_s``."""
        self._is_saving = False
        """Whether a checkpoint at an interval is being saved."""
        self._save_at = self._clock() + (self._cfg.save_every_s or math.inf)

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
            self._is_on_policy = bool(task_info["policy"].get("on_policy"))
            self._begin()
            self._close_home()
            self._learner = self._create_learner(task_info)
            try:
                self._home = self._create_home(task_info)
            except BaseException:
                self._learner.close()
                raise
            self._home.observe = getattr(self._learner.policy, "observe", None)
        self.start_job(self._train, self._learner.close, f"{self.info.worker_id}-learner")
        return {"message": "learner task has started"}

    def deal_with_learner_learn(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take new announcements; answer when it has no data, or after ``exchange_s``.

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
            pause_s = self.training_s if self._is_on_policy else self.exchange_s
            self.task_wait(lambda: self._state in ("waits", "done"), pause_s)
        self.raise_job_error()
        info = self._info(int(data["confirmed"]))
        return {"info": info, "held_up_by": self._policies.held_up_by, **self.task_ids()}

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
            "is_idle": state in ("waits", "done"),
            "lag": list(self._lags.lag or ()),
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
        checkpoints = self._checkpoints(task_info)
        if checkpoints is not None:
            loading = {"load_path": str(checkpoints), "restores_settings": True}
            cfg["hook"]["load_ckpt_before_run"] = {"priority": 20, "ext_args": loading}
            left -= load_checkpoint(checkpoints).iteration
            cfg["train_iterations"] = max(1, left)
        elif task_info.get("resume"):
            text = "%s begins with new weights: there is no checkpoint in %s"
            _log.warning(text, self.info.worker_id, folder / "ckpt")
        learner: Any = create_learner(cfg, exp_name=str(folder))
        patience = Patience(self.storage_timeout_s, self._stops_after, self._clock)
        # A checkpoint at an interval is left out if there is no room.
        learner.patience = lambda write: write() if self._is_saving else patience(write)
        try:
            self._connect(learner, task_info, left)
        except BaseException:
            learner.close()
            raise
        return learner

    def _connect(self, learner: Any, task_info: Mapping[str, Any], left: int) -> None:
        """Give a new learner its policy, and connect it with this worker and the other ranks."""
        learner.hook_close_s = PART_CLOSE_S
        if left < 1:
            learner.train_iterations = 0  # not allowed in a config

        def publish(state: Mapping[str, Any]) -> None:
            self.note_begin()  # the hooks that load a checkpoint run before this one
            self._observe_recorded()  # in place: the state has the new statistics
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
                raise self._rank_lost(error, "from the start of the task") from error
            learner.policy = self._ranks.learn_mode
        for hook in self.hooks4call:
            learner.register_hook(hook)
        learner.setup_dataloader()

    @property
    def hooks4call(self) -> list[LearnerHook]:
        """The hooks that make a learner publish its policy and report."""
        freq = {"send_policy_freq": self._cfg.send_policy_freq}
        after_iter = SendPolicyHook("send_policy", position="after_iter", ext_args=freq)
        return [
            SendPolicyHook("send_policy", position="before_run"),
            *([] if self._is_on_policy else [after_iter]),
            SendPolicyHook("send_policy", position="after_run"),
            SendLearnInfoHook("send_learn_info", 100, position="after_iter"),
            SendLearnInfoHook("send_learn_info", 100, position="after_run"),
        ]

    def _create_home(self, task_info: Mapping[str, Any]) -> Home:
        if self.replay is not None:
            wait_s = 0.0 if self.scheduler.is_cooperative else REPLAY_WAIT_S
            return ServedHome(self.replay, wait_s, REPLAY_PAUSE_S)
        if self._is_on_policy:
            trainings = task_info["policy"]["learn"].get("update_per_collect", 1)
            return TrainingHome(self._load_payload, int(trainings))
        learner, home = self._learner, task_info["home"]
        buffer = create_buffer(
            task_info["replay_buffer_cfg"], tb_logger=learner.tb_logger, exp_name=learner.exp_name
        )
        buffer.clear()  # rows on disk, of a learner that was lost, are announced again
        if (task := task_info.get("demonstrations")) is not None:
            from dingsdk.worker.demonstrations import add_demonstrations

            buffer_cfg, policy_cfg = task_info["replay_buffer_cfg"], task_info["policy"]
            buffer = add_demonstrations(buffer, task, buffer_cfg, policy_cfg)
        pace = None if home["pace"] is None else EpisodePace(**home["pace"])
        table = TableHome(cast(Table, buffer), self._load_payload, pace, home["counts"])
        if not takes_env_steps(task_info["policy"]):
            # A run that continues has the statistics of the data set in its checkpoint. Others may
            # load one too, of another run, so the data set is observed after that.
            keep = None if self._checkpoints(task_info) else self._recorded.append
            table.dataset_rows = push_recorded(buffer, task_info["policy"], keep)
        return table

    def _checkpoints(self, task_info: Mapping[str, Any]) -> Path | None:
        """Return the folder of the checkpoints to continue from; None for new weights."""
        found = player_folder(self.run_dir, task_info.get("player")) / "ckpt"
        return found if task_info.get("resume") and can_resume(found) else None

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
            raise self._rank_lost(
                error, f"from the checkpoint of iteration {self._learner.train_iter}"
            ) from error

    def _observe_recorded(self) -> None:
        """Update the statistics of the policy by the samples of the data set, once."""
        observe = getattr(self._learner.policy, "observe", None)
        if observe is not None:
            for samples in self._recorded:
                observe(samples)
        self._recorded = []

    def _rank_lost(self, error: WorkerCrashedError, start: str) -> Exception:
        """Return the error for a rank that was lost: the task starts again, as ``start`` says."""
        if error.facts.get("traceback"):
            return error  # its code raised an error, and would raise it again
        worker_id = self.info.worker_id
        text = f"{error}; {worker_id} and its ranks begin again {start}"
        return WorkerLostError(text, worker_id=worker_id)

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
        found = batch
        load = self.load_data_fn
        return [partial(load, lambda: found, {"index": index}) for index in range(len(found))]

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
        if self._clock() >= self._save_at:
            self._save()
        while not self.is_stopping:
            announced = home.announced
            batch = home.sample(batch_size, train_iter)
            if batch is not None:
                self._trained_rows += home.rows_of(batch)
                if not self._is_on_policy:  # the coordinator counts those of an on-policy learner
                    self._lags.count(batch, train_iter)
                return batch
            if home.dataset_rows:
                raise no_batch(cast(TableHome, home).buffer, train_iter)
            if self._is_on_policy and train_iter != self._sent_iter:
                self._send_newest()  # before the report of the training, as collectors need it
            self._wait_for_samples(home, announced)
        return None

    def _wait_for_samples(self, home: Home, announced: int) -> None:
        """Wait until the home, which had taken ``announced`` announcements, may have a batch."""
        if home.retry_s is not None:
            self._catch_up()
            self.pause(home.retry_s, lambda: home.announced > announced)
            return
        with self.condition:
            if home.announced > announced:
                return  # some arrived since the job looked
            self._state = "waits"
            self.condition.notify_all()
            self.job_wait(lambda: self._state == "trains", self._catch_up)

    def _load_payload(self, data_id: str, digest: str | None) -> SampleBatch:
        store = self.data_store
        timeout_s = max(0.0, self._load_until - self._clock())
        if digest is None:
            return store.get(data_id, timeout_s)
        return store.get_verified(data_id, digest, timeout_s)

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
        policy_id, version = str(self._task_info["policy_id"]), int(state["iter"])
        self._sent_iter, is_last = version, bool(self._learner.learn_info["learner_done"])
        if is_last and self.policy_store.newest(policy_id, version) is not None:
            # Newer weights were lost with another learner; the last evaluation must not use them.
            self.policy_store.discard(policy_id)
        self._policies.publish(policy_id, state["model"], version, is_last=is_last)

    def _send_newest(self) -> None:
        model = self._learner.policy.state_dict()["model"]
        self.send_policy({"model": model, "iter": self._learner.train_iter})

    def _catch_up(self) -> None:
        if self._policies.is_behind:
            self._send_newest()
        elif self._is_on_policy and self._read_iter != self._sent_iter:
            # Collectors wait for this version, and cannot load it if it is damaged.
            self._read_iter = self._sent_iter
            policy_id = str(self._task_info["policy_id"])
            if self.policy_store.newest(policy_id, self._sent_iter - 1) is None:
                self._send_newest()

    def _save(self) -> None:
        """Save a checkpoint if there is something new, and set the time of the next one."""
        began, train_iter = self._clock(), self._learner.train_iter
        if train_iter != self._saved_iter:
            self._saved_iter, self._is_saving = train_iter, True
            try:
                self._learner.save_checkpoint()
            except StorageFullError as error:
                text = "no checkpoint of iteration %d, training continues: %s"
                _log.warning(text, train_iter, error)
            finally:
                self._is_saving = False
        now = self._clock()
        self._save_at = now + save_pause(self._cfg.save_every_s, now - began)

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
