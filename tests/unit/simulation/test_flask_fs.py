"""The transport's protocol in a simulation, without HTTP."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from dingsdk.worker.comm import WorkerInfo
from dingsdk.worker.comm.requests import LinkError
from dingsdk.worker.comm.requests.messages import Request, encode_request
from tools.simulation import NoAnswerError, SimulatedDisk
from tools.simulation.flask_fs import SimulatedFlaskFS, _Link
from tools.simulation.world import SimulatedProcess, World


class Listener:
    """Records which workers joined."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def worker_joined(self, info: WorkerInfo) -> None:
        self.events.append(("joined", info.worker_id))


@pytest.fixture
def process() -> SimulatedProcess:
    return SimulatedProcess(World(1), "coordinator", lambda job, error: None)


def test_each_start_of_a_simulated_master_has_a_new_epoch(process: SimulatedProcess) -> None:
    transport: Any = SimulatedFlaskFS(process, SimulatedDisk(process.world))
    request = Request("simulated", 2, "w0", 0, "join")
    body = b'{"role":"collector","resource":{},"idem":"once"}'
    message = "/v1/join", encode_request(request, body)
    for epoch, expected in ((1, 409), (2, 200), (3, 409)):
        listener = Listener()
        end = transport.master_end()
        end.lease_s = 1.5
        assert end.open(listener) == "coordinator"
        _, serve = process.world.servers["coordinator"]
        status, body = serve(message)
        answer = json.loads(body)
        assert status == expected
        if status == 200:
            assert answer == {"inc": 1, "lease_ms": 1500}
            assert listener.events == [("joined", "w0")]
        else:
            assert answer["epoch"] == epoch
        end.close()
        assert serve(message)[0] == 410


def test_answer_of_a_simulated_master_is_waited_for_until_the_deadline(
    process: SimulatedProcess,
) -> None:
    process.world.now = 100.0
    link: Any = _Link(process, "coordinator")
    asked, closed = list[Any](), list[bool]()

    def request(message: Any, timeout_s: float) -> tuple[int, bytes]:
        asked.append((message, timeout_s))
        if len(asked) > 1:
            raise NoAnswerError("silent")
        return 200, b"{}"

    link._link = SimpleNamespace(request=request, close=lambda: closed.append(True))
    assert link.post("/v1/renew", b"body", "key", 107.5) == (200, b"{}")
    with pytest.raises(LinkError, match="silent"):
        link.post("/v1/renew", b"body", "key", 101.0)
    link.close()
    assert asked == [(("/v1/renew", b"body"), 7.5), (("/v1/renew", b"body"), 1.0)]
    assert closed == [True]
