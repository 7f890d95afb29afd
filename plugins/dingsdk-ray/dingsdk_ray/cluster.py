"""The connection of this process with a Ray cluster, and with the hub of a run there."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import ipaddress
import logging
import os
import secrets
import signal
import threading
from collections.abc import Iterator
from typing import Any

from dingsdk.errors import ClosedError, ConfigError, InsecureBindError, PluginNotInstalledError
from dingsdk_ray.hub import WAITING_CALLS, HubActor

LEAST_VERSION = (2, 54)
HUB_NAME = "hub"
AUTH_MODE, AUTH_TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
LOCAL_CLUSTER = "DINGSDK_RAY_CLUSTER"
"""Where the processes of a run find the Ray that the first of them has started."""
_QUICK_CALLS = 16
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_lock = threading.RLock()
_users = 0
_started: dict[str, str | None] | None = None
"""Where this process started or joined Ray: the environment variables from before."""


class HubGoneError(Exception):
    """A call brought no answer: the hub is not there, does not answer in time, or has died."""


def check_ray() -> None:
    """Raise PluginNotInstalledError unless a Ray that serves is installed."""
    try:
        found = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        found = ""
    least = ".".join(map(str, LEAST_VERSION))
    if found and tuple(map(int, found.split(".")[:2])) >= LEAST_VERSION:
        return
    raise PluginNotInstalledError(
        f"the transport 'ray' needs ray >= {least}, found {found or 'none'}: "
        f"pip install 'ray>={least}'",
        name="ray",
    )


def connect(
    address: str,
    *,
    allow_insecure: bool = False,
    num_cpus: float = 1,
    object_store_bytes: int = 0,
    shows_logs: bool = False,
) -> str:
    """Join a cluster, or start one of this process; return its address. Call ``disconnect`` after.

    A process is in one cluster at a time: where it has joined before, it stays there.

    Args:
        address: ``host:port``, ``auto`` for the cluster of this host, or ``local`` for a new one.
        allow_insecure: Whether a cluster of several hosts may do without tokens.
        num_cpus: Of a new one; a number to count with, whatever the host has.
        object_store_bytes: Of a new one; 0 for Ray's own choice.
        shows_logs: Whether the output of actors is shown here.

    Raises:
        ConfigError: there is no such cluster, or it refuses us.
        InsecureBindError: it does without tokens.
    """
    global _users, _started
    check_ray()
    with _lock:
        environ = {
            name: os.environ.get(name) for name in (*_QUIET, AUTH_MODE, AUTH_TOKEN, LOCAL_CLUSTER)
        }
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        is_new = address == "local" and LOCAL_CLUSTER not in os.environ
        if address == "local" and not is_new:
            address = os.environ[LOCAL_CLUSTER]
        if is_new and _started is None:
            # Ray listens on all addresses of the host, whatever it is told.
            os.environ[AUTH_MODE] = "token"
            os.environ[AUTH_TOKEN] = secrets.token_hex(32)
            _read_tokens_again()
        import ray

        if not ray.is_initialized():
            check_tokens(address, allow_insecure=allow_insecure)
            options: dict[str, Any] = {"address": address}
            if is_new:
                options |= {"num_cpus": num_cpus, "include_dashboard": False}
                if object_store_bytes:
                    options["object_store_memory"] = object_store_bytes
            with _own_handlers():
                try:
                    ray.init(
                        **options,
                        log_to_driver=shows_logs,
                        logging_level=logging.ERROR,
                        namespace="dingsdk",
                    )
                except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                    line = " ".join(str(error).split())[:300]
                    raise ConfigError(
                        f"no Ray cluster at system.transport.address {address!r}: {line}",
                        path="system.transport.address",
                    ) from error
            _started = environ
        _users += 1
        found = str(ray.get_runtime_context().gcs_address)
        if is_new:
            os.environ[LOCAL_CLUSTER] = found
        return found


def disconnect() -> None:
    """Leave the cluster with the last user, or stop it, if ``connect`` has joined or started it."""
    global _users, _started
    with _lock:
        _users -= 1
        if _users > 0 or _started is None:
            return
        import ray

        with _own_handlers():
            ray.shutdown()
        for name, value in _started.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _read_tokens_again()
        _started = None


def _read_tokens_again() -> None:
    """Have Ray look at the environment, which it does once, at its import."""
    raylet: Any = importlib.import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def has_ended(address: str) -> bool:
    """Whether a cluster was one that this process started, and has stopped."""
    import ray

    return address == "local" and not ray.is_initialized() and LOCAL_CLUSTER not in os.environ


def check_tokens(address: str, *, allow_insecure: bool) -> None:
    """Raise InsecureBindError for a cluster that others reach and that does without tokens."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        is_local = address == "local" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    if is_local or allow_insecure or os.environ.get(AUTH_MODE, "").lower() == "token":
        return
    raise InsecureBindError(
        f"system.transport.address is {address!r}, and without token authentication anyone who "
        f"reaches a Ray cluster runs code in it: set {AUTH_MODE}=token on all nodes and here, or "
        "system.transport.allow_insecure_ray=true on a trusted network",
        path="system.transport.address",
        host=address,
    )


