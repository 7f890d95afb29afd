"""Saved rows: folders that a buffer writes and reads."""

from dingsdk.worker.replay_buffer.persistence.loading import (
    KEPT,
    SavedRows,
    cut_episodes,
    load,
)
from dingsdk.worker.replay_buffer.persistence.saving import save

__all__ = ["KEPT", "SavedRows", "cut_episodes", "load", "save"]
