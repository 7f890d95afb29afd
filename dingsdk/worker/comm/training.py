"""What differs between a comm learner's training off-policy and on-policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from dingsdk.plugins import default_manager
from dingsdk.worker.collector.dataset import push_recorded
from dingsdk.worker.collector.factory import takes_env_steps
from dingsdk.worker.comm.hooks import SendLearnInfoHook, SendPolicyHook
from dingsdk.worker.comm.publisher import PolicyPublisher
from dingsdk.worker.comm.worker import REPLAY_PAUSE_S, REPLAY_WAIT_S
from dingsdk.worker.factory import create_buffer
from dingsdk.worker.learner.hooks import LearnerHook
from dingsdk.worker.policy_lag import LagCounter
from dingsdk.worker.replay_buffer.config import PATH
from dingsdk.worker.replay_buffer.home import Home, Load, TableHome, TrainingHome
from dingsdk.worker.replay_buffer.pace import EpisodePace
from dingsdk.worker.replay_buffer.table import Table
from dingsdk.worker.replay_server.home import ServedHome

if TYPE_CHECKING:
    from dingsdk.worker.comm.learner import BaseCommLearner


class Training(ABC):
    """Where the samples of a learner's task are, and when the learner publishes its policy.

    The policy is published before the first and after the last iteration; subclasses decide when
    in between. If the disk is full, the previous version stays the newest, and the policy is tried
    again with the next version and while the learner waits for samples.

    Args:
        worker: The comm learner.
        policy_id: Id of the published policy.
        lags: Counts how old the rows are that the learner trains on.
    """

    exchange_s = 0.05
    """How long the learner trains between two exchanges with the coordinator, if it has data. Each
    exchange takes about a millisecond of CPU."""

    def __init__(self, worker: BaseCommLearner, policy_id: str, lags: LagCounter) -> None:
        self.lags = lags
        self._worker = worker
        self._policy_id = policy_id
        self._publisher = PolicyPublisher(worker)
        self._version = -1  # that was published last

    @property
    def held_up_by(self) -> str:
        """Why the first policy is not published yet, or ""."""
        return self._publisher.held_up_by

    @abstractmethod
    def create_home(self, task: Mapping[str, Any], learner: Any, load: Load, resumes: bool) -> Home:
        """Make the home of the samples.

        Args:
            task: The learner's task.
            learner: The task's learner.
            load: Returns a payload by its id and its digest.
            resumes: Whether the learner continues from a checkpoint of the run.
        """

    def hooks(self) -> list[LearnerHook]:
        """Return the hooks that make a learner publish its policy and report."""
        return [
            SendPolicyHook("send_policy", position="before_run"),
            SendPolicyHook("send_policy", position="after_run"),
            SendLearnInfoHook("send_learn_info", 100, position="after_iter"),
            SendLearnInfoHook("send_learn_info", 100, position="after_run"),
        ]

    def publish(self, state: Mapping[str, Any], *, is_last: bool) -> None:
        """Publish ``{'model': tensors, 'iter': version}``."""
        store, version = self._worker.policy_store, int(state["iter"])
        self._version = version
        if is_last and store.newest(self._policy_id, version) is not None:
            # Newer weights were lost with another learner; the last evaluation must not use them.
            store.discard(self._policy_id)
        self._publisher.publish(self._policy_id, state["model"], version, is_last=is_last)

    def publish_newest(self, learner: Any) -> None:
        """Publish the weights that the learner has now."""
        model = learner.policy.state_dict()["model"]
        self._worker.send_policy({"model": model, "iter": learner.train_iter})

    def observe_dataset(self, policy: Any) -> None:  # noqa: B027, most have no data set
        """Update the statistics of the policy by the samples of the task's data set, if any."""

    def before_wait(self, learner: Any) -> None:  # noqa: B027, off-policy nothing is to be done
        """Do what has to be done before the learner waits for samples."""

    def while_waiting(self, learner: Any) -> None:
        """Called regularly while the learner waits for samples."""
        if self._publisher.is_behind:
            self.publish_newest(learner)


class OffPolicyTraining(Training):
    """Samples stay in a replay buffer; the policy is published every ``send_policy_freq`` updates.

    Args:
        send_policy_freq: Train iterations from one published version to the next.
    """

    def __init__(self, worker: BaseCommLearner, policy_id: str, send_policy_freq: int) -> None:
        super().__init__(worker, policy_id, LagCounter(send_policy_freq))
        self._freq = {"send_policy_freq": send_policy_freq}
        self._recorded: list[Any] = []
        """Samples of the task's data set for ``observe`` of the policy."""

    def create_home(self, task: Mapping[str, Any], learner: Any, load: Load, resumes: bool) -> Home:
        buffer_cfg, policy_cfg, home = task["replay_buffer_cfg"], task["policy"], task["home"]
        if self._worker.replay is not None:
            wait_s = 0.0 if self._worker.scheduler.is_cooperative else REPLAY_WAIT_S
            kind = default_manager().class_of("buffers", buffer_cfg, PATH)
            drawn = getattr(kind, "draws", "rows")
            return ServedHome(self._worker.replay, wait_s, REPLAY_PAUSE_S, drawn)
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
            keep = None if resumes else self._recorded.append
            table.dataset_rows = push_recorded(buffer, policy_cfg, keep)
        return table

    def hooks(self) -> list[LearnerHook]:
        after_iter = SendPolicyHook("send_policy", position="after_iter", ext_args=self._freq)
        return [after_iter, *super().hooks()]

    def observe_dataset(self, policy: Any) -> None:
        observe = getattr(policy, "observe", None)
        if observe is not None:
            for samples in self._recorded:
                observe(samples)
        self._recorded = []


class OnPolicyTraining(Training):
    """Samples are trained on once, and the policy is published after each training on them.

    Collectors wait for that version.
    """

    exchange_s = 0.1  # during a training there is nothing to announce

    def __init__(self, worker: BaseCommLearner, policy_id: str) -> None:
        self._versions: list[int] = []
        super().__init__(worker, policy_id, LagCounter(self._versions, every=1))
        self._read_version = -1  # that was last checked to be readable

    def create_home(self, task: Mapping[str, Any], learner: Any, load: Load, resumes: bool) -> Home:
        return TrainingHome(load, int(task["policy"]["learn"].get("update_per_collect", 1)))

    def publish(self, state: Mapping[str, Any], *, is_last: bool) -> None:
        if int(state["iter"]) > self._version:
            self._versions.append(int(state["iter"]))
        super().publish(state, is_last=is_last)

    def before_wait(self, learner: Any) -> None:
        # Before the report of the training, as collectors need the new version by then.
        if learner.train_iter != self._version:
            self.publish_newest(learner)

    def while_waiting(self, learner: Any) -> None:
        if self._publisher.is_behind:
            self.publish_newest(learner)
        elif self._read_version != self._version:
            # Collectors cannot load this version if it is damaged.
            self._read_version = self._version
            if self._worker.policy_store.newest(self._policy_id, self._version - 1) is None:
                self.publish_newest(learner)
