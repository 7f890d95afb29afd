"""flask_fs with network faults that Hypothesis generates, and with lost replies."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from dingsdk_flask_fs.transport import FlaskFSTransport
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dingsdk.testing import Fault, FaultProxy
from dingsdk.testing.fault_proxy import QUICK_FAULTS
from dingsdk.testing.transport_bench import Bench
from dingsdk.worker.comm import TaskAnswer, WorkerInfo

_NUMBERS = itertools.count()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    def make(run_dir: Path) -> FlaskFSTransport:
        return FlaskFSTransport({"threads": 8}, run_dir)

    monkeypatch.delenv("DINGSDK_SECRET", raising=False)
    monkeypatch.delenv("DINGSDK_SECRET_FILE", raising=False)
    with Bench(make, tmp_path, {"many_processes"}, 5.0) as made:
        yield made


@pytest.mark.slow
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(faults=st.lists(st.sampled_from(QUICK_FAULTS), max_size=20))
def test_messages_arrive_once_and_in_order_despite_faults(
    bench: Bench, faults: list[Fault]
) -> None:
    worker_id, count = f"h{next(_NUMBERS)}", 4
    sent = [f"t{index}" for index in range(count)]
    _ = bench.master
    with FaultProxy(bench.address, faults) as proxy:
        end = bench.far.slave_end(proxy.address)
        try:
            end.join(WorkerInfo(worker_id, "collector"), 20.0)
            for task_id in sent:
                bench.send(worker_id, task_id)
                assert bench.receive_ids(end, 1) == [task_id]
                end.answer(TaskAnswer(task_id, True, {"of": task_id}))
                end.renew(1)
            answers = bench.listener.expect("answered", worker_id, count)
        finally:
            end.close(5.0)

    assert [(answer.task_id, dict(answer.result)) for answer in answers] == [
        (task_id, {"of": task_id}) for task_id in sent
    ]
    assert len(bench.listener.of("joined", worker_id)) == 1
    assert len(bench.listener.of("renewed", worker_id)) >= count
    assert len(bench.listener.of("left", worker_id)) <= 1


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.CUT_REPLY])
def test_worker_leaves_once_when_the_reply_is_lost(bench: Bench, fault: Fault) -> None:
    worker_id = f"l{next(_NUMBERS)}"
    with FaultProxy(_address(bench), [Fault.PASS, Fault.PASS, fault]) as proxy:
        end = bench.join(worker_id, proxy.address)
        started = time.monotonic()
        end.close(5.0)
        assert time.monotonic() - started < 5.0

    bench.listener.expect("left", worker_id)
    assert len(bench.listener.of("left", worker_id)) == 1


def _address(bench: Bench) -> str:
    _ = bench.master
    return bench.address
