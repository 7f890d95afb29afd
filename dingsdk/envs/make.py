"""Make envs and env managers from config sections."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import gymnasium as gym
import msgspec
import numpy as np
from gymnasium.envs.registration import EnvSpec

from dingsdk.config import Section, read_section, to_plain
from dingsdk.data.seeding import derive_seed
from dingsdk.envs.base import EnvManager
from dingsdk.envs.extras import extra_of, missing_extra_hint
from dingsdk.envs.guard import RawReturn, close_quietly
from dingsdk.envs.players import OpponentEnv, adapted, player_num
from dingsdk.envs.pooled import PREFIX, pooled_spec
from dingsdk.errors import (
    ConfigError,
    DingError,
    EnvError,
    UnknownEnvError,
    UnknownPluginError,
    error_text,
    message_of,
    raised_at,
    spelling,
    wrong_type,
)
from dingsdk.plugins import default_manager
from dingsdk.plugins.user_functions import factory as factory
from dingsdk.plugins.user_functions import why_refused

GIVEN = "given/"
"""Begin of the ids of env classes and functions that only this process knows."""
_EVALUATE = "evaluate"
"""Key of a wrapper's section: whether envs of evaluations have the wrapper."""
_OWN_KEYS = ("type", "import_names", _EVALUATE)
_TRAINING_ONLY = (gym.wrappers.ClipReward, gym.wrappers.NormalizeReward)
"""Wrappers of gymnasium that change only the scale of rewards."""


class _EnvKeys(Section, frozen=True, kw_only=True):
    """Keys of the section ``env`` that EnvFn reads.

    Attributes:
        env_id: A gymnasium id, as in ``env: {env_id: CartPole-v1}``.
    """

    env_id: str
    eval_opponent: str | None = None
    is_evaluation: bool = False
    kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    wrappers: list[str | dict[str, Any]] = msgspec.field(default_factory=list)
    info_numbers: Literal["all"] | list[str] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        for entry in self.wrappers:
            if not isinstance(entry, str) and not isinstance(entry.get("type"), str):
                raise ValueError(f"wrappers hold {entry!r}, which has no type")
            if not isinstance(entry, str) and type(entry.get(_EVALUATE, True)) is not bool:
                raise ValueError(f"wrappers hold {entry!r}, whose evaluate is not true or false")


class EnvFn:
    """Makes one env from a config section; picklable, so that child processes can call it.

    Args:
        env_cfg: ``env_id`` (a gymnasium id, ``module:EnvId`` to import the module that registers
            it first, ``module:Class`` for a class or function that makes the env, or
            ``envpool:Id`` for an env of envpool), ``kwargs``
            for the env (``max_episode_steps`` among them) and ``wrappers``, from the inside out:
            types of kind ``env_wrappers`` or classes of ``gymnasium.wrappers``, or sections
            ``{type, ...}`` whose other keys go to the wrapper. If ``is_evaluation`` is true, the
            wrappers that are only for training are left out: ``evaluate`` of their section is
            false, or ``evaluate`` is not set and the wrapper is ``clip_reward``,
            ``NormalizeReward`` or a class whose ``training_only`` is true. A PettingZoo env, as
            ``pettingzoo.classic.tictactoe_v3:env``, has several players (``PlayersEnv``), or one
            if ``eval_opponent`` names the opponent that plays the others. ``info_numbers`` is for
            the env manager, see ``GuardedEnv``. Other keys are ignored.
            ``module:`` imports the module. Its class or function is called only if it is known to
            make envs; see ``why_refused``.

    Raises:
        ConfigError: a section of the wrong form.
    """

    def __init__(self, env_cfg: Mapping[str, Any]) -> None:
        if not isinstance(env_cfg, Mapping):
            raise wrong_type("env", "a section", env_cfg)
        given = {key: env_cfg[key] for key in _EnvKeys.__struct_fields__ if env_cfg.get(key)}
        section = read_section(_EnvKeys, given, "env")
        self.env_id = section.env_id
        self.eval_opponent = section.eval_opponent
        self.info_numbers = section.info_numbers
        self.kwargs: dict[str, Any] = to_plain(section.kwargs)
        self.wrappers: list[dict[str, Any]] = [
            {"type": entry} if isinstance(entry, str) else to_plain(entry)
            for entry in section.wrappers
        ]
        if section.is_evaluation:
            kept = enumerate(self.wrappers)
            self.wrappers = [each for index, each in kept if _is_in_evaluations(each, index)]

    def __call__(self) -> gym.Env[Any, Any]:
        """Make the env.

        Raises:
            UnknownEnvError: no such id, or a package that the env needs is missing.
            ConfigError: kwargs that the env does not take.
            EnvError: its constructor raised.
        """
        options = {"disable_env_checker": True, **self.kwargs}
        env = made = self._make(lambda spec: gym.make(spec, **options))
        try:
            if self.wrappers:
                env = RawReturn(env)
            for index, section in enumerate(self.wrappers):
                env = _wrap(env, section, f"env.wrappers[{index}]")
            if self.eval_opponent is not None and player_num(env) > 1:
                env = OpponentEnv(env, self.eval_opponent)
        except BaseException:
            close_quietly(made)
            raise
        return env  # type: ignore[no-any-return]

    def make_native(self, count: int) -> Any:
        """Make ``count`` envs as the env's own vector env; errors as for one env."""
        mode = gym.VectorizeMode.VECTOR_ENTRY_POINT
        return self._make(
            lambda spec: gym.make_vec(spec, num_envs=count, vectorization_mode=mode, **self.kwargs)
        )

    @property
    def spec(self) -> Any:
        """The env's entry in gymnasium's registry; errors as ``find_spec``."""
        return find_spec(self.env_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EnvFn) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self.env_id)

    def __repr__(self) -> str:
        return f"EnvFn({self.env_id!r}, kwargs={self.kwargs}, wrappers={self.wrappers})"

    def _make(self, maker: Callable[[Any], Any]) -> Any:
        spec = self.spec
        try:
            return maker(spec)
        except DingError:
            raise
        except (gym.error.Error, ImportError) as error:
            # gymnasium's text names the package to install where one is missing.
            why = f"{message_of(error)}{missing_extra_hint(self.env_id)}"
            raise _unknown(self.env_id, f"is known but cannot be made: {why}") from error
        except (Exception, SystemExit) as error:
            if isinstance(error, TypeError) and self.kwargs:
                raise ConfigError(
                    f"env.kwargs: {self.env_id} cannot be made with {self.kwargs}: "
                    f"{message_of(error)}",
                    path="env.kwargs",
                    env_id=self.env_id,
                ) from error
            raise EnvError(
                f"{self.env_id} cannot be made: its constructor raised {error_text(error)}",
                env_id=self.env_id,
                failures=1,
            ) from error


