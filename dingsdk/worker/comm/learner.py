"""The comm learner: runs learners for a coordinator."""

from __future__ import annotations

import itertools
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from dingsdk.config import Count, Positive, deep_merge_dicts
from dingsdk.data import RowLoaders, SampleBatch
from dingsdk.data.columns import leaves
from dingsdk.data.list_samples import LIST, has_lists, unpack_samples
from dingsdk.errors import (
    ClosedError,
    ConfigError,
    PayloadsLostError,
    SchemaMismatchError,
    StorageFullError,
    TaskFail,
    WorkerCrashedError,
    WorkerLostError,
)
from dingsdk.policy import create_policy
from dingsdk.runtime.files import Patience
from dingsdk.worker.comm.publisher import PolicyPublisher
from dingsdk.worker.comm.row_store import RowStore
from dingsdk.worker.comm.slave import CLOSE_TIMEOUT_S, TaskFunctions
from dingsdk.worker.comm.transport import Transport
from dingsdk.worker.comm.worker import ANSWER_WITHIN_S, REPLAY_PAUSE_S, REPLAY_WAIT_S, CommWorker
from dingsdk.worker.factory import create_buffer, create_learner
from dingsdk.worker.learner.aggregator import RANK_S, LearnerAggregator
from dingsdk.worker.learner.checkpoint import can_resume, load_checkpoint, save_pause
from dingsdk.worker.learner.hooks import LearnerHook
from dingsdk.worker.learner.remote_ranks import RemoteRanks
from dingsdk.worker.player_folder import player_folder
from dingsdk.worker.replay_buffer.home import Home
from dingsdk.worker.replay_buffer.interface import rows_in
from dingsdk.worker.replay_buffer.pace import EpisodePace
from dingsdk.worker.replay_buffer.table import Table
from dingsdk.worker.replay_server import ReplayClient

