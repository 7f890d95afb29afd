"""What a master's answer says: its content, or the error that it reports."""

from __future__ import annotations

from typing import Any

from dingsdk.data import check_id, decode_message
from dingsdk.errors import ClosedError, ProtocolError, StaleEpochError
from dingsdk_flask_fs.connection import LinkError, Reply
from dingsdk_flask_fs.messages import Request, whole


def open_reply(reply: Reply, request: Request, max_bytes: int) -> dict[str, Any]:
    """Return the content of the answer to a request.

    Raises:
        StaleEpochError, ClosedError: the master says that the sender, or the run, is over.
        LinkError: the master could not serve it; the same request may be sent again.
        ProtocolError: it was refused, or the answer is malformed.
    """
    content = decode_message(reply.body, max_bytes)
    if not isinstance(content, dict):
        raise ProtocolError("an answer is an object", where="$")
    if reply.status == 200:
        return content
    message = str(content.get("message", ""))[:1000]
    if reply.status == 409:
        raise StaleEpochError(
            message,
            worker_id=request.worker,
            run=check_id(content.get("run")),
            epoch=whole(content, "epoch"),
            replaced=content.get("replaced") is True,
        )
    if reply.status == 410:
        raise ClosedError(message, what="master")
    if reply.status >= 500:
        raise LinkError(f"the master failed to serve a {request.type} request: {message}")
    raise ProtocolError(
        f"the master refused a {request.type} request ({reply.status}): {message}",
        where=request.type,
        status=reply.status,
        request_id=content.get("request_id"),
    )