def find_spec(env_id: str) -> Any:
    """Return gymnasium's entry for ``env_id``, or one for ``module:Class`` or ``envpool:Id``.

    Raises:
        UnknownEnvError: no such id or module, or the name of something that is not known to make
            envs, which is not called; facts ``env_id`` and ``nearest``.
    """
    if env_id.startswith(PREFIX):
        return pooled_spec(env_id.removeprefix(PREFIX))
    module, _, name = env_id.rpartition(":")
    found = None
    # The program gave this class or function, or the program whose worker this is.
    is_given = env_id in default_manager().given
    try:
        if module:
            found = getattr(importlib.import_module(module), name, None)
    except (Exception, SystemExit) as error:
        why = f"whose import raised {error_text(error)}{raised_at(error)}"
        if isinstance(error, ModuleNotFoundError):
            why = (
                f"which cannot be imported: {error}; install it, put its folder on PYTHONPATH, "
                f"or correct the name{missing_extra_hint(env_id)}"
            )
        raise _unknown(env_id, f"names the module {module!r}, {why}") from error
    if callable(found):
        if not is_given and (why := why_refused(found, env_id, is_env=True)):
            raise _unknown(env_id, f"is refused: {why}")
        is_env = isinstance(found, type) and issubclass(found, gym.Env)
        return EnvSpec(id=name, entry_point=found if is_env else partial(adapted, found))
    try:
        return gym.spec(name)
    except gym.error.Error as error:
        if env_id.startswith(("__main__:", GIVEN)):
            raise _unknown(
                env_id,
                "was defined by the program that trained, and this program has no such class or "
                "function; pass it as env=, or define it in a module, and write 'module:Name' as "
                "env.env_id in the config.yaml of the run",
            ) from error
        nearest, hint = spelling(name, gym.registry)
        # gymnasium suggests a name too, but only from the same namespace.
        hint = hint if nearest else f"; {error}"
        if not module and (extra := extra_of(env_id)) is not None:
            nearest = f"{extra.module}:{name}"
            hint = f"; it is part of another package: {extra.install}, and name it {nearest!r}."
        raise _unknown(
            env_id,
            f"is not known to gymnasium{hint} An env of your own is named 'module:Class', or "
            "'module:EnvId' where importing the module registers it",
            nearest,
        ) from error


