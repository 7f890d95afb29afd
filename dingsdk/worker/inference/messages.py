"""What collectors and an inference server say to each other, over a ``Link``."""

from __future__ import annotations

from dingsdk.worker.replay_server.link import Head

FOLDER = "inference"
"""Folder of a run with the secret, and a file ``<server>.address`` a server."""
SUFFIX = ".address"
MAX_BYTES = 256 << 20
"""Of observations or actions in one message."""
GREETING_S = 5.0
KIND = "inference"


class Act(Head, frozen=True):
    """Act on the observations of the frame, for a collector.

    ``is_exact`` asks for just this version of the policy; else any newer one will do.
    """

    policy_id: str
    version: int
    is_exact: bool


class Acted(Head, frozen=True):
    """The frame has the actions, of this version of the policy."""

    version: int


class NotActed(Head, frozen=True):
    """The server has no such policy, or it raised: the collector is to act by itself."""

    text: str
