"""The env manager ``vector``, and the base of managers that drive a vector env of gymnasium."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from dingsdk.config import Positive
from dingsdk.data.action_mask import legal_action, open_masks
from dingsdk.data.pytree import part_of
from dingsdk.envs.base import EnvManager
from dingsdk.envs.guard import ERROR, chosen_by, close_quietly, count_failure
from dingsdk.envs.in_process import InProcessEnvManager
from dingsdk.envs.last_info import (
    ABNORMAL,
    EPISODE,
    EPISODE_INFO,
    EPISODE_RETURN,
    episode_info_of,
)
from dingsdk.envs.make import EnvFn
from dingsdk.envs.saving import attributes_of, env_state, set_attributes, set_env_state
from dingsdk.envs.spaces import ActionChecker, Obs, ObservationSchema
from dingsdk.envs.steps import Capabilities, StepColumns, Timestep, step_columns
from dingsdk.envs.subprocess import SubprocessEnvManager
from dingsdk.errors import ConfigError, PolicyOutputError, error_text

_FLOAT32, _BOOL = np.dtype(np.float32), np.dtype(np.bool_)
"""As arguments, objects of dtype cost less than the types of numpy."""
_NOT_STATE = ("envs", "env_fns")
"""Attributes of gymnasium's vector envs that are saved env by env."""
_TOLD = frozenset((EPISODE, EPISODE_INFO, EPISODE_RETURN))
"""Keys of infos that say something about an episode that has ended."""
_UNUSUAL = _TOLD | {ABNORMAL}


