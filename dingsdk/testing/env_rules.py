"""The rules of the env managers, and the env and the bench that check them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import gymnasium as gym
import numpy as np

from dingsdk.data import decode_safetensors, encode_safetensors
from dingsdk.data.seeding import derive_seed
from dingsdk.envs.base import EnvManager
from dingsdk.envs.steps import StepColumns
from dingsdk.errors import ClosedError, ConfigError, DingError, EnvError, PolicyOutputError
from dingsdk.testing.expect import Call, expect, expect_equal, raises
from dingsdk.testing.runner import Contract, RuleBench, RuleBook, collect, needs

Transition = tuple[Any, ...]
"""A step of one env: observation, action, reward, next observation, terminated, truncated."""
MakeEnvManager = Callable[[Mapping[str, Any], Sequence[Callable[[], Any]]], EnvManager]

ENV_CAPABILITIES: Final[Mapping[str, str]] = {
    "per_env_seed": "Each env has a random stream of its own, set by `seed`.",
    "per_env_reset": "`reset({i: kwargs})` resets only env i.",
    "partial_step": "`step` and `step_batch` may name some of the envs.",
    "guarded": "Only the env that fails is rebuilt.",
    "asynchronous": "`step` returns the envs that have ended their step.",
    "players": "Its envs may have several players.",
    "saves": "`get_state` returns the state of the envs, and `set_state` restores it in others.",
}
"""The optional capabilities of an env manager, and what each promises."""

LEFT, RIGHT, RAISE, NAN, SHAPE, NAN_REWARD, HANG = range(7)
_SEED = 7
_PATIENCE = 20
"""Every env must have made a step after so many steps of the manager."""


class RuleEnv(gym.Env[Any, Any]):
    """An env whose observation is [a number drawn at reset, step].

    The drawn number determines the length of the episode and how it ends. Each of the actions RAISE
    to HANG causes one kind of failure; HANG waits until the fifo ``gate`` in ``folder`` is opened
    for writing.

    Args:
        folder: Contains a file for this env while the env is open.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space: Any = gym.spaces.Discrete(7)

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._mark = Path(folder) / f"open-{os.getpid()}-{id(self)}"
        self._mark.touch()
        self._time = 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=kwargs.get("seed"))
        drawn = float(np.float32(self.np_random.random()))
        self._drawn = (kwargs.get("options") or {}).get("drawn", drawn)
        self._time = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == RAISE:
            raise RuntimeError("the env raises")
        if action == HANG:
            (Path(self._folder) / "gate").open().close()
        self._time += 1
        obs, reward = self._observe(), self._time + 0.5 * (action == RIGHT)
        if action == NAN:
            obs[1] = np.nan
        if action == SHAPE:
            obs = np.zeros(3, np.float32)
        is_over = self._time == 2 + int(self._drawn * 4)
        info = {"episode_info": {"length": self._time}} if is_over else {}
        terminated = is_over and self._drawn * 1000 % 2 < 1
        reward = np.nan if action == NAN_REWARD else reward
        return obs, reward, terminated, is_over and not terminated, info

    def close(self) -> None:
        self._mark.unlink(missing_ok=True)

    def _observe(self) -> Any:
        return np.array([self._drawn, self._time], np.float32)


class TwoPlayers(gym.Wrapper[Any, Any, Any, Any]):
    """An env for two players; only player 0 acts.

    Player 1 gets the negative observations and rewards of player 0.
    """

    player_num = 2

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        shape, count = env.observation_space.shape, env.action_space.n
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2, *shape), np.float32)
        self.action_space = gym.spaces.MultiDiscrete([count, count])

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        return np.stack([obs, -obs]), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action[0])
        info["players"] = [{"number": 0}, {"number": 1}]
        rewards = np.array([reward, -float(reward)])
        return np.stack([obs, -obs]), rewards, terminated, truncated, info


def rule_game(folder: str) -> TwoPlayers:
    """Return ``RuleEnv`` for two players."""
    return TwoPlayers(RuleEnv(folder))


