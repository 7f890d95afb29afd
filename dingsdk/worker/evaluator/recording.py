"""The evaluator that keeps the transitions of the episodes that it plays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dingsdk.data import SampleBatch
from dingsdk.policy.modes import CollectMode, EvalMode
from dingsdk.worker.collector.columns import BatchedRollout, ColumnsWriter, split_episodes
from dingsdk.worker.collector.factory import in_columns
from dingsdk.worker.collector.rollout import EpisodeRecord, Rollout
from dingsdk.worker.collector.rows import DictRollout, RowsWriter
from dingsdk.worker.evaluator.interaction import InteractionSerialEvaluator
from dingsdk.worker.evaluator.monitor import VectorEvalMonitor

RECORDED = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
"""The columns of a recorded episode."""


class RecordingEvaluator(InteractionSerialEvaluator):
    """Plays the episodes of an evaluation, and keeps what the policy saw and did in them.

    The policy may also be a collect mode, which explores.

    Attributes:
        episodes: The episodes of the last ``eval`` in the order in which they ended, each a batch
            with the columns ``RECORDED``. ``action`` is what the env got, ``reward`` float32[T],
            ``next_obs`` the observation that the action led to, also in the last row, and
            ``terminated`` and ``truncated`` bool[T]. Unfinished episodes of envs that failed are
            not among them.
        transforms_obs: Whether a policy with only the dict form gets observations as tensors.
    """

    episodes: list[SampleBatch]
    transforms_obs = True

    _writer: ColumnsWriter | RowsWriter

    def _make_rollout(self, monitor: VectorEvalMonitor) -> Rollout:
        self.episodes = []
        env, mode = self.env, _recording(self.policy)
        if in_columns(env, mode):
            self._writer = ColumnsWriter(env.env_num, None, split_episodes)
            return BatchedRollout(env, mode, self._writer, monitor.quota)
        self._writer = _EpisodeRows(env.env_num, None, lambda _, rows: rows)
        return DictRollout(env, mode, self._writer, monitor.quota, self.transforms_obs)

    def _record(self, episodes: list[EpisodeRecord], monitor: VectorEvalMonitor) -> None:
        super()._record(episodes, monitor)
        pieces: Any = self._writer.flush() or []
        for each in pieces:
            self.episodes.append(SampleBatch({name: each.columns[name] for name in RECORDED}))


class _EpisodeRows(RowsWriter):
    """Keeps each episode as one batch, with the dtypes of the env."""

    def _convert(self, env_id: int) -> None:
        trajectory = self._trajectories[env_id]
        self._pieces.append([SampleBatch.from_rows(trajectory)])
        self.pending_rows += len(trajectory)
        trajectory.clear()


def _recording(mode: CollectMode | EvalMode) -> CollectMode:
    """Return a mode that acts as the given one, and records steps as the env gave them."""
    return CollectMode(
        forward=mode.forward,
        process_transition=_transition,
        get_train_sample=list,
        reset=mode.reset,
        get_attribute=mode.get_attribute,
        set_attribute=mode.set_attribute,
        state_dict=mode.state_dict,
        load_state_dict=mode.load_state_dict,
        forward_batch=getattr(mode, "forward_batch", None),
        make_transitions=_transitions,
    )


def _transition(obs: Any, output: Mapping[str, Any], timestep: Any) -> dict[str, Any]:
    """Return the transition of one env; as ``process_transition`` of a policy."""
    return {
        "obs": obs,
        "action": output["action"],
        "reward": float(timestep.reward),
        "next_obs": timestep.obs,
        "terminated": bool(timestep.info["terminated"]),
        "truncated": bool(timestep.info["truncated"]),
    }


def _transitions(obs: Any, output: Mapping[str, Any], step: Any) -> dict[str, Any]:
    """Return the transitions of several envs; as ``make_transitions`` of a policy."""
    return {
        "obs": obs,
        "action": output["action"],
        "reward": step.reward,
        "next_obs": step.final_obs,
        "terminated": step.terminated,
        "truncated": step.truncated,
    }
