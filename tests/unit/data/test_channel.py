"""Channels between processes of one host."""

from __future__ import annotations

import fcntl
import socket
from contextlib import closing

from dingsdk.data.channel import Channel


def test_message_is_noticed_in_a_process_with_more_than_1024_open_files() -> None:
    low, peer = socket.socketpair()
    with peer, low:
        high = socket.socket(fileno=fcntl.fcntl(low.fileno(), fcntl.F_DUPFD, 1030))
        with closing(Channel.within_host(high, 1 << 10)) as channel:
            assert not channel.has_message(0.0)
            peer.sendall(b"x")
            assert channel.has_message(5.0)
