"""Catches the failures of one env and restarts it, up to a limit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from dingsdk.config import NotNegative, PartSection, Whole
from dingsdk.data.action_mask import open_masks
from dingsdk.data.seeding import derive_seed
from dingsdk.envs.last_info import (
    ABNORMAL,
    EPISODE_INFO,
    EPISODE_RETURN,
    PLAYERS,
    InfoNumbers,
    episode_info_of,
    return_told,
)
from dingsdk.envs.players import player_num, set_first_seat
from dingsdk.envs.saving import attributes_of, env_state, set_attributes, set_env_state
from dingsdk.envs.spaces import ObservationSchema
from dingsdk.errors import (
    ConfigError,
    EnvError,
    SchemaMismatchError,
    error_text,
    traceback_text,
    wrong_type,
)
from dingsdk.runtime.deadline import returns_within

ERROR = "error"
"""Info key of an abnormal step: the error in one line."""

RESET_PARTS = ("obs", "info")
STEP_PARTS = ("obs", "reward", "terminated", "truncated", "info")
"""What gymnasium's methods return."""

_SEQUENCES = (tuple, list)

_FAULTS = (Exception, SystemExit)
"""Exceptions that count as a failure of the env. ``sys.exit()`` in an env does not end the run."""

_MAX_REWARD = float(np.finfo(np.float32).max)

Played = tuple[Any, Any, bool, bool, dict[str, Any], Any, int]
"""A step of an env: obs, reward, terminated, truncated, info, the obs for the next action, and how
often the env failed."""

_log = logging.getLogger(__name__)


class RetrySection(PartSection, frozen=True, kw_only=True):
    """What an env manager does when an env fails.

    Attributes:
        max_retry: How often an env may fail in a row, without a finished episode in between;
            one more failure ends the run.
        retry_type: ``renew`` replaces a failed env by a new one, ``reset`` only resets it.
        retry_waiting_time: Seconds to wait before a failed env is replaced or reset.
    """

    max_retry: Whole = 2
    retry_type: Literal["renew", "reset"] = "renew"
    retry_waiting_time: NotNegative = 0.0


