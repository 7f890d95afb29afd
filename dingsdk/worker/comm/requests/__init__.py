"""Messages as requests that workers send and a master answers, over any kind of connection.

A transport adds the connection (a ``Link``) and the server that accepts it; ``RequestSlaveEnd``,
``RequestMasterEnd`` and ``RequestHandler`` do the rest: numbering, repeats, incarnations, epochs.
The secret that both sides prove to know is in here as well.
"""

from dingsdk.data.secret import (
    FILE_NAME,
    FILE_VARIABLE,
    VARIABLE,
    Secret,
    create_secret,
    find_secret,
    named_secret,
)
from dingsdk.worker.comm.requests.epoch import EPOCH_FILE, begin_epoch
from dingsdk.worker.comm.requests.handler import RequestHandler
from dingsdk.worker.comm.requests.link import (
    Answer,
    ForeignAnswerError,
    Link,
    LinkError,
    answer_of,
    error_answer,
)
from dingsdk.worker.comm.requests.master_end import AbandoningMasterEnd, RequestMasterEnd, Server
from dingsdk.worker.comm.requests.messages import BODIES, OVERHEAD_BYTES, Request, decode_request
from dingsdk.worker.comm.requests.slave_end import RequestSlaveEnd
from dingsdk.worker.comm.requests.transport import RequestTransport

__all__ = [
    "BODIES",
    "EPOCH_FILE",
    "FILE_NAME",
    "FILE_VARIABLE",
    "OVERHEAD_BYTES",
    "VARIABLE",
    "AbandoningMasterEnd",
    "Answer",
    "ForeignAnswerError",
    "Link",
    "LinkError",
    "Request",
    "RequestHandler",
    "RequestMasterEnd",
    "RequestSlaveEnd",
    "RequestTransport",
    "Secret",
    "Server",
    "answer_of",
    "begin_epoch",
    "create_secret",
    "decode_request",
    "error_answer",
    "find_secret",
    "named_secret",
]
