"""Access checks, the content of each address, and the headers of every response."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dingsdk_watch.guard import allowed_hosts
from dingsdk_watch.runs import Run
from dingsdk_watch.server import Server
from prometheus_client.parser import text_string_to_metric_families

from dingsdk.errors import InsecureBindError, PortInUseError

from .run_folders import STATUS, ask, write_run

Serve = Callable[..., Server]


PATHS = ("/", "/page.js", "/page.css", "/status.json", "/curves.json", "/log.json", "/metrics")


@pytest.mark.parametrize("path", PATHS)
def test_each_address_answers_with_the_token_and_not_without(
    serve: Serve, run_folder: Path, path: str
) -> None:
    server = serve(run_folder)

    assert ask(server, path).status == 200
    for wrong in ("", "Bearer ", "Bearer x", f"Basic {server.token}", server.token):
        refused = ask(server, path, Authorization=wrong)
        assert (refused.status, server.token in refused.text) == (401, False)


def test_token_in_the_url_sets_a_strict_cookie_and_is_removed_from_the_url(
    serve: Serve, run_folder: Path
) -> None:
    server = serve(run_folder)

    first = ask(server, f"/?token={server.token}", Authorization="")

    assert (first.status, first.headers["Location"]) == (303, "/")
    cookie = first.headers["Set-Cookie"]
    assert re.search(r"; HttpOnly\b", cookie)
    assert re.search(r"; SameSite=Strict\b", cookie)
    assert server.token not in cookie
    pair = cookie.partition(";")[0]
    assert ask(server, "/", Authorization="", Cookie=pair).status == 200
    assert ask(server, "/status.json", Authorization="", Cookie=pair).status == 200
    assert ask(server, "/", Authorization="", Cookie=f"{pair}x").status == 401
    name = pair.partition("=")[0]
    assert ask(server, "/", Authorization="", Cookie=f"{name}={server.token}").status == 401


def test_token_in_the_url_opens_only_the_page(serve: Serve, run_folder: Path) -> None:
    server = serve(run_folder)

    assert ask(server, f"/metrics?token={server.token}", Authorization="").status == 401
    assert ask(server, "/?token=wrong", Authorization="").status == 401
    assert ask(server, "/?token=%ff", Authorization="").status == 401


def test_cookie_of_one_server_does_not_open_another(serve: Serve, run_folder: Path) -> None:
    one, other = serve(run_folder), serve(run_folder)
    cookie = ask(one, f"/?token={one.token}", Authorization="").headers["Set-Cookie"]
    pair = cookie.partition(";")[0]

    assert str(one.port) in pair.partition("=")[0]
    assert ask(other, "/", Authorization="", Cookie=pair).status == 401
    renamed = pair.replace(str(one.port), str(other.port), 1)
    assert ask(other, "/", Authorization="", Cookie=renamed).status == 401


def test_only_read_requests_are_served(serve: Serve, run_folder: Path) -> None:
    server = serve(run_folder)
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        assert ask(server, "/status.json", method).status == 405, method


@pytest.mark.parametrize(
    "path", ["/../config.yaml", "/static/page.js", "/config.yaml", "/page.html"]
)
def test_other_addresses_are_not_found(serve: Serve, run_folder: Path, path: str) -> None:
    assert ask(serve(run_folder), path).status == 404


@pytest.mark.parametrize(("path", "status"), [(path, 200) for path in PATHS] + [("/x", 404)])
def test_every_response_forbids_content_of_other_sites(
    serve: Serve, run_folder: Path, path: str, status: int
) -> None:
    answer = ask(serve(run_folder), path)

    assert answer.status == status
    policy = dict(
        part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";")
    )
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_page_has_no_inline_or_foreign_script(serve: Serve, run_folder: Path) -> None:
    server = serve(run_folder)
    page, script, style = (ask(server, path).text for path in ("/", "/page.js", "/page.css"))

    assert re.findall(r"<script[^>]*>([^<]*)</script>", page) == [""]
    assert not re.search(r"\son\w+=|<style|\sstyle=|javascript:", page)
    assert set(re.findall(r'(?:src|href)="([^"]*)"', page)) == {"data:,", "/page.css", "/page.js"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script)
    assert "//" not in re.sub(r"^\s*//.*$|http://www\.w3\.org/2000/svg", "", script, flags=re.M)
    assert "url(" not in style
    assert "@import" not in style


def test_status_and_curves_of_several_runs_are_in_the_order_given(
    serve: Serve, run_folder: Path, tmp_path: Path
) -> None:
    server = serve(run_folder, write_run(tmp_path / "other", lines=5, reason="limit"))

    runs = ask(server, "/status.json").json["runs"]
    curves = ask(server, "/curves.json").json["runs"]

    assert [(each["name"], each["state"]) for each in runs] == [
        ("cartpole", "under way"),
        ("other", "over"),
    ]
    assert [len(each["env_steps"]) for each in curves] == [3, 5]


def test_log_gives_the_newest_or_the_one_that_is_named(
    serve: Serve, run_folder: Path, tmp_path: Path
) -> None:
    other = write_run(tmp_path / "other")
    (other / "log" / "learner" / "learner_logger.txt").write_text("of the other\n")
    server = serve(run_folder, other)

    assert ask(server, "/log.json").json["text"] == "first line\nlast line\n"
    named = ask(server, "/log.json?run=1&name=learner/learner_logger.txt").json
    assert (named["text"], named["logs"]) == ("of the other\n", ["learner/learner_logger.txt"])
    for path in ("?run=2", "?run=-1", "?name=../config.yaml", "?name=/etc/passwd"):
        assert ask(server, f"/log.json{path}").status == 404


LABELS = ("run", "event", "reason", "worker", "role", "kind", "name")


def test_metrics_can_be_read_by_prometheus_and_ended_runs_have_no_rates(
    serve: Serve, run_folder: Path, tmp_path: Path
) -> None:
    task = {**STATUS["tasks"][0], "kind": "learner", "worker_id": "l1", "per_s": 2.0}
    counts = dict.fromkeys(("collected", "acknowledged", "trained", "live"), 0)
    over = write_run(
        tmp_path / "over",
        reason="limit",
        loss=None,
        tasks=[task],
        samples={**counts, "evicted": {}},
        exploration={},
        numbers={},
        policy_lag=None,
        columns={"gpu": 1, "phase": None},
    )
    answer = ask(serve(run_folder, over), "/metrics")

    found = {
        (
            sample.name.removeprefix("dingsdk_"),
            *(sample.labels[label] for label in LABELS if label in sample.labels),
        ): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    live = {"env_steps_per_s": 100, "updates_per_s": 25, "workers": 2, "left_s": 38}
    alike = {
        "env_steps_total": 1200, "train_iter_total": 300, "last_return": 50.5, "best_return": 60,
        "buffer_fill": 700, "buffer_capacity": 1000, "elapsed_s": 12,
    }  # fmt: skip
    assert found == {
        **{(name, run): value for name, value in alike.items() for run in ("cartpole", "over")},
        **{(name, "cartpole"): value for name, value in live.items()},
        ("up", "cartpole"): 1,
        ("up", "over"): 0,
        ("loss", "cartpole"): 0.25,
        ("samples_total", "cartpole", "collected"): 1210,
        ("samples_total", "cartpole", "acknowledged"): 1200,
        ("samples_total", "cartpole", "trained"): 4800,
        ("samples_total", "over", "collected"): 0,
        ("samples_total", "over", "acknowledged"): 0,
        ("samples_total", "over", "trained"): 0,
        ("evicted_samples_total", "cartpole", "overwritten"): 500,
        ("worker_lease_s", "cartpole", "c0", "collector"): 9.5,
        ("worker_lease_s", "cartpole", "l0", "learner"): 8,
        ("worker_per_s", "cartpole", "c0", "collector"): 41.5,
        ("exploration", "cartpole", "eps"): 0.1,
        ("number", "cartpole", "is_success"): 0.8,
        ("policy_lag", "cartpole", "mean"): 1.5,
        ("policy_lag", "cartpole", "p99"): 2,
        ("policy_lag", "cartpole", "largest"): 3,
        ("column", "cartpole", "gpu"): 0.5,
        ("column", "over", "gpu"): 1,
    }


def test_damaged_status_does_not_hide_the_metrics_of_other_runs(
    serve: Serve, run_folder: Path, tmp_path: Path
) -> None:
    over = write_run(tmp_path / "over", samples={"collected": "many"})
    answer = ask(serve(over, run_folder), "/metrics")
    assert answer.status == 200
    assert 'dingsdk_env_steps_total{run="cartpole"} 1200.0' in answer.text
    assert 'dingsdk_up{run="over"} 0.0' in answer.text


def test_internal_error_is_logged_but_its_text_is_not_sent(
    serve: Serve,
    run_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = serve(run_folder)
    monkeypatch.setattr(Run, "curves", lambda run: {}["secret place"])
    answer = ask(server, "/curves.json")
    assert (answer.status, answer.text) == (500, "see the log of dingsdk watch\n")
    (record,) = [each for each in caplog.records if each.name == "dingsdk_watch.app"]
    assert record.exc_info is not None
    assert record.exc_info[0] is KeyError
    assert ask(server, "/status.json").status == 200


def test_reading_changes_nothing_in_the_run_folder(serve: Serve, run_folder: Path) -> None:
    def state() -> dict[str, Any]:
        return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in run_folder.rglob("*")}

    server, before = serve(run_folder), state()
    for path in PATHS:
        ask(server, path)

    assert state() == before


def test_listening_beyond_this_machine_needs_a_name() -> None:
    with pytest.raises(InsecureBindError, match="--allow-host"):
        allowed_hosts("0.0.0.0", [])
    with pytest.raises(InsecureBindError):
        allowed_hosts("box.lan", [])
    assert allowed_hosts("0.0.0.0", ["Box.lan"]) == ["box.lan"]
    assert "127.0.0.1" not in allowed_hosts("::", ["box.lan"])
    assert allowed_hosts("::1", [])[0] == "[::1]"
    assert allowed_hosts("::", ["FD00::5"]) == ["[fd00::5]"]
    assert "127.0.0.2" in allowed_hosts("127.0.0.2", [])
    assert set(allowed_hosts("LocalHost", [])) == set(allowed_hosts("127.0.0.1", []))


def test_address_of_ipv6_is_in_brackets_and_listened_on(serve: Serve, run_folder: Path) -> None:
    try:
        server = serve(run_folder, host="::1")
    except PortInUseError:
        pytest.skip("this host has no IPv6")
    assert server.url.startswith(f"http://[::1]:{server.port}/")
    socket.create_connection(("::1", server.port), timeout=10).close()


def test_idle_connections_keep_nobody_out(serve: Serve, run_folder: Path) -> None:
    server = serve(run_folder)
    with contextlib.ExitStack() as stack:
        for _ in range(500):
            place = ("127.0.0.1", server.port)
            stack.enter_context(socket.create_connection(place, timeout=10))
        started = time.monotonic()
        assert ask(server, "/metrics").status == 200
        assert time.monotonic() - started < 1.0


def test_request_with_two_hosts_is_refused(serve: Serve, run_folder: Path) -> None:
    server = serve(run_folder)
    own = f"Host: 127.0.0.1:{server.port}\r\n"
    token = f"Authorization: Bearer {server.token}\r\n"
    for hosts, status in ((own, b"200"), (own + "Host: evil.example\r\n", b"403")):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            text = f"GET /metrics HTTP/1.1\r\n{hosts}{token}Connection: close\r\n\r\n"
            connection.sendall(text.encode())
            assert connection.recv(64).split()[1] == status
