"""Base class of the built-in env managers: config, seeds, counters and states."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from dingsdk.config import NotNegative, PartSection, Whole
from dingsdk.envs.base import EnvManager
from dingsdk.envs.spaces import ActionChecker, ObservationSchema
from dingsdk.errors import ClosedError, ConfigError, EnvError, PolicyOutputError


class ManagedEnvs(EnvManager):
    """Base of the env managers: everything but the stepping.

    Source: the env managers of DI-engine. Different here: ``max_retry`` counts failures in a
    row (2, not 1), a failed env is rebuilt by default, and a failed step is never repeated,
    since an env that raised may have moved; its episode is dropped instead.
    """

    class Config(PartSection, frozen=True, kw_only=True):
        """Section ``env_manager``.

        Attributes:
            episode_num: Episodes per env before it is DONE.
            auto_reset: Whether an env starts its next episode by itself.
            max_retry: Failures in a row that are forgiven.
            retry_type: ``renew`` builds a failed env anew, ``reset`` only resets it.
            retry_waiting_time: Seconds to wait before that.
        """

        episode_num: Annotated[float, Meta(ge=1)] = math.inf
        auto_reset: bool = True
        max_retry: Whole = 2
        retry_type: Literal["renew", "reset"] = "renew"
        retry_waiting_time: NotNegative = 0.0

    def __init__(self, cfg: Mapping[str, Any], env_fns: Sequence[Callable[[], Any]]) -> None:
        section = self._cfg = self.read(cfg, "env_manager")
        if not env_fns:
            raise ConfigError("an env manager needs at least 1 env", path="env", found=0)
        self._env_fns = list(env_fns)
        self._env_num = len(self._env_fns)
        self._episode_num: float = section.episode_num
        self._auto_reset: bool = section.auto_reset
        self._closed = True
        self._seeds: list[int | None] = [None] * self._env_num
        self._unapplied = np.zeros(self._env_num, dtype=np.bool_)
        self._dynamic_seed = True
        self._failure_count = 0
        self._episodes = np.zeros(self._env_num, dtype=np.int64)
        # True where an env takes no actions: DONE, or waiting for a reset by the caller.
        self._parked = np.zeros(self._env_num, dtype=np.bool_)
        self._returns = np.zeros(self._env_num, dtype=np.float64)
        self._schema: ObservationSchema | None = None
        self._actions: ActionChecker | None = None

    @property
    def env_num(self) -> int:
        return self._env_num

    @property
    def episode_num(self) -> float:
        return self._episode_num

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def done(self) -> bool:
        return bool((self._parked & (self._episodes >= self._episode_num)).all())

    @property
    def failure_count(self) -> int:
        return self._failure_count

    @property
    def observation_space(self) -> Any:
        return self._learn_spaces()[0].space

    @property
    def action_space(self) -> Any:
        return self._learn_spaces()[1].space

    def random_action(self) -> dict[int, Any]:
        """Return ``{env_id: a random valid action}`` for the envs that wait for one."""
        space = self.action_space
        return {env_id: space.sample() for env_id in self.ready_obs}

    def launch(self, reset_param: Mapping[int, Any] | None = None) -> None:
        if not self._closed:
            raise EnvError("launch() needs a closed env manager; call close() first", env_id=None)
        self._failure_count = 0
        self._episodes[:] = 0
        # New envs know no seed yet, also those of a manager that was seeded and closed.
        self._unapplied[:] = [seed is not None for seed in self._seeds]
        reset_param = reset_param or {}
        self._check_ids(reset_param)
        try:
            self._open()
            self._closed = False
            self._reset_envs(range(self._env_num), reset_param)
        except BaseException:
            self._closed = False
            self.close()
            raise

    def reset(self, reset_param: Mapping[int, Any] | None = None) -> None:
        self._check_open()
        if reset_param is None:
            self._reset_envs(range(self._env_num), {})
        elif reset_param:
            self._check_ids(reset_param)
            self._reset_envs(sorted(reset_param), reset_param)

    def seed(
        self, seed: int | Sequence[int] | Mapping[int, int], dynamic_seed: bool | None = None
    ) -> None:
        if isinstance(seed, int | np.integer):
            seed = [int(seed) + env_id for env_id in range(self._env_num)]
        if not isinstance(seed, Mapping):
            if len(seed) != self._env_num:
                raise ConfigError(
                    f"{self._env_num} envs need {self._env_num} seeds, found {len(seed)}",
                    path="seed",
                    expected=self._env_num,
                    found=len(seed),
                )
            seed = dict(enumerate(seed))
        self._check_ids(seed)
        for env_id, one in seed.items():
            self._seeds[env_id] = int(one)
            self._unapplied[env_id] = True
        if dynamic_seed is not None:
            self._dynamic_seed = dynamic_seed

    @abstractmethod
    def _open(self) -> None:
        """Make the envs; ``close`` undoes it, also after a failure half-way."""

    @abstractmethod
    def _reset_envs(self, env_ids: Sequence[int], kwargs: Mapping[int, Any]) -> None:
        """Reset ``env_ids``; ``kwargs`` holds what the caller gave for some of them."""

    def _learn_spaces(self) -> tuple[ObservationSchema, ActionChecker]:
        if self._schema is None or self._actions is None:
            # Before the launch only a probe can tell.
            probe = self._env_fns[0]()
            self._set_spaces(probe.observation_space, probe.action_space)
            probe.close()
            return self._learn_spaces()
        return self._schema, self._actions

    def _set_spaces(self, observation_space: Any, action_space: Any) -> None:
        self._schema = ObservationSchema(observation_space)
        self._actions = ActionChecker(action_space)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(
                "the env manager is closed; launch() it first", what=type(self).__name__
            )

    def _check_ids(self, env_ids: Mapping[int, Any] | NDArray[np.int64]) -> None:
        known = range(self._env_num)
        unknown = [env_id for env_id in env_ids if env_id not in known]
        if unknown:
            raise PolicyOutputError(
                f"there are envs 0 to {self._env_num - 1}, asked for {unknown}",
                key="env_id",
                expected=list(known),
                found=unknown,
            )

    def _new_seeds(self, env_ids: Sequence[int]) -> list[int | None]:
        """Return the seeds to apply in a reset of ``env_ids``; each is handed out once."""
        seeds = [self._seeds[env_id] if self._unapplied[env_id] else None for env_id in env_ids]
        self._unapplied[list(env_ids)] = False
        return seeds

    def _count_episodes(self, env_ids: Sequence[int] | NDArray[np.int64]) -> None:
        """Count a finished episode for each, and park those that start no other."""
        self._episodes[env_ids] += 1
        if not self._auto_reset:
            self._parked[env_ids] = True
        elif not math.isinf(self._episode_num):
            self._parked[env_ids] = self._episodes[env_ids] >= self._episode_num