@contextlib.contextmanager
def _own_handlers() -> Iterator[None]:
    """Keep this process's handling of signals; Ray sets its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


class HubLink:
    """Calls of one run's hub, from any thread.

    Args:
        namespace: Ray's namespace of the hub.
        run: Id of the run.
        start_timeout_s: How long the hub may take to start.
    """

    def __init__(self, namespace: str, run: str, start_timeout_s: float) -> None:
        self._namespace = namespace
        self._run = run
        self._start_timeout_s = start_timeout_s
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._hub: Any = None
        self._waits: dict[threading.Event, object] = {}
        self._is_closed = False

    def call(
        self,
        method: str,
        *args: Any,
        timeout_s: float,
        waits: bool = False,
        owner: object = None,
    ) -> Any:
        """Return what a method of the hub returns.

        Args:
            method: Its name.
            *args: Its arguments.
            timeout_s: How long to wait for the answer.
            waits: Whether the method waits.
            owner: The object that may cancel the call.

        Raises:
            HubGoneError: no answer; whether the call was done is not known.
            ClosedError: this link closed.
        """
        import ray

        done = threading.Event()
        with self._lock:
            self._check()
            self._waits[done] = owner
        try:
            bound = self._actor().call
            if waits:
                bound = bound.options(concurrency_group="waits")
            result = bound.remote(self._run, method, *args)
            future = result.future()
            future.add_done_callback(lambda _: done.set())
            done.wait(timeout_s)
            if future.done():
                return future.result()
        except ray.exceptions.RayTaskError:
            raise  # a defect of the hub
        except (ray.exceptions.RayError, ValueError) as error:
            if isinstance(error, ray.exceptions.ActorDiedError | ValueError):
                self._hub = None  # another may take its place
            raise HubGoneError(f"{method}: {' '.join(str(error).split())[:200]}") from error
        finally:
            with self._lock:
                del self._waits[done]
        self._check()
        raise HubGoneError(f"the hub did not answer {method} within {timeout_s:.1f} s")

    def read(self, frame: Any, timeout_s: float) -> Any:
        """Return a frame that a call returned, itself or by reference.

        Raises:
            HubGoneError: the object is lost, or does not come in time.
        """
        if isinstance(frame, bytes):
            return frame
        import ray

        try:
            return ray.get(frame, timeout=timeout_s)
        except ray.exceptions.RayError as error:
            raise HubGoneError(f"an object is lost: {' '.join(str(error).split())[:200]}") from None

    def cancel(self, owner: object) -> None:
        """End the calls under way of an owner with HubGoneError."""
        with self._lock:
            for done, found in self._waits.items():
                if found is owner:
                    done.set()

    def remove(self, timeout_s: float, *, is_last: bool) -> None:
        """Remove the run from the hub, and the hub where it has no other.

        Args:
            timeout_s: How long the hub may take to answer.
            is_last: Whether a hub without runs ends.
        """
        import ray

        with contextlib.suppress(ValueError, ray.exceptions.RayError):
            hub = ray.get_actor(HUB_NAME, namespace=self._namespace)
            if ray.get(hub.remove.remote(self._run), timeout=timeout_s) == 0 and is_last:
                ray.kill(hub, no_restart=True)

    def close(self) -> None:
        """End all calls under way with ClosedError."""
        with self._lock:
            self._is_closed = True
            for done in self._waits:
                done.set()

    def _check(self) -> None:
        if self._is_closed:
            raise ClosedError("the transport was closed", what="transport")

    def _actor(self) -> Any:
        import ray

        with self._starting:
            if self._hub is None:
                hub = _find_hub(self._namespace)
                ray.get(hub.__ray_ready__.remote(), timeout=self._start_timeout_s)
                self._hub = hub
            return self._hub


def _find_hub(namespace: str) -> Any:
    """Return the hub of a run; the first process that asks starts it, on its own node."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    groups = {"waits": WAITING_CALLS}
    actor = ray.remote(num_cpus=0, max_restarts=-1, concurrency_groups=groups)(HubActor)
    node_id = ray.get_runtime_context().get_node_id()
    return actor.options(
        name=HUB_NAME,
        namespace=namespace,
        lifetime="detached",
        get_if_exists=True,
        max_concurrency=_QUICK_CALLS,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=True),
    ).remote()
