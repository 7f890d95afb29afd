"""``check_env``: check that an env follows the rules that workers rely on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import cycle
from typing import Any, Literal, NamedTuple

import numpy as np

from dingsdk.data.action_mask import legal_action
from dingsdk.data.pytree import flatten
from dingsdk.envs.base import EnvManager
from dingsdk.envs.guard import GuardedEnv, RetrySection
from dingsdk.envs.in_process import InProcessEnvManager
from dingsdk.envs.make import EnvFn, create_env_manager
from dingsdk.envs.players import space_of_player
from dingsdk.envs.spaces import ActionChecker, ObservationSchema
from dingsdk.envs.subprocess import SubprocessEnvManager
from dingsdk.errors import ConfigError, DingError, EnvError, error_text
from dingsdk.plugins import default_manager

STEPS = 100
"""Number of steps for which two envs, or an env and its manager, are compared."""
EPISODE_STEPS = 20_000
"""Steps to wait for the end of an episode."""
EPISODE_S = 5.0
"""How long to wait for the end of an episode."""

State = Literal["ok", "warning", "problem"]


class EnvCheck(NamedTuple):
    """Result of one check of an env.

    Attributes:
        name: Name of the check.
        state: ``problem``: workers cannot use the env; ``warning``: they can, with the weakness
            that ``detail`` names.
        detail: The result in words, and what to do.
    """

    name: str
    state: State
    detail: str


class _Problem(Exception):  # noqa: N818 - ends one check
    """A check has found that the env cannot be used; the text says why."""


class _Subject:
    """The env that is checked, and the warnings of the current check."""

    def __init__(self, env_fn: Callable[[], Any], seed: int) -> None:
        self.env_fn, self.seed = env_fn, seed
        self.warnings: list[str] = []
        self.observation_space: Any = None
        self.action_space: Any = None
        self.players = 1
        self.has_columns = True
        self.has_native = False

    def make(self) -> GuardedEnv:
        """Make the env as workers do, so that the first failure is an error."""
        return GuardedEnv(self.env_fn, 0, RetrySection(max_retry=0))

    def alone(self) -> EnvManager:
        """Return a manager of one env, for which the first failure is an error."""
        return create_env_manager({"type": "in_process", "max_retry": 0}, [self.env_fn])

    def actions(self, count: int) -> list[Any]:
        """Return random actions, the same in each call."""
        self.action_space.seed(self.seed)
        return [self.action_space.sample() for _ in range(count)]

    def legal(self, action: Any, obs: Any) -> Any:
        """Return the action, or the next one that is legal in this observation."""
        return legal_action(self.action_space, action, obs)

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def check_bounds(self, obs: Any, where: str) -> None:
        """Warn if an observation is outside of its space."""
        if not self.observation_space.contains(obs):
            self.warn(f"{where} gives observations outside of the bounds of the observation space")


def check_env(
    env: str | Callable[..., Any],
    kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Any] = (),
    seed: int = 0,
) -> list[EnvCheck]:
    """Check that an env follows the rules that workers rely on, by using it.

    The env is made several times, also in each env manager that a config can choose, the default
    first. Some managers use child processes, so a script needs the ``__main__`` guard.

    Args:
        env: An env id, ``module:Class``, or a class or function that makes the env.
        kwargs: Keyword arguments of the env, as ``env.kwargs``.
        wrappers: As ``env.wrappers``; only if ``env`` is an id.
        seed: Seed of the env and of the random actions.

    Returns:
        One result per check; after a problem, the checks that depend on it are left out.
    """
    subject = _Subject(env_maker(env, kwargs, wrappers), seed)
    found: list[EnvCheck] = []
    for name, check, is_needed in _CHECKS:
        subject.warnings.clear()
        try:
            detail = check(subject)
            if detail is None:
                continue
        except _Problem as problem:
            found.append(EnvCheck(name, "problem", str(problem)))
            if is_needed:
                break
        else:
            warnings = "; ".join(subject.warnings)
            found.append(EnvCheck(name, "warning" if warnings else "ok", warnings or detail))
    return found


def env_maker(
    env: str | Callable[..., Any],
    kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Any] = (),
) -> Callable[[], Any]:
    """Return a function that makes the env; arguments as ``check_env``.

    Raises:
        ConfigError: the arguments are invalid.
    """
    if isinstance(env, str):
        return EnvFn({"env_id": env, "kwargs": dict(kwargs or {}), "wrappers": list(wrappers)})
    if not callable(env) or wrappers:
        raise ConfigError(
            f"env is {env!r}, with the wrappers {list(wrappers)}; give an id, with wrappers or "
            "none, or a class or function that makes an env",
            path="env",
        )
    return partial(env, **dict(kwargs or {}))


def _check_making(subject: _Subject) -> str:
    env = _called("its constructor", subject.make)
    subject.players = env.player_num
    subject.observation_space = env.observation_space
    subject.action_space = env.action_space
    _called("close()", env.close)
    return f"{subject.players} players" if subject.players > 1 else ""


def _check_spaces(subject: _Subject) -> str:
    try:
        ObservationSchema(subject.observation_space).require_columns()
        ActionChecker(subject.action_space).filler(1)
    except ConfigError as error:
        subject.has_columns = False
        subject.warn(f"only policies in the dict form can use it: {error}")
    return f"{subject.observation_space}, {subject.action_space}"


def _check_reset(subject: _Subject) -> str:
    with closing(subject.make()) as env:
        _called("reset(seed=None)", env.reset)
        given = dict(flatten(env.env.reset()[0]))  # before it is cast
        taken, _ = _called(f"reset(seed={subject.seed})", env.reset, seed=subject.seed)
    subject.check_bounds(taken, "reset()")
    for path, own in flatten(taken):
        dtype, wanted = (getattr(each, "dtype", None) for each in (given.get(path), own))
        if dtype is not None and dtype != wanted:
            text = f"reset() gives {dtype} where the observation space says {wanted}; it is cast"
            subject.warn(text)
    return "returns (obs, info) and takes a seed"


def _check_episodes(subject: _Subject) -> str:
    lengths: list[int] = []
    steps, started = 0, time.perf_counter()
    with closing(subject.make()) as env:
        obs, _ = _called(f"reset(seed={subject.seed})", env.reset, seed=subject.seed)
        for tried in cycle(subject.actions(STEPS)):
            action = subject.legal(tried, obs)
            obs, _, terminated, truncated, _ = _called(f"step({action!r})", env.step, action)
            subject.check_bounds(obs, "step()")
            steps += 1
            if terminated or truncated:
                lengths.append(steps - sum(lengths))
                obs, _ = _called("reset()", env.reset)
            seconds = time.perf_counter() - started
            if len(lengths) > 1 or steps >= EPISODE_STEPS or seconds > EPISODE_S:
                break
    if not lengths:
        subject.warn(
            f"no episode ended in {steps:,} random steps; without an end there are no returns: set "
            "env.kwargs.max_episode_steps"
        )
    return f"episodes of {lengths} random steps, {steps / seconds:,.0f} steps/s"


def _check_seeds(subject: _Subject) -> str:
    seeds = (subject.seed, subject.seed, subject.seed + 1)
    first, second, other = (_play(subject, subject.alone(), seed) for seed in seeds)
    _compare(first, second, "the same seed and actions give another episode", "self.np_random")
    same = all(_equal(a, b) for a, b in zip(first, other, strict=True))
    return "the env is deterministic" if same else "the same seed gives the same episode"


def _check_manager(kind: str, subject: _Subject) -> str | None:
    """Compare env 0 of a manager of two envs with an env that is alone in its manager."""
    cls = default_manager().get("env_managers", kind)
    section: dict[str, Any] = {"type": kind, "max_retry": 0}
    if issubclass(cls, SubprocessEnvManager) and not subject.has_columns:
        subject.warn(f"the env manager {kind} needs spaces that have columns")
        return ""
    if cls is InProcessEnvManager and not subject.has_native:
        return None  # `vector`, the default, is the same manager here
    if cls is SubprocessEnvManager:
        section["envs_per_process"] = 2
    manager = create_env_manager(section, [subject.env_fn] * 2)
    rows = _play(subject, manager, subject.seed)
    if not manager.capabilities.per_env_seed:
        subject.has_native = True
        return "its own vector env, whose envs share one random stream"
    text = "an env has other results if another one runs beside it"
    alone = _play(subject, subject.alone(), subject.seed)
    _compare(alone, rows, text, "the env's own attributes, not globals")
    return "the same results as alone"


def _check_policies(subject: _Subject) -> str:
    spaces = [subject.observation_space, subject.action_space]
    if subject.players > 1:
        spaces = [space_of_player(space, subject.players) for space in spaces]
    manager, fitting = default_manager(), []
    for name in manager.builtin_types("policies"):
        read = getattr(manager.get("policies", name), "model_from_spaces", None)
        try:
            if read is not None:
                read(*spaces)
                fitting.append(name)
        except DingError:
            continue
    if not fitting:
        subject.warn("no policy of dingsdk takes these spaces: add wrappers, or write a policy")
    return ", ".join(fitting)


_MANAGERS = ("vector", "in_process", "subprocess", "async_subprocess")
"""Types of env managers, the default first."""
_CHECKS: tuple[tuple[str, Callable[[_Subject], str | None], bool], ...] = (
    ("can be made and closed", _check_making, True),
    ("spaces", _check_spaces, True),
    ("reset", _check_reset, True),
    ("steps and episodes", _check_episodes, True),
    ("seeds", _check_seeds, False),
    *((f"env manager {kind}", partial(_check_manager, kind), False) for kind in _MANAGERS),
    ("policies that take it", _check_policies, False),
)
"""Name of a check, its function, and whether the checks after it need its success.

