"""Messages as requests that workers send and a master answers, over any kind of connection.

A transport adds the connection (a ``Link``) and the server that accepts it; ``RequestSlaveEnd``,
``RequestMasterEnd`` and ``RequestHandler`` do the rest: numbering, repeats, incarnations, epochs.
The package also exports the secret that both sides must prove to know, and the messages of sockets.
"""

from typing import TYPE_CHECKING

from dingsdk.lazy import lazy_names

if TYPE_CHECKING:
    from dingsdk.data.channel import Channel as Channel
    from dingsdk.data.channel import Head as Head
    from dingsdk.runtime.secret import FILE_NAME as FILE_NAME
    from dingsdk.runtime.secret import FILE_VARIABLE as FILE_VARIABLE
    from dingsdk.runtime.secret import VARIABLE as VARIABLE
    from dingsdk.runtime.secret import Secret as Secret
    from dingsdk.runtime.secret import create_secret as create_secret
    from dingsdk.runtime.secret import find_secret as find_secret
    from dingsdk.runtime.secret import named_secret as named_secret
    from dingsdk.worker.comm.requests.handler import RequestHandler as RequestHandler
    from dingsdk.worker.comm.requests.link import Answer as Answer
    from dingsdk.worker.comm.requests.link import ForeignAnswerError as ForeignAnswerError
    from dingsdk.worker.comm.requests.link import Link as Link
    from dingsdk.worker.comm.requests.link import LinkError as LinkError
    from dingsdk.worker.comm.requests.link import ReconnectingLink as ReconnectingLink
    from dingsdk.worker.comm.requests.link import answer_of as answer_of
    from dingsdk.worker.comm.requests.link import error_answer as error_answer
    from dingsdk.worker.comm.requests.messages import BODIES as BODIES
    from dingsdk.worker.comm.requests.messages import OVERHEAD_BYTES as OVERHEAD_BYTES
    from dingsdk.worker.comm.requests.messages import Request as Request
    from dingsdk.worker.comm.requests.messages import decode_request as decode_request
    from dingsdk.worker.comm.requests.slave_end import RequestSlaveEnd as RequestSlaveEnd
    from dingsdk.worker.comm.requests.transport import EPOCH_FILE as EPOCH_FILE
    from dingsdk.worker.comm.requests.transport import RequestMasterEnd as RequestMasterEnd
    from dingsdk.worker.comm.requests.transport import RequestTransport as RequestTransport
    from dingsdk.worker.comm.requests.transport import Server as Server
    from dingsdk.worker.comm.requests.transport import begin_epoch as begin_epoch
    from dingsdk.worker.comm.requests.transport import find_run_secret as find_run_secret
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__)
