"""An output of a run that cannot be written: the run continues without it."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import IO

_log = logging.getLogger(__name__)


def discard(stream: IO[str]) -> None:
    """Redirect a stream that cannot be written to, so that no later write or flush fails."""
    with contextlib.suppress(OSError, ValueError):  # not a file, or closed
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, stream.fileno())
        os.close(descriptor)


def give_up(stream: IO[str], error: Exception) -> None:
    """Discard the rest of a run's output, because a write failed; the run continues."""
    discard(stream)
    _log.warning("the output of the run is not shown any more: %s; the run continues", error)
