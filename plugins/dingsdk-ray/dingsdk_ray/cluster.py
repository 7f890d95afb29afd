"""The connection of this process with a Ray cluster."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from dingsdk.errors import ConfigError, InsecureBindError
from dingsdk.runtime import is_loopback

NAMESPACE = "dingsdk"
"""Ray's namespace of the actors of all runs."""
AUTH_MODE, AUTH_TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_GCS_TIMEOUT, _LOCAL_GCS_S = "RAY_gcs_rpc_server_reconnect_timeout_s", "10"
"""How long Ray's processes live after losing their GCS; the GCS of a local Ray is not restarted."""
REACH_S = 10.0
"""How long a cluster may take to answer when it is joined."""
_INIT_ERRORS = (ConnectionError, RuntimeError, ValueError, OSError)
_lock = threading.RLock()
_users = 0
_started: dict[str, str | None] | None = None
"""If this process started or joined Ray, the environment variables from before."""


def connect(
    address: str,
    *,
    allow_insecure: bool = False,
    num_cpus: float = 1,
    object_store_bytes: int = 0,
    shows_logs: bool = False,
) -> str:
    """Join a cluster, or start one; return its address. Call ``disconnect`` afterwards.

    A process is in one cluster at a time: if it has already joined one, it stays in that one.

    Args:
        address: ``host:port``, ``auto`` for the cluster of this host, or ``local`` for a new one.
        allow_insecure: Whether a cluster of several hosts may work without tokens.
        num_cpus: CPUs of a new cluster; Ray only counts with the number, the host may have others.
        object_store_bytes: Object store of a new cluster; 0 for Ray's own choice.
        shows_logs: Whether the output of actors is shown here.

    Raises:
        ConfigError: there is no such cluster, or it refuses the connection.
        InsecureBindError: the cluster works without tokens.
    """
    global _users, _started
    with _lock:
        names = (*_QUIET, AUTH_MODE, AUTH_TOKEN, _GCS_TIMEOUT)
        environ = {name: os.environ.get(name) for name in names}
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        is_new = address == "local"
        if is_new and _started is None:
            # Ray always listens on all addresses of the host.
            os.environ[AUTH_MODE] = "token"
            os.environ[AUTH_TOKEN] = secrets.token_hex(32)
            os.environ.setdefault(_GCS_TIMEOUT, _LOCAL_GCS_S)
            _read_tokens_again()
        import ray

        if not ray.is_initialized():
            with contextlib.ExitStack() as on_failure:
                on_failure.callback(_restore, environ)
                check_tokens(address, allow_insecure=allow_insecure)
                options: dict[str, Any] = {"address": address}
                if is_new:
                    options |= {"num_cpus": num_cpus, "include_dashboard": False}
                    if object_store_bytes:
                        options["object_store_memory"] = object_store_bytes
                with _own_handlers():
                    try:
                        if not is_new:
                            _await_gcs(address)
                        ray.init(
                            **options,
                            log_to_driver=shows_logs,
                            logging_level=logging.ERROR,
                            namespace="dingsdk",
                        )
                    except Exception as error:
                        # Ray raises a plain Exception if its processes do not start in time.
                        if type(error) is not Exception and not isinstance(error, _INIT_ERRORS):
                            raise
                        line = " ".join(str(error).split())[:300]
                        raise ConfigError(
                            f"no Ray cluster at system.transport.address {address!r}: {line}",
                            path="system.transport.address",
                        ) from error
                on_failure.pop_all()
            _started = environ
        _users += 1
        return str(ray.get_runtime_context().gcs_address)


def _await_gcs(address: str) -> None:
    """Wait until a GCS accepts a connection; Ray itself would give up only after minutes.

    Raises:
        OSError, ValueError: none did in time.
    """
    from ray._private.services import canonicalize_bootstrap_address

    host, _, port = str(canonicalize_bootstrap_address(address)).rpartition(":")
    if not port.isdigit():
        raise ValueError(f"{port!r} is no port")
    deadline, pause = time.monotonic() + REACH_S, threading.Event()
    while True:
        limit_s = max(0.1, deadline - time.monotonic())
        try:
            socket.create_connection((host.strip("[]"), int(port)), limit_s).close()
            return
        except OSError as error:
            if time.monotonic() >= deadline:
                raise type(error)(f"{host}:{port} did not answer: {error}") from error
        pause.wait(0.2)


def disconnect() -> None:
    """Undo one ``connect``; the last one leaves or stops the cluster that it joined or started."""
    global _users, _started
    with _lock:
        _users -= 1
        if _users > 0 or _started is None:
            return
        import ray

        with _own_handlers():
            ray.shutdown()
        _restore(_started)
        _started = None


def _restore(environ: Mapping[str, str | None]) -> None:
    for name, value in environ.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _read_tokens_again()


def _read_tokens_again() -> None:
    """Make Ray read the environment variables again; by itself it reads them only at import."""
    raylet: Any = importlib.import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def check_tokens(address: str, *, allow_insecure: bool) -> None:
    """Raise InsecureBindError for a cluster that other hosts reach and that has no tokens."""
    is_local = address == "local" or is_loopback(address.rpartition(":")[0])
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
