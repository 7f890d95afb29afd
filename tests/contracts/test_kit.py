"""The conformance kit itself: its rules, its reports, and a transport that hangs."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from dingsdk_in_memory.transport import InMemoryTransport

from dingsdk.errors import UnknownPluginError
from dingsdk.plugins import hookspecs
from dingsdk.testing import (
    BUFFER_CAPABILITIES,
    BUFFER_RULES,
    CAPABILITIES,
    PART_RULES,
    RULES,
    Rule,
    RuleBroken,
    TransportContract,
    check_extension,
    check_part,
    check_rule,
    open_files,
)
from dingsdk.testing import check_transport as check
from dingsdk.testing.expect import leaves_nothing
from dingsdk.testing.extension_rules import RUN, ObserverBench
from dingsdk.worker.comm import SlaveEnd
from dingsdk.worker.replay_buffer.limiter import MinSizeLimiter


def make(run_dir: Path) -> InMemoryTransport:
    return InMemoryTransport({"concurrency": "threads", "check_wire": True}, run_dir)


@pytest.mark.parametrize(
    ("rules", "capabilities"),
    [
        (RULES, CAPABILITIES),
        (BUFFER_RULES, BUFFER_CAPABILITIES),
        *((book.rules, book.known_capabilities) for book in PART_RULES.values()),
    ],
    ids=["transports", "buffers", *PART_RULES],
)
def test_rules_have_numbers_of_their_own_and_are_described(
    rules: tuple[Rule, ...], capabilities: Mapping[str, str]
) -> None:
    numbers = [rule.number for rule in rules]
    assert numbers == sorted(set(numbers))
    for rule in rules:
        assert 0 < len(rule.title) <= 100, rule.name
        assert rule.needs in {"", *capabilities}


def test_bench_of_observers_calls_every_hook(tmp_path: Path) -> None:
    """Registration hooks and ``dingsdk_addhooks`` are called when the plugin is registered."""
    with ObserverBench(object(), tmp_path, (), 5.0) as bench:
        called = {hook for hook, _ in bench.calls(RUN, "run")}

    hooks = {name for name in vars(hookspecs) if name.startswith("dingsdk_")}
    assert called == hooks - {"dingsdk_addhooks"}


class Holder:
    """Holds an open file, which only the garbage collector closes."""

    def __init__(self) -> None:
        self.itself, self.descriptor = self, os.open(os.devnull, os.O_RDONLY)

    def __del__(self) -> None:
        os.close(self.descriptor)


def test_file_is_left_open_although_garbage_closes_another_one_at_the_same_time() -> None:
    left: list[int] = []

    def leave_one() -> None:
        with leaves_nothing(0.0):
            gc.collect()
            left.append(os.open(os.devnull, os.O_RDONLY))

    gc.disable()
    try:
        Holder()
        with pytest.raises(RuleBroken, match="1 open files or sockets left"):
            leave_one()
    finally:
        gc.enable()
        os.close(left[0])


def test_open_files_leaves_out_garbage_on_request() -> None:
    gc.disable()
    try:
        before = open_files(collect=True)
        Holder()
        assert open_files() == before + 1
        assert open_files(collect=True) == before
    finally:
        gc.enable()


def test_report_lists_every_rule_and_says_which_do_not_apply() -> None:
    report = check(make, patience_s=1.0)

    lines = str(report).splitlines()
    assert [line.split()[0] for line in lines] == [str(rule.number) for rule in RULES]
    assert report.broken == ()
    assert {each.rule.needs for each in report.results if not each.applies} == {"survives_faults"}


def test_unknown_capability_is_refused() -> None:
    with pytest.raises(ValueError, match=r"flies.*survives_faults"):
        check(make, capabilities={"flies"})


@pytest.mark.parametrize("kind", ["limiter", "limiters"])
def test_parts_are_checked_by_the_name_of_their_kind(kind: str) -> None:
    def make(capacity: int, seed: int, folder: Path) -> MinSizeLimiter:
        return MinSizeLimiter({"min_size": 4}, seed)

    assert check_part(kind, make, capabilities={"min_size"}).broken == ()


def test_unknown_kind_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownPluginError, match="did you mean 'sampler'"):
        check_part("smapler", lambda *_: None)
    with pytest.raises(UnknownPluginError, match="did you mean 'learner hook'"):
        check_extension("learner hok", None)


def test_contract_without_a_transport_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match=r"TransportContract.make_transport\(run_dir\)"):
        TransportContract().test_rule(RULES[0], tmp_path)


def test_hanging_transport_breaks_the_rule_but_not_the_kit(tmp_path: Path) -> None:
    free = threading.Event()

    class Hanging(InMemoryTransport):
        def slave_end(self, address: str) -> SlaveEnd:
            free.wait(10.0)
            return super().slave_end(address)

    try:
        with pytest.raises(RuleBroken, match="hung"):
            check_rule(RULES[0], lambda run_dir: Hanging({}, run_dir), tmp_path, patience_s=0.05)
    finally:
        free.set()
