"""The env manager contract: N environments that are stepped together.

A manager has two forms of the same interface. The *dict* form (``ready_obs``, ``step``)
is keyed by env id and suits any policy. The *batched* form (``reset_batch``,
``step_batch``) moves columns, for policies that act on a whole batch at once. Use one
form or the other between two resets, not both.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from dingsdk.config import Configurable
from dingsdk.data.action_mask import sample_action
from dingsdk.data.capture import capture
from dingsdk.data.pytree import part_of
from dingsdk.envs.guard import RetrySection, close_quietly
from dingsdk.envs.last_info import ABNORMAL, EPISODE_RETURN, PLAYERS
from dingsdk.envs.players import player_num
from dingsdk.envs.saving import set_attributes
from dingsdk.envs.spaces import ActionChecker, Obs, ObservationSchema
from dingsdk.errors import (
    ClosedError,
    ConfigError,
    ConfigTypeError,
    EnvError,
    NotSavableError,
    PolicyOutputError,
    wrong_type,
)
from dingsdk.runtime.deadline import Closing

_log = logging.getLogger(__name__)

_reported_outside_of_runs: set[str] = set()
reported: ContextVar[set[str]] = ContextVar("reported", default=_reported_outside_of_runs)
"""Spaces whose bounds were left in the current run, so that its managers warn once."""

_LOOKS, _LOOK_EVERY = 256, 17
"""Steps in which values beyond bounds are looked for; after that, only in each 17th.

A prime number, so that no group of envs that take turns is left out.
"""

_NO_EPISODE_INFO: Mapping[int, Mapping[str, Any]] = MappingProxyType({})


class Timestep(NamedTuple):
    """Result of one env's step, in dict form.

    ``obs`` is the observation that the action led to, the true terminal one at an episode
    end; ``info`` always holds ``terminated`` and ``truncated``, at ``done`` also
    ``eval_episode_return``. ``info['abnormal']`` marks a step that must be discarded: the env
    failed and was restarted, ``obs`` is the first of its new episode, ``reward`` is 0,
    ``done`` is False and ``info['error']`` says what happened.

    For an env of several players ``obs`` and ``reward`` have a player axis, and ``info`` is a
    list of one dict per player, each with the keys above.
    """

    obs: Any
    reward: Any
    done: bool
    info: Any


class StepColumns(NamedTuple):
    """Result of one ``step_batch``: one row per stepped env, in the order of ``env_ids``.

    The arrays belong to the caller: no later call writes into them, but ``final_obs`` may be
    ``obs``. A named tuple, because building a frozen dataclass of eight fields costs 1 us.

    Attributes:
        obs: The observation for the next action: the new episode's first observation where an
            episode ended and the env was reset in this step.
        final_obs: The observation that the action led to; equal to ``obs`` except at
            episode ends, where ``final_obs`` is the true last observation. May be the same
            object as ``obs`` when no episode ended.
        reward: float32[n]; float32[n, players] for envs of several players.
        terminated: bool[n], the task ended (no bootstrap).
        truncated: bool[n], the episode was cut (bootstrap from ``final_obs``).
        valid: bool[n], or None for all True. False rows are not transitions: the env spent
            the step on its reset, failed and was rebuilt (see ``abnormal``), or is finished.
            Their ``reward``, ``terminated`` and ``truncated`` are 0 and False.
        abnormal: bool[n], or None for all False. True: the env failed in this step; drop the
            unfinished trajectory of that env, ``obs`` is the first of a fresh episode.
        episode_info: ``{row: dict}``, for episodes that ended in this step: the statistics that
            envs report, the numbers that ``env.info_numbers`` chooses, and as
            ``eval_episode_return`` the return that counts, if it is not the sum of ``reward``.
    """

    obs: Obs
    final_obs: Obs
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_] | None = None
    abnormal: NDArray[np.bool_] | None = None
    episode_info: Mapping[int, Mapping[str, Any]] = _NO_EPISODE_INFO


def step_columns(
    obs: Obs,
    final_obs: Obs,
    reward: NDArray[np.float32],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    valid: NDArray[np.bool_],
    abnormal: NDArray[np.bool_],
    episode_info: Mapping[int, Mapping[str, Any]],
) -> StepColumns:
    """Return these columns, with 0 and False where a row is not ``valid``."""
    # Looking for a byte costs a fraction of any() on arrays this small.
    is_all_valid = 0 not in valid.tobytes()
    if not is_all_valid:
        reward[~valid] = 0
        terminated &= valid
        truncated &= valid
    return StepColumns(
        obs,
        final_obs,
        reward,
        terminated,
        truncated,
        None if is_all_valid else valid,
        abnormal if 1 in abnormal.tobytes() else None,
        episode_info,
    )


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Features that a manager supports; some vectorised envs cannot support all of them.

    Attributes:
        per_env_seed: env ``i`` has a random stream of its own, set by ``seed``.
        per_env_reset: ``reset({i: None})`` resets env ``i`` alone.
        partial_step: ``step``/``step_batch`` may name a subset of the envs.
        reset_takes_step: an env spends one step on its reset after an episode end
            (gymnasium's next-step autoreset); that row has ``valid=False``.
        asynchronous: ``step`` may return fewer envs than it was given, and ``ready_obs`` leaves
            out envs whose step has not ended.
    """

    per_env_seed: bool = True
    per_env_reset: bool = True
    partial_step: bool = True
    reset_takes_step: bool = False
    asynchronous: bool = False


