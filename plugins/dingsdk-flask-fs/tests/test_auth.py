"""Signatures: which requests are accepted or rejected, and for how long."""

from __future__ import annotations

import ast
import inspect

import pytest
from dingsdk_flask_fs import auth
from dingsdk_flask_fs.auth import Signer, Verifier
from hypothesis import given
from hypothesis import strategies as st

from dingsdk.errors import AuthError
from dingsdk.runtime import Secret
from tests.fakes import Clock

SECRET = Secret(b"s" * 32, source="test", is_explicit=True)
OTHER = Secret(b"o" * 32, source="test", is_explicit=True)
SKEW_S = 60
"""Largest accepted difference of two clocks."""


def refused(verifier: Verifier, header: str, *request: object) -> str:
    method, target, body = request or ("POST", "/v1/turn", b"body")
    with pytest.raises(AuthError) as caught:
        verifier.verify(header, method, target, body)  # type: ignore[arg-type]
    return str(caught.value.reason)


def test_signatures_match_those_of_openssl() -> None:
    """The expected values were computed with ``openssl dgst -sha256 -mac HMAC``."""
    signer, verifier = (kind(SECRET, Clock(1e6)) for kind in (Signer, Verifier))
    signer._session = "0123456789abcdef"
    header, nonce = signer.sign("POST", "/v1/turn", b"body")
    assert header == (
        "DING-HMAC keyid=c37b5f8442f1c098,ts=1000000,nonce=0123456789abcdef-1,"
        "mac=a2a4d24810b280afc415e0220f53a76f23932972a18746feb66df45c481547b1"
    )
    assert verifier.sign_answer(nonce, 200, b"answer") == (
        "a2528443e6686d1f304ac66943931133fb6343b0a383de43c4b90373102824cb"
    )


@pytest.mark.parametrize(
    "request_",
    [("GET", "/v1/turn", b"body"), ("POST", "/v1/turn?a=1", b"body"), ("POST", "/v1/turn", b"b")],
)
def test_signature_covers_method_target_and_body(request_: tuple[str, str, bytes]) -> None:
    header, _ = Signer(SECRET).sign("POST", "/v1/turn", b"body")
    assert refused(Verifier(SECRET), header, *request_) == "mac"


def test_answer_is_bound_to_its_request_status_and_body() -> None:
    signer, verifier = Signer(SECRET), Verifier(SECRET)
    mac = verifier.sign_answer("n-1", 200, b"answer")
    assert not signer.is_answer(mac, "n-2", 200, b"answer")
    assert not signer.is_answer(mac, "n-1", 409, b"answer")
    assert not signer.is_answer(mac, "n-1", 200, b"other")
    assert not signer.is_answer("", "n-1", 200, b"answer")
    assert not signer.is_answer("é" * 64, "n-1", 200, b"answer")
    assert not Signer(OTHER).is_answer(mac, "n-1", 200, b"answer")


@pytest.mark.parametrize("shift", [-SKEW_S - 1, -SKEW_S, SKEW_S, SKEW_S + 1])
def test_clock_difference_above_the_skew_is_refused(shift: int) -> None:
    clock = Clock()
    header, _ = Signer(SECRET, lambda: clock.now + shift).sign("POST", "/v1/turn", b"body")
    if abs(shift) > SKEW_S:
        assert refused(Verifier(SECRET, clock), header) == "time"
    else:
        assert Verifier(SECRET, clock).verify(header, "POST", "/v1/turn", b"body")


def test_replay_is_refused_while_its_timestamp_is_valid() -> None:
    clock = Clock()
    verifier = Verifier(SECRET, clock)
    # Signed by a clock that is ahead, so it is valid for twice the skew.
    header, _ = Signer(SECRET, lambda: clock.now + SKEW_S).sign("POST", "/v1/turn", b"body")
    verifier.verify(header, "POST", "/v1/turn", b"body")
    reasons, held = set(), []
    for _ in range(5 * SKEW_S):
        clock.now += 1.0
        reasons.add(refused(verifier, header))
        verifier.verify(
            Signer(SECRET, clock).sign("POST", "/v1/turn", b"body")[0], "POST", "/v1/turn", b"body"
        )
        held.append(len(verifier._sessions))
    assert reasons == {"replay", "time"}
    # One session per second, each kept for twice the skew; a sweep runs once per minute.
    assert 2 * SKEW_S <= max(held) <= 3 * SKEW_S + 3


def test_session_is_known_while_its_requests_can_be_replayed() -> None:
    for silence_s, is_known in ((2 * SKEW_S + 1, True), (2 * SKEW_S + 2, False)):
        clock = Clock()
        verifier, first, second = (
            Verifier(SECRET, clock),
            Signer(SECRET, clock),
            Signer(SECRET, clock),
        )
        assert not verifier.is_known(first.sign("POST", "/v1/turn", b"")[0])
        for signer in (first, second):
            verifier.verify(signer.sign("POST", "/v1/turn", b"")[0], "POST", "/v1/turn", b"")
            clock.now += silence_s
        assert verifier.is_known(first.sign("POST", "/v1/other", b"")[0]) is is_known
        assert verifier.is_known(second.sign("POST", "/v1/turn", b"")[0])


def test_sweep_is_not_delayed_when_the_clock_is_set_back() -> None:
    clock = Clock()
    verifier, signers = Verifier(SECRET, clock), [Signer(SECRET, clock) for _ in range(3)]
    for signer, ahead_s in zip(signers, (0.0, -100.0, 30.0), strict=True):
        clock.now = 100.0 + ahead_s
        verifier.verify(signer.sign("POST", "/v1/turn", b"")[0], "POST", "/v1/turn", b"")
    found = [verifier.is_known(each.sign("POST", "/v1/turn", b"")[0]) for each in signers]
    assert found == [True, False, True]  # the second session is 130 s old


def test_requests_of_a_session_are_accepted_once_in_the_order_of_their_numbers() -> None:
    signer, verifier = Signer(SECRET), Verifier(SECRET)
    headers = [signer.sign("POST", "/v1/turn", b"body")[0] for _ in range(4)]
    for index in (0, 1, 3):
        verifier.verify(headers[index], "POST", "/v1/turn", b"body")
        assert {refused(verifier, header) for header in headers[: index + 1]} == {"replay"}


@given(st.text())
def test_no_header_breaks_the_verifier(header: str) -> None:
    assert refused(Verifier(SECRET), header) in ("missing", "malformed")


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.replace("mac=", "mac=0"),
        lambda header: header[:-1],
        lambda header: header.upper(),
        lambda header: header + " ",
        lambda header: header.replace("ts=", "ts=-"),
        lambda header: header.replace("ts=1", "ts=\N{ARABIC-INDIC DIGIT ONE}"),
        lambda header: "Bearer " + "s" * 32,
    ],
)
def test_header_with_another_format_is_refused(change: object) -> None:
    header, _ = Signer(SECRET).sign("POST", "/v1/turn", b"body")
    assert refused(Verifier(SECRET), change(header)) == "malformed"  # type: ignore[operator]


def test_macs_are_compared_in_constant_time() -> None:
    tree = ast.parse(inspect.getsource(auth))
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "hmac.compare_digest"
    ]
    compared = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and "mac" in ast.unparse(node).replace("hmac", "")
    ]
    assert len(calls) == 2  # one for requests, one for answers
    assert compared == []