def _unknown(env_id: str, why: str, nearest: str | None = None) -> UnknownEnvError:
    return UnknownEnvError(
        f"env.env_id: {env_id!r} {why}", path="env.env_id", env_id=env_id, nearest=nearest
    )


def make_env_fns(env_cfg: Mapping[str, Any], n: int) -> list[EnvFn]:
    """Return ``n`` env makers for one config section, see EnvFn; makes no env yet.

    Raises:
        ConfigError: a section of the wrong form, or ``n`` below 1.
        UnknownEnvError: gymnasium has no such env.
    """
    if not isinstance(n, int | np.integer) or n < 1:
        raise ConfigError(
            f"a whole number of envs, at least 1, is needed, found {n}", path="env", found=n
        )
    env_fn = EnvFn(env_cfg)
    find_spec(env_fn.env_id)
    return [env_fn] * n


def make_env(cfg: Mapping[str, Any]) -> gym.Env[Any, Any]:
    """Make one env of a config section; see EnvFn."""
    return EnvFn(cfg)()


def get_vec_env_setting(
    cfg: Mapping[str, Any], collect: bool = True, eval_: bool = True
) -> tuple[Callable[..., gym.Env[Any, Any]], list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return a function that makes envs, and one section per env, as in DI-engine.

    ``create_env_manager(manager_cfg, [partial(env_fn, cfg=c) for c in collector_cfgs])``

    Args:
        cfg: The env section, with ``collector_env_num`` and ``evaluator_env_num``.
        collect: Whether to return sections for envs that collect.
        eval_: Whether to return sections for envs that evaluate.

    Returns:
        ``env_fn``, the sections of the collector's envs, and those of the evaluator's.

    Raises:
        ConfigError: a section of the wrong form.
        UnknownEnvError: gymnasium has no such env.
    """
    wanted = (("collector_env_num", collect), ("evaluator_env_num", eval_))
    counts = [int(cfg.get(key, 1)) if is_wanted else 0 for key, is_wanted in wanted]
    find_spec(EnvFn(cfg).env_id)
    collectors, evaluators = counts
    return make_env, [cfg] * collectors, [{**cfg, "is_evaluation": True}] * evaluators


def create_env_manager(
    manager_cfg: Mapping[str, Any], env_fns: Sequence[Callable[[], Any]]
) -> EnvManager:
    """Return the env manager that ``manager_cfg["type"]`` names, not launched yet.

    Args:
        manager_cfg: The ``env_manager`` section; absent keys take the class's defaults.
        env_fns: One callable per env that makes it, such as EnvFn or another picklable callable.

    Raises:
        UnknownPluginError: no such type.
        ConfigError: a value that cannot work.
    """
    manager: EnvManager = default_manager().create(
        "env_managers", manager_cfg, env_fns, config_path="env_manager"
    )
    return manager


def seed_envs(manager: EnvManager, seed: int, role: str) -> None:
    """Seed the envs of a manager for its next reset, from one branch of the seed tree.

    Args:
        manager: Gets one seed if its envs share a random stream, else one seed per env.
        seed: Root of the seed tree.
        role: Name of the branch, so that no two managers of a run play the same episodes.
    """
    if manager.capabilities.per_env_seed:
        manager.seed([derive_seed(seed, role, "env", index) for index in range(manager.env_num)])
    else:
        manager.seed(derive_seed(seed, role, "env"))


def _wrap(env: Any, section: Mapping[str, Any], path: str) -> Any:
    kwargs = {key: value for key, value in section.items() if key not in _OWN_KEYS}
    try:
        return _find_wrapper(section, path)(env, **kwargs)
    except DingError:
        raise
    except (Exception, SystemExit) as error:
        # gymnasium's text names the package to install where one is missing.
        raise ConfigError(
            f"{path}: {section['type']} cannot be made with {kwargs}: {message_of(error)}",
            path=path,
        ) from error


def _is_in_evaluations(section: Mapping[str, Any], index: int) -> bool:
    if _EVALUATE in section:
        return bool(section[_EVALUATE])
    wrapper = _find_wrapper(section, f"env.wrappers[{index}]")
    return not (wrapper in _TRAINING_ONLY or getattr(wrapper, "training_only", False))


def _find_wrapper(section: Mapping[str, Any], path: str) -> Any:
    names = section.get("import_names", ())
    try:
        return default_manager().get(
            "env_wrappers", section["type"], import_names=names, config_path=path
        )
    except UnknownPluginError:
        wrapper = getattr(gym.wrappers, section["type"], None)
        if isinstance(wrapper, type) and issubclass(wrapper, gym.Wrapper):
            return wrapper
        raise
