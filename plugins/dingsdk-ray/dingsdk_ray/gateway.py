"""The gateway of a run: an actor on the coordinator's node, for workers on other nodes.

It passes requests on to the coordinator's socket, and payloads and policies to and from the shared
memory of its node. It has no state of its own: if it ends, only the calls in progress are lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dingsdk_shared_memory.connection import Connection
from dingsdk_shared_memory.data_store import SharedDataStore
from dingsdk_shared_memory.policy_store import SharedPolicyStore
from dingsdk_shared_memory.run_memory import is_held

from dingsdk.data import decode_batch, decode_frame, encode_frame
from dingsdk.worker.comm.files import Version
from dingsdk.worker.comm.requests import Answer, LinkError
from dingsdk_ray.cluster import NAMESPACE
from dingsdk_ray.gateway_client import POLICY, joined

if TYPE_CHECKING:
    from dingsdk_ray.transport import RayTransport

WAITING_CALLS = 128
"""Calls that may wait at the same time; each takes a thread of the gateway."""
QUICK_CALLS = 16
"""Most calls at the same time that do not wait."""
LOOK_S, ORPHANED_LOOKS = 20.0, 3
"""Interval at which a gateway checks that its run is active; after this many failures it ends."""


class Gateway:
    """Serves the workers of one run that are on other nodes. Thread safe.

    Args:
        transport: The class of the run's transport.
        section: ``system.transport``.
        run_dir: The run folder.
    """

    def __init__(
        self, transport: type[RayTransport], section: Mapping[str, Any], run_dir: Path
    ) -> None:
        self._transport = transport({**section, "address": "local"}, run_dir)
        data, policies = self._transport.data_store(), self._transport.policy_store()
        assert isinstance(data, SharedDataStore)  # those of this node
        assert isinstance(policies, SharedPolicyStore)
        self._data, self._policies = data, policies
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._newest: dict[str, tuple[list[Version], int, Any]] = {}
        """For each policy: the latest version seen, the number that was read then, and its frame.

        A damaged latest version is not the one that was read.
        """
        threading.Thread(target=self._watch, name="gateway-watch", daemon=True).start()

    def request(self, target: str, body: bytes, wait_s: float) -> Answer:
        """Return the coordinator's answer to a worker's request.

        Raises:
            LinkError: there was no answer.
        """
        key = self._transport.secret()
        if key is None:
            raise LinkError("no coordinator has opened yet")
        with self._lock:
            connection = self._idle.pop() if self._idle else self._transport.connection()
        answer = connection.post(target, body, key, time.monotonic() + wait_s)
        with self._lock:
            self._idle.append(connection)
        return answer

    def put(self, frames: Mapping[str, Any]) -> None:
        """Store payloads, given as frames by id."""
        for data_id, frame in frames.items():
            self._data.put(data_id, decode_batch(memoryview(frame)))

    def get(self, data_id: str) -> Any:
        """Return the frame of a payload, None if it is not there."""
        frame = self._data.read(data_id)
        return None if frame is None else joined([frame], len(frame))

    def has(self, data_id: str) -> bool:
        """Whether a payload is stored."""
        return self._data.is_there(data_id)

    def delete(self, data_ids: Iterable[str]) -> None:
        """Delete payloads."""
        self._data.delete(data_ids)

    def count(self) -> int:
        """Return the number of payloads."""
        return len(self._data)

    def publish(self, policy_id: str, version: int, frame: Any) -> None:
        """Publish a version of a policy; no effect if a newer one is published."""
        state = decode_frame(POLICY, memoryview(frame), max_bytes=len(frame))
        self._policies.publish(policy_id, state, version)

    def newest(self, policy_id: str, newer_than: int | None) -> tuple[int, list[Any]] | None:
        """Return the newest version and a reference to its frame; None if none is newer.

        The frame is in Ray's object store: each node fetches it once, for all of its workers.
        """
        import ray

        with self._lock, self._policies.opened(policy_id) as place:
            there = self._policies.versions(place)[:1]
            if not there:
                return None
            known, version, reference = self._newest.get(policy_id, ([], 0, None))
            if there != known:
                found = self._policies.newest(policy_id)
                if found is None:  # it was discarded just now
                    return None
                buffers, info = encode_frame(POLICY, found[1])
                version, reference = found[0], ray.put(joined(buffers, info.size_bytes))
                self._newest[policy_id] = there, version, reference
        if newer_than is not None and version <= newer_than:
            return None
        return version, [reference]

    def discard(self, policy_id: str) -> None:
        """Remove a policy."""
        with self._lock:
            self._newest.pop(policy_id, None)
            self._policies.discard(policy_id)

    def _watch(self) -> None:
        """End this actor once no process has held the run's folder for a minute."""
        looks, pause = 0, threading.Event()
        while looks < ORPHANED_LOOKS:
            pause.wait(LOOK_S)
            looks = 0 if is_held(self._transport.run_dir) else looks + 1
        import ray

        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def start_gateway(
    name: str, transport: type[RayTransport], section: Mapping[str, Any], run_dir: Path
) -> Any:
    """Start the gateway of a run on this node, unless it runs already; return its actor.

    The actor is detached: it outlives the coordinator that started it, and the next one uses it.
    It must be killed at the end of the run.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    groups = {"waits": WAITING_CALLS}
    actor = ray.remote(num_cpus=0, max_restarts=-1, concurrency_groups=groups)(Gateway)
    node_id = ray.get_runtime_context().get_node_id()
    return actor.options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_concurrency=QUICK_CALLS,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
    ).remote(transport, dict(section), run_dir)
