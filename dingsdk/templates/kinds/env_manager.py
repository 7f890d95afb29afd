"""An env manager that steps all envs in one call.

`BaseVectorEnvManager` drives any `gymnasium.vector.VectorEnv`: change `make_vector_env` to make yours. For
envs that are stepped, seeded or reset one by one, write an `EnvManager` or extend `InProcessEnvManager`.
The rules use their own env, so make the envs with `env_fns` while `dingsdk check` runs; otherwise
`make_vector_env` may ignore them, and read options from `self.section`.

    env_manager:
      type: plugin_name
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from dingsdk.envs import BaseVectorEnvManager
from gymnasium.vector import AutoresetMode, SyncVectorEnv


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
