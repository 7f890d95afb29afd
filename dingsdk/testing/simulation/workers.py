"""Collectors and learners of a simulation: the real workers, around work that only takes time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.worker.comm import BaseCommCollector, BaseCommLearner, CommWorker, Transport
from dingsdk.worker.learner.base import CountVar
from dingsdk.worker.learner.hooks import SaveCkptHook

if TYPE_CHECKING:
    from dingsdk.testing.simulation.simulation import Simulation

STEP_S = 1.0
SAVE_ITERS = 5


class _Simulated(CommWorker):
    """A worker of a simulation.

    Args:
        cfg: Its section of ``system``.
        transport: Of its process.
        worker_id: Unique in the run.
        simulation: Where it works.
    """

    def __init__(
        self, cfg: Mapping[str, Any], transport: Transport, worker_id: str, simulation: Simulation
    ) -> None:
        super().__init__(cfg, transport, worker_id)
        self.simulation = simulation


class SimulatedCollector(_Simulated, BaseCommCollector):
    """Collects a payload a second."""

    _unconfirmed: Sequence[str] = ()

    def _create_collector(self, task_info: Mapping[str, Any]) -> Any:
        self._unconfirmed = []
        self.simulation.build(self)
        return _Collecting(self)

    def _process_data_task(self, task: Mapping[str, Any]) -> Mapping[str, Any]:
        # The coordinator asks again when it has taken all that the last answer reported.
        self.simulation.acknowledged(self._unconfirmed)
        answer = super()._process_data_task(task)
        reports = answer["reports"]
        self._unconfirmed = [str(each["data_id"]) for each in reports if "data_id" in each]
        return answer

    def deal_with_collector_go_on(self, task_id: str) -> Mapping[str, Any]:
        # What the last answer reported, it reports again.
        self._unconfirmed = []
        return super().deal_with_collector_go_on(task_id)


class _Collecting:
    """Stands where a parallel collector does."""

    def __init__(self, worker: SimulatedCollector) -> None:
        self._worker = worker
        self._is_closed = False
        self._steps = 0

    def start(self) -> None:
        worker, simulation = self._worker, self._worker.simulation
        path, episodes = str(worker._task_info["collector_cfg"]["policy_update_path"]), 0
        self._update(path)
        version = self._version
        while not self._is_closed and self._steps < simulation.task_rows:
            simulation.work(worker, STEP_S)
            worker.yield_turn()
            self._update(path)
            version = self._version
            rows = simulation.payload_rows
            samples = simulation.oracle.new_samples(rows)
            name = f"p{episodes}"
            episodes += 1
            simulation.check_lease(worker)
            worker.send_stepdata(name, SampleBatch({"sample": np.array(samples, np.int64)}))
            self._steps += rows
            simulation.announced(worker._payload_id(name), samples)
            report = {"data_id": name, "rows": rows, "policy_iter": version, **self._progress()}
            for more in simulation.announcements(worker):
                worker.send_metadata({**report, **more})
        if not self._is_closed:
            worker.send_metadata({**self._progress(), "collector_done": True})

    _version = -1

    def _update(self, path: str) -> None:
        worker = self._worker
        while True:
            found = worker.get_policy_update_info(path)
            if found is not None:
                worker.simulation.policy_read(worker.collector_uid, path, found)
                self._version = int(found["iter"])
            if self._version >= 0 or self._is_closed:
                return
            worker.pause(0.2)

    def _progress(self) -> dict[str, Any]:
        steps = self._steps
        progress = {"cur_episode": 0, "cur_sample": steps, "cur_step": steps}
        return {**progress, "collector_done": False}

    def close(self) -> None:
        self._is_closed = True

    def get_finish_info(self) -> dict[str, Any]:
        return {"eval_flag": False, "step_count": self._steps, "collector_done": True}


class SimulatedLearner(_Simulated, BaseCommLearner):
    """Trains on a batch a second."""

    def _create_learner(self, task_info: Mapping[str, Any]) -> Any:
        self.simulation.build(self)
        return _Learning(self, task_info)


class _Learning:
    """Stands where a learner does, and its policy; its checkpoints are files."""

    collector_envstep = 0
    rank = 0
    ckpt_name = None
    keep_last_ckpt = 2
    instance_name = "learner"

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
            self.last_iter.update(simulation.resumed_iteration(self.checkpoint_dir))

    @property
    def train_iter(self) -> int:
        return self.last_iter.val

    @property
    def learn_info(self) -> dict[str, Any]:
        done = {"learner_step": self.train_iter, "learner_done": False}
        return {**done, "priority_info": self._priorities}

    _priorities: Mapping[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"model": {"version": np.array([self.train_iter])}}

    def info(self, text: str) -> None:
        """Note that the hook has saved a checkpoint; it tells nothing else."""
        self._worker.simulation.checkpoint_saved(self.checkpoint_dir, self.train_iter)

    def start(self) -> None:
        worker, simulation = self._worker, self._worker.simulation
        worker._send_newest()
        while not self._is_closed:
            batch = worker.get_batch(self._batch_size)
            if not isinstance(batch, SampleBatch):
                return
            simulation.trained(batch)
            simulation.work(worker, STEP_S)
            self.last_iter.add(1)
            if "replay_unique_id" in batch.columns:
                keys = ("replay_unique_id", "replay_buffer_idx")
                found = {key: batch.columns[key] for key in keys}
                self._priorities = {**found, "priority": np.ones(len(batch))}
            worker.send_learn_info(self.learn_info)
            if self.train_iter % SAVE_ITERS == 0:
                worker._send_newest()
            engine: Any = self
            self._save(engine)

    def close(self) -> None:
        self._is_closed = True


WORKERS: Mapping[str, type[CommWorker]] = {
    "collector": SimulatedCollector,
    "learner": SimulatedLearner,
}
