"""Ports that are taken, reserved, free again at once, and of IPv6."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest
from dingsdk_flask_fs.transport import FlaskFSTransport

from dingsdk.errors import PortInUseError

from .conftest import Listener, Served, open_sockets


def test_port_in_use_is_reported_and_leaves_nothing(served: Served, tmp_path: Path) -> None:
    threads, sockets = set(threading.enumerate()), open_sockets()
    other = FlaskFSTransport({"port": served.port}, tmp_path / "other")
    started = time.monotonic()
    with pytest.raises(PortInUseError) as caught:
        other.master_end().open(Listener())
    assert time.monotonic() - started < 1.0
    assert caught.value.port == served.port
    assert set(threading.enumerate()) == threads
    assert open_sockets() == sockets
    other.close()


def test_ipv6_loopback_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this host has no IPv6")
    transport = FlaskFSTransport({"host": "::1"}, tmp_path)
    served = Served(transport)
    assert served.address == f"http://[::1]:{served.port}"
    served.slave().renew(1)
    assert served.listener.of("renewed") == [("w0", 1)]
    transport.close()


def test_closed_port_can_be_had_again_at_once(served: Served, tmp_path: Path) -> None:
    served.slave().close()
    served.end.close()
    other = FlaskFSTransport({"port": served.port}, tmp_path / "other")
    other.master_end().open(Listener())
    other.close()
