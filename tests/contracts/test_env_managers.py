"""Every env manager passes the contract."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from dingsdk.envs import EnvManager, create_env_manager
from dingsdk.testing import EnvManagerContract, check_env_manager

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


class TestVectorSameStep(Made):
    cfg: ClassVar = {"type": "vector", "vectorization_mode": "sync"}


class TestVectorNextStep(Made):
    cfg: ClassVar = {
        "type": "vector",
        "vectorization_mode": "sync",
        "autoreset_mode": "next_step",
    }


class TestVectorDisabled(Made):
    cfg: ClassVar = {
        "type": "vector",
        "vectorization_mode": "sync",
        "autoreset_mode": "disabled",
    }


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


def test_check_env_manager_reports_on_every_rule() -> None:
    report = check_env_manager(
        lambda cfg, env_fns: create_env_manager({"type": "in_process", **cfg}, env_fns),
        capabilities=FULL,
    )

    assert [result.rule.number for result in report.results if not result.applies] == [23]
    assert report.broken == ()
