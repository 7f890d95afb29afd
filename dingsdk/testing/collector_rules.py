"""The rules of the serial collectors, and the envs, the policy and the bench that check them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, Final, Self

import gymnasium as gym
import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.envs import create_env_manager
from dingsdk.errors import ConfigError, NotSetError, PolicyOutputError, UnknownKeyError
from dingsdk.plugins import PluginManager, hookimpl, use_manager
from dingsdk.policy.modes import CollectMode
from dingsdk.testing.env_rules import TwoPlayers
from dingsdk.testing.expect import expect, expect_equal, raises
from dingsdk.testing.runner import Contract, RuleBench, RuleBook, collect, needs

COLLECTOR_CAPABILITIES: Final[Mapping[str, str]] = {
    "samples": "`collect(n_sample)` returns train samples, and keeps a surplus.",
    "episodes": "`collect(n_episode)` returns whole episodes.",
    "random": "`collect(random_collect=True)` takes random actions.",
    "players": "It plays a list of policies, and returns data and infos by player.",
}
"""The capabilities of a collector: one of the first two, and optional ones."""

_LENGTHS = ((3, 5), (4, 2))


class ScriptEnv(gym.Env[Any, Any]):
    """An env that observes (env, episode, time); the reward of the n-th step is n.

    Args:
        env_id: First component of the observation.
        lengths: Lengths of the episodes, repeated in this order.
        fails: (env, episode, time) at which ``step`` raises; None if it never does.
        log: Counts of episodes and steps; an env that replaces a failed one shares it.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space: Any = gym.spaces.Discrete(2)

    def __init__(
        self,
        env_id: int,
        lengths: Sequence[int],
        fails: tuple[int, int, int] | None,
        log: dict[str, int],
    ) -> None:
        self._env_id, self._lengths, self._fails, self._log = env_id, lengths, fails, log
        self._time = 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self._log["episode"] += 1
        self._time = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._time += 1
        self._log["steps"] += 1
        episode = self._log["episode"]
        if (self._env_id, episode, self._time) == self._fails:
            raise RuntimeError("the env fails as the rule says")
        is_over = self._time == self._lengths[episode % len(self._lengths)]
        return self._observe(), float(self._time), is_over, False, {}

    def _observe(self) -> Any:
        return np.array([self._env_id, self._log["episode"], self._time], np.float32)


class RulePolicy:
    """A policy in the dict form that records the calls of ``forward`` and ``reset``.

    Attributes:
        mode: Its collect mode; also used as an eval mode.
        asked: The env ids and keyword arguments of each ``forward``.
        resets: The argument of each ``reset``.
        answer: The action that it returns for each env.
    """

    def __init__(self, **attributes: Any) -> None:
        self.asked: list[tuple[list[int], dict[str, Any]]] = []
        self.resets: list[Any] = []
        self.answer: Any = np.int64(1)
        given = {"n_sample": None, "n_episode": None, **attributes}
        self.attributes = {
            "cfg": {"collect": given, "on_policy": attributes.get("on_policy", False)},
            "n_sample": None, "n_episode": None, "unroll_len": 1, "on_policy": False,
            **attributes,
        }  # fmt: skip
        self.mode = CollectMode(
            forward=self._forward,
            process_transition=self._transition,
            get_train_sample=list,
            reset=lambda ids=None: self.resets.append(ids),
            get_attribute=self.attributes.__getitem__,
            set_attribute=self.attributes.__setitem__,
            state_dict=dict,
            load_state_dict=lambda state: None,
        )

    def _forward(self, obs: Mapping[int, Any], **kwargs: Any) -> dict[int, Any]:
        self.asked.append((sorted(obs), kwargs))
        return {env_id: {"action": self.answer} for env_id in obs}

    @staticmethod
    def _transition(obs: Any, output: Any, timestep: Any) -> dict[str, Any]:
        return {
            "obs": obs, "action": output["action"], "next_obs": timestep.obs,
            "reward": np.float32(timestep.reward), "done": timestep.done,
        }  # fmt: skip


