"""Collectors and learners of a simulation: real workers whose work only takes virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.errors import DataCorruptError, DataMissingError
from dingsdk.worker.collector.zergling import ZerglingParallelCollector
from dingsdk.worker.comm import BaseCommCollector, BaseCommLearner, CommWorker, Transport
from dingsdk.worker.learner.base import CountVar
from dingsdk.worker.learner.hooks import SaveCkptHook
from dingsdk.worker.replay_buffer.home import Home

if TYPE_CHECKING:
    from tools.simulation.simulation import Simulation

STEP_S = 1.0
ROWS, TASK_ROWS = 4, 80
SAVE_ITERS = 5


class _Simulated(CommWorker):
    """A worker of a simulation.

    Args:
        cfg: Its section of ``system``.
        transport: The transport of its process.
        worker_id: Its id, unique in the run.
        simulation: The simulation that it is in.
    """

    def __init__(
        self, cfg: Mapping[str, Any], transport: Transport, worker_id: str, simulation: Simulation
    ) -> None:
        super().__init__(cfg, transport, worker_id)
        self.simulation = simulation


class SimulatedCollector(_Simulated, BaseCommCollector):
    """Collects some rows each second, and sends them as a payload.

    On-policy, a payload has the rows of one policy version, and the collector collects only as
    many rows as the learner admits.
    """

    _unconfirmed: Sequence[str] = ()

    def _create_collector(self, task_info: Mapping[str, Any]) -> Any:
        self._unconfirmed = []
        self.simulation.build(self)
        return _Collecting(self)

    def _process_data_task(self, task: Mapping[str, Any]) -> Mapping[str, Any]:
        # The coordinator asks again after it has accepted everything in the last answer.
        self.simulation.acknowledged(self._unconfirmed)
        answer = super()._process_data_task(task)
        reports = answer["reports"]
        self._unconfirmed = [str(each["data_id"]) for each in reports if "data_id" in each]
        return answer

    def deal_with_collector_go_on(self, task_id: str) -> Mapping[str, Any]:
        # It reports the payloads of the last answer again.
        self._unconfirmed = []
        return super().deal_with_collector_go_on(task_id)


class _Collecting:
    """Takes the place of the parallel collector in a worker."""

    _step_limit = 0.0
    _mixes_versions = False

    def __init__(self, worker: SimulatedCollector) -> None:
        self._worker = worker
        self._has_closed = False
        self._steps = self._payloads = 0
        self._policy_iter = -1
        self._pending: list[int] = []
        self.send_metadata = worker.send_metadata
        self.get_policy_update_info = worker.get_policy_update_info
        self.await_steps = worker.await_steps

    @property
    def _is_closed(self) -> bool:
        return self._has_closed

    def start(self) -> None:
        worker, simulation = self._worker, self._worker.simulation
        path = str(worker._task_info["collector_cfg"]["policy_update_path"])
        is_on_policy = simulation.setting.on_policy
        self._update_one(path)
        while not self._is_closed and self._steps < TASK_ROWS:
            if is_on_policy and not self._is_admitted(path, self._steps):
                break
            self._pending += simulation.oracle.new_samples(ROWS, self._policy_iter)
            simulation.work(worker, STEP_S)
            self._steps += ROWS
            worker.yield_turn()
            if not is_on_policy:
                self._send_all()
                self._load_newer(path)
        if not self._is_closed:
            self._send_all()
            worker.send_metadata({**self._progress(), "collector_done": True})

    def _note_look_if_due(self) -> bool:
        return True  # a step takes longer than the interval between two looks

    def _is_admitted(self, path: str, steps: int) -> bool:
        taker: Any = self
        return ZerglingParallelCollector._is_admitted(taker, path, steps)

    def _send_all(self) -> None:
        worker, simulation = self._worker, self._worker.simulation
        samples, self._pending = self._pending, []
        if not samples:
            return
        name = f"p{self._payloads}"
        self._payloads += 1
        simulation.check_lease(worker)
        columns = {"sample": np.array(samples, np.int64)}
        worker.send_stepdata(name, SampleBatch.trusted(columns, len(samples)))
        simulation.oracle.announce(worker._payload_id(name), samples)
        facts = {"data_id": name, "rows": len(samples), "policy_iter": self._policy_iter}
        for more in simulation.announcements(worker):
            worker.send_metadata({**facts, **self._progress(), **more})

    def _load(self, path: str, update: Mapping[str, Any]) -> None:
        worker = self._worker
        worker.simulation.policy_read(worker.collector_uid, path, update)
        self._policy_iter = int(update["iter"])

    def _load_newer(self, path: str) -> bool:
        update = self.get_policy_update_info(path)
        if update is not None:
            self._load(path, update)
        return update is not None

    def _update_one(self, path: str, is_needed: Callable[[], bool] = lambda: True) -> None:
        while not self._is_closed and is_needed() and not self._load_newer(path):
            self._worker.pause(0.2)

    def _progress(self) -> dict[str, Any]:
        steps = self._steps
        progress = {"cur_episode": 0, "cur_sample": steps, "cur_step": steps}
        return {**progress, "collector_done": False}

    def close(self) -> None:
        self._has_closed = True

    def get_finish_info(self) -> dict[str, Any]:
        return {"eval_flag": False, "step_count": self._steps, "collector_done": True}


class SimulatedLearner(_Simulated, BaseCommLearner):
    """Trains on one batch per second."""

    home_number = 0

    def _create_learner(self, task_info: Mapping[str, Any]) -> Any:
        self.simulation.build(self)
        return _Learning(self, task_info)

    def _create_home(self, task_info: Mapping[str, Any]) -> Home:
        home, self.home_number = super()._create_home(task_info), task_info["home"]["number"]
        home.exchange_s = 1.0
        self.simulation.watch(home, self.home_number, self._learner.train_iter)
        return home

    def _load_payload(self, data_id: str, digest: str | None) -> SampleBatch:
        try:
            batch = super()._load_payload(data_id, digest)
        except (DataCorruptError, DataMissingError) as error:
            is_corrupt = isinstance(error, DataCorruptError)
            self.simulation.read(self.home_number, data_id, "corrupt" if is_corrupt else "missing")
            raise
        self.simulation.read(self.home_number, data_id)
        return batch


class _Learning:
    """Takes the place of the learner and its policy in a worker; its checkpoints are files."""

    collector_envstep = 0
    rank = 0
    ckpt_name = None
    keep_last_ckpt = 2
    instance_name = "learner"
    exp_name = "simulated"
    tb_logger = None

    @staticmethod
    def patience(write: Callable[[], object]) -> object:
        """Write without waiting for room."""
        return write()

    def __init__(self, worker: SimulatedLearner, task_info: Mapping[str, Any]) -> None:
        self._worker = worker
        self._batch_size = int(task_info["policy"]["learn"]["batch_size"])
        self._is_closed = False
        self.policy = self
        self.last_iter = CountVar()
        self._save = SaveCkptHook("save", 20, ext_args={"freq": SAVE_ITERS}, position="after_iter")
        simulation = worker.simulation
        self.checkpoint_dir = simulation.checkpoints(worker, str(task_info["task_id"]))
        if task_info.get("resume"):
            found = simulation.resumed_from(self.checkpoint_dir)
            self.last_iter.update(found.iteration)
            worker._checkpoint = found.meta
        self.checkpoint_meta = worker._checkpoint_meta

    @property
    def train_iter(self) -> int:
        return self.last_iter.val

    updates = train_iter

    @property
    def learn_info(self) -> dict[str, Any]:
        done = {"learner_step": self.train_iter, "learner_done": False}
        return {**done, "priority_info": self._priorities}

    _priorities: Mapping[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"model": {"version": np.array([self.train_iter])}}

    def info(self, text: str) -> None:
        """Record that the hook saved a checkpoint; the hook logs nothing else."""
        worker = self._worker
        worker.simulation.checkpoint_saved(self.checkpoint_dir, self.train_iter, worker.home_number)

    def start(self) -> None:
        worker, simulation = self._worker, self._worker.simulation
        worker._publisher.publish_newest(self)
        worker.note_loaded()
        while not self._is_closed:
            batch = worker.get_batch(self._batch_size)
            if not isinstance(batch, SampleBatch):
                return
            simulation.trained(worker.home_number, batch, self.train_iter)
            simulation.work(worker, STEP_S)
            self.last_iter.add(1)
            if "replay_unique_id" in batch.columns:
                keys = ("replay_unique_id", "replay_buffer_idx")
                found = {key: batch.columns[key] for key in keys}
                self._priorities = {**found, "priority": np.ones(len(batch))}
            worker.send_learn_info(self.learn_info)
            if self.train_iter % SAVE_ITERS == 0 and not simulation.setting.on_policy:
                worker._publisher.publish_newest(self)
            engine: Any = self
            self._save(engine)

    def close(self) -> None:
        self._is_closed = True


WORKERS: Mapping[str, type[CommWorker]] = {
    "collector": SimulatedCollector,
    "learner": SimulatedLearner,
}
