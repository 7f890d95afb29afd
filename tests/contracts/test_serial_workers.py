"""Every serial collector, and the evaluator of one policy, passes the contract."""

from __future__ import annotations

from typing import Any

from dingsdk.testing import CollectorContract, EvaluatorContract
from dingsdk.worker import (
    BattleEpisodeSerialCollector,
    BattleSampleSerialCollector,
    EpisodeSerialCollector,
    InteractionSerialEvaluator,
    ISerialCollector,
    ISerialEvaluator,
    SampleSerialCollector,
)


class TestSample(CollectorContract):
    capabilities = frozenset({"samples", "random"})

    def make_collector(self, *args: Any) -> ISerialCollector:
        return SampleSerialCollector(*args)


class TestEpisode(CollectorContract):
    capabilities = frozenset({"episodes"})

    def make_collector(self, *args: Any) -> ISerialCollector:
        return EpisodeSerialCollector(*args)


class TestBattleSample(CollectorContract):
    capabilities = frozenset({"samples", "players"})

    def make_collector(self, *args: Any) -> ISerialCollector:
        return BattleSampleSerialCollector(*args)


class TestBattleEpisode(CollectorContract):
    capabilities = frozenset({"episodes", "players"})

    def make_collector(self, *args: Any) -> ISerialCollector:
        return BattleEpisodeSerialCollector(*args)


class TestInteraction(EvaluatorContract):
    capabilities = frozenset({"waits"})

    def make_evaluator(self, *args: Any) -> ISerialEvaluator:
        return InteractionSerialEvaluator(*args)