class SerialObserver:
    """Records the arguments of the observer hooks."""

    def __init__(self) -> None:
        self.episodes: list[tuple[int, float, int]] = []
        self.collects: list[tuple[int, int, int]] = []
        self.evaluations: list[tuple[float, int, int]] = []

    @hookimpl
    def dingsdk_after_episode(self, env_id: int, episode_return: float, length: int) -> None:
        self.episodes.append((env_id, episode_return, length))

    @hookimpl
    def dingsdk_after_collect(self, sample_count: int, envstep: int, train_iter: int) -> None:
        self.collects.append((sample_count, envstep, train_iter))

    @hookimpl
    def dingsdk_after_evaluate(self, mean_return: float, train_iter: int, envstep: int) -> None:
        self.evaluations.append((mean_return, train_iter, envstep))


NO_SCALARS: Final = SimpleNamespace(
    add_scalar=lambda *point: None, add_histogram=lambda *values: None, flush=lambda: None
)
"""A tensorboard writer that writes nothing."""


class SerialBench(RuleBench[Callable[..., Any]]):
    """The bench of collectors and evaluators: has scripted envs, a policy and an observer."""

    cfg: ClassVar[Mapping[str, Any]] = {}
    """Settings with which the worker can run."""
    method: ClassVar[str] = "collect"

    def __enter__(self) -> Self:
        self.policy, self.observer = RulePolicy(), SerialObserver()
        self.logs: list[dict[str, int]] = []
        plugins = PluginManager()
        plugins.register_plugin(self.observer, "rules")
        self.exits.enter_context(use_manager(plugins))
        return self

    def envs(
        self,
        lengths: Sequence[Sequence[int]] = _LENGTHS,
        fails: tuple[int, int, int] | None = None,
    ) -> Any:
        """Return a manager, not launched, with one env for each list of episode lengths."""
        self.logs = [{"episode": -1, "steps": 0} for _ in lengths]

        def maker(env_id: int) -> Callable[[], gym.Env[Any, Any]]:
            made = partial(ScriptEnv, env_id, lengths[env_id], fails, self.logs[env_id])
            return lambda: TwoPlayers(made()) if self.has("players") else made()

        return create_env_manager({"type": "in_process"}, [maker(i) for i in range(len(lengths))])

    @property
    def steps(self) -> int:
        """Steps that the envs have taken."""
        return sum(log["steps"] for log in self.logs)

    def build(self) -> Any:
        return self.make(None, None)

    def make(self, env: Any, policy: Any, **cfg: Any) -> Any:
        """Return a fresh collector or evaluator."""
        return self.keep(
            self._make(cfg, env, self.given(policy), NO_SCALARS, str(self.new_folder()))
        )

    def given(self, policy: Any) -> Any:
        """Return the policy argument of a worker."""
        return policy

    def run(self, worker: Any) -> Any:
        """Call ``method`` as a rule about collectors and evaluators does."""
        return getattr(worker, self.method)()

    def ready(
        self,
        lengths: Sequence[Sequence[int]] = _LENGTHS,
        fails: tuple[int, int, int] | None = None,
        attributes: Mapping[str, Any] | None = None,
        **cfg: Any,
    ) -> Any:
        """Return a collector or evaluator with such envs, and a policy with these attributes."""
        self.policy = RulePolicy(**(attributes or {}))
        return self.make(self.envs(lengths, fails), self.policy.mode, **cfg)


class CollectorBench(SerialBench):
    """The bench of a collector; counts samples or episodes, as the collector declares."""

    @property
    def count_name(self) -> str:
        """The name of the count argument of ``collect``."""
        return "n_episode" if self.has("episodes") else "n_sample"

    def given(self, policy: Any) -> Any:
        """Return the policy argument of a collector; ``policy`` is the first of two players."""
        if policy is None or not self.has("players"):
            return policy
        self.opponent = RulePolicy()
        return [policy, self.opponent.mode]

    def run(self, worker: Any) -> Any:
        return self.collect(worker)

    def collect(self, collector: Any, count: int | None = 4, **kwargs: Any) -> Any:
        """Collect ``count`` samples or episodes; return only those of the first player."""
        found = collector.collect(**{self.count_name: count}, **kwargs)
        return found[0][0] if self.has("players") else found

    def rows(self, result: Any) -> list[Mapping[str, Any]]:
        """Return all collected rows as one list."""
        parts = [result] if isinstance(result, SampleBatch) or not self.has("episodes") else result
        return [row for part in parts for row in part]

    def places(self, result: Any) -> list[tuple[int, int, int]]:
        """Return (env, episode, time) of each row."""
        found = [[int(value) for value in row["obs"]] for row in self.rows(result)]
        return [(env_id, episode, time) for env_id, episode, time in found]


