"""Runs: train the policy of a config, and write a run folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dingsdk.lazy import lazy_names

if TYPE_CHECKING:
    from dingsdk.pipeline.status_file import read_record as read_record
    from dingsdk.pipeline.worker_process import WorkerSpec as WorkerSpec
    from dingsdk.pipeline.worker_process import work as work
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__)
