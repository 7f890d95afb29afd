"""Scripted envs, a policy that counts its calls, and a model of a collector that uses both.

This module does not use the collectors: ``Model`` is a plain loop over envs with one list each.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dingsdk.data import SampleBatch
from dingsdk.envs import BaseVectorEnvManager
from dingsdk.envs.guard import GuardedEnv
from dingsdk.policy.modes import CollectMode


class Episode(NamedTuple):
    """One scripted episode: its length, whether it terminates, and the time of its failure."""

    length: int
    is_terminated: bool
    fails_at: int | None


@dataclass(frozen=True)
class Script:
    """The script of all envs. An episode is drawn from ``seed``, its env and its number."""

    seed: int
    longest: int
    fail_rate: float

    def episode(self, env_id: int, number: int) -> Episode:
        draw = random.Random(f"{self.seed} {env_id} {number}")
        length, is_terminated = draw.randint(1, self.longest), draw.random() < 0.5
        fails_at = draw.randint(1, length) if draw.random() < self.fail_rate else None
        # Only odd episodes fail: the third failure in a row would end the run.
        return Episode(length, is_terminated, fails_at if number % 2 else None)

    def reward(self, env_id: int, number: int, time: int) -> float:
        return 0.25 * time - 0.5 * (number % 3) + env_id


class ScriptedEnv(gym.Env[Any, Any]):
    """Observes (env, episode, time). ``numbers[env_id]`` counts its resets, also over rebuilds."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Discrete(5)

    def __init__(self, script: Script, env_id: int, numbers: list[int]) -> None:
        self._script, self._env_id, self._numbers = script, env_id, numbers
        self._time = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._numbers[self._env_id] += 1
        self._time = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._time += 1
        number = self._numbers[self._env_id]
        episode = self._script.episode(self._env_id, number)
        if self._time == episode.fails_at:
            raise RuntimeError("fails as the script says")
        reward = self._script.reward(self._env_id, number, self._time)
        is_over = self._time == episode.length
        terminated = is_over and episode.is_terminated
        return self._obs(), reward, terminated, is_over and not terminated, {}

    def get_state(self) -> tuple[int, int]:
        return self._numbers[self._env_id], self._time

    def set_state(self, state: tuple[int, int]) -> None:
        self._numbers[self._env_id], self._time = state

    def _obs(self) -> Any:
        number = self._numbers[self._env_id]
        return np.array([self._env_id, number, self._time], np.float32)


def env_fns(script: Script, env_num: int) -> list[Any]:
    numbers = [-1] * env_num
    return [lambda i=i: ScriptedEnv(script, i, numbers) for i in range(env_num)]


class NextStepEnvs(BaseVectorEnvManager):
    """A vector env that spends a step on each reset."""

    def make_vector_env(self) -> Any:
        guarded = [
            partial(GuardedEnv, fn, index, self.section) for index, fn in enumerate(self._env_fns)
        ]
        return SyncVectorEnv(guarded, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)


