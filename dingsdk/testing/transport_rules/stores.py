"""Rules 23 to 32 and 42: the step data store and the policy store."""

from __future__ import annotations

from functools import partial

from dingsdk.data.columns import leaves
from dingsdk.errors import ConflictError, DataMissingError
from dingsdk.testing.expect import Call, expect, expect_equal, expect_same, raises
from dingsdk.testing.runner import RuleBroken
from dingsdk.testing.transport_rules.bench import Bench, batch, policy

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


def rule_29_newest_policy_arrives_whole(bench: Bench) -> None:
    """``newest`` returns the newest version with all its tensors, as they were published.

    It returns None if there is no version, or none newer than ``newer_than``. Later changes to the
    published tensors have no effect. Policies with different ids are independent.
    """
    writer, reader = bench.far.policy_store(), bench.near.policy_store()
    expect_equal(reader.newest("p"), None, "newest() before a version was published")
    for version in (0, 3, 4):
        state = policy(version)
        writer.publish("p", state, version)
        writer.publish("q", policy(version + 100), version)
        state["layer.weight"].zero_()
        state["count"] += 1
        state.clear()
        expect_policy(reader.newest("p"), version, float(version))
        expect_policy(reader.newest("q"), version, float(version + 100))
        expect_policy(reader.newest("p", version - 1), version, float(version))
        expect_equal(reader.newest("p", version), None, f"newest(newer_than={version})")


def rule_30_policy_never_goes_back(bench: Bench) -> None:
    """After a version was returned, no older version is; publishing an older one changes nothing.

    This applies whichever process publishes, because one learner may replace another.
    """
    writer, reader = bench.far.policy_store(), bench.near.policy_store()
    writer.publish("p", policy(7.0), 7)
    expect_policy(reader.newest("p"), 7, 7.0)
    for publisher in (writer, reader):
        for version in (6, 0, 7):
            publisher.publish("p", policy(50.0), version)
            for store in (reader, writer):
                expect_policy(store.newest("p"), 7, 7.0)
                expect_equal(store.newest("p", 7), None, "newest(newer_than=7)")
    reader.publish("p", policy(8.0), 8)
    expect_policy(writer.newest("p", 7), 8, 8.0)
    writer.publish("p", policy(9.0), 9)
    expect_policy(reader.newest("p", 8), 9, 9.0)


def rule_31_policy_is_whole_while_others_are_published(bench: Bench) -> None:
    """While versions are published, readers get whole versions in rising order, up to the last."""
    writer, reader = bench.far.policy_store(), bench.near.policy_store()
    count = 40

    def publish() -> None:
        for version in range(1, count + 1):
            writer.publish("p", policy(version), version)

    def read() -> None:
        last: int | None = None
        while last != count:
            found = reader.newest("p", last)
            if found is None:
                continue
            expect(last is None or found[0] > last, f"version {found[0]} came after {last}")
            last = found[0]
            expect_policy(found, last, float(last))

    calls = [Call(publish, "the publisher")]
    calls += [Call(read, f"reader {number}") for number in range(3)]
    for call in calls:
        call.value(4 * bench.patience_s)


def rule_32_discarded_policy_is_gone(bench: Bench) -> None:
    """``discard`` removes a policy and no other; an unknown id is ignored.

    A policy that is published with the same id afterwards is a new one: all readers get it, even if
    its versions are lower. This applies whichever process discards.
    """
    writer, reader = bench.far.policy_store(), bench.near.policy_store()
    writer.publish("q", policy(6.0), 6)
    for version, discarder in ((9, writer), (5, reader), (2, writer)):
        writer.publish("p", policy(version), version)
        for store in (reader, writer):
            expect_policy(store.newest("p"), version, float(version))
        for name in ("p", "nobody", "p"):
            discarder.discard(name)
        for store in (reader, writer):
            expect_equal(store.newest("p"), None, "newest() of a discarded policy")
            expect_policy(store.newest("q"), 6, 6.0)


def expect_policy(found: object, version: int, value: float) -> None:
    """Expect the result of ``newest()`` to be this version with this value."""
    if not (isinstance(found, tuple) and len(found) == 2):
        raise RuleBroken(f"newest() returned {found!r:.100}, expected version {version}")
    expect_equal(found[0], version, "version")
    expect_same(found[1], policy(value), f"version {version}")
