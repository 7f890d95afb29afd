"""The env manager contract: N environments that are stepped together.

A manager has two forms of the same interface. The *dict* form (``ready_obs``, ``step``)
is keyed by env id and suits any policy. The *batched* form (``reset_batch``,
``step_batch``) moves columns, for policies that act on a whole batch at once. Use one
form or the other between two resets, not both.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from dingsdk.config import Configurable
from dingsdk.data.action_mask import sample_action
from dingsdk.data.capture import capture
from dingsdk.data.pytree import part_of
from dingsdk.envs.episodes import EnvSeeds, Episodes, check_ids
from dingsdk.envs.guard import RetrySection, close_quietly
from dingsdk.envs.players import player_num
from dingsdk.envs.saving import set_attributes
from dingsdk.envs.spaces import ActionChecker, BoundsWatch, Obs, ObservationSchema
from dingsdk.envs.steps import Capabilities, StepColumns, Timestep
from dingsdk.errors import (
    ClosedError,
    ConfigError,
    EnvError,
    NotSavableError,
    PolicyOutputError,
    wrong_type,
)
from dingsdk.runtime.deadline import Closing

_OTHERS_CAN = "has no access to single envs, as in_process, subprocess and async_subprocess have"


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

    _saved: ClassVar[tuple[str, ...]] = ("_failure_count",)

    def __init__(self, cfg: Mapping[str, Any], env_fns: Sequence[Callable[[], Any]]) -> None:
        self.section = self.read(cfg, "env_manager")
        if not isinstance(env_fns, Sequence):
            raise wrong_type("env_fns", "a list of functions that make one env each", env_fns)
        if not env_fns:
            raise ConfigError("an env manager needs at least 1 env", path="env", found=0)
        self._env_fns = list(env_fns)
        self._env_num = len(self._env_fns)
        self._closed = True
        self._seeds = EnvSeeds(self._env_num)
        self._bounds = BoundsWatch()
        self._failure_count = 0
        self._episodes = Episodes(self._env_num, self.episode_num, self.section.auto_reset)

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
        return self._episodes.are_done

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
        return self._episodes.player_num

    @property
    def observation_space(self) -> Any:
        """The gymnasium space of one env's observation."""
        return self._spaces[0].space

    @property
    def action_space(self) -> Any:
        """The gymnasium space of one env's action."""
        return self._spaces[1].space

    @property
    def capabilities(self) -> Capabilities:
        """Which optional guarantees this manager gives; by default all but ``asynchronous``."""
        return Capabilities()

    def launch(self, reset_param: Mapping[int, Any] | None = None) -> None:
        """Create the envs, zero the episode counters and reset all. Requires a closed manager."""
        if not self._closed:
            raise EnvError("launch() needs a closed env manager; call close() first", env_id=None)
        self._failure_count = 0
        self._episodes.counts[:] = 0
        self._seeds.apply_again()  # to new envs, even if the manager was seeded before its close
        check_ids(reset_param or {}, self._env_num)
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
        elif not isinstance(reset_param, Mapping) or not all(
            isinstance(each, Mapping | None) for each in reset_param.values()
        ):
            raise wrong_type("reset_param", "a dict of kwargs or None by env id", reset_param)
        elif reset_param:
            check_ids(reset_param, self._env_num)
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
        self._seeds.set(seed, dynamic_seed)

    def get_state(self) -> dict[str, Any]:
        """Return the full state of the manager and its envs, as plain data.

        Raises:
            NotSavableError: an env has state that is not plain data, or the manager cannot read it.
        """
        self._check_open()
        envs = self._envs_state()  # may wait for steps under way, which change the rest
        own = {name: capture(getattr(self, name), name) for name in self._saved}
        own |= {**self._episodes.get_state(), **self._seeds.get_state()}
        return {"manager": own, "envs": envs}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a manager of the same envs; requires a launched manager.

        Raises:
            CheckpointCorruptError: the state is of other envs.
        """
        self._check_open()
        self._set_envs_state(state["envs"])
        own = dict(state["manager"])
        self._episodes.take_state(own)
        self._seeds.take_state(own)
        set_attributes(self, own)

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
        return {env_id: part_of(obs, env_id) for env_id in self._ready()}

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
            f"{name} cannot save its envs: it {_OTHERS_CAN}", path="env_manager.type", found=name
        )

    def _set_envs_state(self, state: Any) -> None:
        """Restore the envs from the result of ``_envs_state``."""

    def _call(self, env_id: int, name: str, *args: Any) -> Any:
        """Call a method of one env; overridden by managers that support it."""
        raise ConfigError(
            f"env_manager.type: {type(self).__name__} cannot call {name}: it {_OTHERS_CAN}",
            path="env_manager.type",
            method=name,
        )

    @cached_property
    def _spaces(self) -> tuple[ObservationSchema, ActionChecker]:
        # Before the launch the spaces are read from a temporary env.
        probe = self._env_fns[0]()
        self._episodes.set_players(player_num(probe))
        close_quietly(probe)
        return ObservationSchema(probe.observation_space), ActionChecker(probe.action_space)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(
                "the env manager is closed; launch() it first", what=type(self).__name__
            )

    def _running(self) -> NDArray[np.bool_]:
        """Return which envs wait for an action."""
        return ~self._episodes.parked

    def _ready(self) -> list[int]:
        ready: list[int] = np.flatnonzero(self._running()).tolist()
        return ready

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
        check_ids(env_ids, self._env_num)
        if len(set(env_ids)) < len(env_ids) or not self._running()[list(env_ids)].all():
            running = self._ready()
            raise PolicyOutputError(
                f"actions for envs {list(env_ids)}, each env once; running are {running}. A DONE "
                "env needs a launch(), one without auto_reset a reset()",
                key="env_id",
                expected=running,
                found=list(env_ids),
            )
