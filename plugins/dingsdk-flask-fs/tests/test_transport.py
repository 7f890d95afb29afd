"""Addresses and messages that the transport rejects, and a missing master."""

from __future__ import annotations

import pytest
from dingsdk_flask_fs.transport import FlaskFSTransport

from dingsdk.errors import ConfigError, ProtocolError
from dingsdk.worker.comm import TaskMessage

from .conftest import Served


@pytest.mark.parametrize(
    "address",
    [
        "memory",
        "https://127.0.0.1:80",
        "http://127.0.0.1",
        "http://user@host:80",
        "http://host:80/path",
        "http://host:99999",
        "",
    ],
)
def test_invalid_address_is_refused(transport: FlaskFSTransport, address: str) -> None:
    with pytest.raises(ConfigError, match="no address"):
        transport.slave_end(address)


def test_sender_refuses_a_task_larger_than_a_message(served: Served) -> None:
    end = served.slave()
    with pytest.raises(ProtocolError, match="max_message_bytes"):
        served.end.send("w0", 1, TaskMessage("t1", {"blob": "a" * (5 << 20)}))
    end.close()