class EnvBench(RuleBench[MakeEnvManager]):
    """The bench of an env manager: makes managers of ``RuleEnv``, and closes them at the end."""

    def manager(
        self,
        env_num: int = 2,
        *,
        launch: bool = True,
        seed: int = _SEED,
        env: Callable[[str], Any] = RuleEnv,
        **cfg: Any,
    ) -> EnvManager:
        """Return a manager of ``env_num`` envs, seeded and launched."""
        manager = self.keep(self._make(cfg, [partial(env, str(self.folder))] * env_num))
        if launch:
            manager.seed(seed)
            manager.launch()
        return manager

    def build(self) -> EnvManager:
        manager = self.manager(2, launch=False)
        found = getattr(manager, "_env_num", None)
        what = f"a manager was given 2 functions that make envs, and has {found or 'no'} envs"
        expect(found == 2, f"{what}; pass cfg and env_fns on to super().__init__")
        return manager

    def start(self, seed: int) -> list[float]:
        """Return the first observation of an env that is reset without a manager."""
        start: list[float] = RuleEnv(str(self.folder)).reset(seed=seed)[0].tolist()
        return start


def _action(env_id: int, index: int) -> int:
    return (env_id + index // 2) % 2


def _valid(step: StepColumns) -> list[bool]:
    return [True] * len(step.reward) if step.valid is None else step.valid.tolist()


def _batched(manager: EnvManager, count: int) -> list[list[Transition]]:
    """Return the first ``count`` transitions of each env, in the batched form."""
    made: list[list[Transition]] = [[] for _ in range(manager.env_num)]
    for _ in range(_PATIENCE * count):
        if min(map(len, made)) >= count:
            break
        obs = _starts(manager)
        actions = [_action(env_id, len(rows)) for env_id, rows in enumerate(made)]
        step = manager.step_batch(np.array(actions))
        columns = (step.reward, step.final_obs, step.terminated, step.truncated)
        found = zip(obs, actions, *(column.tolist() for column in columns), strict=True)
        for rows, transition, is_valid in zip(made, found, _valid(step), strict=True):
            if is_valid:
                rows.append(transition)
    return [rows[:count] for rows in made]


def _by_env(manager: EnvManager, count: int) -> list[list[Transition]]:
    """Return the first ``count`` transitions of each env, in the dict form."""
    made: list[list[Transition]] = [[] for _ in range(manager.env_num)]
    seen: dict[int, list[Any]] = {}
    acted = [0] * manager.env_num
    for _ in range(_PATIENCE * count):
        if min(map(len, made)) >= count:
            break
        ready = manager.ready_obs
        for env_id, obs in ready.items():
            seen[env_id] = [np.array(obs).tolist(), _action(env_id, acted[env_id])]
            acted[env_id] += 1
        for env_id, step in manager.step({env_id: seen[env_id][1] for env_id in ready}).items():
            ends = step.info["terminated"], step.info["truncated"]
            after = np.array(step.obs).tolist()
            made[env_id].append((*seen[env_id], float(step.reward), after, *ends))
            expect_equal(bool(step.done), any(ends), "done, by terminated and truncated")
    return [rows[:count] for rows in made]


def _episodes(manager: EnvManager, count: float = math.inf) -> Iterator[tuple[int, Any, float]]:
    """Play ``count`` episodes of env 0, or all that may be played, in the dict form.

    Yields:
        The env id, the last step and the return of each episode of any env.
    """
    paid = [0.0] * manager.env_num
    while count and not manager.done:
        for env_id, step in _all_ready(manager, RIGHT).items():
            paid[env_id] += float(step.reward)
            if step.done:
                count -= env_id == 0
                yield env_id, step, paid[env_id]
                paid[env_id] = 0.0


def _all(manager: EnvManager, action: int) -> StepColumns:
    return manager.step_batch(np.full(manager.env_num, action))


def _all_ready(manager: EnvManager, action: Any) -> Mapping[int, Any]:
    return manager.step(dict.fromkeys(manager.ready_obs, action))


def _one(manager: EnvManager, env_id: int, action: int) -> StepColumns:
    """Step all envs, env ``env_id`` with ``action`` and the others with LEFT."""
    actions = np.full(manager.env_num, LEFT)
    actions[env_id] = action
    return manager.step_batch(actions)


def _starts(manager: EnvManager) -> list[list[float]]:
    starts: list[list[float]] = manager.current_obs().tolist()
    return starts


def rule_01_manager_can_be_launched_again(bench: EnvBench) -> None:
    """A manager can be launched, used and closed any number of times.

    Using a closed manager raises ClosedError. ``launch`` of a launched manager raises EnvError.
    ``close`` is idempotent, and closes every env, also rebuilt ones.
    """
    manager = bench.manager(launch=False)
    expect(manager.closed, "a new manager is not closed")
    manager.close()
    for _ in range(2):
        manager.launch()
        expect(not manager.closed, "a launched manager is closed")
        with raises("launch() of an open manager", EnvError):
            manager.launch()
        with suppress(DingError):
            _one(manager, 1, RAISE)
        manager.close()
        manager.close()
        left = [path.name for path in bench.folder.glob("open-*")]
        expect_equal(left, [], "envs that are open after close()")
        expect(manager.closed, "close() leaves the manager open")
        uses: dict[str, Callable[[], Any]] = {
            "reset()": manager.reset,
            "ready_obs": lambda: manager.ready_obs,
            "current_obs()": manager.current_obs,
            "step()": lambda: manager.step({0: LEFT}),
            "step_batch()": lambda: _all(manager, LEFT),
        }
        for name, use in uses.items():
            with raises(f"{name} of a closed manager", ClosedError):
                use()


@needs("per_env_seed")
def rule_05_each_env_plays_as_alone(bench: EnvBench) -> None:
    """Each env gives the same transitions as without a manager, in both forms of stepping.

    When an episode ends, ``final_obs`` of ``step_batch`` and ``obs`` of ``step`` are its true last
    observation, and ``terminated`` and ``truncated`` say how it ended.
    """
    for play in (_batched, _by_env):
        for env_id, found in enumerate(play(bench.manager(3), 30)):
            env, expected = RuleEnv(str(bench.folder)), []
            obs = env.reset(seed=_SEED + env_id)[0]
            for index in range(30):
                action = _action(env_id, index)
                after, reward, *ends, _ = env.step(action)
                expected.append((obs.tolist(), action, float(reward), after.tolist(), *ends))
                obs = env.reset()[0] if any(ends) else after
            expect_equal(found, expected, f"transitions of env {env_id}")


def rule_07_columns_have_their_types_and_do_not_change(bench: EnvBench) -> None:
    """Rewards are float32, ends bool, observations of the space's dtype, with one row per env.

    The rewards are those of the envs. No later call changes observations, rewards or ends that
    were returned before.
    """
    manager = bench.manager()
    kept: list[tuple[Any, Any]] = [(obs, obs.copy()) for obs in manager.ready_obs.values()]
    kept += [(manager.current_obs(), manager.current_obs().copy())]
    for _ in range(12):
        times = manager.current_obs()[:, 1]
        step = _all(manager, RIGHT)
        kept += [(column, column.copy()) for column in step[:5]]
        expected = np.where(_valid(step), times + 1.5, 0.0)
        expect_equal(step.reward.tolist(), expected.tolist(), "rewards of the envs")
        columns = (step.reward, step.terminated, step.truncated, step.obs)
        found = [(str(column.dtype), column.shape) for column in columns]
        flag = ("bool", (2,))
        expect_equal(
            found, [("float32", (2,)), flag, flag, ("float32", (2, 2))], "types and shapes"
        )
    for handed_out, copy in kept:
        expect(np.array_equal(handed_out, copy), "a later step has written into a column")


def rule_08_return_counts_from_the_start_of_the_episode(bench: EnvBench) -> None:
    """``eval_episode_return`` is the sum of the rewards since the episode started.

    A reset or a relaunch during an episode starts it again from 0.
    """
    manager = bench.manager()

    def check() -> None:
        for env_id, step, paid in _episodes(manager, 3):
            found = float(step.info["eval_episode_return"])
            expect_equal(found, paid, f"eval_episode_return of env {env_id}")

    check()
    _all_ready(manager, RIGHT)
    manager.reset()
    check()
    _all_ready(manager, RIGHT)
    manager.close()
    manager.launch()
    check()


def rule_09_statistics_of_an_episode_come_with_its_end(bench: EnvBench) -> None:
    """An env's ``episode_info`` is in the last info of the episode, and in that of the columns.

    ``StepColumns.episode_info`` has an entry only for rows whose episode ended.
    """
    for env_id, step, _ in _episodes(bench.manager(), 3):
        length = {"length": int(step.obs[1])}
        expect_equal(step.info.get("episode_info"), length, f"episode_info of env {env_id}")
    manager = bench.manager()
    for _ in range(20):
        columns = _all(manager, LEFT)
        valid = np.array(_valid(columns))
        ended = np.flatnonzero((columns.terminated | columns.truncated) & valid)
        expected = {int(row): {"length": int(columns.final_obs[row, 1])} for row in ended}
        expect_equal(dict(columns.episode_info), expected, "episode_info of a step")


@needs("per_env_seed")
def rule_10_seed_decides_the_episodes(bench: EnvBench) -> None:
    """An int s seeds env i with s + i; a sequence or a dict gives the seed of each env.

    The same seed gives the same start after every launch. A seed is applied once, by the next
    reset; later resets continue the random stream. With ``dynamic_seed=False`` every episode starts
    from the seed of its env.
    """
    starts = [bench.start(_SEED + env_id) for env_id in range(2)]
    seeds: tuple[Any, ...] = (_SEED, [_SEED, _SEED + 1], {1: _SEED + 1, 0: _SEED})
    for seed in seeds:
        manager = bench.manager(seed=seed)
        expect_equal(_starts(manager), starts, f"starts after seed({seed})")
    manager.reset()
    expect(_starts(manager) != starts, "a second reset repeats the first episodes")
    manager.seed(_SEED)
    _all(manager, LEFT)
    manager.reset()
    expect_equal(_starts(manager), starts, "starts after seed() and reset()")
    manager.close()
    manager.launch()
    expect_equal(_starts(manager), starts, "starts after another launch")
    with raises("3 seeds for 2 envs", ConfigError):
        manager.seed([1, 2, 3])
    manager.seed(_SEED, dynamic_seed=False)
    manager.reset()
    for _ in range(24):
        obs = _all(manager, LEFT).obs
        for env_id in np.flatnonzero(obs[:, 1] == 0):
            expect_equal(obs[env_id].tolist(), starts[env_id], f"a start of env {env_id}")
    manager.reset()
    expect_equal(_starts(manager), starts, "starts after a reset with fixed seeds")


@needs("per_env_reset")
def rule_13_arguments_of_a_reset_are_remembered(bench: EnvBench) -> None:
    """``{i: kwargs}`` of ``launch`` or ``reset`` is used for this and later resets of env i.

    Such a reset starts an episode of env i, and does not change the other envs. The id of an env
    that does not exist raises PolicyOutputError.
    """
    manager = bench.manager(launch=False)
    manager.launch({1: {"options": {"drawn": 0.125}}})
    for drawn in (0.125, 0.25):
        begun = 0
        for _ in range(9):
            obs = manager.current_obs()
            begun += obs[1, 1] == 0
            expect_equal(float(obs[1, 0]), drawn, "what env 1 was reset with")
            expect(float(obs[0, 0]) != drawn, "env 0 was given the arguments of env 1")
            _all(manager, LEFT)
        expect(begun > 1, "env 1 began one episode alone")
        before = _starts(manager)[0]
        manager.reset({1: {"options": {"drawn": 0.25}}})
        expect_equal(_starts(manager), [before, [0.25, 0.0]], "observations after a reset of env 1")
    with raises("reset of an env that does not exist", PolicyOutputError):
        manager.reset({3: None})


def rule_14_env_stops_after_its_episodes(bench: EnvBench) -> None:
    """After ``episode_num`` episodes an env is not in ``ready_obs``, and its rows are not valid.

    Rows that are not valid have reward 0 and no end. ``done`` is true once all envs have stopped.
    A launch resets the count of episodes, a reset does not.
    """
    manager = bench.manager(episode_num=2)
    for _ in range(2):
        ends = [0, 0]
        while not manager.done:
            for env_id, step in _all_ready(manager, LEFT).items():
                ends[env_id] += step.done
        expect_equal(ends, [2, 2], "episodes")
        expect_equal(dict(manager.ready_obs), {}, "ready_obs")
        after = _all(manager, RIGHT)
        expect_equal(_valid(after), [False, False], "valid")
        nothing = not (after.reward.any() or after.terminated.any() or after.truncated.any())
        expect(nothing, "a row that is not valid has a reward or an end")
        manager.close()
        manager.launch()
        expect(not manager.done, "done after a launch")


@needs("per_env_reset")
def rule_15_without_auto_reset_an_env_waits(bench: EnvBench) -> None:
    """With ``auto_reset`` off, an env whose episode ended is not ready until it is reset."""
    manager = bench.manager(auto_reset=False)
    for _ in range(5 * _PATIENCE):
        if manager.ready_obs:
            _all_ready(manager, LEFT)
    expect_equal(dict(manager.ready_obs), {}, "ready_obs after the episodes")
    expect(not manager.done, "done without a limit of episodes")
    manager.reset({1: None})
    expect_equal(sorted(manager.ready_obs), [1], "envs in ready_obs after reset({1: None})")
    expect_equal(float(manager.ready_obs[1][1]), 0.0, "the step of env 1")


def rule_16_bad_actions_leave_the_envs_untouched(bench: EnvBench) -> None:
    """Actions of a wrong shape, kind or value raise PolicyOutputError, and no env is stepped."""
    manager = bench.manager()
    before = _starts(manager)
    bad: tuple[Any, ...] = (np.zeros(3, int), np.zeros(2), np.array([0, 7]), np.array([-1, 0]))
    for actions in bad:
        with raises(f"step_batch({actions!r})", PolicyOutputError):
            manager.step_batch(actions)
    for action in (7, 0.5, "left"):
        with raises(f"step with {action!r}", PolicyOutputError):
            manager.step({0: LEFT, 1: action})
    with raises("step of an env that does not exist", PolicyOutputError):
        manager.step({0: LEFT, 1: LEFT, 2: LEFT})
    expect_equal(_starts(manager), before, "observations after actions that were refused")
    expect_equal(manager.failure_count, 0, "failure_count")


@needs("guarded")
def rule_17_failure_ends_only_one_episode(bench: EnvBench) -> None:
    """An env that raises or gives an invalid observation or reward starts a new episode.

    Its row is abnormal and not valid, with reward 0 and the first observation of the new episode.
    The other envs continue. ``failure_count`` counts the failure. In the dict form ``info`` has
    ``abnormal`` and the ``error`` as one line; the return restarts from 0.
    """
    for count, fault in enumerate((RAISE, NAN, SHAPE, NAN_REWARD)):
        manager = bench.manager(3)
        _all(manager, LEFT)
        step = _one(manager, 1, fault)
        what = f"after failure {count + 1}"
        expect(step.abnormal is not None, f"no row is abnormal {what}")
        expect_equal(np.asarray(step.abnormal).tolist(), [False, True, False], f"abnormal {what}")
        expect_equal(_valid(step), [True, False, True], f"valid {what}")
        expect_equal(float(step.reward[1]), 0.0, f"reward {what}")
        expect_equal(step.final_obs[:, 1].tolist(), [2, 0, 2], f"steps {what}")
        expect_equal(manager.failure_count, 1, f"failure_count {what}")
    manager = bench.manager()
    _answer(manager, 1, RIGHT)
    step = _answer(manager, 1, RAISE)
    expect(bool(step.info.get("abnormal")), "info does not say abnormal")
    expect_equal(step.info.get("error"), "RuntimeError: the env raises", "error")
    expect_equal((float(step.reward), bool(step.done)), (0.0, False), "reward and done")
    expect_equal(manager.ready_obs[1].tolist(), np.asarray(step.obs).tolist(), "ready_obs")
    paid = 0.0
    while not step.done:
        step = _answer(manager, 1, RIGHT)
        paid += float(step.reward)
    expect_equal(float(step.info["eval_episode_return"]), paid, "eval_episode_return")


def _answer(manager: EnvManager, env_id: int, action: Any, others: Any = LEFT) -> Any:
    """Step all envs until env ``env_id``, which is ready, has ended the step with ``action``."""
    actions = {**dict.fromkeys(manager.ready_obs, others), env_id: action}
    while env_id not in (steps := manager.step(actions)):
        actions = dict.fromkeys(manager.ready_obs, others)
    return steps[env_id]


@needs("guarded")
def rule_19_too_many_failures_in_a_row_end_the_run(bench: EnvBench) -> None:
    """More than ``max_retry`` failures without a complete episode between them raise EnvError.

    The error names the env, and has the traceback of the last failure.
    """
    manager = bench.manager(1, max_retry=2)
    for _ in range(2):
        for _ in range(2):
            _all(manager, RAISE)
        while True:
            step = _all(manager, LEFT)
            if step.terminated.any() or step.truncated.any():
                break
        if manager.capabilities.reset_takes_step:
            _all(manager, LEFT)
    for _ in range(2):
        _all(manager, RAISE)
    with raises("the third failure in a row", EnvError) as caught:
        _all(manager, RAISE)
    (error,) = caught
    expect_equal((error.env_id, error.failures), (0, 3), "env_id and failures")
    expect("the env raises" in str(error.facts.get("traceback")), "no traceback")


@needs("guarded")
def rule_20_rebuilt_env_has_its_own_random_stream(bench: EnvBench) -> None:
    """After its k-th failure an env continues with ``derive_seed(seed, "rebuild", k)``.

    ``seed`` and ``launch`` reset the count of failures; ``launch`` resets ``failure_count`` and the
    number of failures in a row too.
    """
    manager = bench.manager(1)
    for _ in range(2):
        for failure in (1, 2):
            start = bench.start(derive_seed(_SEED, "rebuild", failure))
            expect_equal(_all(manager, RAISE).obs[0].tolist(), start, f"failure {failure}")
            expect_equal(manager.failure_count, failure, "failure_count")
        manager.close()
        manager.launch()
    _all(manager, RAISE)
    manager.seed(_SEED)
    manager.reset()
    start = bench.start(derive_seed(_SEED, "rebuild", 1))
    expect_equal(_all(manager, RAISE).obs[0].tolist(), start, "the first after seed()")


@needs("partial_step")
def rule_22_some_envs_are_stepped_alone(bench: EnvBench) -> None:
    """``step_batch`` with ``env_ids`` steps only these envs, and returns rows in their order."""
    manager = bench.manager(3)
    before = _starts(manager)
    step = manager.step_batch(np.array([LEFT, RIGHT]), np.array([2, 0]))
    expect_equal(step.reward.tolist(), [1.0, 1.5], "rewards of envs 2 and 0")
    expected = [[before[2][0], 1.0], [before[0][0], 1.0]]
    expect_equal(step.final_obs.tolist(), expected, "observations of envs 2 and 0")
    expect_equal([row[1] for row in _starts(manager)], [1, 0, 1], "steps of the envs")
    for wrong in ([1, 1], [3, 0]):
        with raises(f"env_ids {wrong}", PolicyOutputError):
            manager.step_batch(np.array([LEFT, LEFT]), np.array(wrong))


@needs("asynchronous")
def rule_23_slow_env_does_not_delay_others(bench: EnvBench) -> None:
    """``step`` does not wait for an env whose step is slow; a later call returns its result.

    Until then the env is not in ``ready_obs``, and the others can be stepped.
    """
    gate = bench.folder / "gate"
    os.mkfifo(gate)
    manager = bench.manager(3)
    call = Call(lambda: manager.step({0: LEFT, 1: HANG, 2: LEFT}), "step() with a slow env")
    try:
        expect(1 not in call.value(bench.patience_s), "the slow env is back")
        for _ in range(8):
            expect(1 not in manager.ready_obs, "the slow env is in ready_obs")
            steps = _all_ready(manager, LEFT)
            expect(bool(steps) and 1 not in steps, f"steps of {sorted(steps)}")
    finally:
        gate.open("w").close()
        call.has_ended(bench.patience_s)
    while 1 not in (steps := _all_ready(manager, LEFT)):
        pass
    expect_equal(float(steps[1].reward), 1.0, "the reward of the slow step")


def rule_25_config_that_cannot_work_is_refused(bench: EnvBench) -> None:
    """An unknown key or an invalid value of the section, or no envs, raise ConfigError."""
    wrong: tuple[dict[str, Any], ...] = ({"episode_num": 0}, {"max_retry": -1}, {"no_such_key": 1})
    for cfg in wrong:
        with raises(f"the config {cfg}", ConfigError):
            bench.manager(launch=False, **cfg)
    with raises("a manager without envs", ConfigError):
        bench.manager(0, launch=False)


def rule_26_capabilities_are_those_declared(bench: EnvBench) -> None:
    """``capabilities`` says for each optional capability whether the manager has it.

    It can be read before ``launch``, and so can ``env_num``, ``episode_num`` and the spaces of one
    env.
    """
    manager = bench.manager(3, launch=False, episode_num=4)
    expect_equal((manager.env_num, manager.episode_num), (3, 4), "env_num and episode_num")
    expect_equal(manager.observation_space, RuleEnv.observation_space, "observation_space")
    expect_equal(manager.action_space, RuleEnv.action_space, "action_space")
    found = manager.capabilities
    for name in ("per_env_seed", "per_env_reset", "partial_step", "asynchronous"):
        expect_equal(getattr(found, name), bench.has(name), f"capabilities.{name}")


@needs("players")
def rule_27_rewards_and_infos_are_by_player(bench: EnvBench) -> None:
    """Rewards are float32[n, players]; in the dict form ``info`` is a list of one dict per player.

    Each player has its own ``eval_episode_return``. After a failed step all rewards are 0, and the
    info of each player has ``abnormal``.
    """
    manager = bench.manager(env=rule_game)
    expect_equal(manager.player_num, 2, "player_num")
    step = manager.step_batch(np.array([[LEFT, LEFT], [RIGHT, LEFT]]))
    expect_equal(step.reward.dtype, np.dtype(np.float32), "dtype of the rewards")
    expect_equal(step.reward.tolist(), [[1.0, -1.0], [1.5, -1.5]], "rewards of both envs")
    manager.reset()
    paid, is_over, both = 0.0, False, [RIGHT, LEFT]
    while not is_over:
        _, reward, is_over, infos = _answer(manager, 0, both, both)
        paid += float(reward[0])
        expect_equal(float(reward[1]), -float(reward[0]), "the reward of player 1")
        expect_equal([info["number"] for info in infos], [0, 1], "the infos by player")
    returns = [info["eval_episode_return"] for info in infos]
    expect_equal(returns, [paid, -paid], "returns of the players")
    for wrong in (RAISE, NAN_REWARD):
        manager.reset()
        found = _answer(manager, 0, [wrong, LEFT], both)
        expect_equal(found.reward.tolist(), [0.0, 0.0], "rewards of a failed step")
        abnormal = [bool(info.get("abnormal")) for info in found.info]
        expect_equal(abnormal, [True, True], "abnormal, in the info of each player")


@needs("saves")
def rule_28_saved_state_continues_in_another_manager(bench: EnvBench) -> None:
    """After ``set_state`` the envs continue as the envs of ``get_state`` would have.

    The state can be stored in a checkpoint, and does not change while its manager continues. It
    includes the number of episodes played, and the returns so far of the current ones.
    """
    manager, other = bench.manager(3), bench.manager(3, seed=_SEED + 10)
    _batched(manager, 7)
    state = manager.get_state()
    expected = _batched(manager, 30)
    _batched(other, 2)
    other.set_state(_stored(state))
    expect_equal(_batched(other, 30), expected, "transitions after set_state")
    manager, other = (bench.manager(episode_num=3, seed=_SEED + each) for each in (0, 20))
    for _ in range(7):
        _all_ready(manager, RIGHT)
    state = manager.get_state()
    ends = _returns(manager)
    other.set_state(_stored(state))
    expect_equal(_returns(other), ends, "ends of the episodes after set_state")


def _stored(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state after encoding and decoding it."""
    content = encode_safetensors("env-state", state)
    found: dict[str, Any] = decode_safetensors("env-state", content)
    return found


def _returns(manager: EnvManager) -> list[tuple[int, float]]:
    """Play until every env has played its episodes; return (env id, return) of each, by env."""
    ends = _episodes(manager)
    return sorted((env_id, float(step.info["eval_episode_return"])) for env_id, step, _ in ends)


ENV_BOOK: Final = RuleBook(collect(__name__), ENV_CAPABILITIES, EnvBench)
ENV_RULES: Final = ENV_BOOK.rules
"""All rules of the env managers, ordered by number."""
check_env_manager_rule = ENV_BOOK.check_rule
check_env_manager = ENV_BOOK.check
"""Check an env manager against every rule, as ``RuleBook.check``.

``make(cfg, env_fns)`` returns a manager that is not launched; ``cfg`` has only keys of
``EnvManager.Config``.
"""


class EnvManagerContract(Contract):
    """Contract tests of an env manager; see ``ENV_CAPABILITIES``.

    ``make_manager(cfg, env_fns)`` returns a manager that is not launched.
    """

    book = ENV_BOOK
    maker = "make_manager(cfg, env_fns)"
