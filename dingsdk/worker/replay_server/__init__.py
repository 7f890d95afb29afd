"""A replay buffer in its own process, served to any number of clients over a socket.

The server holds the buffer and its rows. :mod:`.served_buffer` is a replay buffer that writes
inserts to a log before they are acknowledged, :mod:`.server` serves it, collectors and learners use
:mod:`.client`, and :mod:`.messages` has the requests between the two. Nothing here imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dingsdk.lazy import lazy_names

if TYPE_CHECKING:
    from dingsdk.worker.replay_server.client import ReplayClient as ReplayClient
    from dingsdk.worker.replay_server.server import ReplayServer as ReplayServer
    from dingsdk.worker.replay_server.server import ReplayServerSection as ReplayServerSection
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__)
