"""An env manager that steps all envs in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dingsdk import hookimpl
from dingsdk.envs import BaseVectorEnvManager
from dingsdk.plugins import Registry

__all__ = ["PluginNameEnvManager"]


class PluginNameEnvManager(BaseVectorEnvManager):
    """Drives a gymnasium vector env."""

    class Config(BaseVectorEnvManager.Config, frozen=True, kw_only=True):
        """Section ``env_manager``.

        Attributes:
            autoreset_mode: When an env starts its next episode: in the step that ends an episode,
                or in the step after that.
        """

        type: str = "plugin_name"
        autoreset_mode: Literal["same_step", "next_step"] = "same_step"

    contract_capabilities: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, cfg: Mapping[str, Any], env_fns: Sequence[Callable[[], Any]]) -> None:
        super().__init__(cfg, env_fns)
        self.env_fns = list(env_fns)

    def make_vector_env(self) -> Any:
        """Make the vector env of ``env_num`` envs; the base class closes it."""
        mode = AutoresetMode[self.section.autoreset_mode.upper()]
        return SyncVectorEnv(self.env_fns, autoreset_mode=mode)


@hookimpl
def dingsdk_register_env_managers(registry: Registry) -> None:
    """Register the env manager under its type key."""
    registry.register("plugin_name", PluginNameEnvManager)
