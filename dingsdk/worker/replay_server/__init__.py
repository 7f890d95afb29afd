"""A replay buffer in a process of its own, served to any number of clients over a socket.

The server owns table, rows and ledger: :mod:`.served_buffer` is a replay buffer whose inserts are
in a log before they are acknowledged, :mod:`.server` serves it, :mod:`.client` is what collectors
and learners call, and :mod:`.link` is what the two say to each other. Nothing here imports torch.
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
