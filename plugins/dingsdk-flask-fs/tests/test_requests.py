"""Handwritten requests: malformed, large, repeated, late and foreign ones."""

from __future__ import annotations

import json
import resource
import socket
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dingsdk.errors import ClosedError
from dingsdk.worker.comm import TaskMessage

from .conftest import AN_ANSWER

BODIES = {
    "join": {"role": "collector", "resource": {}, "idem": "i"},
    "turn": {"answers": [], "ack": 0, "wait_s": 0},
    "answer": {"answers": []},
    "renew": {"answers": [], "progress": 1},
    "leave": {"answers": []},
}

MALFORMED = [
    b"",
    b"[]",
    b"[" * 200_000,
    b"\x80\x04cposix\nsystem\n",
]


def still_serves(served: Any) -> None:
    peer = served.peer()
    peer.join()
    assert peer.call("renew", BODIES["renew"])[0] == 200


@pytest.mark.parametrize("body", MALFORMED, ids=lambda body: repr(body[:20]))
def test_malformed_body_is_a_protocol_error(served: Any, body: bytes) -> None:
    for kind in BODIES:
        status, answer, _ = served.peer().send(f"/v1/{kind}", body)
        assert status == 400
        assert json.loads(answer)["code"] == "ProtocolError"
    assert served.listener.events == []
    still_serves(served)


WRONG = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)
ENVELOPE = ("v", "run", "epoch", "worker", "inc", "type", "body")


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_json_in_any_field_is_answered_without_a_500(served: Any, data: st.DataObject) -> None:
    peer = served.peer()
    # Send a task, so that no request waits for one; each example joins again.
    served.end.send("peer", peer.join(), TaskMessage("t1", {}))
    kind = data.draw(st.sampled_from(sorted(BODIES)))
    body: Any = dict(BODIES[kind])
    changes: dict[str, Any] = {}
    if data.draw(st.booleans()):
        changes[data.draw(st.sampled_from(ENVELOPE))] = data.draw(WRONG)
    else:
        body[data.draw(st.sampled_from([*body, "extra"]))] = data.draw(
            st.one_of(WRONG, st.lists(st.dictionaries(st.sampled_from(["n", "task_id"]), WRONG)))
        )
    status, answer = peer.call(kind, body, **changes)
    assert status in (200, 400, 409), answer
    if status != 200:
        assert answer["code"] in ("ProtocolError", "StaleEpochError")


def test_recorded_requests_have_no_effect_on_a_restarted_master(
    served: Any, tmp_path: Path
) -> None:
    peer = served.peer()
    peer.join()
    recorded = []
    for kind, body in BODIES.items():
        content = peer.envelope(kind, body)
        recorded.append((f"/v1/{kind}", content, peer.signed(f"/v1/{kind}", content)))
        assert peer.send(*recorded[-1])[0] in (200, 409)  # 409: a new join ends the one before
    served.end.abandon_worker("peer")
    served.end.close()

    # It knows no nonces; the signed epoch in each request is over.
    with closing(type(served.transport)({"threads": 8}, tmp_path / "run")) as transport:
        restarted = type(served)(transport)
        for request in recorded:
            status, answer, _ = restarted.peer().send(*request)
            assert (status, json.loads(answer)["code"]) == (409, "StaleEpochError")
        assert restarted.listener.events == []


def test_unknown_optional_fields_are_ignored(served: Any) -> None:
    peer = served.peer()
    peer.join()
    assert peer.call("renew", {**BODIES["renew"], "later": [1]}, hint={"x": 1})[0] == 200
    assert served.listener.of("renewed", "peer") == [1]


@pytest.mark.parametrize("worker", ["../x", "/etc", "a/b", "a\0b", "%2e%2e", "x" * 300, "", "é"])
def test_id_that_could_be_a_path_is_refused(served: Any, worker: str) -> None:
    assert served.peer().call("join", BODIES["join"], worker=worker)[0] == 400
    assert served.listener.events == []


