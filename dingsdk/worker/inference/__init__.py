"""Inference: one process computes the actions for the envs of many collectors, in batches."""

from typing import TYPE_CHECKING

from dingsdk.lazy import lazy_names

if TYPE_CHECKING:
    from dingsdk.worker.inference.client import InferenceClient as InferenceClient
    from dingsdk.worker.inference.role import InferenceRole as InferenceRole
    from dingsdk.worker.inference.role import InferenceWorker as InferenceWorker
    from dingsdk.worker.inference.server import InferenceServer as InferenceServer
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__)
