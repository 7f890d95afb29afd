"""Every env manager passes the contract."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dingsdk.envs import BaseVectorEnvManager, EnvManager, create_env_manager
from dingsdk.testing import EnvManagerContract

GUARDED = frozenset({"per_env_seed", "per_env_reset", "guarded", "saves"})
FULL = GUARDED | {"partial_step", "players"}


class Made(EnvManagerContract):
    cfg: ClassVar[Mapping[str, Any]]
    capabilities: ClassVar[Collection[str]] = GUARDED

    def make_manager(
        self, cfg: Mapping[str, Any], env_fns: Sequence[Callable[[], Any]]
    ) -> EnvManager:
        return create_env_manager({**self.cfg, **cfg}, env_fns)


class TestInProcess(Made):
    cfg: ClassVar = {"type": "in_process"}
    capabilities: ClassVar = FULL


class TestThreads(TestInProcess):
    cfg: ClassVar = {"type": "in_process", "threads": 2}


class Vectorized(BaseVectorEnvManager):
    """The envs as one of gymnasium's vector envs."""

    mode = AutoresetMode.SAME_STEP

    def make_vector_env(self) -> Any:
        return SyncVectorEnv(self._env_fns, autoreset_mode=self.mode)


class VectorizedNextStep(Vectorized):
    mode = AutoresetMode.NEXT_STEP


class VectorizedDisabled(Vectorized):
    mode = AutoresetMode.DISABLED


class TestSameStep(Made):
    capabilities: ClassVar = frozenset({"saves"})
    manager_cls: ClassVar = Vectorized

    def make_manager(self, cfg: Any, env_fns: Any) -> EnvManager:
        return self.manager_cls(cfg, env_fns)


class TestNextStep(TestSameStep):
    manager_cls: ClassVar = VectorizedNextStep


class TestDisabled(TestSameStep):
    manager_cls: ClassVar = VectorizedDisabled


@pytest.mark.slow
class TestSubprocess(Made):
    cfg: ClassVar = {"type": "subprocess", "envs_per_process": 2}
    patience_s = 14.0  # one rule starts up to a dozen processes
    capabilities: ClassVar = FULL


@pytest.mark.slow
class TestAsyncSubprocess(Made):
    cfg: ClassVar = {"type": "async_subprocess"}
    patience_s = 14.0
    capabilities: ClassVar = FULL | {"asynchronous"}