def raw(served: Any, data: bytes, more: bytes = b"", times: int = 0) -> bytes:
    """Send raw bytes; return the received bytes until the server closes or sends no more."""
    received = b""
    with socket.create_connection(("127.0.0.1", served.port), 5.0) as link:
        try:
            link.sendall(data)
            for _ in range(times):
                link.sendall(more)
        except OSError:
            pass  # the server closed the connection, as some tests expect
        link.settimeout(1.0)
        try:
            while chunk := link.recv(65536):
                received += chunk
        except OSError:
            pass
    return received


HEAD = "POST /v1/join HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


def test_largest_body_is_read_and_a_byte_more_is_not(served: Any) -> None:
    limit = served.transport.cfg.max_message_bytes
    assert served.peer().send("/v1/join", b" " * limit)[0] == 400
    answer = raw(served, f"{HEAD}Content-Length: {limit + 1}\r\n\r\n".encode())
    assert b" 413 " in answer.split(b"\r\n")[0]
    still_serves(served)


def test_endless_chunked_body_is_cut_off(served: Any) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    chunk = b"10000\r\n" + b"a" * 65536 + b"\r\n"
    answer = raw(served, f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode(), chunk, 1600)
    assert answer == b"" or b" 413 " in answer.split(b"\r\n")[0]
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < 4 * served.transport.cfg.max_message_bytes
    still_serves(served)


def test_request_that_waitress_cannot_read_is_refused_without_a_log_line(
    served: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert raw(served, b"GET http://[ HTTP/1.1\r\n\r\n") == b""
    for digit in "09":
        assert raw(served, f"{HEAD}Content-Length: {digit * 5000}\r\n\r\nabcde".encode()) == b""
    still_serves(served)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_server_survives_a_body_shorter_or_longer_than_declared(served: Any) -> None:
    assert raw(served, f"{HEAD}Content-Length: 100\r\n\r\nshort".encode()) == b""
    answer = raw(served, f"{HEAD}Content-Length: 5\r\n\r\nabcdeGARBAGE".encode())
    assert b" 401 " in answer.split(b"\r\n")[0]
    still_serves(served)


def test_thousands_of_headers_are_refused(served: Any) -> None:
    headers = "".join(f"X-{n}: {n}\r\n" for n in range(10_000))
    answer = raw(served, (HEAD + headers + "\r\n").encode())
    assert answer == b"" or answer.split(b"\r\n")[0].split()[1] in (b"400", b"431")
    still_serves(served)


def test_message_of_another_run_epoch_or_incarnation_is_stale(served: Any) -> None:
    peer = served.peer()
    old = peer.join()
    answers = {"answers": [AN_ANSWER]}
    for changes in ({"run": "other"}, {"epoch": peer.epoch + 1}, {"inc": 99}, {"worker": "w9"}):
        status, answer = peer.call("answer", answers, **changes)
        assert (status, answer["code"]) == (409, "StaleEpochError")
    assert peer.join() > old
    assert peer.call("answer", answers, inc=old)[0] == 409
    served.end.drop("peer", peer.inc, "silent")
    assert peer.call("renew", BODIES["renew"])[0] == 409
    assert not {"answered", "renewed"} & {kind for kind, *_ in served.listener.events}


def test_more_waiting_workers_than_threads_leave_some_for_answers(served: Any) -> None:
    def wait(end: Any) -> None:
        with suppress(ClosedError):
            end.next_task(60.0)

    ends = [served.slave(f"w{n}") for n in range(20)]
    waits = [threading.Thread(target=wait, args=(end,)) for end in ends]
    for thread in waits:
        thread.start()
    started = time.monotonic()
    for _ in range(5):
        still_serves(served)
    assert time.monotonic() - started < 4.0  # a request of a worker may wait for 5 s
    for end in ends:
        end.close()
    for thread in waits:
        thread.join(10.0)
        assert not thread.is_alive()
