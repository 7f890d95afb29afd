"""Every serial collector, and the evaluator of one policy, passes the contract."""

from __future__ import annotations

from typing import Any

from dingsdk.testing import CollectorContract, EvaluatorContract, check_collector, check_evaluator
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


def test_checks_report_on_every_rule() -> None:
    report = check_collector(EpisodeSerialCollector, capabilities={"episodes"})
    others = {"samples", "random", "players"}
    assert {each.rule.needs for each in report.results if not each.applies} == others
    report = check_evaluator(InteractionSerialEvaluator)
    assert {each.rule.needs for each in report.results if not each.applies} == {"waits"}