class BaseVectorEnvManager(EnvManager):
    """Drives any ``gymnasium.vector.VectorEnv``: a subclass writes ``make_vector_env``.

    All envs are stepped in one call, in columns, in the autoreset mode of the vector env. They
    share one random stream and are reset together. When the vector env fails, all envs are
    rebuilt and all rows of that step are abnormal. An env that takes no actions (DONE, or
    waiting for the caller's reset) gets a placeholder action, and its rows are not valid.

    The vector env merges the infos of its envs. gymnasium merges them into arrays of the type of
    the first value, so statistics of one key must have one type in all envs.

    Example:
        >>> class SixDice(BaseVectorEnvManager):
        ...     def make_vector_env(self):
        ...         return gymnasium.make_vec("Dice-v0", num_envs=self.env_num, dice=6)
    """

    max_players: ClassVar[float] = 1
    _saved = (
        *EnvManager._saved,
        "_obs",
        "_resetting",
        "_failures_in_row",
    )

    def __init__(self, cfg: Mapping[str, Any], env_fns: Sequence[Any]) -> None:
        super().__init__(cfg, env_fns)
        self._vec: Any = None
        self._autoreset = AutoresetMode.NEXT_STEP
        self._obs: Obs = None
        # True where the next step is spent on a reset (NEXT_STEP only); None for nowhere.
        self._resetting: NDArray[np.bool_] | None = None
        self._failures_in_row = 0
        self._info_numbers, self._env_name = chosen_by(self._env_fns[0])
        # Infos of the last step, and the infos that include those of the ended episodes.
        self._infos: Mapping[str, Any] = {}
        self._final_infos: Mapping[str, Any] = {}

    @abstractmethod
    def make_vector_env(self) -> Any:
        """Make a ``gymnasium.vector.VectorEnv`` of ``env_num`` envs; the manager closes it."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            per_env_seed=False,
            per_env_reset=False,
            partial_step=False,
            reset_takes_step=self._autoreset is AutoresetMode.NEXT_STEP,
        )

    def launch(self, reset_param: Mapping[int, Any] | None = None) -> None:
        if self._closed:
            self._failures_in_row = 0
        super().launch(reset_param)

    def seed(
        self, seed: int | Sequence[int] | Mapping[int, int], dynamic_seed: bool | None = None
    ) -> None:
        if not isinstance(seed, int | np.integer):
            raise _only_single_envs("one seed", seed)
        super().seed(seed, dynamic_seed)

    def current_obs(self) -> Obs:
        self._check_open()
        return self._obs

    def step_batch(
        self, actions: NDArray[Any], env_ids: NDArray[np.int64] | None = None
    ) -> StepColumns:
        if self._closed:
            self._check_open()
        schema, checker = self._spaces
        if env_ids is not None and env_ids.tolist() != list(range(self._env_num)):
            raise self._wrong_envs(range(self._env_num), env_ids.tolist())
        actions = checker.batch(actions, self._env_num)
        try:
            obs, reward, terminated, truncated, infos = self._vec.step(actions)
            obs = schema.conform_columns(obs, self._env_num)
            reward = np.array(reward, _FLOAT32)
            terminated, truncated = np.array(terminated, _BOOL), np.array(truncated, _BOOL)
            self._infos = infos
            valid = None
            resetting, self._resetting = self._resetting, None
            if resetting is not None:
                valid = ~resetting
                reward[resetting] = 0
                terminated &= valid
                truncated &= valid
            ended = terminated | truncated
            # Looking for a byte costs a fraction of any() on arrays this small.
            has_ended = 1 in ended.tobytes()
            if has_ended:
                self._failures_in_row = 0
                self._final_infos = infos
                if self._resets_next_step:
                    self._resetting = ended
            self._obs = obs
            # Only a dict may have a mask.
            if type(obs) is dict and (self._resetting is not None or self._episodes.may_park):
                self._obs = open_masks(obs, ~self._running())
            step = StepColumns(self._obs, obs, reward, terminated, truncated, valid)
            if (
                self._episodes.may_park
                or (has_ended and (self._resetting is None or self._info_numbers))
                or (infos and not _UNUSUAL.isdisjoint(infos))
            ):
                step = self._settle(step, infos)
        except ConfigError:
            raise  # new envs would not correct it
        except Exception as error:
            return self._restart(error)
        if self._bounds.is_on:
            self._bounds.look(schema, [step.final_obs])
        return step

    def step(self, actions: Mapping[int, Any]) -> dict[int, Timestep]:
        """Step the envs; ``actions`` must name all that are ready.

        An env whose reset takes a step (``capabilities.reset_takes_step``) is not ready for
        one round; if no env is ready, this method steps that round too.
        """
        checked, ready = self._checked(actions), self._ready()
        if sorted(checked) != ready:
            raise self._wrong_envs(ready, sorted(checked))
        batch = self._fillers()
        for row, action in checked.items():
            batch[row] = action
        columns = self.step_batch(batch)
        timesteps = {}
        for row in ready:
            has_ended = columns.terminated[row] or columns.truncated[row]
            info = info_row(self._final_infos if has_ended else self._infos, row)
            if row in columns.episode_info:
                info[EPISODE_INFO] = own = columns.episode_info[row]
                info |= {key: own[key] for key in (EPISODE_RETURN,) if key in own}
            timesteps[row] = self._episodes.timestep_of(columns, row, row, info)
        if not self._ready() and self._resetting is not None:
            self.step_batch(self._fillers())
        return timesteps

    def _open(self) -> None:
        vec = self._vec = self.make_vector_env()
        self._autoreset = AutoresetMode(vec.metadata.get("autoreset_mode", self._autoreset))
        # Looked up once, as members of an Enum take half a microsecond each.
        self._resets_next_step = self._autoreset is AutoresetMode.NEXT_STEP
        self._episodes.set_players(1)
        self._spaces = (
            ObservationSchema(vec.single_observation_space),
            ActionChecker(vec.single_action_space),
        )
        self._spaces[0].require_columns()

    def _envs_state(self) -> Any:
        """Only for vector envs that step in this process."""
        envs = getattr(self._vec, "envs", None)
        own = attributes_of(self._vec, skipped=_NOT_STATE)
        return {"vector": own, "envs": envs and [env_state(env) for env in envs]}

    def _set_envs_state(self, state: Any) -> None:
        set_attributes(self._vec, state["vector"])
        for env, each in zip(getattr(self._vec, "envs", ()), state["envs"] or (), strict=True):
            set_env_state(env, each)

    def _discard(self) -> None:
        vec, self._vec = self._vec, None
        if vec is not None:
            close_quietly(vec)

    def _reset_envs(self, env_ids: Sequence[int], kwargs: Mapping[int, Any]) -> None:
        if len(env_ids) < self._env_num or any(kwargs.values()):
            raise _only_single_envs("one reset, without arguments,", dict(kwargs))
        seed = self._seeds.take(env_ids)[0]
        self._episodes.begin(env_ids)
        try:
            self._reset_vec(self._seeds.fixed(0) if seed is None else seed)
        except Exception as error:
            self._recover(error)

    def _reset_vec(self, seed: int | None, rows: NDArray[np.bool_] | None = None) -> None:
        """Reset the vector env, or some rows of one that is in mode DISABLED."""
        # A vector env must be reset as a whole before it can reset some rows.
        kwargs = {} if rows is None else {"options": {"reset_mask": rows}}
        obs, _ = self._vec.reset(seed=seed, **kwargs)
        self._obs = self._spaces[0].conform_columns(obs, self._env_num)
        if rows is None:
            self._episodes.returns[:] = 0.0
            self._resetting = None

    def _recover(self, error: Exception) -> None:
        """Count a failure of the whole vector env, build a new one and reset it.

        Raises:
            EnvError: too many failures in a row.
        """
        self._failure_count += self._env_num
        self._failures_in_row += 1
        self.close()
        count_failure(error, "the vector env", self._failures_in_row, self.section)
        try:
            self._open()
            self._reset_vec(self._seeds.after_failure(0, self._failure_count, "rebuild_all"))
        except Exception as again:
            self._recover(again)
        self._closed = False

    def _fillers(self) -> NDArray[Any]:
        """Return an action for each env, for those whose action has no effect."""
        checker = self._spaces[1]
        filler = checker.filler(self._env_num)
        found: NDArray[Any] = legal_action(checker.space, filler, self._obs)
        return found

    def _settle(self, step: StepColumns, infos: Mapping[str, Any]) -> StepColumns:
        """Finish a step in which an env ended, failed or took no action."""
        obs, final_obs, reward, terminated, truncated, not_resetting, *_ = step
        valid = ~self._episodes.parked
        if not_resetting is not None:
            valid &= not_resetting
        abnormal = np.asarray(infos.get(ABNORMAL, False), dtype=np.bool_) & valid
        valid &= ~abnormal
        ended = terminated | truncated
        if ended.any() and self._autoreset is AutoresetMode.SAME_STEP:
            schema, ended_rows = self._spaces[0], np.flatnonzero(ended).tolist()
            last = [schema.conform(part_of(infos["final_obs"], row)) for row in ended_rows]
            final_obs = schema.replace(obs, ended_rows, last)
            # gymnasium's vector RecordEpisodeStatistics does not write into the final info.
            told = {key: infos[key] for key in (EPISODE, f"_{EPISODE}") if key in infos}
            self._final_infos = {**infos.get("final_info", infos), **told}
        elif ended.any() and self._autoreset is AutoresetMode.DISABLED:
            self._reset_vec(self._seeds.fixed(0), ended)
            obs = self._obs
        rows = np.flatnonzero(ended & valid)
        if rows.size:
            self._episodes.end(rows)
        infos_of_episodes = self._episode_info(rows)
        return step_columns(
            obs, final_obs, reward, terminated, truncated, valid, abnormal, infos_of_episodes
        )

    def _restart(self, error: Exception) -> StepColumns:
        """Return the result of a failed step, in which all envs begin a new episode."""
        self._recover(error)
        count = self._env_num
        text = error_text(error)
        self._infos = {ERROR: [text] * count, ABNORMAL: [True] * count}
        reward = np.zeros(count, dtype=np.float32)
        terminated, truncated, valid = np.zeros((3, count), dtype=np.bool_)
        obs, abnormal = self._obs, ~self._episodes.parked
        return step_columns(obs, obs, reward, terminated, truncated, valid, abnormal, {})

    def _episode_info(self, rows: NDArray[np.int64]) -> Mapping[int, Mapping[str, Any]]:
        infos, chosen = self._final_infos, self._info_numbers
        if not chosen and _TOLD.isdisjoint(infos):
            return {}
        found = {
            row: episode_info_of(info_row(infos, row), chosen, self._env_name)
            for row in rows.tolist()
        }
        return {row: info for row, info in found.items() if info}

    def _running(self) -> NDArray[np.bool_]:
        parked = self._episodes.parked
        return ~(parked if self._resetting is None else parked | self._resetting)

    @staticmethod
    def _wrong_envs(expected: Sequence[int], found: Sequence[int]) -> PolicyOutputError:
        return PolicyOutputError(
            f"a vector env steps all its envs together: actions are needed for {list(expected)}, "
            f"found {found}; env_manager.type in_process can step only some of them",
            key="env_id",
            expected=list(expected),
            found=found,
        )


def _only_single_envs(taken: str, found: object) -> ConfigError:
    return ConfigError(
        f"a vector env takes {taken} for all its envs together, found {found}; set "
        "env_manager.type to in_process, which steps single envs",
        path="env_manager.type",
        found=found,
    )


def info_row(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return the info of env ``row``, scalars as Python numbers.

    Args:
        infos: ``{key: values}``, where ``infos["_" + key]`` tells which envs gave the key;
            nested dicts likewise.
        row: The env.
    """
    own: dict[str, Any] = {}
    for key, value in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        mask = infos.get(f"_{key}")
        if mask is not None and not mask[row]:
            continue
        if isinstance(value, Mapping):
            own[key] = info_row(value, row)
        elif isinstance(value, np.ndarray | list | tuple) and len(value) > row:
            item = value[row]
            own[key] = item.item() if isinstance(item, np.generic) else item
        else:
            own[key] = value
    return own


