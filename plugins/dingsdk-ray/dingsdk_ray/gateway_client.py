"""The link and stores of workers on other nodes than the coordinator: calls of the gateway."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from contextlib import suppress
from typing import Any

import numpy as np
from dingsdk_shared_memory.data_store import encode

from dingsdk.data import FrameInfo, SampleBatch, decode_frame, encode_frame
from dingsdk.errors import ClosedError, DingError, StorageFullError, WorkerLostError
from dingsdk.runtime import Buffer, check_id
from dingsdk.worker.comm import PolicyStore
from dingsdk.worker.comm.files import WaitingDataStore
from dingsdk.worker.comm.requests import Answer, Link, LinkError
from dingsdk_ray.cluster import NAMESPACE

POLICY = "policy"
"""Kind of the frames of policies."""
SMALL_BYTES = 64 << 10
"""Frames up to this size are sent as bytes; larger ones as arrays, which Ray shares."""
_RETRY_S = 0.2
"""Pause before a gateway that cannot be reached is called again."""
_WAITING = ("join", "turn")


class GatewayGoneError(Exception):
    """A call got no answer; it is unknown whether the gateway has executed it."""


class GatewayCalls:
    """Calls of one run's gateway, from any thread.

    A gateway that has died is started again, by Ray or the next coordinator. All calls can be
    repeated.

    Args:
        name: Name of the gateway's actor.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._actor: Any = None
        self._closed: Future[None] = Future()  # done once this object is closed

    def call(self, method: str, *args: Any, timeout_s: float, waits: bool = False) -> Any:
        """Call a method of the gateway and return its result; its errors are raised here.

        Args:
            method: Name of the method.
            *args: Arguments of the method.
            timeout_s: How long to wait for the answer.
            waits: Whether the method may block while it waits for something.

        Raises:
            GatewayGoneError: no answer.
            ClosedError: this object was closed.
        """
        import ray

        self._check()
        try:
            if self._actor is None:
                self._actor = ray.get_actor(self._name, namespace=NAMESPACE)
            bound = getattr(self._actor, method)
            if waits:
                bound = bound.options(concurrency_group="waits")
            future = bound.remote(*args).future()
            wait((future, self._closed), timeout_s, FIRST_COMPLETED)
            if future.done():
                return future.result()
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, DingError | LinkError):
                raise error.cause from None
            raise  # a defect of the gateway
        except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError) as error:
            raise StorageFullError(
                "Ray's object store is full on this node; start Ray with more "
                "(--object-store-memory)",
                path="ray",
                reason="object_store",
            ) from error
        except (ray.exceptions.RayError, ValueError) as error:
            if isinstance(error, ray.exceptions.ActorDiedError | ValueError):
                self._actor = None  # another actor may replace it
            line = " ".join(str(error).split())[:200]
            raise GatewayGoneError(f"{method}: {line}") from error
        self._check()
        raise GatewayGoneError(f"the gateway did not answer {method} in time")

    def ask(self, method: str, *args: Any, timeout_s: float) -> Any:
        """As ``call``, but repeat the call until there is an answer.

        Raises:
            WorkerLostError: there was none within ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            try:
                return self.call(method, *args, timeout_s=left_s)
            except GatewayGoneError as error:
                if left_s <= _RETRY_S:
                    raise WorkerLostError(
                        f"the gateway of the run, on the coordinator's node: {error}",
                        worker_id="gateway",
                    ) from error
            wait((self._closed,), _RETRY_S)

    def close(self) -> None:
        """End all calls in progress with ClosedError."""
        with suppress(InvalidStateError):  # closed before
            self._closed.set_result(None)

    def _check(self) -> None:
        if self._closed.done():
            raise ClosedError("the connection with the gateway is closed", what="transport")


class GatewayLink(Link[bool]):
    """A worker's connection. Requests are not signed: Ray's tokens protect the gateway."""

    def __init__(self, name: str) -> None:
        self._calls = GatewayCalls(name)

    def post(self, target: str, body: bytes, key: bool, deadline: float) -> Answer:
        timeout_s = max(0.0, deadline - time.monotonic())
        waits = target.rpartition("/")[2] in _WAITING
        try:
            answer = self._calls.call(
                "request", target, body, timeout_s, timeout_s=timeout_s, waits=waits
            )
        except (GatewayGoneError, ClosedError) as error:
            raise LinkError(str(error)) from error
        return Answer(*answer)

    def close(self) -> None:
        self._calls.close()


class GatewayDataStore(WaitingDataStore):
    """Payloads on the coordinator's node. Safe for use from many threads.

    Calls that write raise WorkerLostError if the gateway does not answer; for others, a gateway
    that does not answer has no payloads.

    Args:
        calls: Calls of the gateway.
        timeout_s: How long the gateway may take to answer, or to be started again.
        max_payload_bytes: Largest payload to write or read.
        algorithm: Algorithm of the digests, as on the coordinator's node.
    """

    pauses_s = (0.01, 0.5)

    def __init__(
        self,
        calls: GatewayCalls,
        timeout_s: float,
        *,
        max_payload_bytes: int = 1 << 62,
        algorithm: str = "head",
    ) -> None:
        super().__init__(max_payload_bytes)
        self._calls = calls
        self._timeout_s = timeout_s
        self._algorithm = algorithm
        self._lock = threading.Lock()
        self._unsent: dict[str, Any] = {}
        """Frames from ``put_soon`` that are not sent yet, by id."""

    def put(self, data_id: str, batch: SampleBatch) -> FrameInfo:
        frame, info = self._encode(data_id, batch)
        self._send({data_id: frame})
        return info

    def put_soon(self, data_id: str, batch: SampleBatch) -> FrameInfo:
        """Store a large payload; keep a small one, as ``flush`` stores many by one call."""
        frame, info = self._encode(data_id, batch)
        if info.size_bytes > SMALL_BYTES:
            self._send({data_id: frame})
        else:
            with self._lock:
                self._unsent[data_id] = frame
        return info

    def flush(self) -> None:
        with self._lock:  # a second caller returns once the payloads of the first one are stored
            unsent, self._unsent = self._unsent, {}
            if not unsent:
                return
            try:
                self._send(unsent)
            except StorageFullError:
                self._unsent = unsent
                raise

    def read(self, data_id: str) -> Buffer | None:
        found = self._look("get", data_id)
        return None if found is None else memoryview(found)

    def is_there(self, data_id: str) -> bool:
        return bool(self._look("has", data_id))

    def delete(self, data_ids: Iterable[str]) -> None:
        names = [check_id(data_id, "data_id") for data_id in data_ids]
        self._calls.ask("delete", names, timeout_s=self._timeout_s)

    def __len__(self) -> int:
        return int(self._calls.ask("count", timeout_s=self._timeout_s))

    def _encode(self, data_id: str, batch: SampleBatch) -> tuple[Any, FrameInfo]:
        check_id(data_id, "data_id")
        buffers, info = encode(batch, self._algorithm, self._max_bytes)
        return joined(buffers, info.size_bytes), info

    def _send(self, frames: Mapping[str, Any]) -> None:
        self._calls.ask("put", frames, timeout_s=self._timeout_s)

    def _look(self, method: str, data_id: str) -> Any:
        check_id(data_id, "data_id")
        try:
            return self._calls.call(method, data_id, timeout_s=self._timeout_s)
        except GatewayGoneError:
            return None


class GatewayPolicyStore(PolicyStore):
    """Policies on the coordinator's node. Safe for use from many threads.

    All calls raise WorkerLostError if the gateway does not answer.

    Args:
        calls: Calls of the gateway.
        timeout_s: How long the gateway may take to answer, or to be started again.
    """

    def __init__(self, calls: GatewayCalls, timeout_s: float) -> None:
        self._calls = calls
        self._timeout_s = timeout_s

    def publish(self, policy_id: str, state: Mapping[str, Any], version: int) -> None:
        check_id(policy_id, "policy_id")
        buffers, info = encode_frame(POLICY, dict(state))
        frame = joined(buffers, info.size_bytes)
        self._calls.ask("publish", policy_id, version, frame, timeout_s=self._timeout_s)

    def newest(
        self, policy_id: str, newer_than: int | None = None
    ) -> tuple[int, dict[str, Any]] | None:
        import ray

        check_id(policy_id, "policy_id")
        found = self._calls.ask("newest", policy_id, newer_than, timeout_s=self._timeout_s)
        if found is None:
            return None
        version, (reference,) = found
        try:
            frame = memoryview(ray.get(reference, timeout=self._timeout_s)).toreadonly()
        except ray.exceptions.RayError:
            return None  # replaced or lost meanwhile; the next call finds it or a newer one
        return version, dict(decode_frame(POLICY, frame, max_bytes=len(frame)))

    def discard(self, policy_id: str) -> None:
        check_id(policy_id, "policy_id")
        self._calls.ask("discard", policy_id, timeout_s=self._timeout_s)


def joined(buffers: Sequence[Buffer], size_bytes: int) -> Any:
    """Return a frame as one object: bytes if it is small, else an array that Ray shares."""
    if size_bytes <= SMALL_BYTES:
        return b"".join(buffers)
    return np.concatenate([np.frombuffer(each, np.uint8) for each in buffers])