class GuardedEnv(gym.Env[Any, Any]):
    """One env whose results are checked and copied, and that is rebuilt when it fails.

    A failure is an exception that the env raises, an observation or reward that does not fit, or
    ``info['abnormal']`` set by the env itself. The episode is dropped: the step returns the
    first observation of a new one, and ``info[ABNORMAL]``. Failures are in a row while no
    episode is completed between them.

    The last info of an episode gets the numbers that ``info_numbers`` of ``env_fn`` chooses, in
    ``episode_info``, and the return that counts, if it is known to be another one than the sum of
    the rewards, as ``eval_episode_return``. Other infos are passed on unread.

    Args:
        env_fn: Makes the env; called again for each rebuild.
        env_id: Number of the env in its manager, for errors.
        section: The manager's section; it says what to do after a failure.
    """

    def __init__(self, env_fn: Callable[[], Any], env_id: int, section: RetrySection) -> None:
        self._env_fn = env_fn
        self._env_id = env_id
        self._section = section
        self.env = self._make()
        check_spaces(self.env)
        self.observation_space = self.env.observation_space
        self.action_space = self.env.action_space
        self.metadata = self.env.metadata
        self.render_mode = self.env.render_mode
        self.player_num = player_num(self.env)
        self._schema = ObservationSchema(self.observation_space)
        self.keep_seed = False
        """True: every reset starts from the seed; False: the random stream continues."""
        self._seed: int | None = None
        self._rebuilds = 0
        self._reset_kwargs: dict[str, Any] = {}
        self._failures_in_row = 0
        self.failures = 0
        """How often the env failed in the last call of ``play`` or ``restart``."""

    def play(self, action: Any, goes_on: bool) -> Played:
        """Step the env; reset it if its episode ends and ``goes_on`` is True."""
        self.failures = 0
        obs, reward, terminated, truncated, info = self.step(action)
        following = obs
        if terminated or truncated:
            following = self.reset()[0] if goes_on else open_masks(obs)
        return obs, reward, terminated, truncated, info, following, self.failures

    def restart(self, keep_seed: bool, kwargs: Mapping[str, Any]) -> tuple[Any, int]:
        """Reset the env; return the observation, and how often the env failed."""
        self.keep_seed, self.failures = keep_seed, 0
        obs, _ = self.reset(**kwargs)
        return obs, self.failures

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None, **kwargs: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the env; ``options`` and other kwargs are remembered for later resets.

        Raises:
            EnvError: too many failures in a row.
        """
        if seed is not None:
            self._seed, self._rebuilds = seed, 0
        elif self.keep_seed:
            seed = self._seed
        if options:
            kwargs["options"] = options
        if kwargs:
            self._reset_kwargs = kwargs
        return self._reset(seed)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env; if it fails, restart it and return an abnormal step.

        Raises:
            EnvError: too many failures in a row; the env's last error is the cause.
        """
        try:
            obs, reward, terminated, truncated, info = parts_of(
                "step", self.env.step(action), STEP_PARTS
            )
            obs = self._schema.conform(obs)
            reward = plain_reward(reward, self.player_num)
            if type(terminated) is not bool or type(truncated) is not bool:
                terminated = bool(_one_number("terminated", terminated, "true or false"))
                truncated = bool(_one_number("truncated", truncated, "true or false"))
            if info:
                if not isinstance(found := info.get(EPISODE_INFO, {}), dict):
                    raise _mismatch(f"info.{EPISODE_INFO}", "a dict", type(found).__name__)
                if info.get(ABNORMAL):
                    text = f"env {self._env_id} reported an abnormal step"
                    raise EnvError(text, env_id=self._env_id)
        except _FAULTS as error:
            obs, info = self._reset(self._recover(error))
            info |= {ABNORMAL: True, ERROR: error_text(error)}
            nothing = plain_reward(np.zeros(self.player_num), self.player_num)
            return obs, nothing, False, False, info
        if terminated or truncated:
            self._failures_in_row = 0
            info = self._last_info(info)
        return obs, reward, terminated, truncated, info

    def call(self, name: str, *args: Any) -> Any:
        """Call a method that not every env has.

        Raises:
            ConfigError: this env has no such method.
        """
        if name in ("get_state", "set_state"):
            return getattr(self, name)(*args)
        try:
            find = getattr(self.env, "get_wrapper_attr", partial(getattr, self.env))
            method = find(name)
        except AttributeError:
            raise ConfigError(
                f"{type(self.env.unwrapped).__name__} has no {name}, which the config asks for",
                path="env.env_id",
                method=name,
            ) from None
        return method(*args)

    def get_state(self) -> dict[str, Any]:
        """Return the state of env and guard; errors as ``env_state``."""
        guard = attributes_of(self, skipped=("env", "_env_fn", "_section", "_schema", "_raw"))
        return {"guard": guard, "env": env_state(self.env)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from ``get_state``; errors as ``set_env_state``."""
        set_env_state(self.env, state["env"])
        set_attributes(self, state["guard"])

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    @property
    def unwrapped(self) -> Any:
        return self.env.unwrapped

    def _make(self) -> gym.Env[Any, Any]:
        is_function = callable(self._env_fn)
        env: Any = self._env_fn() if is_function else self._env_fn
        if not is_function or isinstance(env, gym.vector.VectorEnv):
            raise wrong_type(f"env_fns[{self._env_id}]", "a function that makes one env", env)
        set_first_seat(env, self._env_id)
        self._raw = raw_return_of(env)
        return env  # type: ignore[no-any-return]

    def _last_info(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return the last info of an episode with its return and its numbers.

        Raises:
            ConfigError: see ``chosen_numbers``.
        """
        total = None if self._raw is None else self._raw.total
        if total is not None and self.player_num > 1:
            each = zip(info.get(PLAYERS) or [{}] * self.player_num, total.tolist(), strict=True)
            info = {**info, PLAYERS: [{EPISODE_RETURN: gained, **own} for own, gained in each]}
            total = None
        elif isinstance(total, np.ndarray):
            total = total.item(0)  # the opponents of player 0 are part of its env
        made = episode_info_of(info, *chosen_by(self._env_fn), total)
        if not made:
            return info
        info = {**info, EPISODE_INFO: made}
        if EPISODE_RETURN in made:
            info[EPISODE_RETURN] = made[EPISODE_RETURN]
        return info

    def _reset(self, seed: int | None) -> tuple[Any, dict[str, Any]]:
        while True:
            if self._raw is not None:
                self._raw.restart()
            try:
                obs, info = parts_of(
                    "reset", self.env.reset(seed=seed, **self._reset_kwargs), RESET_PARTS
                )
                obs, info = self._schema.conform(obs), dict(info)
            except _FAULTS as error:
                seed = self._recover(error)
            else:
                return obs, info

    def _recover(self, error: BaseException) -> int | None:
        """Count the failure and get a working env; return the seed of its next reset."""
        while True:
            self.failures += 1
            self._failures_in_row += 1
            who, failures = f"env {self._env_id}", self._failures_in_row
            count_failure(error, who, failures, self._section, self._env_id)
            self._rebuilds += 1
            try:
                if self._section.retry_type == "renew":
                    close_quietly(self.env)
                    self.env = self._make()
            except _FAULTS as again:
                error = again
            else:
                return restart_seed(self._seed, self._rebuilds, self.keep_seed)


class RawReturn(gym.Wrapper[Any, Any, Any, Any]):
    """Sums the rewards of an env beneath the wrappers of the config, which may scale them.

    The last info of its episodes gets the sum as ``eval_episode_return``, unless it has one. An
    episode may also end above it, for example by a wrapper with a limit of steps: a ``GuardedEnv``
    reads ``total`` then.

    Attributes:
        total: Return of the episode so far; float64[players] for several players, None if a reward
            was no finite number. If the env reports the return of the episode in
            ``info["episode"]["r"]``, as ``RecordEpisodeStatistics`` does, the reported return.
    """

    total: Any

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._players = player_num(env)
        self.restart()

    def restart(self) -> None:
        """Begin another episode."""
        self.total = 0.0 if self._players == 1 else np.zeros(self._players)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.restart()
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        step = self.env.step(action)
        obs, reward, terminated, truncated, info = parts_of("step", step, STEP_PARTS)
        if self.total is not None:
            try:
                self.total = self.total + plain_reward(reward, self._players)
            except SchemaMismatchError:  # of an env whose wrappers make its rewards
                self.total = None
        if (terminated or truncated) and self._players == 1:
            told = return_told(info)
            self.total = self.total if told is None else told
            if self.total is not None:
                info = {EPISODE_RETURN: self.total, **info}
        return obs, reward, terminated, truncated, info


def raw_return_of(env: Any) -> RawReturn | None:
    """Return the wrapper ``RawReturn`` of an env, or None."""
    while env is not None and not isinstance(env, RawReturn):
        env = getattr(env, "env", None)
    return env


def chosen_by(env_fn: Callable[[], Any]) -> tuple[InfoNumbers, str]:
    """Return which numbers of infos are chosen for the envs that ``env_fn`` makes, and their name.

    ``EnvFn`` has both as attributes; for other functions nothing is chosen.
    """
    name = str(getattr(env_fn, "env_id", None) or getattr(env_fn, "__name__", "the env"))
    return getattr(env_fn, "info_numbers", ()), name


def restart_seed(
    seed: int | None, rebuilds: int, keep_seed: bool, name: str = "rebuild"
) -> int | None:
    """Return the seed that an env continues with after its ``rebuilds``-th failure."""
    if seed is None or keep_seed:
        return seed
    return derive_seed(seed, name, rebuilds)


def count_failure(
    error: BaseException,
    who: str,
    failures: int,
    section: RetrySection,
    env_id: int | None = None,
) -> None:
    """Log a failure of an env, a vector env or a process, and wait for ``retry_waiting_time``.

    Raises:
        EnvError: there were too many in a row.
    """
    if failures > section.max_retry:
        raise EnvError(
            f"{who} failed {failures} times without completing an episode; correct it, or raise "
            f"env_manager.max_retry. Its last error: {error_text(error)}",
            env_id=env_id,
            failures=failures,
            # An error that crosses a process boundary loses its cause.
            traceback=traceback_text(error),
        ) from error
    _log.warning(
        "%s failed (%d of at most %d in a row); the episodes in it are dropped: %s",
        who,
        failures,
        section.max_retry,
        error_text(error),
    )
    time.sleep(section.retry_waiting_time)


CLOSE_S = 5.0
"""How long closing envs may take in this process; then they are abandoned."""


def close_quietly(*envs: Any) -> None:
    """Close envs that are not used any more; errors are only logged.

    All together have ``CLOSE_S``; envs that take longer are abandoned. Envs that render have no
    limit.
    """
    # The window or GL context of an env that renders belongs to the thread that made it.
    rendering = [env for env in envs if getattr(env, "render_mode", None) is not None]
    others = [env for env in envs if getattr(env, "render_mode", None) is None]
    _close_all(rendering)
    if others and not returns_within(CLOSE_S, partial(_close_all, others)):
        kind = type(getattr(others[0], "unwrapped", others[0])).__name__
        text = "close() of the envs (%s) has not ended after %.0f s; they are abandoned"
        _log.warning(text, kind, CLOSE_S)


def _close_all(envs: Sequence[Any]) -> None:
    for env in envs:
        try:
            env.close()
        except Exception:
            _log.debug("closing an env failed", exc_info=True)


def check_spaces(env: Any) -> None:
    """Raise EnvError unless an env has an observation space and an action space."""
    for name in ("observation_space", "action_space"):
        try:
            found: Any = getattr(env, name, None)
        except Exception as error:
            found = error
        if not isinstance(found, gym.Space):
            shown = error_text(found) if isinstance(found, Exception) else repr(found)
            kind = type(getattr(env, "unwrapped", env)).__name__
            raise EnvError(
                f"{kind} has the {name} {shown:.80}, and a space of gymnasium.spaces is needed; "
                "set it in the env's constructor",
                failures=1,
            ) from (found if isinstance(found, Exception) else None)


def plain_reward(reward: Any, players: int) -> Any:
    """Return a reward, which may be an array of one element, as a float.

    For several players: float32[players], from one number or array of one element a player.
    """
    if type(reward) is float and players == 1 and -_MAX_REWARD <= reward <= _MAX_REWARD:
        return reward
    if players > 1:
        with np.errstate(over="ignore"):
            rewards = np.asarray(reward, np.float32)
        if rewards.shape == (players, 1):
            rewards = rewards[:, 0]
        if rewards.shape != (players,) or not np.isfinite(rewards).all():
            raise _mismatch("reward", f"{players} finite numbers, one per player", repr(reward))
        return rewards
    plain = float(_one_number("reward", reward, "a number"))
    if not -_MAX_REWARD <= plain <= _MAX_REWARD:
        found = "NaN" if plain != plain else repr(plain)
        raise _mismatch("reward", "a finite number, as float32 holds it,", found)
    return plain


def _one_number(key: str, found: Any, expected: str) -> Any:
    """Return a bool or a number, which may be in an array of one element."""
    array = np.asarray(found)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise _mismatch(key, expected, repr(found))
    return array.item()


def parts_of(method: str, answer: Any, parts: Sequence[str]) -> Sequence[Any]:
    """Check that the env's ``method`` returned these ``parts``, and return them.

    Raises:
        SchemaMismatchError: the answer has other parts, or its last part is no dict.
    """
    if not isinstance(answer, _SEQUENCES) or len(answer) != len(parts):
        expected = ", ".join(parts)
        found, advice = type(answer).__name__, ""
        if isinstance(answer, _SEQUENCES):
            found, advice = f"{len(answer)} values", "; an env of the old gym API needs a wrapper"
        raise SchemaMismatchError(
            f"the env's {method}() returned {found}, gymnasium's API has ({expected}){advice}",
            key=method,
            expected=expected,
            found=found,
        )
    if not isinstance(answer[-1], dict):
        raise _mismatch("info", "a dict", type(answer[-1]).__name__)
    return answer


def _mismatch(key: str, expected: str, found: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"the env returned {key}: {found}, {expected} is needed",
        key=key,
        expected=expected,
        found=found,
    )
