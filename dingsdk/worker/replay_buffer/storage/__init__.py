"""Storages: what keeps a buffer's rows."""

from dingsdk.worker.replay_buffer.storage.contract import Rows, Storage, Where, suits_arrays

__all__ = ["Rows", "Storage", "Where", "suits_arrays"]
