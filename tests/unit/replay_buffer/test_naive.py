"""The naive buffer: what it refuses, waits for, tells, and keeps."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dingsdk.data import SampleBatch
from dingsdk.errors import (
    BufferClosedError,
    BufferFullError,
    ConfigError,
    ConfigTypeError,
    SchemaMismatchError,
    UnknownKeyError,
    UnknownPluginError,
)
from dingsdk.worker.replay_buffer import NaiveReplayBuffer
from dingsdk.worker.replay_buffer.monitor import ThroughputMonitor


def make_buffer(**cfg: Any) -> NaiveReplayBuffer:
    return NaiveReplayBuffer({"replay_buffer_size": 8, "seed": 0, **cfg})


def row(number: int) -> dict[str, Any]:
    return {"obs": np.full(3, number, np.float32), "action": number, "reward": 0.5}


def batch(*numbers: int) -> SampleBatch:
    return SampleBatch.from_rows([row(number) for number in numbers])


def actions(rows: Any) -> list[int]:
    return [int(each["action"]) for each in rows]


# Config ---------------------------------------------------------------------------------------


def test_default_config_is_a_copy_with_its_name() -> None:
    cfg = NaiveReplayBuffer.default_config()
    assert cfg.cfg_type == "NaiveReplayBufferDict"
    assert cfg.replay_buffer_size == 10000
    cfg.limiter.min_size = 5
    assert NaiveReplayBuffer.default_config().limiter.min_size == 1
    assert NaiveReplayBuffer(cfg).replay_buffer_size == 10000


@pytest.mark.parametrize(
    ("cfg", "error", "path"),
    [
        ({"replay_buffer_size": 0}, ConfigError, "replay_buffer_size"),
        ({"replay_buffer_size": "9"}, ConfigTypeError, "replay_buffer_size"),
        ({"replay_buffer_size": 2.5}, ConfigTypeError, "replay_buffer_size"),
        ({"deepcopy": 1}, ConfigTypeError, "deepcopy"),
        ({"seed": -1}, ConfigError, "seed"),
        ({"seed": "x"}, ConfigTypeError, "seed"),
        ({"enable_track_used_data": True}, ConfigError, "data_root"),
        ({"periodic_thruput_seconds": 0}, ConfigError, "periodic_thruput_seconds"),
        ({"limiter": {"min_size": 0}}, ConfigError, "limiter.min_size"),
        (
            {"limiter": {"type": "samples_per_insert", "samples_per_insert": float("inf")}},
            ConfigError,
            "limiter.samples_per_insert",
        ),
    ],
)
def test_settings_that_cannot_work_are_named(
    cfg: dict[str, Any], error: type[ConfigError], path: str
) -> None:
    with pytest.raises(error) as caught:
        make_buffer(**cfg)
    assert caught.value.path == path


def test_unknown_keys_and_types_are_named() -> None:
    with pytest.raises(UnknownKeyError) as caught:
        make_buffer(replay_bufer_size=5)
    assert caught.value.nearest == "replay_buffer_size"
    with pytest.raises(UnknownKeyError):
        make_buffer(limiter={"min_siz": 1})
    with pytest.raises(UnknownKeyError) as caught:
        make_buffer(limiter={"type": "samples_per_insert", "samples_per_inset": 2})
    assert caught.value.path == "limiter.samples_per_inset"
    with pytest.raises(UnknownPluginError):
        make_buffer(storage={"type": "arry"})


def test_a_capacity_no_memory_holds_is_a_config_error_and_the_buffer_is_unchanged() -> None:
    buffer = make_buffer(replay_buffer_size=2**60)
    with pytest.raises(ConfigError) as caught:
        buffer.push(batch(1), 0)
    assert caught.value.path == "replay_buffer_size"
    assert (buffer.count(), buffer.push_count) == (0, 0)


def test_check_sizes_refuses_a_run_that_would_wait_for_ever() -> None:
    make_buffer().check_sizes(batch_size=8)
    with pytest.raises(ConfigError, match="batch size 9"):
        make_buffer().check_sizes(batch_size=9)
    with pytest.raises(ConfigError, match=r"limiter\.min_size 9"):
        make_buffer(limiter={"min_size": 9}).check_sizes(batch_size=1)
    ratio = {"type": "samples_per_insert", "samples_per_insert": 2, "error_buffer": 5}
    with pytest.raises(ConfigError) as caught:
        make_buffer(limiter=ratio).check_sizes(batch_size=4, push_rows=4)
    assert caught.value.least == 6


def test_making_a_buffer_makes_no_file_and_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    threads = threading.active_count()
    with make_buffer() as buffer:
        buffer.push(row(1), 0)
        assert threading.active_count() == threads
    assert list(tmp_path.iterdir()) == []


# Pushing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["auto", "array", "object"])
@pytest.mark.parametrize("bad", [None, {}, [None], [{}]], ids=str)
def test_nothing_is_no_row(kind: str, bad: Any) -> None:
    buffer = make_buffer(storage={"type": kind})
    with pytest.raises(SchemaMismatchError):
        buffer.push(bad, 0)
    assert buffer.count() == 0
    buffer.push(row(1), 0)
    assert buffer.count() == 1


@pytest.mark.parametrize("kind", ["auto", "array", "object"])
def test_an_empty_push_does_nothing(kind: str) -> None:
    buffer = make_buffer(storage={"type": kind})
    buffer.push([], 0)
    buffer.push(batch(1)[:0], 0)
    assert (buffer.count(), buffer.push_count) == (0, 0)


@pytest.mark.parametrize(
    ("bad", "key"),
    [
        ({"obs": np.zeros(3, np.float32), "action": 1}, "reward"),
        ({**row(1), "extra": 1}, "extra"),
        ({**row(1), "obs": np.zeros(2, np.float32)}, "obs"),
        ({**row(1), "obs": {"pos": np.zeros(3, np.float32)}}, "obs"),
        ({**row(1), "action": 0.5}, "action"),
        ({**row(1), "action": "left"}, "action"),
        ({**row(1), "reward": None}, "reward"),
        (7, ""),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_row_unlike_the_first_is_named_and_nothing_is_pushed(bad: Any, key: str) -> None:
    buffer = make_buffer()
    buffer.push([row(1), row(2)], 0)
    before = buffer.state_dict()
    for data in (bad, [row(3), bad]):
        with pytest.raises(SchemaMismatchError) as caught:
            buffer.push(data, 0)
        assert caught.value.key == key
        assert {"expected", "found"} <= set(caught.value.facts)
    after = buffer.state_dict()
    assert SampleBatch(after.pop("data")) == SampleBatch(before.pop("data"))
    assert after == before


@pytest.mark.parametrize(
    ("column", "key"),
    [
        (np.zeros((1, 3), np.float64), "obs"),
        (np.zeros((1, 1), np.float32), "obs"),
        (np.zeros(1, np.float32), "obs"),
        ({"pos": np.zeros((1, 3), np.float32)}, "obs"),
    ],
    ids=["dtype", "shape", "dimensions", "nesting"],
)
def test_a_batch_must_match_exactly(column: Any, key: str) -> None:
    buffer = make_buffer()
    buffer.push(batch(1), 0)
    with pytest.raises(SchemaMismatchError) as caught:
        buffer.push(batch(2).with_columns(obs=column), 0)
    assert caught.value.key == key
    assert buffer.count() == 1


def test_columns_in_another_order_are_the_same_columns() -> None:
    buffer = make_buffer()
    buffer.push(batch(1), 0)
    buffer.push(SampleBatch(dict(reversed(batch(2).columns.items()))), 0)
    assert actions(buffer.sample(2, 0)) == [1, 2]


def test_numbers_in_rows_are_fitted_to_the_columns() -> None:
    buffer = make_buffer()
    buffer.push({"reward": 0.5, "obs": np.zeros(1, np.float32)}, 0)
    buffer.push({"reward": 1, "obs": np.ones(1, np.float64)}, 0)
    found = buffer.sample(2, 0)
    assert isinstance(found, SampleBatch)
    assert found.columns["reward"].tolist() == [0.5, 1.0]
    assert found.columns["obs"].dtype == np.float32


def test_the_same_row_twice_is_two_rows_apart_from_the_caller() -> None:
    for kind in ("array", "object"):
        buffer = make_buffer(storage={"type": kind})
        mine = {"action": 1, "info": {"n": 2}}
        buffer.push([mine, mine], 0)
        mine["action"] = 9
        mine["info"]["n"] = 9  # type: ignore[index]
        found = buffer.sample(2, 0)
        assert found is not None
        assert actions(found) == [1, 1]
        assert [each["info"]["n"] for each in found] == [2, 2]
        found[0]["action"] = 8
        assert actions(buffer.sample(2, 0)) == [1, 1]


def test_auto_storage_keeps_any_objects_as_they_are() -> None:
    class Thing:
        pass

    things = [Thing(), ("tuple", 1), 5, "text", [Thing()], {"note": "text"}]
    for thing in things:
        buffer = make_buffer()
        buffer.push([thing], 0)
        found = buffer.sample(1, 0)
        assert isinstance(found, list)
        assert found == [thing]


def test_a_tuple_is_one_row_and_an_episode_needs_a_list_around_it() -> None:
    buffer = make_buffer()
    buffer.push((1, 2, 3), 0)
    assert buffer.count() == 1
    episodes = make_buffer()
    episodes.push([batch(1, 2), batch(3)], 0)
    found = episodes.sample(2, 0)
    assert isinstance(found, list)
    assert [actions(episode) for episode in found] == [[1, 2], [3]]


def test_objects_share_leaves_unless_deepcopy() -> None:
    for deep in (False, True):
        leaf = torch.zeros(1)
        buffer = make_buffer(deepcopy=deep, storage={"type": "object"})
        buffer.push({"x": leaf}, 0)
        found = buffer.sample(1, 0)
        assert found is not None
        assert (found[0]["x"] is leaf) is not deep
        leaf += 1
        assert buffer.sample(1, 0)[0]["x"].item() == (0 if deep else 1)  # type: ignore[index]


def test_rows_of_a_batch_in_object_storage_are_apart_from_it() -> None:
    buffer = make_buffer(storage={"type": "object"})
    source = batch(1, 2)
    buffer.push(source, 0)
    source.columns["obs"][:] = 9
    found = buffer.sample(2, 0)
    assert isinstance(found, list)
    assert type(found[0]) is dict
    assert [each["obs"][0] for each in found] == [1, 2]


# Sampling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [-1, 1.5, "3", None, True])
def test_what_is_no_size_is_refused(size: Any) -> None:
    buffer = make_buffer()
    with pytest.raises((ValueError, TypeError)):
        buffer.sample(size, 0)
    with pytest.raises(ConfigTypeError):
        buffer.sample(1, 0, sample_range=3)  # type: ignore[arg-type]


def test_a_buffer_that_cannot_serve_gives_none() -> None:
    buffer = make_buffer(limiter={"min_size": 3})
    assert buffer.sample(0, 0) == []
    assert buffer.sample(1, 0) is None
    assert buffer.sample(1, 0, replace=True) is None
    buffer.push(batch(1, 2), 0)
    assert buffer.sample(1, 0) is None
    assert not buffer.can_sample(1)
    buffer.push(batch(3), 0)
    assert buffer.can_sample(3)
    assert not buffer.can_sample(4)
    assert buffer.sample(4, 0) is None
    assert len(buffer.sample(9, 0, replace=True) or ()) == 9


def test_sample_range_counts_by_age_also_when_the_ring_has_wrapped() -> None:
    buffer = make_buffer()
    for number in range(11):
        buffer.push(row(number), 0)
    assert sorted(actions(buffer.sample(2, 0, sample_range=slice(-2, None)))) == [9, 10]
    assert sorted(actions(buffer.sample(2, 0, sample_range=slice(0, 2)))) == [3, 4]
    assert buffer.sample(3, 0, sample_range=slice(-2, None)) is None


def test_two_buffers_of_one_seed_draw_alike_and_others_do_not() -> None:
    def draws(seed: int) -> list[list[int]]:
        buffer = make_buffer(replay_buffer_size=1000, seed=seed)
        buffer.push(batch(*range(1000)), 0)
        return [actions(buffer.sample(20, 0)) for _ in range(3)]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)


def test_update_warns_once_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    buffer = make_buffer()
    with caplog.at_level(logging.WARNING):
        buffer.update({"priority": [1]})
        buffer.update({"priority": [1]})
    assert len(caplog.records) == 1


# Waiting and closing --------------------------------------------------------------------------


def in_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """Run ``call`` in a thread; the function returned joins it and gives result or error."""
    outcome: list[Any] = []

    def target() -> None:
        try:
            outcome.append(call())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=target)
    thread.start()

    def join() -> Any:
        thread.join(20)
        assert not thread.is_alive()
        return outcome[0]

    return join


def test_sample_waits_for_rows_until_its_deadline() -> None:
    buffer = make_buffer()
    assert buffer.sample(1, 0, timeout_s=0.01) is None
    join = in_thread(lambda: buffer.sample(2, 0, timeout_s=20))
    buffer.push(row(1), 0)
    buffer.push(row(2), 0)
    assert actions(join()) == [1, 2]


def test_close_wakes_whoever_waits_and_refuses_further_use() -> None:
    buffer = make_buffer()
    join = in_thread(lambda: buffer.sample(2, 0, timeout_s=20))
    buffer.close()
    buffer.close()
    assert isinstance(join(), BufferClosedError)
    for use in (
        lambda: buffer.push(row(1), 0),
        lambda: buffer.push([], 0),
        lambda: buffer.sample(0, 0),
        lambda: buffer.sample(1, 0),
        lambda: buffer.can_push(1),
        lambda: buffer.can_sample(1),
        buffer.clear,
        buffer.state_dict,
        lambda: buffer.save_data("nowhere"),
    ):
        with pytest.raises(BufferClosedError):
            use()
    assert buffer.count() == 0


def test_a_push_that_the_limiter_refuses_raises_or_waits_but_is_never_dropped() -> None:
    limiter = {"type": "samples_per_insert", "samples_per_insert": 1, "error_buffer": 2}
    buffer = make_buffer(limiter=limiter)
    buffer.push(batch(1, 2, 3), 0)
    assert not buffer.can_push(1)
    with pytest.raises(BufferFullError) as caught:
        buffer.push(row(4), 0)
    assert (caught.value.rows, caught.value.waited_s, caught.value.retryable) == (1, 0, True)
    with pytest.raises(BufferFullError):
        buffer.push(row(4), 0, timeout_s=0.01)
    assert buffer.count() == 3
    join = in_thread(lambda: buffer.push(row(4), 0, timeout_s=20))
    assert buffer.sample(1, 0) is not None
    assert join() is None
    assert buffer.count() == 4


def test_many_threads_leave_the_buffer_consistent() -> None:
    buffer = make_buffer(replay_buffer_size=64)
    gone: list[int] = []
    buffer.add_remove_listener(lambda rows, reason: gone.extend(actions(rows)))
    errors: list[BaseException] = []
    start = threading.Barrier(8)

    def work(which: int) -> None:
        start.wait()
        try:
            for turn in range(150):
                if which < 3:
                    numbers = range(10_000 * which + 5 * turn, 10_000 * which + 5 * turn + 5)
                    buffer.push(batch(*numbers), 0)
                elif which < 6:
                    found = buffer.sample(16, 0, timeout_s=5)
                    if found is not None:
                        assert len(set(actions(found))) == 16
                        assert [each["obs"][0] for each in found] == actions(found)
                elif which == 6:
                    state = buffer.state_dict()
                    assert state["valid_count"] <= min(64, state["push_count"])
                else:
                    buffer.update({})
                    if turn % 50 == 49:
                        buffer.clear()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(which,)) for which in range(8)]
    for thread in threads:
        thread.start()
    # A sampler may wait for rows that nobody pushes any more.
    for thread in threads[:3]:
        thread.join(60)
    buffer.push(batch(*range(90_000, 90_064)), 0)
    for thread in threads:
        thread.join(60)
    assert errors == []
    stats = buffer.stats()
    assert stats.pushed == 3 * 150 * 5 + 64 == stats.overwritten + stats.cleared + stats.count
    assert len(gone) == len(set(gone)) == stats.overwritten + stats.cleared
    whole = buffer.sample(stats.count, 0)
    assert set(gone).isdisjoint(actions(whole) if whole is not None else [])


# Listeners, totals, reports ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["array", "object"])
def test_listeners_learn_what_left_and_why(kind: str) -> None:
    buffer = make_buffer(replay_buffer_size=3, storage={"type": kind})
    seen: list[tuple[list[int], str]] = []
    buffer.add_remove_listener(lambda rows, reason: seen.append((actions(rows), reason)))
    buffer.push(batch(1, 2), 0)
    buffer.push(batch(3, 4), 0)
    buffer.push(batch(5, 6, 7, 8, 9), 0)
    buffer.clear()
    buffer.push(row(10), 0)
    buffer.close()
    assert seen == [
        ([1], "overwritten"),
        ([2, 3, 4], "overwritten"),
        ([5, 6], "overwritten"),
        ([7, 8, 9], "cleared"),
        ([10], "cleared"),
    ]


def test_a_listener_may_use_the_buffer_and_its_errors_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    buffer = make_buffer(replay_buffer_size=1)
    counts: list[int] = []
    buffer.add_remove_listener(lambda rows, reason: counts.append(buffer.count()))
    buffer.add_remove_listener(lambda rows, reason: 1 / 0)  # type: ignore[arg-type, return-value]
    buffer.push(row(1), 0)
    buffer.push(row(2), 0)
    assert counts == [1]
    assert "remove listener failed" in caplog.text


def test_clear_frees_the_schema_and_starts_push_count_anew() -> None:
    buffer = make_buffer()
    buffer.push(batch(1, 2), 0)
    buffer.clear()
    assert (buffer.count(), buffer.push_count) == (0, 0)
    buffer.push({"other": 1.0}, 0)
    assert (buffer.count(), buffer.push_count) == (1, 1)
    assert buffer.stats().pushed == 3


def test_throughput_is_reported_once_per_period(caplog: pytest.LogCaptureFixture) -> None:
    class Writer:
        def __init__(self) -> None:
            self.scalars: list[tuple[str, float, int]] = []

        def add_scalar(self, tag: str, value: float, step: int) -> None:
            self.scalars.append((tag, value, step))

    now, writer = [0.0], Writer()
    monitor = ThroughputMonitor("buffer", 60, writer, clock=lambda: now[0])
    buffer = make_buffer(replay_buffer_size=2)
    buffer.push(batch(1, 2, 3), 0)
    buffer.sample(1, 0)
    assert not monitor.is_due()
    now[0] = 60.0
    assert monitor.is_due()
    with caplog.at_level(logging.INFO):
        monitor.report(buffer.stats())
    assert not monitor.is_due()
    assert "pushed_in 3, sampled_out 1, removed 1, current_have 2" in caplog.text
    assert ("buffer_sec/pushed_in", 3, 3) in writer.scalars
