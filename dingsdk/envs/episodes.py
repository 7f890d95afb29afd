"""What a manager knows of each of its envs: the episodes, the current return, and the seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data.pytree import part_of
from dingsdk.envs.guard import restart_seed
from dingsdk.envs.last_info import ABNORMAL, EPISODE_RETURN, PLAYERS
from dingsdk.envs.steps import StepColumns, Timestep
from dingsdk.errors import ConfigError, ConfigTypeError, PolicyOutputError


class Episodes:
    """Counts the episodes of each env, and adds up the rewards of the current ones.

    Args:
        env_num: Number of envs.
        episode_num: Episodes after which an env is DONE; may be infinite.
        auto_reset: Whether an env starts its next episode by itself.

    Attributes:
        counts: int64[env_num], how many episodes of each env ended.
        parked: bool[env_num], True where an env takes no actions: DONE, or waiting for a reset by
            the caller.
        may_park: Whether an env may have to stop after an episode.
        player_num: Number of players of an env.
        reward_shape: Shape of the reward of one step: ``(player_num,)``, or ``()`` for one player.
    """

    def __init__(self, env_num: int, episode_num: float, auto_reset: bool) -> None:
        self._env_num, self._episode_num, self._auto_reset = env_num, episode_num, auto_reset
        self.counts = np.zeros(env_num, dtype=np.int64)
        self.parked = np.zeros(env_num, dtype=np.bool_)
        self.may_park = not auto_reset or not math.isinf(episode_num)
        self.set_players(0)

    def set_players(self, count: int) -> None:
        """Set the number of players, and begin the returns anew."""
        self.player_num = count
        self.reward_shape = (count,) if count > 1 else ()
        self.returns = np.zeros((self._env_num, *self.reward_shape), dtype=np.float64)

    @property
    def are_done(self) -> bool:
        """Whether every env finished ``episode_num`` episodes."""
        return bool((self.parked & (self.counts >= self._episode_num)).all())

    def begin(self, env_ids: Sequence[int]) -> None:
        """Note that envs were reset."""
        ids = list(env_ids)
        self.returns[ids], self.parked[ids] = 0.0, False

    def end(self, env_ids: Sequence[int] | NDArray[np.int64]) -> None:
        """Count a finished episode for each env, and park those that start no other episode."""
        self.counts[env_ids] += 1
        if not self._auto_reset:
            self.parked[env_ids] = True
        elif not math.isinf(self._episode_num):
            self.parked[env_ids] = self.counts[env_ids] >= self._episode_num

    def goes_on(self, env_ids: Sequence[int] | NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether each env starts another episode by itself after its current one."""
        goes_on: NDArray[np.bool_] = self.counts[env_ids] + 1 < self._episode_num
        return goes_on & self._auto_reset

    def timestep(self, env_id: int, obs: Any, reward: Any, info: dict[str, Any]) -> Timestep:
        """Return one env's step in dict form, and add its reward to the episode's return.

        ``info`` holds ``terminated`` and ``truncated``; it is changed in place.
        """
        done = info["terminated"] or info["truncated"]
        self.returns[env_id] = 0.0 if info.get(ABNORMAL) else self.returns[env_id] + reward
        infos = [info]
        if self.reward_shape:
            own = info.pop(PLAYERS, None) or [{}] * self.player_num
            infos = [{**info, **each} for each in own]
        else:
            reward = float(reward)
        if done:
            for each, total in zip(infos, np.atleast_1d(self.returns[env_id]), strict=True):
                each.setdefault(EPISODE_RETURN, float(total))
            self.returns[env_id] = 0.0
        return Timestep(obs, reward, done, infos if self.reward_shape else info)

    def timestep_of(
        self, columns: StepColumns, row: int, env_id: int, info: dict[str, Any]
    ) -> Timestep:
        """Return a row of columns in dict form; ``info`` is changed in place."""
        info["terminated"] = bool(columns.terminated[row])
        info["truncated"] = bool(columns.truncated[row])
        return self.timestep(env_id, part_of(columns.final_obs, row), columns.reward[row], info)

    def get_state(self) -> dict[str, Any]:
        """Return the state as plain data."""
        arrays = {"_episodes": self.counts, "_parked": self.parked, "_returns": self.returns}
        return {key: array.copy() for key, array in arrays.items()}

    def take_state(self, state: dict[str, Any]) -> None:
        """Restore the entries of ``get_state``, and remove them from ``state``."""
        self.counts = np.array(state.pop("_episodes"), dtype=np.int64)
        self.parked = np.array(state.pop("_parked"), dtype=np.bool_)
        self.returns = np.array(state.pop("_returns"), dtype=np.float64)


