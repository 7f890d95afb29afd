"""An env whose observations give env, episode and time, and fixtures for collectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from dingsdk.envs import create_env_manager
from dingsdk.policy import create_policy
from dingsdk.worker.collector.sample import SampleSerialCollector


class CounterEnv(gym.Env[Any, Any]):
    """Observes (env, episode, time); episode ``k`` has length ``lengths[k % len(lengths)]``.

    Args:
        env_id: First component of the observation.
        lengths: Episode lengths, in turn.
        fails: (episode, time) at which ``step`` raises.
        log: Shared with rebuilt envs: ``episode`` counter and ``steps`` taken.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, env_id: int, lengths: Any, fails: Any, log: dict[str, int]) -> None:
        self.env_id, self.lengths, self.fails, self.log = env_id, lengths, fails, log
        self.time = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.log["episode"] += 1
        self.time = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        self.log["steps"] += 1
        episode = self.log["episode"]
        if (episode, self.time) in self.fails:
            raise RuntimeError(f"env {self.env_id} breaks")
        is_over = self.time == self.lengths[episode % len(self.lengths)]
        return self._obs(), 1.0, is_over, False, {}

    def _obs(self) -> Any:
        return np.array([self.env_id, self.log["episode"], self.time], np.float32)


class Counters:
    """Functions that make CounterEnvs, and the logs of these envs."""

    def __init__(self, lengths: Any, fails: Any) -> None:
        self.logs = [{"episode": -1, "steps": 0} for _ in lengths]
        self.env_fns = [
            lambda i=i: CounterEnv(i, lengths[i], fails.get(i, ()), self.logs[i])
            for i in range(len(lengths))
        ]

    @property
    def steps(self) -> int:
        return sum(log["steps"] for log in self.logs)


@pytest.fixture(params=["in_process", "vector"])
def manager_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["columns", "rows"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_policy() -> Callable[..., Any]:
    """``make_policy(n_sample, form, obs_size, nstep)`` -> the collect mode of a real DQN."""

    def make(
        n_sample: int | None = 8,
        form: str = "columns",
        obs_size: int = 3,
        nstep: int = 1,
        **cfg: Any,
    ) -> Any:
        mode = create_policy(
            {
                "type": "dqn",
                "nstep": nstep,
                "model": {"obs_shape": obs_size, "action_shape": 2},
                "collect": {"n_sample": n_sample, "unroll_len": 1},
                **cfg,
            },
            enable_field=["collect"],
            seed=3,
        ).collect_mode
        if form == "rows":
            return mode._replace(forward_batch=None, make_transitions=None, make_samples=None)
        return mode

    return make


@pytest.fixture
def make_collector(tmp_path: Any) -> Iterator[Callable[..., Any]]:
    """``make_collector(policy, lengths, ...)`` -> (collector, counters); closed at the end."""
    opened: list[Any] = []

    def make(
        policy: Any,
        lengths: Any = ((5,), (5,)),
        manager_type: str = "in_process",
        fails: Any = None,
        episode_num: float = np.inf,
        kind: Any = SampleSerialCollector,
        tb_logger: Any = None,
        **cfg: Any,
    ) -> tuple[Any, Counters]:
        counters = Counters(lengths, fails or {})
        env = create_env_manager(
            {"type": manager_type, "episode_num": episode_num}, counters.env_fns
        )
        collector = kind(
            {**kind.default_config(), **cfg},
            env=env,
            policy=policy,
            tb_logger=tb_logger,
            exp_name=str(tmp_path),
        )
        opened.append(collector)
        return collector, counters

    yield make
    for collector in opened:
        collector.close()


@pytest.fixture
def make_task(tmp_path: Any) -> Iterator[Callable[..., Any]]:
    """``make_task(kind, eval_flag=..., **cfg)`` -> a collector of tasks; closed at the end."""
    made: list[Any] = []

    def make(kind: Any, *, eval_flag: bool = False, **cfg: Any) -> Any:
        given = {"eval_flag": eval_flag, "exp_name": str(tmp_path), "seed": 11, **cfg}
        setting = {"collect_setting": {} if eval_flag else {"eps": 0.5}}
        made.append(kind({**kind.default_config(), **setting, **given}))
        return made[-1]

    yield make
    for collector in made:
        collector.close()
        collector._release()