class CountingPolicy:
    """A recurrent policy: its action is (calls since the env's reset + ``shift``) % 5.

    A sample also holds its position in its trajectory piece, so that pieces can be compared.
    """

    def __init__(self, **attributes: Any) -> None:
        self.asked: dict[int, int] = {}
        self.resets: list[int] = []
        self._attributes = attributes

    def mode(self, form: str) -> CollectMode:
        batched = {
            "forward_batch": self._forward_batch,
            "make_transitions": self._transitions,
            "make_samples": self._samples,
        }
        return CollectMode(
            forward=self._forward,
            process_transition=self._transition,
            get_train_sample=self._sample_dicts,
            reset=self._reset,
            get_attribute=self._attributes.__getitem__,
            set_attribute=self._attributes.__setitem__,
            state_dict=dict,
            load_state_dict=lambda state: None,
            **(batched if form == "columns" else {}),
        )

    def _reset(self, ids: Sequence[int] | None = None) -> None:
        if ids is None:
            self.asked.clear()
        else:
            self.resets += ids
            for env_id in ids:
                self.asked.pop(env_id, None)

    def _act(self, env_id: int, shift: int) -> int:
        self.asked[env_id] = self.asked.get(env_id, 0) + 1
        return (self.asked[env_id] + shift) % 5

    def _forward(self, obs: Mapping[int, Any], shift: int = 0) -> dict[int, Any]:
        for env_id, value in obs.items():
            assert int(value[0]) == env_id
        return {env_id: {"action": np.int64(self._act(env_id, shift))} for env_id in obs}

    def _forward_batch(self, obs: Any, env_ids: Sequence[int], shift: int = 0) -> dict[str, Any]:
        assert obs[:, 0].tolist() == list(env_ids)
        return {"action": np.array([self._act(env_id, shift) for env_id in env_ids])}

    @staticmethod
    def _transition(obs: Any, output: Any, timestep: Any) -> dict[str, Any]:
        return {
            "obs": obs,
            "action": output["action"],
            "reward": np.float32(timestep.reward),
            "next_obs": timestep.obs,
            "terminated": timestep.info["terminated"],
            "done": timestep.done,
        }

    @staticmethod
    def _transitions(obs: Any, output: Any, step: Any) -> dict[str, Any]:
        return {
            "obs": obs,
            "action": output["action"],
            "reward": step.reward,
            "next_obs": step.final_obs,
            "terminated": step.terminated,
            "done": step.terminated | step.truncated,
        }

    @staticmethod
    def _samples(columns: Mapping[str, Any], ends: Any) -> SampleBatch:
        lengths = np.diff(ends, prepend=0)
        position = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
        piece = np.repeat(lengths, lengths)
        return SampleBatch({**columns, "position": position, "piece": piece})

    @staticmethod
    def _sample_dicts(piece: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {**transition, "position": position, "piece": len(piece)}
            for position, transition in enumerate(piece)
        ]


class EndedEpisode(NamedTuple):
    env_id: int
    episode_return: float
    length: int