def expect_whole(places: Sequence[tuple[int, int, int]], what: str) -> None:
    """Expect the steps of each episode to start with the first, each once and in order."""
    seen: dict[tuple[int, int], int] = {}
    for env_id, episode, time in places:
        expected = seen.get((env_id, episode), 0)
        expect_equal(time, expected, f"{what}: the next step of episode {episode} of env {env_id}")
        seen[env_id, episode] = time + 1


def rule_02_no_step_is_lost_or_repeated(bench: CollectorBench) -> None:
    """``collect(n)`` returns exactly ``n`` samples or episodes.

    Over several calls, the steps of each episode come once and in order. A returned episode is
    whole: only its last row has ``done``.
    """
    collector = bench.ready(attributes={"n_sample": 4})
    places: list[tuple[int, int, int]] = []
    for count in (4, 6, 5, 2):
        found = bench.collect(collector, count)
        expect_equal(len(found), count, "what was collected")
        places += bench.places(found)
        for episode in found if bench.has("episodes") else ():
            ends = [bool(row["done"]) for row in episode]
            expect_equal(ends, [False] * (len(ends) - 1) + [True], "done of the rows of an episode")
    expect_whole(places, "in four calls")


def rule_03_rows_are_what_the_policy_made_of_the_steps(bench: CollectorBench) -> None:
    """Each row has an observation, and the action, reward and end of the step that followed.

    It also has ``collect_iter``: the ``train_iter`` of the call that made the step. The call's
    ``policy_kwargs`` are passed to each ``forward``.
    """
    for train_iter in (3, 8):
        collector, kwargs = bench.ready(attributes={"n_sample": 4}), {"eps": train_iter / 10}
        found = bench.collect(collector, 8, train_iter=train_iter, policy_kwargs=kwargs)
        expect(bool(bench.policy.asked), "the policy was not asked")
        expect(all(given == kwargs for _, given in bench.policy.asked), "kwargs of forward")
        for row in bench.rows(found):
            env_id, episode, time = (int(value) for value in row["obs"])
            after = int(row["next_obs"][0]), int(row["next_obs"][2])
            expect_equal(after, (env_id, time + 1), "env and time after a step")
            expect_equal(float(row["reward"]), time + 1.0, "the reward of a step")
            expect_equal(int(row["action"]), 1, "the action of a step")
            is_over = time + 1 == _LENGTHS[env_id][episode % 2]
            expect_equal(bool(row["done"]), is_over, "done of a step")
            expect_equal(int(row["collect_iter"]), train_iter, "collect_iter")


def rule_06_ends_of_episodes_are_told(bench: CollectorBench) -> None:
    """``policy.reset([env_id])`` is called once for each episode that ended.

    Observer hooks are called for each episode (env, return, length) and each collect.
    """
    collector = bench.ready(((2,), (4,)), attributes={"n_sample": 4})
    bench.policy.resets.clear()
    count = 8 if bench.has("samples") else 3
    bench.collect(collector, count, train_iter=5)
    found = sorted(env_id for ids in bench.policy.resets for env_id in ids or ())
    expect_equal(found, [0, 0, 1], "resets of envs, two of env 0 and one of env 1")
    episodes = [(0, 3.0, 2), (0, 3.0, 2), (1, 10.0, 4)]
    expect_equal(sorted(bench.observer.episodes), episodes, "episodes reported to the observer")
    count *= 2 if bench.has("players") else 1
    expect_equal(bench.observer.collects, [(count, 8, 5)], "collects reported to the observer")