The function returns None if the check does not apply.
"""


def _play(subject: _Subject, manager: EnvManager, seed: int) -> list[Any]:
    """Play the envs of a manager; return the first observation of env 0, then its steps."""
    actions = subject.actions(STEPS)
    try:
        with manager:
            manager.seed(seed)
            manager.launch()
            rows: list[Any] = [manager.ready_obs[0]]
            while len(rows) <= STEPS:
                # Not every manager waits for an action of each env in each step.
                tried, seen = {0: actions[len(rows) - 1], 1: actions[-1]}, manager.ready_obs
                found = manager.step({i: subject.legal(tried[i], obs) for i, obs in seen.items()})
                if (step := found.get(0)) is not None:
                    rows.append((step.obs, np.asarray(step.reward, np.float32), step.done))
    except Exception as error:
        raise _Problem(error_text(error)) from error
    return rows


def _compare(expected: Sequence[Any], found: Sequence[Any], text: str, use: str) -> None:
    for step, (ours, theirs) in enumerate(zip(expected, found, strict=True)):
        if not _equal(ours, theirs):
            when = "in the first observation" if step == 0 else f"in step {step}"
            raise _Problem(f"{text} ({when}): keep all state and randomness in {use}")


def _equal(a: Any, b: Any) -> bool:
    pairs = zip(flatten(a), flatten(b), strict=True)
    return all(np.array_equal(np.asarray(x), np.asarray(y)) for (_, x), (_, y) in pairs)


def _called(what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except Exception as error:
        # An EnvError of a guarded env is about its last failure.
        cause = (error.__cause__ if isinstance(error, EnvError) else None) or error
        is_told = isinstance(cause, DingError)
        raise _Problem(str(cause) if is_told else f"{what} raised {error_text(cause)}") from error
