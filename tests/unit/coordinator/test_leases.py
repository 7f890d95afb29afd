"""Leases follow an injected clock, and nothing else."""

from __future__ import annotations

from dingsdk.worker.coordinator.leases import LeaseTable


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_lease_expires_once_after_its_length() -> None:
    clock = Clock()
    leases = LeaseTable(15.0, clock)
    leases.grant("w0")
    clock.now += 14.9
    assert leases.expired() == []
    clock.now += 0.1
    assert leases.expired() == ["w0"]
    assert leases.expired() == []


def test_renewal_extends_a_lease_but_never_revives_one() -> None:
    clock = Clock()
    leases = LeaseTable(15.0, clock)
    leases.grant("w0")
    clock.now += 10.0
    assert leases.renew("w0")
    clock.now += 10.0
    assert leases.expired() == []
    clock.now += 5.0
    assert leases.expired() == ["w0"]
    assert not leases.renew("w0")
    assert not leases.renew("stranger")


def test_ended_lease_does_not_expire() -> None:
    clock = Clock()
    leases = LeaseTable(15.0, clock)
    leases.grant("w0")
    leases.end("w0")
    leases.end("w0")
    clock.now += 100.0
    assert leases.expired() == []
