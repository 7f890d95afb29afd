"""Killed processes: acknowledged data stays, all other leftovers are removed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from dingsdk_shared_memory.run_memory import folder_of, remove, remove_stale
from dingsdk_shared_memory.transport import SharedMemoryTransport

from dingsdk.errors import RunDirLockedError, WorkerLostError
from dingsdk.worker.comm import TaskMessage, WorkerInfo

from .conftest import Program, a_batch, listener


@pytest.mark.parametrize("rows", [64, 20_000], ids=["small", "large"])
def test_payload_survives_the_kill_of_its_writer(
    transport: SharedMemoryTransport, run_dir: Path, rows: int
) -> None:
    store = transport.data_store()
    source = f"transport.data_store().put('a', a_batch({rows})); say('put')"
    with Program(run_dir, source) as writer:
        writer.expect("put")
        writer.kill()

    assert store.get("a") == a_batch(rows)


def test_policy_survives_the_kill_of_its_publisher(
    transport: SharedMemoryTransport, run_dir: Path
) -> None:
    store = transport.policy_store()
    source = "transport.policy_store().publish('p', dict(a_batch().columns), 3); say('published')"
    with Program(run_dir, source) as learner:
        learner.expect("published")
        learner.kill()

    found = store.newest("p")
    assert found is not None
    assert found[0] == 3


def test_payload_that_a_dead_writer_did_not_announce_is_swept(
    transport: SharedMemoryTransport, run_dir: Path
) -> None:
    store = transport.data_store()
    source = "transport.data_store().put('b', a_batch()); say('put')"
    with Program(run_dir, source) as writer:
        store.put("a", a_batch())
        writer.expect("put")

    assert store.sweep_orphans({"a"}.__contains__, 0.0) == 1
    assert store.has("a", 0.0)
    assert not store.has("b", 0.0)


def test_view_outlives_the_deletion_and_the_kill_of_the_writer(
    transport: SharedMemoryTransport, run_dir: Path
) -> None:
    store = transport.data_store()
    with Program(run_dir, "transport.data_store().put('a', a_batch(20_000)); say('put')") as writer:
        writer.expect("put")
        view = store.get("a")
    store.delete(["a"])
    for index in range(4):  # one of these would reuse the memory if the view did not hold it
        store.put(f"c{index}", a_batch(20_000, width=3))

    assert view == a_batch(20_000)


MASTER = """
    end = transport.master_end()
    end.open(listener())
    say("open")
"""


def test_worker_joins_the_next_master_at_the_same_address(
    transport: SharedMemoryTransport, run_dir: Path
) -> None:
    with Program(run_dir, MASTER) as first:
        first.expect("open")
        address = f"unix:{folder_of(run_dir)}/socket"
        worker = transport.slave_end(address)
        worker.join(WorkerInfo("w", "collector"), 10.0)
        first.kill()
        end = transport.master_end()
        assert end.open(listener()) == address
        with pytest.raises(WorkerLostError) as lost:
            worker.renew(1)
        worker.join(WorkerInfo("w", "collector"), 10.0)

    assert lost.value.facts.get("restarted")
    end.send("w", 1, TaskMessage("t", {}))
    task = worker.next_task(5.0)
    assert task is not None
    assert task.task_id == "t"


def test_second_master_is_refused_while_the_first_lives(
    transport: SharedMemoryTransport, run_dir: Path
) -> None:
    with Program(run_dir, MASTER) as first:
        first.expect("open")
        with pytest.raises(RunDirLockedError, match="another coordinator"):
            transport.master_end().open(listener())


def test_next_master_removes_the_leftovers_of_a_killed_run(
    transport: SharedMemoryTransport, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    with Program(other, MASTER + "    transport.data_store().put('a', a_batch())\n") as killed:
        killed.expect("open")
        left = folder_of(other)
        remove_stale()
        assert left.is_dir()  # still in use

    transport.master_end().open(listener())

    assert not left.exists()
    assert transport.data_dir.is_dir()


def test_folder_of_a_running_run_stays_while_its_processes_restart(
    transport: SharedMemoryTransport, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    source = "import fcntl, os\nfcntl.flock(os.open(sys.argv[1], 0), 2); say('held')"
    with Program(other, source) as run:
        run.expect("held")
        with Program(other, MASTER) as killed:
            killed.expect("open")
        transport.master_end().open(listener())
        assert folder_of(other).is_dir()
    remove(folder_of(other))


def test_dead_master_is_noticed_at_the_deadline(
    transport: SharedMemoryTransport, run_dir: Path
) -> None:
    with Program(run_dir, MASTER) as master:
        master.expect("open")
        worker = transport.slave_end(f"unix:{folder_of(run_dir)}/socket")
        worker.join(WorkerInfo("w", "collector"), 10.0)
    started = time.monotonic()
    with pytest.raises(WorkerLostError, match="no sign"):
        worker.renew(1)

    assert 2.5 < time.monotonic() - started < 10.0


def test_payloads_of_a_run_that_can_be_resumed_move_to_its_folder_and_back(
    transport: SharedMemoryTransport, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    (other / "journal").mkdir(parents=True)
    program = MASTER + (
        "    transport.data_store().put('a', a_batch(20_000))\n"
        "    transport.data_store().put('b', a_batch())\n"
        "    say('put')\n"
    )
    with Program(other, program) as killed:
        killed.expect("open")
        killed.expect("put")

    transport.master_end().open(listener())
    assert not folder_of(other).exists()

    resumed = SharedMemoryTransport({}, other)
    store = resumed.data_store()
    resumed.master_end()
    found, small = store.get("a"), store.get("b")  # before the master listens
    resumed.close()
    assert not (other / "transport").exists()
    resumed.keep_data()
    assert not folder_of(other).exists()
    assert len(list((other / "transport").rglob("a.ding"))) == 1
    resumed.remove_data()

    assert found == a_batch(20_000)
    assert small == a_batch()
    assert [path.name for path in other.iterdir()] == ["journal"]
