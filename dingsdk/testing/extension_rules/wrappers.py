"""The rules of env wrappers, and the bench that checks them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

import gymnasium
import numpy as np

from dingsdk.data.pytree import flatten
from dingsdk.envs.make import EnvFn
from dingsdk.envs.spaces import ObservationSchema
from dingsdk.errors import DingError
from dingsdk.testing.expect import expect, expect_equal, expect_same
from dingsdk.testing.runner import Contract, RuleBench, RuleBook, RuleBroken, collect, needs

Env = gymnasium.Env[Any, Any]
MakeWrapped = Callable[[Callable[[Env], Env]], Env]
"""``make(wrap)`` makes an env and returns ``wrap(env)`` in the tested wrapper."""

STEPS = 60


class Witness(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Records the calls of ``reset`` and ``close`` that reach the wrapped env."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.resets: list[dict[str, Any]] = []
        self.closed = 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.resets.append(kwargs)
        return super().reset(seed=kwargs.get("seed"))

    def close(self) -> None:
        self.closed += 1
        super().close()


class WrapperBench(RuleBench[MakeWrapped]):
    """The bench of a wrapper: makes wrapped envs."""

    witness: Witness

    def build(self) -> Env:
        return self.env()

    def env(self) -> Env:
        """Return a wrapped env; ``self.witness`` is between it and the wrapper."""
        return self.keep(self._make(self._watch))

    def _watch(self, env: Env) -> Env:
        self.witness = Witness(env)
        return self.witness

    def actions(self, env: Env) -> list[Any]:
        """Return random actions for an env; they are the same in each call."""
        env.action_space.seed(0)
        return [env.action_space.sample() for _ in range(STEPS)]

    def episode(self, env: Env, other: Env | None = None) -> list[Any]:
        """Play an episode with seed 3 and these actions; return the results of its steps.

        ``other`` is reset and stepped between the steps.
        """
        rows: list[Any] = [env.reset(seed=3)[0]]
        for action in self.actions(env):
            if other is not None:
                other.reset()
                other.step(action)
            obs, reward, terminated, truncated, _ = env.step(action)
            rows.append((obs, np.asarray(reward), terminated, truncated))
            if terminated or truncated:
                break
        return rows


def rule_02_observations_fit_their_space(bench: WrapperBench) -> None:
    """The wrapper returns a ``gymnasium.Env`` whose spaces are spaces of gymnasium.

    Observations have the shapes and dtypes of ``observation_space``.
    """
    env = bench.env()
    expect(isinstance(env, gymnasium.Env), f"it is a {type(env).__name__}, no gymnasium.Env")
    for space in (env.observation_space, env.action_space):
        expect(isinstance(space, gymnasium.Space), f"{space!r} is no space")
    schema = ObservationSchema(env.observation_space)
    first, *steps = bench.episode(env)
    for obs in (first, *(row[0] for row in steps)):
        try:
            expected = schema.conform(obs)
        except DingError as error:
            raise RuleBroken(str(error)) from error
        given = dict(flatten(obs))
        for path, leaf in flatten(expected):
            own, found = (str(getattr(each, "dtype", "")) for each in (leaf, given.get(path)))
            name = ".".join(map(str, ("obs", *path)))
            expect(found in ("", own), f"{name} has the dtype {found}, its space {own}")


def rule_03_rewards_are_finite(bench: WrapperBench) -> None:
    """Rewards are finite numbers; ``terminated`` and ``truncated`` are bools."""
    _, *steps = bench.episode(bench.env())
    for _, reward, *ends in steps:
        is_number = reward.dtype.kind in "biuf" and bool(np.isfinite(reward).all())
        expect(is_number, f"the reward {reward!r}")
        expect(all(isinstance(each, bool | np.bool_) for each in ends), f"the ends {ends!r}")


@needs("repeatable")
def rule_05_reset_starts_over(bench: WrapperBench) -> None:
    """After ``reset`` with a seed, a used env gives the same episode as a new env.

    This holds also if another wrapped env is used between its steps.
    """
    expected = bench.episode(bench.env())
    env = bench.env()
    env.reset(seed=1)
    for action in bench.actions(env)[:5]:
        env.step(action)
    expect_same(bench.episode(env, bench.env()), expected, "the episode after a reset")


def rule_07_calls_reach_the_env(bench: WrapperBench) -> None:
    """``reset(seed=, options=)`` passes both arguments on, and ``close()`` closes the wrapped env.

    ``unwrapped`` is the ``unwrapped`` of the wrapped env.
    """
    env = bench.env()
    expect(env.unwrapped is bench.witness.unwrapped, f"unwrapped is {env.unwrapped!r}")
    bench.witness.resets.clear()
    env.reset(seed=9, options={"easy": True})
    expect_equal(len(bench.witness.resets), 1, "resets of the wrapped env")
    given = bench.witness.resets[0]
    expect_equal((given.get("seed"), given.get("options")), (9, {"easy": True}), "passed on")
    env.close()
    expect(bench.witness.closed > 0, "the wrapped env was not closed")


WRAPPER_BOOK: Final = RuleBook(
    collect(__name__),
    {"repeatable": "The same seed and the same actions give the same episode."},
    WrapperBench,
)


class EnvWrapperContract(Contract):
    """Base class of the contract tests of an env wrapper.

    See ``EXTENSION_RULES["wrapper"].known_capabilities``.

    Attributes:
        env_id: gymnasium id of an env that the wrapper can wrap.
    """

    book = WRAPPER_BOOK
    maker = "make_wrapper(env)"
    env_id: ClassVar[str] = "CartPole-v1"

    def _part(self) -> Any:
        make, env_fn = super()._part(), EnvFn({"env_id": self.env_id})
        return lambda wrap: make(wrap(env_fn()))
