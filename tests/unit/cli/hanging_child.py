"""A child process that does not answer."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection


def hang(connection: Connection) -> None:
    time.sleep(600)