@dataclass
class Model:
    """Computes the results that a serial collector of ``env_num`` scripted envs must give.

    Args:
        traj_len: Length at which trajectories are cut; None cuts only at episode ends.
        reset_takes_step: Whether an env spends a round on its reset after an episode.
        asks_in_reset: Whether the policy is asked for an action in that round.
    """

    script: Script
    env_num: int
    traj_len: int | None
    on_policy: bool = False
    reset_takes_step: bool = False
    asks_in_reset: bool = False
    level_seeds: Sequence[int] | None = None
    truncates: bool = False
    """Whether trajectories are cut as soon as there are enough transitions."""
    envstep: int = 0
    dropped: int = 0
    last_iter: int | None = None
    resets: list[int] = field(default_factory=list)
    """Envs whose policy state was reset, in no particular order within one collect."""

    def __post_init__(self) -> None:
        every = range(self.env_num)
        self.number = [0 for _ in every]
        self.time = [0 for _ in every]
        self.asked = [0 for _ in every]
        self.is_resetting = [False for _ in every]
        self.returns = [0.0 for _ in every]
        self.lengths = [0 for _ in every]
        self.drop_transitions()

    def drop_transitions(self) -> None:
        self.pieces: list[list[dict[str, Any]]] = [[] for _ in range(self.env_num)]
        self.pending: list[dict[str, Any]] = []
        self.surplus: list[dict[str, Any]] = []

    def reset_env(self) -> None:
        self.drop_transitions()
        self.returns = [0.0] * self.env_num
        self.lengths = [0] * self.env_num
        for env_id in range(self.env_num):
            if not self.is_resetting[env_id]:
                self._next_episode(env_id)
            self.is_resetting[env_id] = False

    def reset_policy(self) -> None:
        self.asked = [0] * self.env_num

    def collect(
        self, wanted: int, train_iter: int, drop_extra: bool | None, shift: int, is_random: bool
    ) -> tuple[list[dict[str, Any]], list[EndedEpisode], int]:
        """Return the samples, the episodes that ended, and the env steps taken."""
        if self.on_policy and train_iter != self.last_iter:
            self.dropped += len(self.surplus) + len(self.pending) + sum(map(len, self.pieces))
            self.drop_transitions()
        self.last_iter = train_iter
        samples, self.surplus = self.surplus, []
        episodes: list[EndedEpisode] = []
        before = self.envstep
        while len(samples) < wanted:
            while (have := len(samples) + len(self.pending)) < wanted:
                if self.truncates and have + sum(map(len, self.pieces)) >= wanted:
                    for env_id in range(self.env_num):
                        self.cut(env_id)
                    break
                for env_id in range(self.env_num):
                    self.play(env_id, train_iter, shift, is_random, episodes)
                if all(self.is_resetting) and not self.asks_in_reset:
                    # In the dict form the manager spends a round in which no env is ready.
                    self.is_resetting = [False] * self.env_num
            samples += self.pending
            self.pending = []
        if drop_extra is not False:
            stop = len(samples)
            if drop_extra:
                # The rest of a whole episode is kept.
                stop = min(wanted, stop)
                while self.traj_len is None and not self._is_end(samples[stop - 1]):
                    stop += 1
                self.dropped += len(samples) - stop
            samples, self.surplus = samples[:wanted], samples[wanted:stop]
        return samples, episodes, self.envstep - before

    @staticmethod
    def _is_end(sample: Mapping[str, Any]) -> bool:
        """Whether a sample is the last one of its trajectory."""
        return bool(sample["position"] == sample["piece"] - 1)

    def play(
        self,
        env_id: int,
        train_iter: int,
        shift: int,
        is_random: bool,
        episodes: list[EndedEpisode],
    ) -> None:
        """Play one round of one env."""
        if self.is_resetting[env_id]:
            self.is_resetting[env_id] = False
            if self.asks_in_reset:  # about the last observation of the episode before
                self.asked[env_id] = 0
                self.resets.append(env_id)
            return
        self.asked[env_id] += int(not is_random)
        number, time = self.number[env_id], self.time[env_id] + 1
        episode = self.script.episode(env_id, number)
        if time == episode.fails_at:
            self.pieces[env_id] = []
            self._end(env_id)
            return
        self.time[env_id] = time
        self.envstep += 1
        reward = self.script.reward(env_id, number, time)
        self.returns[env_id] += reward
        self.lengths[env_id] += 1
        is_done = time == episode.length
        transition = {
            "obs": [env_id, number, time - 1],
            "action": None if is_random else (self.asked[env_id] + shift) % 5,
            "reward": reward,
            "next_obs": [env_id, number, time],
            "terminated": is_done and episode.is_terminated,
            "done": is_done,
            "collect_iter": train_iter,
        }
        if self.level_seeds is not None:
            transition["seed"] = self.level_seeds[env_id]
        piece = self.pieces[env_id]
        piece.append(transition)
        if is_done or len(piece) == self.traj_len:
            self.cut(env_id)
        if is_done:
            ended = EndedEpisode(env_id, self.returns[env_id], self.lengths[env_id])
            episodes.append(ended)
            self.is_resetting[env_id] = self.reset_takes_step
            self._end(env_id)

    def cut(self, env_id: int) -> None:
        """Turn the unfinished trajectory of an env into samples."""
        piece, self.pieces[env_id] = self.pieces[env_id], []
        for position, transition in enumerate(piece):
            self.pending.append({**transition, "position": position, "piece": len(piece)})

    def _end(self, env_id: int) -> None:
        self._next_episode(env_id)
        self.returns[env_id], self.lengths[env_id] = 0.0, 0
        self.asked[env_id] = 0
        self.resets.append(env_id)

    def _next_episode(self, env_id: int) -> None:
        self.number[env_id] += 1
        self.time[env_id] = 0


def plain_rows(samples: Any) -> list[dict[str, Any]]:
    """Return samples of either form as plain dicts."""
    return [
        {
            key: value.tolist() if hasattr(value, "tolist") else value
            for key, value in sample.items()
        }
        for sample in samples
    ]


def differences(
    rows: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return how collected rows differ from the model; an expected None matches any value."""
    found = [] if len(rows) == len(expected) else [f"{len(rows)} rows, not {len(expected)}"]
    for index, (row, model) in enumerate(zip(rows, expected, strict=False)):
        if row.keys() != model.keys():
            found.append(f"row {index} has {sorted(row)}, not {sorted(model)}")
        found += [
            f"row {index}: {key} is {row.get(key)!r}, not {value!r}"
            for key, value in model.items()
            if value is not None and row.get(key) != value
        ]
    return found