def rule_07_only_the_episode_of_a_failed_env_is_lost(bench: CollectorBench) -> None:
    """If an env fails, no row of the episode is returned, and the policy is reset for that env.

    ``envstep`` grows by the number of steps, without failed ones; it may be set.
    """
    collector = bench.ready(((5,), (5,)), (0, 0, 2), {"n_sample": 10})
    bench.policy.resets.clear()
    collector.envstep = 1000
    places = bench.places(bench.collect(collector, 10 if bench.has("samples") else 2))
    expect(not any(place[:2] == (0, 0) for place in places), "a row of the failed episode")
    expect_whole(places, "after a failure")
    expect([0] in bench.policy.resets, "the policy was not reset for the failed env")
    expect_equal(collector.envstep, 999 + bench.steps, "envstep, with one failed step")


def rule_09_unusable_answer_moves_no_env(bench: SerialBench) -> None:
    """Policy output without an action or with NaN raises PolicyOutputError before any env steps."""
    for answer in ({}, {"action": np.float32(np.nan)}):
        worker = bench.ready(attributes={"n_sample": 4}, **bench.cfg)
        policy = bench.policy.mode
        policy = policy._replace(forward=lambda obs, **kwargs: dict.fromkeys(obs, answer))  # noqa: B023
        worker.reset_policy(bench.given(policy))
        with raises(f"the answer {answer}", PolicyOutputError):
            bench.run(worker)
        expect_equal(bench.steps, 0, "steps after an unusable answer")


def rule_10_policy_says_how_much(bench: CollectorBench) -> None:
    """Without a count the policy's count is used; if there is none, NotSetError is raised."""
    collector = bench.ready(attributes={bench.count_name: 6, "n_sample": 6})
    expect_equal(len(bench.collect(collector, None)), 6, "what was collected")
    collector = bench.ready()
    with raises("collect() without any count", NotSetError):
        bench.collect(collector, None)


def rule_11_env_and_policy_may_come_later(bench: SerialBench) -> None:
    """``reset_env`` and ``reset_policy`` set env and policy if the part was made without them.

    Until then it raises NotSetError when it is used. An unknown key of the section raises
    UnknownKeyError. ``close()`` closes the env manager; a second ``close()`` does nothing.
    """
    with raises("an unknown key", UnknownKeyError):
        bench.make(None, None, no_such_key=1)
    worker = bench.make(None, None, **bench.cfg)
    with raises(f"{bench.method}() without an env", NotSetError):
        bench.run(worker)
    if bench.has("samples") or bench.has("episodes"):
        with raises("reset_policy() of a collector without an env", NotSetError):
            worker.reset_policy(bench.given(RulePolicy().mode))
    env = bench.envs()
    worker.reset_env(env)
    with raises(f"{bench.method}() without a policy", NotSetError):
        bench.run(worker)
    worker.reset_policy(bench.given(RulePolicy(n_sample=4).mode))
    bench.run(worker)
    expect(bench.steps > 0, "no env was stepped")
    worker.close()
    worker.close()
    expect(bool(env.closed), "the env manager is open after close()")


def rule_12_reset_starts_over(bench: CollectorBench) -> None:
    """``reset()`` resets envs, policy and ``envstep``, and drops unfinished trajectories."""
    collector = bench.ready(((9,), (9,)), attributes={"n_sample": 4})
    old = {place[:2] for place in bench.places(bench.collect(collector, 3))}
    bench.policy.resets.clear()
    collector.reset()
    expect_equal(collector.envstep, 0, "envstep after reset()")
    expect(None in bench.policy.resets, "reset() did not reset the policy")
    places = bench.places(bench.collect(collector, 4))
    expect(not any(place[:2] in old for place in places), "a row from before the reset")
    expect_whole(places, "after reset()")


@needs("samples")
def rule_16_surplus_comes_first_in_the_next_call(bench: CollectorBench) -> None:
    """Samples beyond ``n_sample`` are returned first by the next call, before it steps envs.

    ``drop_extra=True`` discards the surplus samples, ``drop_extra=False`` returns them too.
    """
    collector = bench.ready(((9,), (9,)), attributes={"n_sample": 4})
    first = bench.places(bench.collect(collector, 3))
    steps = bench.steps
    second = bench.places(bench.collect(collector, 1))
    expect_equal(bench.steps, steps, "steps of a call that the surplus can serve")
    expect_equal(sorted(first + second), [(i, 0, t) for i in (0, 1) for t in (0, 1)], "rows")
    expect_equal(len(bench.collect(collector, 3, drop_extra=False)), 4, "rows, none dropped")
    expect_equal(len(bench.collect(collector, 3, drop_extra=True)), 3, "rows, the rest dropped")
    places = bench.places(bench.collect(collector, 4))
    expect_equal({time for _, _, time in places}, {6, 7}, "times after a surplus was dropped")


