"""Peers that fail too often are blocked; peers that know the secret are not affected."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from dingsdk_flask_fs import guard
from dingsdk_flask_fs.auth import MAC_HEADER
from dingsdk_flask_fs.guard import BURST, SMALL_BYTES, Throttle, network_of

from dingsdk.worker.comm import TaskMessage
from tests.fakes import Clock

OTHER = "another secret of good length"
LARGE = b"x" * (SMALL_BYTES + 1)
JOIN = {"role": "collector", "resource": {}, "idem": "i"}


def spend(served: Any, headers: Any, body: bytes = b"{}") -> list[int]:
    """Send bad requests until they are blocked with 429; return the statuses."""
    statuses = [0]
    while statuses[-1] != 429 and len(statuses) <= 2 * BURST:
        status, _, _ = served.peer().send("/v1/join", body, headers())
        statuses.append(status)
    return statuses[1:]


def forged(served: Any) -> dict[str, str]:
    """Headers of an attacker who knows the id of the key, but not the key."""
    headers = served.peer().signed("/v1/join", b"{}")
    return {**headers, "Authorization": headers["Authorization"][:-4] + "0000"}


def test_peer_is_blocked_after_too_many_failures(served: Any) -> None:
    statuses = spend(served, lambda: forged(served), LARGE)
    assert set(statuses[:-1]) == {401}
    assert BURST <= len(statuses) - 1 <= BURST + 5  # the allowance refills during the loop
    answers = set()
    for _ in range(3):
        # The content does not matter, because the request is not checked.
        status, answer, headers = served.peer().send("/v1/join", LARGE + b"x", forged(served))
        if status == 429:
            answers.add(answer)
            assert 1 <= int(headers["Retry-After"]) <= 2
            assert MAC_HEADER not in headers
    assert len(answers) == 1
    assert served.listener.events == []


def test_peer_without_the_id_of_the_key_is_refused_without_a_check_and_not_counted(
    served: Any,
) -> None:
    for _ in range(2 * BURST):
        headers = served.peer(OTHER).signed("/v1/join", LARGE)
        assert served.peer().send("/v1/join", LARGE, headers)[0] == 401
    assert served.peer().send("/v1/join", LARGE, forged(served))[0] == 401


def test_joined_worker_is_not_blocked_by_forged_requests_with_its_key_id(served: Any) -> None:
    end = served.slave()
    peer = served.peer()
    peer.join()
    assert spend(served, lambda: forged(served), LARGE)[-1] == 429
    served.end.send("w0", 1, TaskMessage("t1", {}))
    assert end.next_task(5.0).task_id == "t1"
    body = {"answers": [], "progress": 1, "padding": "x" * len(LARGE)}
    assert peer.call("renew", body)[0] == 200
    # From the blocked address a new session can send only small requests.
    newcomer = served.peer()
    request = newcomer.envelope("join", {**JOIN, "padding": "x" * len(LARGE)})
    assert newcomer.send("/v1/join", request)[0] == 429
    room = SMALL_BYTES - len(newcomer.envelope("join", {**JOIN, "padding": ""}))
    request = newcomer.envelope("join", {**JOIN, "padding": "x" * room})
    assert len(request) == SMALL_BYTES
    assert newcomer.send("/v1/join", request)[0] == 409
    assert newcomer.send("/v1/join", request, source="127.0.0.2")[0] == 409
    end.close()


def test_flood_from_an_address_does_not_block_workers_there(served: Any) -> None:
    spend(served, lambda: forged(served), LARGE)
    over = threading.Event()
    statuses: set[int] = set()

    def flood() -> None:
        while not over.is_set():
            statuses.add(served.peer().send("/v1/join", b"{}", forged(served))[0])

    threads = [threading.Thread(target=flood) for _ in range(4)]
    for thread in threads:
        thread.start()
    started = time.monotonic()
    ends = [served.slave(f"w{n}") for n in range(3)]
    for n in range(20):
        ends[n % 3].renew(n)
    waited_s = time.monotonic() - started
    over.set()
    for thread in threads:
        thread.join(5.0)
    for end in ends:
        end.close()
    assert waited_s < 5.0
    assert sum(kind == "renewed" for kind, *_ in served.listener.events) == 20
    assert statuses <= {401, 429}


def test_success_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BURST", 2)
    monkeypatch.setattr(guard, "PER_S", 0.5)
    clock = Clock()
    throttle = Throttle(clock)
    assert [throttle.wait_s("10.0.0.1") for _ in range(5)] == [0.0] * 5
    throttle.note_failure("10.0.0.1")
    assert throttle.wait_s("10.0.0.1") == 0.0
    throttle.note_failure("10.0.0.1")
    assert throttle.wait_s("10.0.0.1") == pytest.approx(2.0)
    assert throttle.wait_s("10.0.0.2") == 0.0
    clock.now += 1.0
    assert throttle.wait_s("10.0.0.1") == pytest.approx(1.0)
    clock.now += 1.0
    assert throttle.wait_s("10.0.0.1") == 0.0


def test_memory_is_bounded_and_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BURST", 1)
    monkeypatch.setattr(guard, "MAX_ENTRIES", 8)
    throttle = Throttle(Clock())
    for n in (*range(100), 92, 100):  # 92 fails again, so that 93 is the oldest when 100 fails
        throttle.note_failure(f"10.0.0.{n}")
    assert len(throttle) == 8
    waiting = [n for n in range(101) if throttle.wait_s(f"10.0.0.{n}") > 0.0]
    assert waiting == [92, *range(94, 101)]


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("", ""),
    ],
)
def test_addresses_that_one_sender_can_vary_count_as_one(address: str, network: str) -> None:
    assert network_of(address) == network
