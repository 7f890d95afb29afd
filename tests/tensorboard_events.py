"""Reads the event files of tensorboard."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event


def events_of(file: Path) -> Iterator[Event]:
    """Yield the events of a file. A record is: length, checksum, event, checksum."""
    raw, at = file.read_bytes(), 0
    while at < len(raw):
        (length,) = struct.unpack_from("<Q", raw, at)
        yield Event.FromString(raw[at + 12 : at + 12 + length])
        at += 12 + length + 4


def read_events(folder: Path) -> Iterator[tuple[str, int, Any]]:
    """Yield (tag, step, value or "histogram") of every summary in a folder."""
    for file in folder.glob("events*"):
        for event in events_of(file):
            for value in event.summary.value:
                found = "histogram" if value.HasField("histo") else value.simple_value
                yield value.tag, event.step, found


def curves_of(run: Path) -> dict[str, list[tuple[int, Any]]]:
    """Return the points (step, value) of all curves of a run by tag."""
    found: dict[str, list[tuple[int, Any]]] = defaultdict(list)
    for folder in sorted((run / "log").glob("**/*_tb_logger")):
        for tag, step, value in read_events(folder):
            found[tag].append((step, value))
    return found
