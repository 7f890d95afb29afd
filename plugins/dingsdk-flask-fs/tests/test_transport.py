"""Addresses and messages that the transport rejects, and a missing master."""

from __future__ import annotations

import pytest
from dingsdk_flask_fs.transport import FlaskFSTransport

from dingsdk.errors import ConfigError


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
