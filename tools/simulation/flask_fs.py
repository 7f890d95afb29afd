"""The transport's protocol in a simulation: its two ends, over simulated connections.

HTTP, signatures and files are left out; simulations have their own stores.
"""

from __future__ import annotations

from contextlib import ExitStack

from dingsdk.errors import DingError
from dingsdk.worker.comm import MasterEnd, MasterListener, SlaveEnd
from dingsdk.worker.comm.requests import (
    Answer,
    LinkError,
    RequestHandler,
    RequestMasterEnd,
    RequestSlaveEnd,
    answer_of,
    decode_request,
)
from tools.simulation import (
    NoAnswerError,
    SimulatedDisk,
    SimulatedLink,
    SimulatedProcess,
    SimulatedTransport,
)

MAX_BYTES = 4 << 20
"""Largest message in a simulation."""
_RUN, _EPOCH = "simulated", "epoch"
_KEY = "of the simulation"


class SimulatedFlaskFS(SimulatedTransport):
    """One process's part of a simulated run.

    Args:
        process: The process.
        disk: The storage that all processes share.
    """

    def __init__(self, process: SimulatedProcess, disk: SimulatedDisk) -> None:
        super().__init__(process, disk)
        self._lost_after_s = 5.0

    def master_end(self) -> MasterEnd:
        return _MasterEnd(self.listen)

    def listen(
        self, listener: MasterListener, lease_s: float | None, until_close: ExitStack
    ) -> tuple[RequestHandler, None, str]:
        """Begin to serve, as ``RequestTransport.listen``."""
        epoch = int(self.disk.files.get(_EPOCH, b"0")) + 1
        self.disk.files[_EPOCH] = str(epoch).encode()
        handler = RequestHandler(
            listener,
            _RUN,
            epoch,
            max_bytes=MAX_BYTES,
            max_polls=96,
            lease_s=lease_s,
            scheduler=self.process.scheduler,
        )

        def serve(message: tuple[str, bytes]) -> tuple[int, bytes]:
            target, body = message
            try:
                kind = target.rpartition("/")[2]
                return 200, handler.handle(decode_request(body, kind, MAX_BYTES))
            except DingError as error:
                return answer_of(error)

        self.process.listen("coordinator", serve)
        return handler, None, "coordinator"

    def slave_end(self, address: str) -> SlaveEnd:
        return RequestSlaveEnd(
            address,
            lambda: _Link(self.process, address),
            self.process.scheduler,
            lambda run: _KEY,
            max_bytes=MAX_BYTES,
            lost_after_s=self._lost_after_s,
            jitter=self.process.world.random,
        )


class _Link:
    """Replaces ``Connection``."""

    def __init__(self, process: SimulatedProcess, address: str) -> None:
        self._clock = process.scheduler.clock
        self._link = SimulatedLink(process, address)

    def post(self, target: str, body: bytes, key: str, deadline: float) -> Answer:
        try:
            status, content = self._link.request((target, body), deadline - self._clock())
        except NoAnswerError as error:
            raise LinkError(str(error)) from error
        return Answer(status, content)

    def close(self) -> None:
        self._link.close()


class _MasterEnd(RequestMasterEnd):
    def close(self, timeout_s: float = 5.0) -> None:
        if self._handler is not None:
            self._handler.close()  # workers learn it from the answer to their next request
