"""Every commander passes the contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dingsdk.testing import CommanderContract
from dingsdk.worker.commander.base import BaseParallelCommander
from dingsdk.worker.commander.naive import NaiveCommander
from dingsdk.worker.commander.one_vs_one import OneVsOneCommander
from dingsdk.worker.commander.solo import SoloCommander


class TestSolo(CommanderContract):
    capabilities = frozenset({"evaluates", "waits"})

    def make_commander(self, cfg: Mapping[str, Any]) -> BaseParallelCommander:
        return SoloCommander(cfg)


class TestOneVsOne(CommanderContract):
    capabilities = frozenset({"evaluates", "waits", "plays"})

    def make_commander(self, cfg: Mapping[str, Any]) -> BaseParallelCommander:
        return OneVsOneCommander(cfg)


class TestNaive(CommanderContract):
    def make_commander(self, cfg: Mapping[str, Any]) -> BaseParallelCommander:
        return NaiveCommander(cfg)