class EnvManager(Configurable, Closing, ABC):
    """N environments of one kind, stepped together; not safe for concurrent callers.

    A class registered under ``env_managers`` is built as ``cls(cfg, env_fns)``, where ``cfg``
    is its whole config (its defaults with the user's values merged in). Seeds, spaces and
    counts of episodes and failures are handled here; a subclass makes the envs (``_open``),
    resets and steps them. To wrap a gymnasium vector env, see ``BaseVectorEnvManager``.

    Source: the env managers of DI-engine. Different here: ``max_retry`` counts failures in a
    row (2, not 1), a failed env is rebuilt by default, and a failed step is never repeated,
    since the state of an env that raised may have changed; its episode is dropped instead.
    """

    class Config(RetrySection, frozen=True, kw_only=True):
        """Section ``env_manager``.

        Attributes:
            episode_num: Number of episodes after which an env is DONE; inf for no limit.
            auto_reset: Whether an env starts its next episode by itself.
        """

        episode_num: Annotated[float, Meta(ge=1)] = math.inf
        auto_reset: bool = True

    meanwhile: Callable[[], None] | None = None
    """Called once in each step while the envs step, by managers whose envs do not step in the
    caller's thread; the others ignore it."""

    _saved: ClassVar[tuple[str, ...]] = (
        "_seeds",
        "_unapplied",
        "_dynamic_seed",
        "_failure_count",
        "_episodes",
        "_parked",
        "_returns",
    )

    def __init__(self, cfg: Mapping[str, Any], env_fns: Sequence[Callable[[], Any]]) -> None:
        self.section = self.read(cfg, "env_manager")
        if not isinstance(env_fns, Sequence):
            raise wrong_type("env_fns", "a list of functions that make one env each", env_fns)
        if not env_fns:
            raise ConfigError("an env manager needs at least 1 env", path="env", found=0)
        self._env_fns = list(env_fns)
        self._env_num = len(self._env_fns)
        self._closed = True
        self._seeds: list[int | None] = [None] * self._env_num
        self._unapplied = np.zeros(self._env_num, dtype=np.bool_)
        self._dynamic_seed = True
        self._failure_count = 0
        self._episodes = np.zeros(self._env_num, dtype=np.int64)
        # Whether to look for values beyond the bounds of their Box; the first one is reported.
        self._looks_beyond = True
        self._looks = 0
        # True where an env takes no actions: DONE, or waiting for a reset by the caller.
        self._parked = np.zeros(self._env_num, dtype=np.bool_)
        # Whether an env may have to stop after an episode.
        self._may_park = not self.section.auto_reset or not math.isinf(self.episode_num)
        self._set_players(0)

    @classmethod
    def check_config(cls, section: Mapping[str, Any], path: str) -> None:
        """Raise ConfigError for a section with which envs stop before the end of a run."""
        for key, wanted in (("auto_reset", True), ("episode_num", math.inf)):
            if (found := section.get(key, wanted)) != wanted:
                raise ConfigError(
                    f"{path}.{key} is {found}, but a run needs envs that begin a new episode "
                    "wherever one ends; leave the key out, or use the manager from Python",
                    path=f"{path}.{key}",
                )

    @property
    def env_num(self) -> int:
        """The number of envs."""
        return self._env_num

    @property
    def episode_num(self) -> float:
        """Episodes per env before it is DONE; inf for no limit."""
        limit: float = self.section.episode_num
        return limit

    @property
    def closed(self) -> bool:
        """Whether the manager is closed or was never launched."""
        return self._closed

    @property
    def done(self) -> bool:
        """True once every env finished ``episode_num`` episodes."""
        return bool((self._parked & (self._episodes >= self.episode_num)).all())

    @property
    def failure_count(self) -> int:
        """Env failures (each one dropped episode) since launch.

        By default the third failure of one env without a complete episode in between raises
        EnvError (``max_retry`` failures are allowed).
        """
        return self._failure_count

    @property
    def player_num(self) -> int:
        """Number of players of an env; with several, rewards and spaces have a player axis."""
        _ = self._spaces
        return self._player_num

    @property
    def observation_space(self) -> Any:
        """The gymnasium space of one env's observation."""
        return self._spaces[0].space

    @property
    def action_space(self) -> Any:
        """The gymnasium space of one env's action."""
        return self._spaces[1].space

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Which optional guarantees this manager gives."""

    def launch(self, reset_param: Mapping[int, Any] | None = None) -> None:
        """Create the envs, zero the episode counters and reset all. Requires a closed manager."""
        if not self._closed:
            raise EnvError("launch() needs a closed env manager; call close() first", env_id=None)
        self._failure_count = 0
        self._episodes[:] = 0
        # New envs have no seed yet, even if the manager was seeded before it was closed.
        self._unapplied[:] = [seed is not None for seed in self._seeds]
        self._check_ids(reset_param or {})
        try:
            self._open()
            self._closed = False
            self._reset_envs(range(self._env_num), reset_param or {})
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close every env; idempotent."""
        self._closed = True
        self._discard()

    def reset(self, reset_param: Mapping[int, Any] | None = None) -> None:
        """Reset all envs, or only those named by ``{env_id: None | kwargs}``.

        The kwargs are passed to the env's own ``reset`` and are remembered for its later resets;
        None keeps the remembered ones. Episode counters do not change.
        """
        self._check_open()
        if reset_param is None:
            self._reset_envs(range(self._env_num), {})
        elif reset_param:
            self._check_ids(reset_param)
            self._reset_envs(sorted(reset_param), reset_param)

    def seed(
        self, seed: int | Sequence[int] | Mapping[int, int], dynamic_seed: bool | None = None
    ) -> None:
        """Set the seeds that the next reset applies.

        Args:
            seed: int ``s``: env ``i`` gets ``s + i``; a sequence: one for each env; a dict: only
                the envs it names.
            dynamic_seed: True (the default of a new manager): a seed starts a random stream that
                continues from episode to episode; False: every episode starts from the seed;
                None: as before.

        An env that was rebuilt after its ``k``-th failure since it was seeded continues with
        the seed ``derive_seed(seed, "rebuild", k)``: it repeats neither its own episodes nor
        those of another env. With ``dynamic_seed=False`` it starts from the seed again.
        """
        if isinstance(seed, int | np.integer):
            seed = [int(seed) + env_id for env_id in range(self._env_num)]
        if not isinstance(seed, Mapping):
            if not isinstance(seed, Sequence | np.ndarray):
                raise _no_seed(seed)
            if len(seed) != self._env_num:
                raise ConfigError(
                    f"{self._env_num} envs need {self._env_num} seeds, found {len(seed)}",
                    path="seed",
                    expected=self._env_num,
                    found=len(seed),
                )
            seed = dict(enumerate(seed))
        self._check_ids(seed)
        for one in seed.values():
            if not isinstance(one, int | np.integer):
                raise _no_seed(one)
        for env_id, one in seed.items():
            self._seeds[env_id] = int(one)
            self._unapplied[env_id] = True
        if dynamic_seed is not None:
            self._dynamic_seed = dynamic_seed

    def get_state(self) -> dict[str, Any]:
        """Return the full state of the manager and its envs, as plain data.

        Raises:
            NotSavableError: an env has state that is not plain data, or the manager cannot read it.
        """
        self._check_open()
        envs = self._envs_state()  # may wait for steps under way, which change the rest
        own = {name: capture(getattr(self, name), name) for name in self._saved}
        return {"manager": own, "envs": envs}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a manager of the same envs; requires a launched manager.

        Raises:
            CheckpointCorruptError: the state is of other envs.
        """
        self._check_open()
        self._set_envs_state(state["envs"])
        set_attributes(self, state["manager"])

    def random_action(self) -> dict[int, Any]:
        """Return ``{env_id: a random legal action}`` for the envs that wait for one."""
        space = self.action_space
        return {env_id: sample_action(space, obs) for env_id, obs in self.ready_obs.items()}

    def reward_shaping(self, env_id: int, transitions: list[Any]) -> None:
        """Let an env change the rewards of a finished episode in place, by its ``reward_shaping``.

        Raises:
            ConfigError: the env has no such method, or the manager cannot call it.
                ``enable_save_figure`` and ``enable_save_replay`` raise this error too.
        """
        shaped = self._call(env_id, "reward_shaping", transitions)
        if shaped is not None and shaped is not transitions:
            transitions[:] = shaped

    def enable_save_figure(self, env_id: int, path: str) -> None:
        """Let an env draw a figure of its episode into the folder ``path``."""
        self._call(env_id, "enable_save_figure", path)

    def enable_save_replay(self, path: str) -> None:
        """Let all envs save replays of their episodes in the folder ``path``."""
        for env_id in range(self._env_num):
            self._call(env_id, "enable_save_replay", path)

    @property
    def ready_obs(self) -> dict[int, Any]:
        """``{env_id: obs}`` of the envs that wait for an action."""
        obs = self.current_obs()
        return {env_id: part_of(obs, env_id) for env_id in np.flatnonzero(self._running()).tolist()}

    @abstractmethod
    def step(self, actions: Mapping[int, Any]) -> dict[int, Timestep]:
        """Step the named envs; return a timestep for each that produced one."""

    @abstractmethod
    def current_obs(self) -> Obs:
        """Return columns ``[env_num, ...]`` of the observations for the next actions.

        The arrays belong to the caller: no later call writes into them.
        """

    @abstractmethod
    def step_batch(
        self, actions: NDArray[Any], env_ids: NDArray[np.int64] | None = None
    ) -> StepColumns:
        """Step all envs, or those in ``env_ids`` (needs ``capabilities.partial_step``).

        Args:
            actions: ``[n, ...]``, row ``k`` for env ``env_ids[k]``.
            env_ids: int64[n] without repeats, or None for all in order.

        Raises:
            PolicyOutputError: the actions have the wrong shape or are outside the space; no
                env was stepped.
            EnvError: an env failed more than ``max_retry`` times in a row; its error is the cause.
        """

    @abstractmethod
    def _open(self) -> None:
        """Make the envs and set ``_spaces``; if this fails, ``_discard`` closes the made envs."""

    @abstractmethod
    def _discard(self) -> None:
        """Close all envs that were made."""

    @abstractmethod
    def _reset_envs(self, env_ids: Sequence[int], kwargs: Mapping[int, Any]) -> None:
        """Reset ``env_ids``; ``kwargs`` holds the caller's arguments for some of them."""

    def _envs_state(self) -> Any:
        """Return the state of the envs; overridden by managers that support it."""
        name = type(self).__name__
        raise NotSavableError(
            f"{name} cannot save its envs; in_process, subprocess, async_subprocess and vector can",
            path="env_manager.type",
            found=name,
        )

    def _set_envs_state(self, state: Any) -> None:
        """Restore the envs from the result of ``_envs_state``."""

    def _call(self, env_id: int, name: str, *args: Any) -> Any:
        """Call a method of one env; overridden by managers that support it."""
        raise ConfigError(
            f"env_manager.type: {type(self).__name__} cannot call {name} of one env; in_process, "
            "subprocess and async_subprocess can",
            path="env_manager.type",
            method=name,
        )

    @cached_property
    def _spaces(self) -> tuple[ObservationSchema, ActionChecker]:
        # Before the launch the spaces are read from a temporary env.
        probe = self._env_fns[0]()
        self._set_players(player_num(probe))
        close_quietly(probe)
        return ObservationSchema(probe.observation_space), ActionChecker(probe.action_space)

    def _set_players(self, count: int) -> None:
        self._player_num = count
        self._reward_shape = (count,) if count > 1 else ()
        self._returns = np.zeros((self._env_num, *self._reward_shape), dtype=np.float64)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(
                "the env manager is closed; launch() it first", what=type(self).__name__
            )

    def _check_ids(self, env_ids: Iterable[int]) -> None:
        known = range(self._env_num)
        unknown = [env_id for env_id in env_ids if env_id not in known]
        if unknown:
            raise PolicyOutputError(
                f"there are envs 0 to {self._env_num - 1}, asked for {unknown}",
                key="env_id",
                expected=list(known),
                found=unknown,
            )

    def _running(self) -> NDArray[np.bool_]:
        """Return which envs wait for an action."""
        return ~self._parked

    def _checked(self, actions: Mapping[int, Any]) -> dict[int, Any]:
        """Return actions in dict form, checked.

        Raises:
            ClosedError: the manager is closed.
            PolicyOutputError: ``actions`` is no dict, names an env that takes no action, or holds
                an action outside the space.
        """
        self._check_open()
        if not isinstance(actions, Mapping):
            raise PolicyOutputError(
                "step() takes a dict of actions by env id, and step_batch() an array; found "
                f"{actions!r:.80}",
                key="actions",
                expected="dict",
                found=type(actions).__name__,
            )
        self._check_running(list(actions))
        check = self._spaces[1].single
        return {env_id: check(action) for env_id, action in actions.items()}

    def _check_running(self, env_ids: Sequence[int]) -> None:
        self._check_ids(env_ids)
        is_running = self._running()
        if len(set(env_ids)) < len(env_ids) or not is_running[list(env_ids)].all():
            running = np.flatnonzero(is_running).tolist()
            raise PolicyOutputError(
                f"actions for envs {list(env_ids)}, each env once; running are {running}. A DONE "
                "env needs a launch(), one without auto_reset a reset()",
                key="env_id",
                expected=running,
                found=list(env_ids),
            )

    def _new_seeds(self, env_ids: Sequence[int]) -> list[int | None]:
        """Return the seeds to apply in a reset of ``env_ids``; each is handed out once."""
        seeds = [self._seeds[env_id] if self._unapplied[env_id] else None for env_id in env_ids]
        self._unapplied[list(env_ids)] = False
        return seeds

    def _count_episodes(self, env_ids: Sequence[int] | NDArray[np.int64]) -> None:
        """Count a finished episode for each env, and park those that start no other episode."""
        self._episodes[env_ids] += 1
        if not self.section.auto_reset:
            self._parked[env_ids] = True
        elif not math.isinf(self.episode_num):
            self._parked[env_ids] = self._episodes[env_ids] >= self.episode_num

    def _look_beyond(self, obs: Sequence[Obs]) -> None:
        """Warn of a value beyond the bounds of its Box; once a run for each space.

        Each worker process of a run warns once. Only a part of all steps is looked at.

        Args:
            obs: Observations or columns of one step.
        """
        self._looks += 1
        if self._looks > _LOOKS and self._looks % _LOOK_EVERY:
            return
        schema = self._spaces[0]
        if (text := next(filter(None, map(schema.beyond, obs)), None)) is not None:
            self._looks_beyond = False
            if (name := str(schema.space)) not in reported.get():
                reported.get().add(name)
                _log.warning(
                    "the env returned an observation outside of its space, and it is used as it "
                    "is: %s; correct the observation_space if its bounds matter (reported once)",
                    text,
                )

    def _timestep(self, env_id: int, obs: Any, reward: Any, info: dict[str, Any]) -> Timestep:
        """Return one env's step in dict form, and add its reward to the episode's return.

        ``info`` holds ``terminated`` and ``truncated``; it is changed in place.
        """
        done = info["terminated"] or info["truncated"]
        self._returns[env_id] = 0.0 if info.get(ABNORMAL) else self._returns[env_id] + reward
        infos = [info]
        if self._reward_shape:
            own = info.pop(PLAYERS, None) or [{}] * self._player_num
            infos = [{**info, **each} for each in own]
        else:
            reward = float(reward)
        if done:
            for each, total in zip(infos, np.atleast_1d(self._returns[env_id]), strict=True):
                each.setdefault(EPISODE_RETURN, float(total))
            self._returns[env_id] = 0.0
        return Timestep(obs, reward, done, infos if self._reward_shape else info)

    def _timestep_of(
        self, columns: StepColumns, row: int, env_id: int, info: dict[str, Any]
    ) -> Timestep:
        """Return a row of columns in dict form; ``info`` is changed in place."""
        info["terminated"] = bool(columns.terminated[row])
        info["truncated"] = bool(columns.truncated[row])
        return self._timestep(env_id, part_of(columns.final_obs, row), columns.reward[row], info)


def _no_seed(found: object) -> ConfigTypeError:
    return ConfigTypeError(
        f"a seed is a whole number, and seeds are a list or a dict of them; found {found!r:.80}",
        path="seed",
        found=found,
    )
