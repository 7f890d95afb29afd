"""Start workers on a node that joins later, and kill the node of a payload writer.

Writes the names of the payloads that can still be read to a file.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
from pathlib import Path
from typing import Any

os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}

import numpy as np
import ray
from dingsdk_ray.gateway_client import SMALL_BYTES
from dingsdk_ray.transport import RayTransport
from dingsdk_ray.workers import Workers
from ray.cluster_utils import Cluster

from dingsdk import SampleBatch
from dingsdk.pipeline import WorkerSpec
from dingsdk.plugins import default_manager
from dingsdk.testing.transport_bench import Recorder
from dingsdk.worker.comm import WorkerInfo

PATIENCE_S = 60.0
ROWS = {"small": 8, "large": SMALL_BYTES}
STORE_BYTES = 80 << 20


def payload(rows: int) -> SampleBatch:
    return SampleBatch({"obs": np.arange(rows, dtype=np.float32)})


@ray.remote(resources={"doomed": 1})
class Writer:
    """A collector on the node that will be killed."""

    def put(self, section: dict[str, Any], run_dir: Path, address: str) -> str:
        transport = RayTransport(section, run_dir)
        transport.slave_end(address).join(WorkerInfo("w0", "collector"), PATIENCE_S)
        store = transport.data_store()
        for name, rows in ROWS.items():
            store.put(name, payload(rows))
        return type(store).__name__


def spec(worker_id: str, run_dir: Path) -> WorkerSpec:
    return WorkerSpec(
        role="none",
        worker_id=worker_id,
        cfg={},
        address="nowhere",
        run_dir=run_dir,
        snapshot=default_manager().snapshot(),
    )


def main(run_dir: Path) -> None:
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "object_store_memory": STORE_BYTES},
    )
    try:
        section = {"address": cluster.address, "lost_after_s": 60.0}
        transport = RayTransport(section, run_dir)
        address = transport.master_end().open(Recorder(threading.Condition(), PATIENCE_S))
        store = transport.data_store()
        options = {"num_cpus": 1, "num_gpus": 0, "resources": {}}
        workers = Workers([(f"none-{n}", options) for n in range(2)], "", PATIENCE_S)
        # Each fails with an unknown role, and holds its resources until it is closed.
        first, second = (workers.start(spec(f"none-{n}", run_dir)) for n in range(2))
        first.join(PATIENCE_S)
        second.join(1.0)
        assert (first.exit_code, second.exit_code) == (1, None)
        doomed = cluster.add_node(
            num_cpus=1, resources={"doomed": 1}, object_store_memory=STORE_BYTES
        )
        second.join(PATIENCE_S)
        assert second.exit_code == 1
        second.close()
        writer = Writer.remote()
        where = ray.get(writer.put.remote(section, run_dir, address), timeout=PATIENCE_S)
        assert where == "GatewayDataStore"
        cluster.remove_node(doomed, allow_graceful=False)
        found = [
            name for name, rows in ROWS.items() if store.get(name, timeout_s=10.0) == payload(rows)
        ]
        (run_dir / "found").write_text(" ".join(found))
        transport.close()
        transport.remove_data()
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
