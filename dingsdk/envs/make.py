"""From a config section to envs and env managers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym

from dingsdk.config import to_plain
from dingsdk.data.seeding import derive_seed
from dingsdk.envs.base import EnvManager
from dingsdk.errors import (
    ConfigError,
    ConfigTypeError,
    EnvError,
    UnknownEnvError,
    nearest_name,
    raised_at,
)
from dingsdk.plugins import default_manager


class EnvFn:
    """Makes one env from a config section; picklable, so that child processes can call it.

    Args:
        env_cfg: ``env_id`` (a gymnasium id, or ``module:EnvId`` to import the module that
            registers it first), ``kwargs`` for the env (``max_episode_steps`` among them) and
            ``wrappers``, from the inside out: type keys of kind ``env_wrappers`` or sections
            ``{type, ...}`` whose other keys go to the wrapper. Other keys are ignored.
            ``module:`` imports code, so the config must be one's own, never a received one.

    Raises:
        ConfigError: a section of the wrong form.
    """

    def __init__(self, env_cfg: Mapping[str, Any]) -> None:
        env_id = env_cfg.get("env_id")
        if not isinstance(env_id, str) or not env_id:
            raise ConfigTypeError(
                f"env.env_id: a gymnasium env id is needed, found {env_id!r}",
                path="env.env_id",
                expected="text",
                found=env_id,
            )
        self.env_id = env_id
        self.kwargs: dict[str, Any] = to_plain(_section(env_cfg, "kwargs"))
        self.wrappers: list[dict[str, Any]] = [
            _wrapper_section(entry, index)
            for index, entry in enumerate(env_cfg.get("wrappers") or ())
        ]

    def __call__(self) -> gym.Env[Any, Any]:
        """Make the env.

        Raises:
            UnknownEnvError: no such id, or a package that the env needs is missing.
            ConfigError: kwargs that the env does not take.
            EnvError: its constructor raised.
        """
        env = self._make(gym.make, **{"disable_env_checker": True, **self.kwargs})
        for index, section in enumerate(self.wrappers):
            env = _wrap(env, section, f"env.wrappers[{index}]")
        return env  # type: ignore[no-any-return]

    def make_native(self, count: int) -> Any:
        """Make ``count`` envs as the env's own vector env; errors as for one env."""
        return self._make(
            gym.make_vec,
            num_envs=count,
            vectorization_mode=gym.VectorizeMode.VECTOR_ENTRY_POINT,
            **self.kwargs,
        )

    @property
    def spec(self) -> Any:
        """The env's entry in gymnasium's registry.

        Raises:
            UnknownEnvError: no such id.
        """
        return find_spec(self.env_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EnvFn) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self.env_id)

    def __repr__(self) -> str:
        return f"EnvFn({self.env_id!r}, kwargs={self.kwargs}, wrappers={self.wrappers})"

    def _make(self, maker: Callable[..., Any], **kwargs: Any) -> Any:
        spec = self.spec
        try:
            return maker(spec, **kwargs)
        except (gym.error.Error, ImportError) as error:
            # gymnasium's text names the package to install where one is missing.
            raise UnknownEnvError(
                f"env.env_id: {self.env_id!r} is known but cannot be made: {error}",
                path="env.env_id",
                env_id=self.env_id,
                nearest=None,
            ) from error
        except Exception as error:
            if isinstance(error, TypeError) and self.kwargs:
                raise ConfigError(
                    f"env.kwargs: {self.env_id} cannot be made with {self.kwargs}: {error}",
                    path="env.kwargs",
                    env_id=self.env_id,
                ) from error
            raise EnvError(
                f"{self.env_id} cannot be made: its constructor raised "
                f"{type(error).__name__}: {error}",
                env_id=self.env_id,
                failures=1,
            ) from error


