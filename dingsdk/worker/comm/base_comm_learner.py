"""The comm learner: what stands between a coordinator and a learner."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from dingsdk.config import deep_merge_dicts
from dingsdk.data import RowLoaders, SampleBatch
from dingsdk.errors import ClosedError, PayloadsLostError, TaskFail
from dingsdk.policy import create_policy
from dingsdk.worker.comm.comm_worker import CommWorker
from dingsdk.worker.comm.imports import check_imports
from dingsdk.worker.comm.learner_hooks import SendLearnInfoHook, SendPolicyHook
from dingsdk.worker.comm.policy_outlet import PolicyOutlet
from dingsdk.worker.comm.row_store import RowStore
from dingsdk.worker.comm.transport import Transport
from dingsdk.worker.comm.worker_role import ANSWER_WITHIN_S, RoleLife, WorkerRole
from dingsdk.worker.factory import create_learner
from dingsdk.worker.learner.hook import LearnerHook

_log = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 0.5
"""How long to look for payloads that were announced, all together from then on, however many are
gone; then their rows are replaced by others."""
LEARN_TIMEOUT_S = 3600.0
"""Bound on one learn task; its master has a shorter deadline, and the lease a shorter one still."""


class BaseCommLearner(CommWorker):
    """Builds the learner of a task and gives it its way in and its two ways out."""

    config: ClassVar[dict[str, Any]] = {
        "type": "",
        "import_names": [],
        "allowed_modules": [],  # that tasks may have imported, beyond those of the local config
        "send_policy_freq": 10,  # train iterations from one published policy to the next
    }

    @abstractmethod
    def send_policy(self, state: Mapping[str, Any]) -> None:
        """Publish ``{'model': tensors, 'iter': version}``."""

    @abstractmethod
    def get_data(self, batch_size: int) -> list[Callable[[], dict[str, Any]]] | None:
        """Return callables for the rows of the next batch, waiting for it; None: it is over."""

    @staticmethod
    def load_data_fn(
        path: Callable[[], SampleBatch],
        meta: Mapping[str, Any],
        decompressor: Callable[[Any], Any] | None = None,
    ) -> dict[str, Any]:
        """Return one row of a batch, with what was sampled beside it (replay ids, IS).

        Args:
            path: Where the row is: returns the batch, which all its rows share.
            meta: ``index``, the row's place in the batch.
            decompressor: Called with the row; None leaves it as it is.

        Differs from the reference: there a row is a file, and each is read and unpacked here.
        """
        row = dict(path()[int(meta["index"])])
        return row if decompressor is None else dict(decompressor(row))

    @property
    def data_source(self) -> Callable[[int], Any]:
        """What the learner calls as its ``get_data``."""
        return self.get_data

    @abstractmethod
    def send_learn_info(self, info: Mapping[str, Any]) -> None:
        """Report ``BaseLearner.learn_info`` of the iteration just done."""

    @property
    def hooks4call(self) -> list[LearnerHook]:
        """The hooks that make a learner publish its policy and report."""
        every = {"before_run": 1, "after_iter": int(self._cfg["send_policy_freq"]), "after_run": 1}
        return [
            *(
                SendPolicyHook(
                    "send_policy", position=position, ext_args={"send_policy_freq": freq}
                )
                for position, freq in every.items()
            ),
            SendLearnInfoHook("send_learn_info", 100, position="after_iter"),
            SendLearnInfoHook("send_learn_info", 100, position="after_run"),
        ]

    def _create_learner(self, task_info: Mapping[str, Any]) -> Any:
        """Build the task's learner with its policy, and attach the ways in and out.

        Raises:
            UntrustedImportError: the task names modules that this worker's config does not.
        """
        check_imports(task_info, self._cfg["allowed_modules"])
        learner_cfg = self._learner_cfg(task_info)
        learner = create_learner(learner_cfg, exp_name=learner_cfg["exp_name"])
        learner.get_data = self.data_source
        learner.send_policy = self.send_policy
        learner.send_learn_info = self.send_learn_info
        learner.policy = create_policy(
            task_info["policy"], enable_field=["learn"], seed=task_info.get("seed")
        ).learn_mode
        for hook in self.hooks4call:
            learner.register_hook(hook)
        learner.setup_dataloader()
        return learner

    def _learner_cfg(self, task_info: Mapping[str, Any]) -> Mapping[str, Any]:
        cfg: Mapping[str, Any] = task_info["learner_cfg"]
        return cfg


class TransportLearner(RoleLife, BaseCommLearner):
    """A comm learner over a transport plugin.

    The learner's demand for data names how many batches one answer may lease
    (``batches_per_demand``), so that a message is paid once for several iterations.

    Args:
        cfg: Section ``system.learner``.
        transport: The run's transport.
        worker_id: Unique in the run.
    """

    config: ClassVar[dict[str, Any]] = {"batches_per_demand": 8, "progress_timeout_s": 120.0}

    def __init__(self, cfg: Mapping[str, Any], transport: Transport, worker_id: str) -> None:
        super().__init__(cfg)
        self._role = WorkerRole(
            transport,
            worker_id,
            "learner",
            {
                "resource": lambda task: self.deal_with_resource(),
                "learner_start_task": lambda task: self.deal_with_learner_start(task["task_info"]),
                "learner_get_data_task": lambda task: self.deal_with_get_data(),
                "learner_learn_task": lambda task: self.deal_with_learner_learn(task["data"]),
                "learner_close_task": lambda task: self.deal_with_learner_close(),
            },
            progress_timeout_s=float(self._cfg["progress_timeout_s"]),
        )
        self._policies = PolicyOutlet(self._role)
        self._learner: Any = None
        self._task_info: Mapping[str, Any] = {}
        self._rows: RowStore | None = None
        self._leased: deque[dict[str, Any]] = deque()
        self._demand: dict[str, Any] | None = None
        self._info: dict[str, Any] | None = None
        self._priorities: list[Mapping[str, Any]] = []
        self._lost_payloads: dict[int, str] = {}
        self._load_until = 0.0

    # Tasks ------------------------------------------------------------------------------------
    def deal_with_learner_start(self, task_info: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._role.has_job:
            raise TaskFail({"message": "busy"}, "this learner has a task already")
        self._task_info = task_info
        self._leased.clear()
        self._priorities.clear()
        self._demand = self._info = None
        with self._role.building():
            self._learner = self._create_learner(task_info)
        buffer_cfg = task_info["replay_buffer_cfg"]
        # Twice the size: rows leased for training outlive their eviction from the buffer.
        self._rows = RowStore(
            2 * int(buffer_cfg["replay_buffer_size"]) + int(task_info.get("payload_rows", 0)),
            buffer_cfg.get("storage", {}),
            self._load_payload,
        )
        self._role.start_job(
            self._learner.start, self._learner.close, f"{self._role.info.worker_id}-learner"
        )
        return {"message": "learner task has started"}

    def deal_with_get_data(self) -> Mapping[str, Any]:
        """Return the learner's demand, or ``{'pending': True}`` while it has none."""
        with self._role.condition:
            found = self._role.task_wait(lambda: self._demand is not None, ANSWER_WITHIN_S)
            demand, self._demand = self._demand, None
        if not found or demand is None:
            self._role.raise_job_error()
            return {
                "pending": True,
                "learner_done": self._role.job_ended,
                "held_up_by": self._policies.held_up_by,
                **self._ids(),
            }
        return {**demand, **self._ids()}

    def deal_with_learner_learn(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Train on the leased batches; return the learn info once all are done."""
        if self._rows is None:
            raise TaskFail({"message": "no learner"}, "this learner has no task")
        self._rows.announce(data.get("payloads", {}), data.get("digests"))
        self._load_until = time.monotonic() + LOAD_TIMEOUT_S
        dropped = data.get("dropped")
        if dropped is not None and len(dropped):
            self._rows.drop(np.asarray(dropped))
        with self._role.condition:
            self._info = None
            self._leased.extend(data["batches"])
            self._role.condition.notify_all()
            self._role.task_wait(lambda: self._info is not None, LEARN_TIMEOUT_S)
            info = self._info
        self._role.raise_job_error()
        if info is None:
            info = self._learn_info()
        return {"info": info, **self._ids()}

    def deal_with_learner_close(self) -> Mapping[str, Any]:
        """Stop the learner after its iteration; its after_run hooks run (checkpoint, policy)."""
        if not self._role.stop_job():
            raise TaskFail({"message": "stuck"}, f"{self._role.info.worker_id}: the learner hangs")
        self._learner = self._rows = None
        self._role.raise_job_error()
        return self._ids()

    def _learner_cfg(self, task_info: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the learner's config with this worker's own run folder, whatever the master's is.

        A task that was handed on goes on from the newest checkpoint in there.
        """
        cfg = deep_merge_dicts(
            super()._learner_cfg(task_info), {"exp_name": str(self._role.run_dir)}
        )
        checkpoints = self._role.run_dir / "ckpt"
        if task_info.get("resume") and (checkpoints / "latest.json").is_file():
            cfg["hook"]["load_ckpt_before_run"] = str(checkpoints)
        return cfg

    # The learner's way in and ways out -----------------------------------------------------------
    @property
    def data_source(self) -> Callable[[int], Any]:
        """``get_batch``, which spares a callable per row, unless a subclass has its own rows."""
        is_own = type(self).get_data is not TransportLearner.get_data
        return self.get_data if is_own else self.get_batch

    def get_data(self, batch_size: int) -> RowLoaders | None:
        """Return callables for the rows of the next leased batch; the first call gathers it.

        A call raises ClosedError where the batch cannot be read and the task is over.
        """
        columns = self._next_lease(batch_size)
        if columns is None:
            return None

        def gather() -> SampleBatch:
            batch = self._gather(columns)
            if batch is None:
                batch = self.get_batch(batch_size)
            if batch is None:
                raise ClosedError("the task is over", what="learner task")
            return batch

        return RowLoaders(gather, batch_size, self.load_data_fn)

    def get_batch(self, batch_size: int) -> SampleBatch | None:
        """Return the next leased batch in columns, waiting for it; None: the task is over."""
        while (columns := self._next_lease(batch_size)) is not None:
            batch = self._gather(columns)
            if batch is not None:
                return batch
        return None

    def _gather(self, columns: dict[str, Any]) -> SampleBatch | None:
        """Return a leased batch; None where payloads of it are lost, which is noted."""
        assert self._rows is not None  # made when the task started
        payload, row = columns.pop("payload"), columns.pop("row")
        try:
            batch = self._rows.gather(payload, row)
        except PayloadsLostError as error:
            # The coordinator never leases them again; this batch is another's now.
            _log.warning("%s", error)
            self._lost_payloads |= error.facts["reasons"]
            return None
        return batch.with_columns(**columns) if columns else batch

    def _next_lease(self, batch_size: int) -> dict[str, Any] | None:
        """Return the columns of the next leased batch, asking for more; None: stop."""
        role = self._role
        role.advance()
        if not self._leased:
            with role.condition:
                self._info = self._learn_info()
                self._demand = {
                    "batch_size": batch_size,
                    "batches": int(self._cfg["batches_per_demand"]),
                    "cur_learner_iter": self._learner.train_iter,
                }
                role.condition.notify_all()
                if not role.job_wait(lambda: bool(self._leased), self._catch_up):
                    return None
        role.scheduler.yield_turn()
        return None if role.is_stopping else dict(self._leased.popleft())

    def send_policy(self, state: Mapping[str, Any]) -> None:
        """Publish a policy; where there is no room, the one before stays until the next goes out.

        That is tried after ``send_policy_freq`` iterations, and while the learner waits for data.
        """
        self._policies.publish(
            str(self._task_info["policy_id"]),
            state["model"],
            int(state["iter"]),
            is_last=self._learner.learn_info["learner_done"],
        )

    def _catch_up(self) -> None:
        if self._policies.is_behind:
            model = self._learner.policy.state_dict()["model"]
            self.send_policy({"model": model, "iter": self._learner.train_iter})

    def send_learn_info(self, info: Mapping[str, Any]) -> None:
        self._role.advance()
        if info.get("priority_info"):
            self._priorities.append(info["priority_info"])
        if info["learner_done"]:
            with self._role.condition:
                self._info = self._learn_info()
                self._role.condition.notify_all()

    # -------------------------------------------------------------------------------------------
    def _learn_info(self) -> dict[str, Any]:
        """The learner's info, with the priorities of every batch since the last one."""
        info = dict(self._learner.learn_info)
        lost, self._lost_payloads = self._lost_payloads, {}
        info["lost_payloads"] = [[number, reason] for number, reason in lost.items()]
        parts, self._priorities = self._priorities, []
        info["priority_info"] = (
            {key: np.concatenate([np.asarray(part[key]) for part in parts]) for key in parts[0]}
            if parts
            else {}
        )
        return info

    def _load_payload(self, data_id: str, digest: str | None) -> SampleBatch:
        store = self._role.data_store
        timeout_s = max(0.0, self._load_until - time.monotonic())
        if digest is None:
            return store.get(data_id, timeout_s)
        return store.get_verified(data_id, digest, timeout_s)

    def _ids(self) -> dict[str, Any]:
        return {
            "task_id": self._task_info.get("task_id"),
            "buffer_id": self._task_info.get("buffer_id"),
        }
