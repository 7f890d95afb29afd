"""Workers as Ray actors: they are started where the cluster has room, watched, and ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dingsdk.errors import ConfigError, ServerLostError
from dingsdk.pipeline import WorkerSpec, work
from dingsdk.worker.comm import WorkerHandle

_log = logging.getLogger(__name__)

KILLED = -9
"""Exit code that is reported for an actor that died; the real one is unknown."""


class RoleActor:
    """One worker, in a process that Ray has started."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._joined = threading.Event()

    def run(self, spec: WorkerSpec) -> dict[str, Any]:
        """Work until the run is over; return exit code and message of a worker process."""
        failure: dict[str, Any] = {}

        def tell(message: dict[str, Any]) -> None:
            if message["event"] == "joined":
                self._joined.set()
            else:
                failure.update(message)

        try:
            return {"code": work(spec, self._stop, tell), **failure}
        finally:
            self._joined.set()

    def wait_joined(self) -> None:
        """Wait until the worker has joined the coordinator or has ended."""
        self._joined.wait()

    def stop(self) -> None:
        """Tell the worker to leave the run."""
        self._stop.set()


class RayWorker(WorkerHandle):
    """A started worker.

    Args:
        actor: A ``RoleActor``.
        spec: Specification of the worker.
    """

    def __init__(self, actor: Any, spec: WorkerSpec) -> None:
        self._actor = actor
        self._run = actor.run.remote(spec)
        self._joined: Any = actor.wait_joined.remote()
        self._end: dict[str, Any] | None = None
        self._has_told = False

    @property
    def exit_code(self) -> int | None:
        self._look(0.0)
        return None if self._end is None else int(self._end["code"])

    def messages(self) -> Iterator[dict[str, Any]]:
        import ray

        self._look(0.0)
        if self._joined is not None and ray.wait([self._joined], timeout=0)[0]:
            self._joined = None
            if self._end is None:
                yield {"event": "joined"}
        if self._end is not None and "event" in self._end and not self._has_told:
            self._has_told = True
            yield self._end

    def send_stop(self) -> None:
        self._actor.stop.remote()

    def kill(self) -> None:
        import ray

        ray.kill(self._actor, no_restart=True)

    def join(self, timeout_s: float) -> None:
        self._look(timeout_s)

    def close(self) -> None:
        self.kill()

    def _look(self, timeout_s: float) -> None:
        import ray

        if self._end is not None or not ray.wait([self._run], timeout=timeout_s)[0]:
            return
        try:
            self._end = ray.get(self._run, timeout=1.0)
        except ray.exceptions.RayError as error:
            text = f"its actor died: {' '.join(str(error).split())[:300]}"
            if isinstance(error, ray.exceptions.OutOfMemoryError):
                text = f"out of memory, so that Ray ended it; {text}"
            self._end = {"code": KILLED, "event": "failed", "text": text}


class Workers:
    """Starts the workers of a run.

    Args:
        demands: Id of each worker, and the resources that it uses.
        placement: Strategy of a placement group for all; empty for none.
        timeout_s: How long the placement group may wait for room.

    Raises:
        ConfigError: there is no room.
    """

    def __init__(
        self, demands: Sequence[tuple[str, Mapping[str, Any]]], placement: str, timeout_s: float
    ) -> None:
        self._options = dict(demands)
        self._group: Any = None
        self._indices = {worker_id: index for index, (worker_id, _) in enumerate(demands)}
        bundles = [_bundle(options) for _, options in demands]
        if placement:
            self._group = _reserve(bundles, placement, timeout_s)
        else:
            _check_room(dict(zip(self._options, bundles, strict=True)))

    def start(self, spec: WorkerSpec) -> RayWorker:
        """Start a worker; if no node has room, it starts as soon as one has.

        Raises:
            ServerLostError: this node has left the cluster, so that Ray starts nothing for it.
        """
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        _check_node()
        options = {key: value for key, value in self._options[spec.worker_id].items() if value}
        options.setdefault("num_cpus", 0)
        if self._group is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=self._indices[spec.worker_id]
            )
        actor = ray.remote(max_restarts=0)(RoleActor).options(max_concurrency=4, **options)
        return RayWorker(actor.remote(), spec)

    def close(self) -> None:
        """Release the placement group, if there is one."""
        if self._group is not None:
            from ray.util import remove_placement_group

            remove_placement_group(self._group)


def _check_node() -> None:
    import ray

    context = ray.get_runtime_context()
    own = context.get_node_id()
    if any(node["NodeID"] == own and not node["Alive"] for node in ray.nodes()):
        raise ServerLostError(
            "Ray on this host has ended (ray stop, or its raylet was killed), and starts no more "
            "workers for this run; start Ray again, then continue with --resume",
            address=str(context.gcs_address),
        )


def _bundle(options: Mapping[str, Any]) -> dict[str, float]:
    found = {"CPU": options["num_cpus"], "GPU": options["num_gpus"], **options["resources"]}
    return {name: amount for name, amount in found.items() if amount}


def _reserve(bundles: Sequence[Mapping[str, float]], placement: str, timeout_s: float) -> Any:
    from ray.util import placement_group, remove_placement_group

    filled = [dict(each) or {"CPU": 0.001} for each in bundles]
    group = placement_group(filled, strategy=placement)
    if not group.wait(timeout_s):
        remove_placement_group(group)
        raise ConfigError(
            f"Ray has no room for the workers within {timeout_s:.0f} s: they take {filled} "
            f"({placement}), and {_free()} is free; see system.transport.resources",
            path="system.transport.placement",
        )
    return group


def _check_room(bundles: Mapping[str, Mapping[str, float]]) -> None:
    """Raise ConfigError unless one worker of each role has room now.

    The others may start later, when nodes join.
    """
    import ray

    free = ray.available_resources()
    for worker_id, bundle in bundles.items():
        if not worker_id.endswith("-0"):
            continue
        for name, amount in bundle.items():
            free[name] = free.get(name, 0.0) - amount
            if free[name] < 0:
                raise ConfigError(
                    f"Ray has no room for {worker_id}, which takes {amount:g} {name} beside the "
                    f"first worker of each role before it: {_free()} is free; lower "
                    f"system.transport.resources.{worker_id.rpartition('-')[0]}",
                    path="system.transport.resources",
                )


def _free() -> str:
    import ray

    free = ray.available_resources()
    return (
        ", ".join(f"{free[name]:g} {name}" for name in ("CPU", "GPU") if name in free) or "nothing"
    )
