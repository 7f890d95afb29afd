"""Storages: where a buffer keeps its rows."""

from dingsdk.worker.replay_buffer.storage.contract import Rows, Storage, suits_arrays

__all__ = ["Rows", "Storage", "suits_arrays"]
