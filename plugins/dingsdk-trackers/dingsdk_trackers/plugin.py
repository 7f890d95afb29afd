"""Registers the learner hooks under the type keys ``wandb`` and ``mlflow``."""

from __future__ import annotations

from dingsdk.plugins import Registry, hookimpl
from dingsdk_trackers.hooks import MlflowHook, WandbHook


@hookimpl
def dingsdk_register_learner_hooks(registry: Registry) -> None:
    """Register the hooks."""
    registry.register("mlflow", MlflowHook)
    registry.register("wandb", WandbHook)
