"""The env manager contract: N environments that are stepped together.

A manager has two forms of the same interface. The *dict* form (``ready_obs``, ``step``)
is keyed by env id and suits any policy. The *batched* form (``reset_batch``,
``step_batch``) moves columns, for policies that act on a whole batch at once. Use one
form or the other between two resets, not both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dingsdk.config import Configurable

Obs = Any
"""An observation column: an array ``[n, ...]``, or a (nested) dict of them."""

_NO_EPISODE_INFO: Mapping[int, Mapping[str, Any]] = MappingProxyType({})


class Timestep(NamedTuple):
    """Result of one env's step, in dict form.

    ``obs`` is the observation that the action led to, the true terminal one at an episode
    end; ``info`` always holds ``terminated`` and ``truncated``, at ``done`` also
    ``eval_episode_return``. ``info['abnormal']`` marks a step that must be discarded: the env
    failed and was restarted, ``obs`` is the first of its new episode, ``reward`` is 0,
    ``done`` is False and ``info['error']`` says what happened.
    """

    obs: Any
    reward: Any
    done: bool
    info: dict[str, Any]


class StepColumns(NamedTuple):
    """Result of one ``step_batch``: one row per env stepped, in the order asked.

    The arrays are the caller's: no later call writes into them, but ``final_obs`` may be
    ``obs``. A named tuple, because building a frozen dataclass of eight fields costs 1 us.

    Attributes:
        obs: What the policy acts on next: the new episode's first observation where an
            episode ended and the env was reset in this step.
        final_obs: The observation that the action led to; equal to ``obs`` except at
            episode ends, where it is the true last one. May be the same object as ``obs``
            when no episode ended.
        reward: float32[n].
        terminated: bool[n], the task ended (no bootstrap).
        truncated: bool[n], the episode was cut (bootstrap from ``final_obs``).
        valid: bool[n], or None for all True. False rows are no transitions: the env spent
            the step on its reset, failed and was rebuilt (see ``abnormal``), or is finished.
            Their ``reward``, ``terminated`` and ``truncated`` are 0 and False.
        abnormal: bool[n], or None for all False. True: the env failed in this step; drop the
            unfinished trajectory of that env, ``obs`` is the first of a fresh episode.
        episode_info: for env rows whose episode ended and that report extra statistics,
            ``{row: dict}``.
    """

    obs: Obs
    final_obs: Obs
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_] | None = None
    abnormal: NDArray[np.bool_] | None = None
    episode_info: Mapping[int, Mapping[str, Any]] = _NO_EPISODE_INFO


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a manager supports; not every vectorised env can support all of it.

    Attributes:
        per_env_seed: env ``i`` has a random stream of its own, set by ``seed``.
        per_env_reset: ``reset({i: None})`` resets env ``i`` alone.
        partial_step: ``step``/``step_batch`` may name a subset of the envs.
        reset_takes_step: an env spends one step on its reset after an episode end
            (gymnasium's next-step autoreset); that row has ``valid=False``.
    """

    per_env_seed: bool = True
    per_env_reset: bool = True
    partial_step: bool = True
    reset_takes_step: bool = False


class EnvManager(Configurable, ABC):
    """N environments of one kind, stepped together; not safe for concurrent callers.

    A class registered under ``env_managers`` is built as ``cls(cfg, env_fns)``, where ``cfg``
    is its whole config (its defaults with the user's values merged in).
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @abstractmethod
    def launch(self, reset_param: Mapping[int, Any] | None = None) -> None:
        """Create the envs, zero the episode counters and reset all. Requires a closed manager."""

    @abstractmethod
    def reset(self, reset_param: Mapping[int, Any] | None = None) -> None:
        """Reset all envs, or only those named by ``{env_id: None | kwargs}``.

        The kwargs go to the env's own ``reset`` and are remembered for its later resets;
        None keeps what is remembered. Episode counters are untouched.
        """

    @abstractmethod
    def seed(
        self, seed: int | Sequence[int] | Mapping[int, int], dynamic_seed: bool | None = None
    ) -> None:
        """Set the seeds that the next reset applies.

        Args:
            seed: int ``s``: env ``i`` gets ``s + i``; a sequence: one for each env; a dict: only
                the envs it names.
            dynamic_seed: True (the default of a new manager): a seed starts a random stream that
                runs on from episode to episode; False: every episode starts from the seed;
                None: as before.

        An env that was rebuilt after its ``k``-th failure since it was seeded goes on with
        the seed ``derive_seed(seed, "rebuild", k)``: it repeats neither its own episodes nor
        those of another env. With ``dynamic_seed=False`` it starts from the seed again.
        """

    @abstractmethod
    def close(self) -> None:
        """Close every env; idempotent."""

    @property
    @abstractmethod
    def env_num(self) -> int:
        """The number of envs."""

    @property
    @abstractmethod
    def episode_num(self) -> float:
        """Episodes per env before it is DONE; inf for no limit."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether the manager is closed or was never launched."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """True once every env finished ``episode_num`` episodes."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Which optional guarantees this manager gives."""

    @property
    @abstractmethod
    def observation_space(self) -> Any:
        """The gymnasium space of one env's observation."""

    @property
    @abstractmethod
    def action_space(self) -> Any:
        """The gymnasium space of one env's action."""

    @property
    @abstractmethod
    def failure_count(self) -> int:
        """Env failures (each one dropped episode) since launch.

        Failures of one env are in a row while it completes no episode between them; by
        default the third in a row raises EnvError (``max_retry`` of them are forgiven).
        """

    @property
    @abstractmethod
    def ready_obs(self) -> dict[int, Any]:
        """``{env_id: obs}`` of the envs that wait for an action."""

    @abstractmethod
    def step(self, actions: Mapping[int, Any]) -> dict[int, Timestep]:
        """Step the named envs; return a timestep for each that produced one."""

    @abstractmethod
    def current_obs(self) -> Obs:
        """Columns ``[env_num, ...]`` of the observations that the next action answers."""

    @abstractmethod
    def step_batch(
        self, actions: NDArray[Any], env_ids: NDArray[np.int64] | None = None
    ) -> StepColumns:
        """Step all envs, or those in ``env_ids`` (needs ``capabilities.partial_step``).

        Args:
            actions: ``[n, ...]``, row ``k`` for env ``env_ids[k]``.
            env_ids: int64[n] without repeats, or None for all in order.

        Raises:
            PolicyOutputError: the actions have the wrong shape or are outside the space; the
                envs are untouched.
            EnvError: an env failed for the third time in a row; its error is the cause.
        """