class EnvSeeds:
    """One seed for each env; the next reset of an env applies a new one.

    Attributes:
        values: The seeds; None for envs that were not seeded.
        is_dynamic: Whether a seed starts a random stream that continues from episode to episode.
            Otherwise every episode starts from the seed.
    """

    def __init__(self, env_num: int) -> None:
        self.values: list[int | None] = [None] * env_num
        self.is_dynamic = True
        self._unapplied = np.zeros(env_num, dtype=np.bool_)

    def set(
        self, seed: int | Sequence[int] | Mapping[int, int], dynamic_seed: bool | None = None
    ) -> None:
        """Take seeds, see ``EnvManager.seed``."""
        env_num = len(self.values)
        if isinstance(seed, int | np.integer):
            seed = [int(seed) + env_id for env_id in range(env_num)]
        if not isinstance(seed, Mapping):
            if not isinstance(seed, Sequence | np.ndarray):
                raise _no_seed(seed)
            if len(seed) != env_num:
                raise ConfigError(
                    f"{env_num} envs need {env_num} seeds, found {len(seed)}",
                    path="seed",
                    expected=env_num,
                    found=len(seed),
                )
            seed = dict(enumerate(seed))
        check_ids(seed, env_num)
        for one in seed.values():
            if not isinstance(one, int | np.integer):
                raise _no_seed(one)
        for env_id, one in seed.items():
            self.values[env_id] = int(one)
            self._unapplied[env_id] = True
        if dynamic_seed is not None:
            self.is_dynamic = dynamic_seed

    def take(self, env_ids: Sequence[int]) -> list[int | None]:
        """Return the seeds to apply in a reset of ``env_ids``; each is handed out once."""
        seeds = [self.values[env_id] if self._unapplied[env_id] else None for env_id in env_ids]
        self._unapplied[list(env_ids)] = False
        return seeds

    def fixed(self, env_id: int) -> int | None:
        """Return the seed from which every episode starts; None if random streams continue."""
        return None if self.is_dynamic else self.values[env_id]

    def after_failure(self, env_id: int, rebuilds: int, label: str) -> int | None:
        """Return the seed of an env that was rebuilt, see ``restart_seed``."""
        return restart_seed(self.values[env_id], rebuilds, not self.is_dynamic, label)

    def apply_again(self) -> None:
        """Hand out all seeds again."""
        self._unapplied[:] = [seed is not None for seed in self.values]

    def get_state(self) -> dict[str, Any]:
        """Return the state as plain data."""
        unapplied, dynamic = self._unapplied.copy(), self.is_dynamic
        return {"_seeds": list(self.values), "_unapplied": unapplied, "_dynamic_seed": dynamic}

    def take_state(self, state: dict[str, Any]) -> None:
        """Restore the entries of ``get_state``, and remove them from ``state``."""
        self.values, self.is_dynamic = list(state.pop("_seeds")), bool(state.pop("_dynamic_seed"))
        self._unapplied = np.array(state.pop("_unapplied"), dtype=np.bool_)


def check_ids(env_ids: Iterable[int], env_num: int) -> None:
    """Raise PolicyOutputError if there is no env of one of these ids."""
    known = range(env_num)
    unknown = [each for each in env_ids if isinstance(each, bool | float) or each not in known]
    if unknown:
        raise PolicyOutputError(
            f"there are envs 0 to {env_num - 1}, asked for {unknown}",
            key="env_id",
            expected=list(known),
            found=unknown,
        )


def _no_seed(found: object) -> ConfigTypeError:
    return ConfigTypeError(
        f"a seed is a whole number, and seeds are a list or a dict of them; found {found!r:.80}",
        path="seed",
        found=found,
    )
