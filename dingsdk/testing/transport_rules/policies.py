"""Rules 29 to 32: the policy store."""

from __future__ import annotations

from dingsdk.testing.expect import Call, expect, expect_equal, expect_same
from dingsdk.testing.runner import RuleBroken
from dingsdk.testing.transport_rules.bench import Bench
from dingsdk.testing.transport_rules.samples import policy


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
