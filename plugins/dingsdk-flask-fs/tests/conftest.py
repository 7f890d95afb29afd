"""Fixtures: a master on a real socket, a peer that sends raw requests to it, and leak checks."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from dingsdk_flask_fs.auth import MAC_HEADER, Signer
from dingsdk_flask_fs.transport import FlaskFSTransport, parse_address

from dingsdk.runtime import Secret
from dingsdk.testing.transport_bench import Recorder
from dingsdk.worker.comm import WorkerInfo
from dingsdk.worker.comm.files.data_store import FileDataStore
from dingsdk.worker.comm.files.policy_store import FilePolicyStore

SECRET = "0123456789abcdef" * 2
GRACE_S = 5.0
NOBODY = 65534


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("DINGSDK_SECRET", raising=False)
    monkeypatch.delenv("DINGSDK_SECRET_FILE", raising=False)
    before, sockets = set(threading.enumerate()), open_sockets()
    yield
    for thread in threading.enumerate():
        if thread not in before:
            thread.join(GRACE_S)
            assert not thread.is_alive(), f"leaked thread {thread.name}"
    assert open_sockets() <= sockets, "leaked sockets"


def open_sockets() -> int:
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            count += str(link.readlink()).startswith("socket:")
        except OSError:
            continue  # the descriptor of this listing, closed already
    return count


def listener() -> Recorder:
    """Return a listener that records what a master end reports."""
    return Recorder(threading.Condition(), GRACE_S)


class Peer:
    """A client that connects to the master and sends any request of a test."""

    def __init__(self, port: int, secret: str, clock: Callable[[], float] | None = None) -> None:
        self.port = port
        secret_ = Secret(secret.encode(), source="test", is_explicit=True)
        self.signer = Signer(secret_, clock) if clock else Signer(secret_)
        self.run, self.epoch, self.inc = "", 0, 0
        self.nonce = ""

    def signed(self, target: str, body: bytes, method: str = "POST") -> dict[str, str]:
        authorization, self.nonce = self.signer.sign(method, target, body)
        return {"Authorization": authorization, "Content-Type": "application/json"}

    def send(
        self,
        target: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        method: str = "POST",
        source: str = "127.0.0.1",
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """Send a request from address ``source``; sign it unless headers are given."""
        link = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=10.0, source_address=(source, 0)
        )
        try:
            headers = self.signed(target, body, method) if headers is None else headers
            link.request(method, target, body, dict(headers))
            response = link.getresponse()
            return response.status, response.read(), dict(response.getheaders())
        finally:
            link.close()

    def envelope(self, kind: str, body: Any, /, **changes: Any) -> bytes:
        fields = {
            "v": 2,
            "run": self.run,
            "epoch": self.epoch,
            "worker": "peer",
            "inc": self.inc,
            "type": kind,
            "body": body,
            **changes,
        }
        return json.dumps(fields).encode()

    def call(self, kind: str, body: Any, /, **changes: Any) -> tuple[int, Any]:
        """Send a valid request, check the answer's MAC, and return status and answer."""
        status, answer, headers = self.send(f"/v1/{kind}", self.envelope(kind, body, **changes))
        assert self.signer.is_answer(headers[MAC_HEADER], self.nonce, status, answer)
        return status, json.loads(answer)

    def join(self) -> int:
        body = {"role": "collector", "resource": {}, "idem": os.urandom(8).hex()}
        status, answer = self.call("join", body)
        if status == 409:
            self.run, self.epoch = answer["run"], answer["epoch"]
            status, answer = self.call("join", body)
        assert status == 200, answer
        self.inc = answer["inc"]
        return self.inc


AN_ANSWER = [1, {"task_id": "t1", "completed": True, "result": {}}]


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[FlaskFSTransport]:
    made = FlaskFSTransport({"threads": 8}, tmp_path / "run")
    yield made
    made.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileDataStore]:
    made = FileDataStore(tmp_path / "run")
    yield made
    made.close()


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[FilePolicyStore]:
    made = FilePolicyStore(tmp_path / "run")
    yield made
    made.close()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[FilePolicyStore]:
    made = FilePolicyStore(tmp_path / "run")
    yield made
    made.close()


class Served:
    """A master end that listens, with its listener, and peers for it."""

    def __init__(self, transport: FlaskFSTransport, clock: Any = None) -> None:
        self.transport = transport
        self.listener = listener()
        self.end = transport.master_end()
        self.address = self.end.open(self.listener)
        self.port = parse_address(self.address)[1]

    def peer(self, secret: str = SECRET, **kwargs: Any) -> Peer:
        return Peer(self.port, secret, **kwargs)

    def slave(self, worker_id: str = "w0", **kwargs: Any) -> Any:
        end = self.transport.slave_end(kwargs.pop("address", self.address))
        end.join(WorkerInfo(worker_id, "collector", {"cpu": 1}), 5.0)
        return end


@pytest.fixture
def served(transport: FlaskFSTransport, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("DINGSDK_SECRET", SECRET)
    made = Served(transport)
    yield made
    # Peers do not sign off, and close() waits for workers that have joined.
    for worker_id in {name for kind, name, _ in made.listener.events if kind == "joined"}:
        made.end.abandon_worker(worker_id)


def as_nobody(script: str) -> str:
    """Run a script as an unprivileged user with its own folder ``HOME``; return its output.

    The script can use ``FlaskFSTransport``. The test is skipped unless it runs as root.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    prelude = (
        "import os, sys, pathlib, encodings.idna\n"  # later that user may not be able to read it
        "from dingsdk_flask_fs.transport import FlaskFSTransport\n"
        "import dingsdk.worker.comm.files.data_store, dingsdk.worker.comm.files.policy_store\n"
        f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        "HOME = pathlib.Path(sys.argv[1])\n"
    )
    # pytest's own folder is readable for its user only.
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, NOBODY, NOBODY)
        done = subprocess.run(
            [sys.executable, "-c", prelude + textwrap.dedent(script), home],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    return done.stdout + done.stderr
