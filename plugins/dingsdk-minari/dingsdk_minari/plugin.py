"""Registers the data sets under the type key ``minari``."""

from __future__ import annotations

from dingsdk.plugins import Registry, hookimpl
from dingsdk_minari.datasets import MinariDatasets


@hookimpl
def dingsdk_register_datasets(registry: Registry) -> None:
    """Register the data sets."""
    registry.register("minari", MinariDatasets)