@needs("random")
def rule_18_random_collect_leaves_the_policy_alone(bench: CollectorBench) -> None:
    """``random_collect`` draws actions from the env's space, and does not call the policy."""
    collector = bench.ready(attributes={"n_sample": 4}, seed=3)
    rows = bench.rows(bench.collect(collector, 40, random_collect=True))
    expect_equal(bench.policy.asked, [], "what the policy was asked")
    expect_equal({int(row["action"]) for row in rows}, {0, 1}, "random actions")


@needs("samples")
def rule_19_on_policy_drops_what_an_older_policy_did(bench: CollectorBench) -> None:
    """If the policy is on-policy, all rows of a call have the ``train_iter`` of that call."""
    attributes = {"n_sample": 4, "on_policy": True}
    collector = bench.ready(((9,), (9,)), attributes=attributes)
    for train_iter in range(4):
        rows = bench.rows(bench.collect(collector, 3, train_iter=train_iter))
        expect_equal({int(row["collect_iter"]) for row in rows}, {train_iter}, "collect_iter")


@needs("episodes")
def rule_21_no_more_episodes_than_asked_for(bench: CollectorBench) -> None:
    """No more episodes are started than were asked for; no env is stepped after its last one."""
    collector = bench.ready(((2,), (7,)))
    bench.collect(collector, 2)
    expect_equal(bench.steps, 9, "steps of two episodes")
    with raises("fewer episodes than envs", ConfigError):
        bench.collect(collector, 1)


@needs("players")
def rule_22_data_is_by_player(bench: CollectorBench) -> None:
    """Data and infos are lists by player, with the rewards, actions and returns of the player.

    The policies of all players are called in each step, and reset when an episode ends.
    """
    collector = bench.ready(((2,), (4,)), attributes={"n_sample": 4})
    bench.policy.answer = np.int64(0)
    data, infos = collector.collect(**{bench.count_name: 8 if bench.has("samples") else 3})
    first, second = (bench.rows(each) for each in data)
    expect_equal(len(first), len(second), "rows of the players")
    for own, other in zip(first, second, strict=True):
        expect_equal(float(own["reward"]), -float(other["reward"]), "the rewards of a step")
        expect_equal([int(own["action"]), int(other["action"])], [0, 1], "the actions of a step")
    returns = [[float(info["eval_episode_return"]) for info in each] for each in infos]
    expect_equal(sorted(returns[0]), [3.0, 3.0, 10.0], "returns of player 0")
    expect_equal(returns[1], [-each for each in returns[0]], "returns of player 1")
    expect_equal(len(bench.opponent.asked), len(bench.policy.asked), "how often player 1 is asked")
    ended = sorted(env_id for ids in bench.opponent.resets for env_id in ids or ())
    expect_equal(ended, [0, 0, 1], "resets of player 1")


COLLECTOR_BOOK: Final = RuleBook(collect(__name__), COLLECTOR_CAPABILITIES, CollectorBench)
COLLECTOR_RULES: Final = COLLECTOR_BOOK.rules
"""All rules of the collectors, ordered by number."""
check_collector = COLLECTOR_BOOK.check
"""Check a serial collector against every rule, as ``RuleBook.check``.

``make(cfg, env, policy, tb_logger, exp_name)`` returns a new collector, e.g. the class.
"""


class CollectorContract(Contract):
    """Contract tests of a serial collector of one policy; see ``COLLECTOR_CAPABILITIES``.

    ``make_collector`` takes the arguments of ``make`` of ``check_collector``; ``env`` may be None.
    """

    book = COLLECTOR_BOOK
    maker = "make_collector(cfg, env, policy, tb_logger, exp_name)"
