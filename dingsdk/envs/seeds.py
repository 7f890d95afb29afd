"""The seeds of the envs of a manager: given, applied by a reset, and saved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dingsdk.envs.guard import restart_seed
from dingsdk.errors import ConfigError, ConfigTypeError, PolicyOutputError


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
