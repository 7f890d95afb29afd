"""Fixtures: one local Ray for all tests of a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from dingsdk_ray import cluster

STORE_BYTES = 200 << 20


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """The address of a Ray that this process has started."""
    address = cluster.connect("local", num_cpus=8, object_store_bytes=STORE_BYTES)
    yield address
    cluster.disconnect()