_log = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 0.5
"""How long to wait for all announced payloads of one learn task; rows of missing payloads are then
replaced by other rows."""
SERVE_TIMEOUT_S = 20.0
"""How long to wait for a batch of a replay server before reporting to the coordinator that there
is none yet."""
EXCHANGE_S = 0.025
"""How long the learner trains between two exchanges with the coordinator, if it has data."""
LEARN_TIMEOUT_S = 3600.0
"""Longest time of one learn task; the master's deadline and the lease are shorter."""
HOOK_CLOSE_S = 4.0
"""How long hooks may take to close: less than a job may take to stop (``CLOSE_TIMEOUT_S``)."""


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
    """Builds the learner of each task, leases batches to it and publishes its policies.

    The learner's demand for data says how many batches one answer may lease
    (``batches_per_demand``), so that one message serves several iterations. It asks for the next
    batches while half of these are left, so that it need not wait for the answer. With 1, no batch
    is drawn before the priorities of the previous batch are known.

    A subclass may override ``get_data``, ``send_policy`` and ``send_learn_info``, which the
    learner calls.
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
            send_policy_freq: Train iterations from one published policy to the next.
            batches_per_demand: Batches that the learner requests at once; it requests the next ones
                when half of them are left.
            save_every_s: Seconds between two checkpoints from which a run continues whose learner
                was killed, or more if saving would take over 2 % of the time. None for only those
                of the learner's hooks.
        """

        type: str = "base"
        progress_timeout_s: Positive = 120.0
        send_policy_freq: Count = 10
        batches_per_demand: Count = 8
        save_every_s: Positive | None = 60.0

    def __init__(self, cfg: Mapping[str, Any], transport: Transport, worker_id: str) -> None:
        super().__init__(cfg, transport, worker_id)
        self._policies = PolicyPublisher(self)
        self._learner: Any = None
        self._ranks: LearnerAggregator | None = None
        self._is_on_policy = False
        """Whether the policy is on-policy: it is then published after each training."""
        self._rows: RowStore | None = None
        self._home: Home | None = None
        """The replay buffer, if this process holds its rows."""
        self._load_until = 0.0
        self._begin()

    def _begin(self) -> None:
        """Reset the state of an earlier task."""
        self._sent_iter = self._read_iter = -1
        """Version of the policy that was published last, and that was last checked to be
        readable."""
        self._leased: deque[tuple[dict[str, Any], Mapping[str, Any]]] = deque()
        """Batches to train on; the first batch of a message has the rest of the message."""
        self._demand: dict[str, Any] | None = None
        self._sent_demand: dict[str, Any] | None = None
        """The last demand, until its batches arrive."""
        self._has_asked = False
        """Whether it has made a demand since the last batches arrived."""
        self._reported_iter = -1
        """The learner's iteration in the last info that was sent; -1 before the first one."""
        self._iterations_left: float = math.inf
        """Number of batches that the learner still needs for its training."""
        self._owes_info = False
        """Whether batches were leased whose info the coordinator may not have."""
        self._is_to_finish = False
        """Whether to train on all leased batches before it asks again."""
        self._is_idle = False
        """Whether it waits for batches and has none."""
        self._confirmed = 0
        """Number of the newest report of the home that the coordinator has processed."""
        self._trained_rows = 0
        """Rows that it has trained on in this task."""
        self._saved_iter = 0
        self._is_saving = False
        """Whether a checkpoint at an interval is being saved."""
        """Iteration of the last checkpoint of ``save_every_s``."""
        self._save_at = self._clock() + (self._cfg.save_every_s or math.inf)
        self._info: dict[str, Any] | None = None
        self._priorities: list[Mapping[str, Any]] = []
        self._lost_payloads: dict[int, str] = {}

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

    def _tasks(self) -> TaskFunctions:
        return {
            "resource": lambda task: self.deal_with_resource(),
            "learner_start_task": lambda task: self.deal_with_learner_start(task["task_info"]),
            "learner_get_data_task": lambda task: self.deal_with_get_data(),
            "learner_learn_task": lambda task: self.deal_with_learner_learn(task["data"]),
            "learner_go_on_task": lambda task: self.deal_with_learner_go_on(
                task["task_id"], int(task.get("confirmed", 0))
            ),
            "learner_close_task": lambda task: self.deal_with_learner_close(),
        }

    def deal_with_learner_start(self, task_info: Mapping[str, Any]) -> Mapping[str, Any]:
        """Build the task's learner and run it; raises as ``building``."""
        buffer_cfg = task_info["replay_buffer_cfg"]
        capacity, storage_cfg = buffer_cfg["replay_buffer_size"], buffer_cfg.get("storage", {})
        with self.building(task_info):
            self._is_on_policy = bool(task_info["policy"].get("on_policy"))
            self._begin()
            self._close_rows()
            if task_info.get("home") is None:
                self._rows = RowStore(int(capacity), storage_cfg, self._load_payload)
            self._learner = self._create_learner(task_info)
            if (home := task_info.get("home")) is not None:
                self._home = self._create_home(buffer_cfg, home)
        self.start_job(self._train, self._learner.close, f"{self.info.worker_id}-learner")
        return {"message": "learner task has started"}

    def _create_home(self, buffer_cfg: Mapping[str, Any], home: Mapping[str, Any]) -> Home:
        learner = self._learner
        buffer = create_buffer(buffer_cfg, tb_logger=learner.tb_logger, exp_name=learner.exp_name)
        buffer.clear()  # rows on disk, of a learner that was lost, are announced again
        pace = None if home["pace"] is None else EpisodePace(**home["pace"])
        return Home(cast(Table, buffer), self._load_payload, pace, home["counts"])

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

    def _rank_lost(self, error: WorkerCrashedError, start: str) -> Exception:
        """Return the error for a rank that was lost: the task starts again, as ``start`` says."""
        if error.facts.get("traceback"):
            return error  # its code raised an error, and would raise it again
        worker_id = self.info.worker_id
        text = f"{error}; {worker_id} and its ranks begin again {start}"
        return WorkerLostError(text, worker_id=worker_id)

    def deal_with_learner_go_on(self, task_id: str, confirmed: int = 0) -> Mapping[str, Any]:
        """Continue for a new coordinator, after training on the batches that the old one leased.

        Returns:
            ``info`` of these batches, None if there are none, and ``known``: int64[n], numbers of
            the payloads that were announced to this learner.

        Raises:
            TaskFail: the learner belongs to another task.
        """
        self.go_on_with_job(task_id)
        if self._home is not None:
            report = self._home_info(self._home, confirmed)
            return {"info": report, "known": sorted(self._home.known), **self.task_ids()}
        assert self._rows is not None  # made when the task started
        with self.condition:
            if self._owes_info:
                self._is_to_finish = True
                self.task_wait(lambda: self._is_idle, LEARN_TIMEOUT_S)
                self._is_to_finish = False
                self._report()
            info = self._info if self._owes_info else None
            demand = self._demand or self._sent_demand
            if demand is not None:
                self._demand = {**demand, "cur_learner_iter": self._learner.train_iter}
        self.raise_job_error()
        return {"info": info, "known": self._rows.known(), **self.task_ids()}

    def deal_with_get_data(self) -> Mapping[str, Any]:
        """Return the learner's demand, or ``{'pending': True}`` while it has none."""
        self._owes_info = False
        with self.condition:
            self.task_wait(lambda: self._demand is not None, ANSWER_WITHIN_S)
            demand = self._take_demand()
        if demand is None:
            self.raise_job_error()
            return {
                "pending": True,
                "learner_done": self.job_ended,
                "held_up_by": self._policies.held_up_by,
                **self.task_ids(),
            }
        return {**demand, **self.task_ids()}

    def deal_with_learner_learn(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Train on the leased batches; return the learn info when more batches are needed.

        That can be before the last batch: ``batches_left`` of the info is the number of batches
        that are left. The answer also has the learner's next demand, or None.
        """
        if self._home is not None:
            return self._exchange(self._home, data)
        if self._rows is None:
            raise TaskFail({"message": "no learner"}, "this learner has no task")
        with self.condition:
            self._info = self._sent_demand = None
            self._owes_info, self._has_asked = True, False
            news = itertools.chain([data], itertools.repeat({}))
            self._leased.extend(zip(data["batches"], news, strict=False))
            self.condition.notify_all()
            self.task_wait(lambda: self._info is not None, LEARN_TIMEOUT_S)
            info, demand = self._info, self._take_demand()
        self.raise_job_error()
        if info is None:
            info = self._learn_info()
        self._reported_iter = max(self._reported_iter, int(info["learner_step"]))
        return {"info": info, "demand": demand, **self.task_ids()}

    def _exchange(self, home: Home, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take new announcements; answer when it has no data, or after ``EXCHANGE_S``."""
        self._learner.collector_envstep = int(data["env_steps"])
        self._confirmed = int(data["confirmed"])
        with self.condition:
            if data["announcements"]:
                home.announce(data["announcements"])
                self._load_until = self._clock() + LOAD_TIMEOUT_S
                self._is_idle = False
                self.condition.notify_all()
            self.task_wait(lambda: self._is_idle, EXCHANGE_S)
        self.raise_job_error()
        info = self._home_info(home, int(data["confirmed"]))
        self._reported_iter = max(self._reported_iter, int(info["learner_step"]))
        return {"info": info, **self.task_ids()}

    def _home_info(self, home: Home, confirmed: int) -> dict[str, Any]:
        """Return the learner's info, and the reports that the coordinator has not confirmed."""
        is_idle = self._is_idle
        home.report()
        return {
            **self._learner.learn_info,
            "priority_info": {},  # priorities stay in this process
            "reports": home.reports(confirmed),
            "trained_rows": self._trained_rows,
            "count": home.buffer.count(),
            "counts": home.counts(),
            "is_idle": is_idle,
        }

    def _next_batch(self, home: Home, batch_size: int) -> SampleBatch | list[Any] | None:
        """Insert what was announced, and sample a batch; None: the task is over."""
        if self._clock() >= self._save_at:
            self._save()
        while not self.is_stopping:
            if home.has_waiting:
                home.insert_waiting()
            batch = home.sample(batch_size, self._learner.train_iter)
            if batch is not None:
                self._trained_rows += rows_in(batch, home.buffer)
                return batch
            with self.condition:
                self._is_idle = True
                self.condition.notify_all()
                if not self.job_wait(lambda: not self._is_idle, self._catch_up):
                    return None
        return None

    def _take_demand(self) -> dict[str, Any] | None:
        demand, self._demand = self._demand, None
        self._sent_demand = demand or self._sent_demand
        return demand

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        has_ended = super().close(timeout_s)
        if self.replay is not None:
            self.replay.close()
        return has_ended

    def deal_with_learner_close(self) -> Mapping[str, Any]:
        """Stop the learner after its iteration; its after_run hooks run (checkpoint, policy).

        Returns:
            The task's ids, and ``info`` if it has trained since its last info.
        """
        if not self.stop_job():
            raise TaskFail({"message": "stuck"}, f"{self.info.worker_id}: the learner hangs")
        answer = {**self.task_ids(), **self._replay_figures()}
        if self._home is not None:
            answer["info"] = self._home_info(self._home, self._confirmed)
        elif self._learner is not None and self._learner.train_iter > self._reported_iter:
            self._report()
            answer["info"] = self._info
        self._learner = None
        self._close_rows()
        self.raise_job_error()
        return answer

    def _close_rows(self) -> None:
        if self._home is not None:
            self._home.buffer.close()
            self._home = None
        if self._rows is not None:
            self._rows.close()
            self._rows = None

    def stop_job(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Stop the learner, then the processes that train with it."""
        is_over = super().stop_job(timeout_s)
        if is_over and self._ranks is not None:
            self._ranks.close()
            self._ranks = None
        return is_over

    def _create_learner(self, task_info: Mapping[str, Any]) -> Any:
        """Build the task's learner with its policy and connect it with this worker."""
        # The run folder in the task is a path on the master's host.
        cfg = deep_merge_dicts({}, task_info["learner_cfg"])
        cfg.pop("exp_name", None)
        folder = player_folder(self.run_dir, task_info.get("player"))
        checkpoints = folder / "ckpt"
        left = int(cfg["train_iterations"])
        if task_info.get("resume") and can_resume(checkpoints):
            loading = {"load_path": str(checkpoints), "restores_settings": True}
            cfg["hook"]["load_ckpt_before_run"] = {"priority": 20, "ext_args": loading}
            left -= load_checkpoint(checkpoints).iteration
            cfg["train_iterations"] = max(1, left)
        elif task_info.get("resume"):
            text = "%s begins with new weights: there is no checkpoint in %s"
            _log.warning(text, self.info.worker_id, checkpoints)
        self._iterations_left = left
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
        learner.hook_close_s = HOOK_CLOSE_S
        if left < 1:
            learner.train_iterations = 0  # not allowed in a config
        learner.get_data = self.data_source
        learner.send_policy = self.send_policy
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
    def data_source(self) -> Callable[[int], Any]:
        """The function that the learner gets its data from.

        It is ``get_data`` if a subclass overrides that, else ``get_batch``, which needs no callable
        for each row.
        """
        is_own = type(self).get_data is not BaseCommLearner.get_data
        return self.get_data if is_own else self.get_batch

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

    def get_data(self, batch_size: int) -> RowLoaders | None:
        """Return callables for the rows of the next leased batch; the first call gathers it.

        A call raises ClosedError if the batch cannot be read and the task is over.
        """
        columns = self._next_lease(batch_size)
        if columns is None:
            return None
        self._iterations_left -= 1

        def gather() -> SampleBatch:
            batch = self._gather(columns)
            if batch is None:
                batch = self.get_batch(batch_size)
            if batch is None:
                raise ClosedError("the task is over", what="learner task")
            if isinstance(batch, list):
                raise ConfigError(
                    "a learner that overrides get_data trains on single rows, and the replay "
                    "buffer holds episodes, or samples that are lists; choose another buffer",
                    path="policy.other.replay_buffer.type",
                )
            return batch

        return RowLoaders(gather, batch_size, self.load_data_fn)

    def get_batch(self, batch_size: int) -> SampleBatch | list[Any] | None:
        """Wait for the next leased batch and return it in columns; None: the task is over.

        Returns a list of episodes if the replay buffer holds episodes, and a list of samples if
        samples are or contain lists.
        """
        if self._home is not None:
            self.yield_turn()
            return self._next_batch(self._home, batch_size)
        while (columns := self._next_lease(batch_size)) is not None:
            batch = self._gather(columns)
            if batch is not None:
                self._iterations_left -= 1
                return batch
        return None

    def _gather(self, columns: dict[str, Any]) -> SampleBatch | list[Any] | None:
        """Return a leased batch, or episodes; record lost payloads and return None for them."""
        if self.replay is not None:
            return self._sample(self.replay, int(columns["batch_size"]))
        assert self._rows is not None  # made when the task started
        payload, row = columns.pop("payload"), columns.pop("row")
        lengths = columns.pop("lengths", None)
        try:
            batch = self._rows.gather(payload, row)
        except PayloadsLostError as error:
            # The coordinator never leases them again; this batch is skipped.
            _log.warning("%s", error)
            self._lost_payloads |= error.facts["reasons"]
            return None
        mask = columns.get("mask")
        if mask is not None and mask.ndim == 2:
            for _, array in leaves(batch.columns):
                array[~mask] = 0
        if has_lists(batch.columns):
            return _with_lists(batch, columns, is_of_rows=lengths is None and payload.ndim == 1)
        batch = batch.with_columns(**columns)
        if lengths is None:
            return batch
        stops = np.cumsum(lengths).tolist()
        starts = [0, *stops[:-1]]
        return [batch[start:stop] for start, stop in zip(starts, stops, strict=True)]

    def _sample(self, client: ReplayClient, size: int) -> SampleBatch | list[Any] | None:
        """Return a batch of the replay server; None after ``SERVE_TIMEOUT_S`` without one."""
        wait_s = 0.0 if self.scheduler.is_cooperative else REPLAY_WAIT_S
        until = self._clock() + SERVE_TIMEOUT_S
        while self._clock() < until and not self.is_stopping:
            train_iter = self._learner.train_iter
            batch = client.sample(size, train_iter=train_iter, timeout_s=wait_s)
            if batch is not None:
                return batch
            self.pause(REPLAY_PAUSE_S)
        return None

    def _replay_figures(self) -> dict[str, Any]:
        return {} if self.replay is None else {"replay": self.replay.stats()}

    def _next_lease(self, batch_size: int) -> dict[str, Any] | None:
        """Return the columns of the next leased batch; ask for more if few are left. None: stop."""
        self.advance()
        if self._clock() >= self._save_at:
            self._save()
        if self._is_on_policy and not self._leased and self._learner.train_iter != self._sent_iter:
            self._send_newest()
        with self.condition:
            if not self._has_asked and len(self._leased) <= self._ask_again_at:
                self._has_asked = True
                self._demand = {
                    "batch_size": batch_size,
                    "batches": self._cfg.batches_per_demand,
                    "cur_learner_iter": self._learner.train_iter,
                }
                self._report()
            self._is_idle = not self._leased
            self.condition.notify_all()
            if not self.job_wait(lambda: bool(self._leased), self._catch_up):
                return None
            self._is_idle = False
        self.scheduler.yield_turn()
        if self.is_stopping:
            return None
        columns, data = self._leased.popleft()
        if data:
            self._take_news(data)
        return dict(columns)

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

    @property
    def _ask_again_at(self) -> int:
        """Number of batches left at which it asks for more."""
        half = int(self._cfg.batches_per_demand) // 2
        # Do not ask early for batches that the remaining iterations do not need.
        needs_more = self._iterations_left > half
        return half if needs_more and not (self._is_on_policy or self._is_to_finish) else 0

    def _take_news(self, data: Mapping[str, Any]) -> None:
        """Process the contents of a message besides its batches; called by the job."""
        assert self._rows is not None  # made when the task started
        self._rows.announce(data.get("payloads", {}), data.get("digests"))
        self._load_until = self._clock() + LOAD_TIMEOUT_S
        dropped = data.get("dropped")
        if dropped is not None and len(dropped):
            self._rows.drop(np.asarray(dropped))
        if data.get("kept"):
            self._rows.keep({int(each): rows for each, rows in data["kept"]})
        self._learner.collector_envstep = int(data.get("env_steps", 0))

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

    def send_learn_info(self, info: Mapping[str, Any]) -> None:
        """Report ``BaseLearner.learn_info`` of the last iteration."""
        self.advance()
        priorities = info.get("priority_info")
        # Rows of a buffer without priorities have no ids.
        if priorities and None not in priorities["replay_unique_id"]:
            if self._home is not None:
                self._home.buffer.update(priorities)
            elif self.replay is not None:
                self.replay.update(priorities)
            else:
                self._priorities.append(priorities)
        if info["learner_done"]:
            with self.condition:
                if self._home is None:
                    self._report()
                self._is_idle = True
                self.condition.notify_all()

    def _report(self) -> None:
        """Merge the newest info into the info that is not sent yet; the condition is held."""
        before = self._info
        info = self._info = self._learn_info()
        if before is not None:
            info["lost_payloads"] = before["lost_payloads"] + info["lost_payloads"]
            for key, values in before["priority_info"].items():
                newer = info["priority_info"].get(key, values[:0])
                info["priority_info"][key] = np.concatenate([values, newer])

    def _learn_info(self) -> dict[str, Any]:
        """Return the learner's info, with the priorities of all batches since the last info."""
        info = {**self._learner.learn_info, **self._replay_figures()}
        info["batches_left"] = len(self._leased)
        lost, self._lost_payloads = self._lost_payloads, {}
        info["lost_payloads"] = [[number, reason] for number, reason in lost.items()]
        parts, self._priorities = self._priorities, []
        keys = parts[0] if parts else ()
        info["priority_info"] = {
            key: np.concatenate([np.asarray(part[key]) for part in parts]) for key in keys
        }
        return info

    def _load_payload(self, data_id: str, digest: str | None) -> SampleBatch:
        store = self.data_store
        timeout_s = max(0.0, self._load_until - self._clock())
        if digest is None:
            return store.get(data_id, timeout_s)
        return store.get_verified(data_id, digest, timeout_s)


def _with_lists(batch: SampleBatch, added: Mapping[str, Any], *, is_of_rows: bool) -> list[Any]:
    """Return samples that are or contain lists, in the same form as in serial mode.

    Raises:
        SchemaMismatchError: the replay buffer cannot store such samples.
    """
    if not is_of_rows or (LIST in batch.columns and "replay_unique_id" in added):
        wants = "only dicts, as its samples carry ids and priorities" if is_of_rows else "rows"
        raise SchemaMismatchError(
            "the policy's train samples are lists or hold some, and the replay buffer keeps "
            f"{wants} (policy.other.replay_buffer.type naive takes such samples)",
            key=LIST,
            expected=wants,
            found=sorted(batch.columns),
        )
    samples = unpack_samples(batch)
    if LIST not in batch.columns:
        for row, sample in enumerate(samples):
            own = {name: column[row] for name, column in added.items() if name != "collect_iter"}
            sample.update(own)
    return samples
