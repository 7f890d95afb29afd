"""The requests that clients send to a replay server, and its answers.

The frame of a message is empty, or a container with rows, priorities or counts, whose digest is
checked.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from dingsdk.data.channel import Head, Refused

LONGEST_WAIT_S = 10.0
"""Longest time that a request waits at the server; clients that want to wait longer repeat it."""
LARGEST = 2**62 - 1
"""Largest number in a request."""
ROWS_KIND, INFO_KIND = "replay-rows", "replay-info"
"""Kinds of frames."""

_Seconds = Annotated[float, Meta(ge=0, le=LONGEST_WAIT_S)]
_Count = Annotated[int, Meta(ge=0, le=LARGEST)]


class Insert(Head, frozen=True):
    """Add the rows of the frame. ``number`` counts the inserts of a client from 1."""

    number: Annotated[int, Meta(ge=1, lt=2**62)]
    env_step: _Count
    timeout_s: _Seconds


class Sample(Head, frozen=True):
    """Draw rows."""

    size: _Count
    train_iter: _Count
    timeout_s: _Seconds


class Update(Head, frozen=True):
    """Set the priorities in the frame."""


class Ask(Head, frozen=True):
    """Return the counts of the buffer."""


class Save(Head, frozen=True):
    """Write a checkpoint now."""


class Done(Head, frozen=True):
    """The request succeeded; ``is_served`` is False for a sample that was not possible in time."""

    is_served: bool = True


Request = Insert | Sample | Update | Ask | Save
Reply = Done | Refused
