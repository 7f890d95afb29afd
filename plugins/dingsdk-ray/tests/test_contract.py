"""The rules of all transports, over a local Ray."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dingsdk_ray.transport import RayTransport

from dingsdk.testing import TransportContract

pytestmark = pytest.mark.slow


class TestRayTransport(TransportContract):
    capabilities = RayTransport.contract_capabilities
    patience_s = 30.0

    @pytest.fixture(autouse=True)
    def _transports(self, ray_address: str) -> Iterator[None]:
        self.made: list[RayTransport] = []
        yield
        for transport in self.made:
            transport.close()
            transport.remove_data()

    def make_transport(self, run_dir: Path) -> RayTransport:
        transport = RayTransport(
            {**RayTransport.contract_config, "request_timeout_s": 30.0}, run_dir
        )
        self.made.append(transport)
        return transport
