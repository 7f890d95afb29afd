"""The limiter follows the rules of all limiters, and keeps its bound."""

from __future__ import annotations

from pathlib import Path

from dingsdk_plugin_name import PluginNameLimiter

from dingsdk.testing import LimiterContract


class TestRules(LimiterContract):
    capabilities = PluginNameLimiter.contract_capabilities

    def make_part(self, capacity: int, seed: int, folder: Path) -> PluginNameLimiter:
        return PluginNameLimiter(PluginNameLimiter.contract_config, seed)


def test_rows_are_sampled_as_often_as_allowed() -> None:
    limiter = PluginNameLimiter({"max_uses": 2.0, "min_size": 10})
    limiter.on_insert(10)

    assert limiter.can_sample(20)
    assert not limiter.can_sample(21)
    limiter.on_sample(20)
    assert not limiter.can_sample(1)
    limiter.on_insert(1)
    assert limiter.can_sample(2)
