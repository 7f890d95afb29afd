"""The config section of the replay server."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from dingsdk.config import Positive, Section


class ReplayServerSection(Section, frozen=True, kw_only=True):
    """How a replay server listens and keeps what it has.

    Attributes:
        host: Address to listen on.
        port: TCP port to listen on; 0 for any free one.
        max_connections: Connections that may be open at once.
        max_message_bytes: Largest message, in bytes: a batch that is inserted or sampled.
        request_timeout_s: Seconds for a message that has begun to arrive, or to be taken.
        save_every_s: Seconds between two checkpoints, while rows are inserted.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    max_connections: Annotated[int, Meta(ge=1, le=4096)] = 256
    max_message_bytes: Annotated[int, Meta(ge=64 << 10, le=1 << 40)] = 256 << 20
    request_timeout_s: Positive = 30.0
    save_every_s: Positive = 60.0