def find_spec(env_id: str) -> Any:
    """Return gymnasium's entry for ``env_id``, after importing the module of ``module:EnvId``.

    Raises:
        UnknownEnvError: no such id or module; facts ``env_id`` and ``nearest``.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise UnknownEnvError(
                f"env.env_id: {env_id!r} names the module {module!r}, which cannot be imported: "
                f"{error}; install it, put its folder on PYTHONPATH, or correct the name",
                path="env.env_id",
                env_id=env_id,
                nearest=None,
            ) from error
        except (Exception, SystemExit) as error:
            raise UnknownEnvError(
                f"env.env_id: {env_id!r} names the module {module!r}, whose import raised "
                f"{type(error).__name__}: {error}{raised_at(error)}",
                path="env.env_id",
                env_id=env_id,
                nearest=None,
            ) from error
    try:
        return gym.spec(name)
    except gym.error.Error as error:
        nearest = nearest_name(name, gym.registry)
        # gymnasium suggests a name too, but knows only those of the same namespace.
        hint = f"did you mean {nearest!r}?" if nearest else f"{error}"
        raise UnknownEnvError(
            f"env.env_id: gymnasium has no env {name!r}; {hint} An env of your own is named "
            "'module:EnvId', where importing the module registers it",
            path="env.env_id",
            env_id=env_id,
            nearest=nearest,
        ) from error


def make_env_fns(env_cfg: Mapping[str, Any], n: int) -> list[EnvFn]:
    """Return ``n`` env makers for one config section, see EnvFn; makes no env yet.

    Raises:
        ConfigError: a section of the wrong form, or ``n`` below 1.
        UnknownEnvError: gymnasium has no such env.
    """
    if n < 1:
        raise ConfigError(f"at least 1 env is needed, found {n}", path="env", found=n)
    env_fn = EnvFn(env_cfg)
    find_spec(env_fn.env_id)
    return [env_fn] * n


def create_env_manager(
    manager_cfg: Mapping[str, Any], env_fns: Sequence[Callable[[], Any]]
) -> EnvManager:
    """Return the env manager that ``manager_cfg["type"]`` names, not launched yet.

    Args:
        manager_cfg: The ``env_manager`` section; absent keys take the class's defaults.
        env_fns: One maker of an env each, such as EnvFn; any picklable callable will do.

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
        manager: Gets one seed in all where its envs share a random stream, else one an env.
        seed: Root of the seed tree.
        role: Name of the branch, so that no two managers of a run play the same episodes.
    """
    if manager.capabilities.per_env_seed:
        manager.seed([derive_seed(seed, role, "env", index) for index in range(manager.env_num)])
    else:
        manager.seed(derive_seed(seed, role, "env"))


def _section(cfg: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = cfg.get(key) or {}
    if not isinstance(section, Mapping):
        raise ConfigTypeError(
            f"env.{key}: expected a section, found {section!r}",
            path=f"env.{key}",
            expected="section",
            found=type(section).__name__,
        )
    return section


def _wrapper_section(entry: Any, index: int) -> dict[str, Any]:
    path = f"env.wrappers[{index}]"
    if isinstance(entry, str):
        return {"type": entry}
    if isinstance(entry, Mapping) and isinstance(entry.get("type"), str):
        return to_plain(entry)
    raise ConfigTypeError(
        f"{path}: expected a type key or a section with a type, found {entry!r}",
        path=path,
        expected="text or section",
        found=type(entry).__name__,
    )


def _wrap(env: Any, section: Mapping[str, Any], path: str) -> Any:
    kwargs = {key: value for key, value in section.items() if key not in ("type", "import_names")}
    wrapper_cls = default_manager().get(
        "env_wrappers",
        section["type"],
        import_names=section.get("import_names", ()),
        config_path=path,
    )
    try:
        return wrapper_cls(env, **kwargs)
    except TypeError as error:
        raise ConfigError(
            f"{path}: {section['type']} cannot be made with {kwargs}: {error}", path=path
        ) from error
