"""Ports: in use, reserved, free again after close, and IPv6."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest
from dingsdk_flask_fs.transport import FlaskFSTransport, parse_address

from dingsdk.errors import PortInUseError

from .conftest import SECRET, Served, as_nobody, listener, open_sockets


def test_port_in_use_is_reported_and_leaves_nothing(served: Served, tmp_path: Path) -> None:
    threads, sockets = set(threading.enumerate()), open_sockets()
    other = FlaskFSTransport({"port": served.port}, tmp_path / "other")
    started = time.monotonic()
    with pytest.raises(PortInUseError) as caught:
        other.master_end().open(listener())
    assert time.monotonic() - started < 5.0
    assert caught.value.port == served.port
    assert set(threading.enumerate()) == threads
    assert open_sockets() == sockets
    other.close()


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_ipv6_loopback_serves(host: str, tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this host has no IPv6")
    transport = FlaskFSTransport({"host": host}, tmp_path)
    served = Served(transport)
    assert served.address == f"http://[::1]:{served.port}"
    served.slave().renew(1)
    assert served.listener.of("renewed", "w0") == [1]
    other = FlaskFSTransport({"host": host, "port": served.port}, tmp_path / "other")
    with pytest.raises(
        PortInUseError, match=rf"cannot listen on \[::1\]:{served.port}: it is in use"
    ):
        other.master_end().open(listener())
    other.close()
    transport.close()
    assert parse_address(served.address) == ("::1", served.port)


def test_port_of_another_socket_is_reported(tmp_path: Path) -> None:
    with socket.socket() as theirs:
        theirs.bind(("127.0.0.1", 0))
        port = theirs.getsockname()[1]
        transport = FlaskFSTransport({"port": port}, tmp_path)
        with pytest.raises(PortInUseError, match="it is in use; choose another port, or 0"):
            transport.master_end().open(listener())
        transport.close()


def test_address_of_another_host_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DINGSDK_SECRET", SECRET)
    transport = FlaskFSTransport({"host": "192.0.2.1"}, tmp_path)  # reserved for documentation
    with pytest.raises(PortInUseError, match="not one of this machine's addresses"):
        transport.master_end().open(listener())
    transport.close()


def test_reserved_port_is_reported() -> None:
    limit = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
    if limit < 2:
        pytest.skip("this host reserves no ports")
    done = as_nobody(
        f"""
        from dingsdk.errors import PortInUseError
        transport = FlaskFSTransport({{"port": {limit - 1}}}, HOME / "run")
        try:
            transport.master_end().open(None)
        except PortInUseError as error:
            print(error)
        """,
    )
    assert "only root may have it; choose a port above 1023" in done, done
