"""Kill the node of a writer of payloads, and write the names of those that can be read then."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from typing import Any

os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}

import numpy as np
import ray
from dingsdk_ray.hub import INLINE_BYTES
from dingsdk_ray.transport import RayTransport
from ray.cluster_utils import Cluster

from dingsdk import SampleBatch

PATIENCE_S = 60.0
ROWS = {"small": 8, "large": INLINE_BYTES}
STORE_BYTES = 80 << 20


def payload(rows: int) -> SampleBatch:
    return SampleBatch({"obs": np.arange(rows, dtype=np.float32)})


@ray.remote(resources={"doomed": 1})
class Writer:
    """A collector on the node that is to be lost."""

    def put(self, section: dict[str, Any], run_dir: Path) -> None:
        store = RayTransport(section, run_dir).data_store()
        for name, rows in ROWS.items():
            store.put(name, payload(rows))


def main(run_dir: Path) -> None:
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "object_store_memory": STORE_BYTES},
    )
    try:
        section = {"address": cluster.address, "request_timeout_s": 30.0}
        transport = RayTransport(section, run_dir)
        store = transport.data_store()
        assert len(store) == 0  # the hub is here
        doomed = cluster.add_node(
            num_cpus=1, resources={"doomed": 1}, object_store_memory=STORE_BYTES
        )
        writer = Writer.remote()
        ray.get(writer.put.remote(section, run_dir), timeout=PATIENCE_S)
        cluster.remove_node(doomed, allow_graceful=False)
        found = [
            name for name, rows in ROWS.items() if store.get(name, timeout_s=10.0) == payload(rows)
        ]
        (run_dir / "found").write_text(" ".join(found))
        transport.close()
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
