"""Rules 23 to 28 and 42: the step data store."""

from __future__ import annotations

from functools import partial

from dingsdk.data.columns import leaves
from dingsdk.errors import ConflictError, DataMissingError
from dingsdk.testing.expect import Call, expect, expect_equal, expect_same, raises
from dingsdk.testing.transport_rules.bench import Bench
from dingsdk.testing.transport_rules.samples import batch

_WAIT_S = 0.1


def rule_23_payload_is_readable_when_put_returns(bench: Bench) -> None:
    """A payload can be read, whole and equal, as soon as ``put`` has returned.

    Its columns have the same names, shapes, dtypes, nesting and values, and are read-only. ``len``
    of the store is the number of payloads.
    """
    writer, reader = bench.far.data_store(), bench.near.data_store()
    expect_equal(len(reader), 0, "payloads in a fresh store")
    for number, rows in enumerate((5, 1, 0, 300)):
        writer.put(f"p-{number}_A", batch(rows, number))
        found = reader.get(f"p-{number}_A", 0.0)
        writable = [path for path, column in leaves(found.columns) if column.flags.writeable]
        expect(not writable, f"the columns {writable} can be written to")
        expect_equal(len(found), rows, "rows")
        expect_same(found, batch(rows, number), f"payload of {rows} rows")
    expect_equal(len(reader), 4, "payloads in the store")


def rule_25_repeated_put_changes_nothing(bench: Bench) -> None:
    """A repeated ``put`` of the same payload changes nothing; another payload does not replace it.

    Another payload with the same id is ignored, or raises ConflictError.
    """
    writer, reader = bench.far.data_store(), bench.near.data_store()
    writer.put("p", batch())
    before = reader.get("p")
    for _ in range(3):
        writer.put("p", batch())
    expect_equal(len(reader), 1, "payloads in the store")
    try:
        writer.put("p", batch(7, seed=1))
    except ConflictError as error:
        expect("p" in str(error), f"the refusal does not name the payload: {error}")
    expect_same(reader.get("p"), batch(), "the payload after another was put")
    expect_same(before, batch(), "the payload as it was got before")


def rule_27_deleted_payload_is_gone(bench: Bench) -> None:
    """``delete`` removes the named payloads and no others; unknown ids are ignored.

    A payload that a reader got before the delete stays whole. ``get`` of a missing payload raises
    DataMissingError, and ``has`` returns False, at its deadline or earlier.
    """
    writer, deleter = bench.far.data_store(), bench.near.data_store()
    for number in range(6):
        writer.put(f"p{number}", batch(seed=number))
    held = deleter.get("p0")
    expect(all(writer.has(f"p{n}", 0.0) for n in range(6)), "has() does not see a payload")
    deleter.delete(iter(["p0", "p1", "nobody"]))
    deleter.delete([])
    expect_equal(len(writer), 4, "payloads left")
    deleter.delete(["p1", "p1"])
    expect_equal(len(writer), 4, "payloads left after what was gone was deleted again")
    for name in ("p0", "p1"):
        for timeout_s in (0.0, _WAIT_S):
            get = Call(partial(writer.get, name, timeout_s), f"get({timeout_s})")
            with raises(f"get() of the deleted {name}", DataMissingError):
                get.value(timeout_s + bench.patience_s)
            expect_equal(getattr(get.error, "data_id", None), name, "the payload in the error")
            has = Call(partial(writer.has, name, timeout_s), f"has({timeout_s})")
            expect(not has.value(timeout_s + bench.patience_s), f"has() of the deleted {name}")
    for number in range(2, 6):
        expect_same(writer.get(f"p{number}"), batch(seed=number), f"p{number}")
    expect_same(held, batch(), "a payload that is held")


def rule_28_payloads_may_cross_concurrently(bench: Bench) -> None:
    """Several threads put, get and delete at the same time, and every payload arrives whole.

    This includes payloads of megabytes.
    """
    writer, reader = bench.far.data_store(), bench.near.data_store()
    workers, count = 4, 8
    big = 1 << 18

    def work(name: str, seed: int) -> None:
        for number in range(count):
            data_id, rows = f"{name}-{number}", big // 16 if number == 3 else 4
            writer.put(data_id, batch(rows, seed + number))
            expect_same(reader.get(data_id), batch(rows, seed + number), data_id)
            if number % 2:
                reader.delete([data_id])

    calls = [Call(partial(work, f"w{n}", 100 * n), f"writer {n}") for n in range(workers)]
    for call in calls:
        call.value(4 * bench.patience_s)
    expect_equal(len(reader), workers * count // 2, "payloads left")


def rule_42_sweep_keeps_live_payloads(bench: Bench) -> None:
    """``sweep_orphans`` deletes no payload that is live, or younger than the grace period.

    It may delete the others, and returns how many it deleted.
    """
    writer, sweeper = bench.far.data_store(), bench.near.data_store()
    for number in range(4):
        writer.put(f"p{number}", batch(seed=number))
    live = {"p0", "p1", "nobody"}.__contains__
    expect_equal(sweeper.sweep_orphans(live, 3600.0), 0, "payloads swept too early")
    expect_equal(len(writer), 4, "payloads after a sweep within the grace")
    swept = sum(sweeper.sweep_orphans(live, 0.0) for _ in range(3))
    expect_equal(len(writer), 4 - swept, f"payloads after {swept} were swept")
    for number in range(2):
        expect_same(writer.get(f"p{number}"), batch(seed=number), f"the live p{number}")