class VectorEnvManager(EnvManager):
    """Type ``vector``: ``VectorEnvManager(cfg, env_fns)`` makes the manager that the mode names.

    ``capabilities`` of that manager says what it guarantees. If a native vector env fails, all its
    envs are rebuilt and all rows of that step are abnormal; in the other modes one env.
    """

    class Config(EnvManager.Config, frozen=True, kw_only=True):
        """Section ``env_manager``.

        Attributes:
            vectorization_mode: ``native`` uses the env's own vector env: it is fast, but all envs
                share one random stream, are reset together, and mostly spend a step on each reset.
                ``sync`` is the manager ``in_process``, ``async`` the manager ``subprocess`` with a
                process for each env; ``auto`` is native if possible, else sync.
            step_timeout: Seconds that a step may take in mode ``async``.
            reset_timeout: Seconds that a reset may take in mode ``async``.
        """

        vectorization_mode: Literal["auto", "native", "sync", "async"] = "auto"
        step_timeout: Positive = 60.0
        reset_timeout: Positive = 60.0

    def __new__(  # type: ignore[misc]
        cls, cfg: Mapping[str, Any], env_fns: Sequence[Any]
    ) -> EnvManager:
        section = cls.read(cfg, "env_manager")
        mode, obstacle = section.vectorization_mode, None
        if mode in ("auto", "native") and isinstance(env_fns, Sequence) and env_fns:
            obstacle = why_not_native(env_fns)
            if obstacle is None:
                return _managed(NativeEnvManager, section, env_fns)
        if obstacle is not None and mode == "native":
            raise ConfigError(
                f"env_manager.vectorization_mode: native vectorization is not available: "
                f"{obstacle}; use auto, sync or async",
                path="env_manager.vectorization_mode",
                expected=["auto", "native", "sync", "async"],
                found=mode,
            )
        if mode == "async":
            return _managed(SubprocessEnvManager, section, env_fns, envs_per_process=1)
        return _managed(InProcessEnvManager, section, env_fns)


class NativeEnvManager(BaseVectorEnvManager):
    """Drives the vector env that an env has of its own."""

    def make_vector_env(self) -> Any:
        env_fn: Any = self._env_fns[0]  # an EnvFn, as why_not_native has found
        return env_fn.make_native(self._env_num)


def _managed(
    manager: type[EnvManager], section: Any, env_fns: Sequence[Any], **more: Any
) -> EnvManager:
    keys = set(manager.Config.__struct_fields__) & set(section.__struct_fields__)
    return manager({**{key: getattr(section, key) for key in keys}, **more}, env_fns)


def why_not_native(env_fns: Sequence[Callable[[], Any]]) -> str | None:
    """Return why envs cannot be made as the env's own vector env; None if they can."""
    first = env_fns[0]
    if not isinstance(first, EnvFn):
        return "the envs are made by functions of their own"
    if first.wrappers:
        return "the envs are wrapped"
    if any(env_fn != first for env_fn in env_fns[1:]):
        return "the envs differ"
    spec = first.spec
    if spec.additional_wrappers:
        return f"{first.env_id} is registered with wrappers"
    if spec.vector_entry_point is None:
        return f"{first.env_id} has no vector env of its own"
    return None
