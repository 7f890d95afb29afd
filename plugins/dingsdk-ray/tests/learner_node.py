"""Train with a learner on a node of its own, kill the node, and go on with a learner on another.

The argument is the folder in which the run ``run`` is made.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}

from ray.cluster_utils import Cluster

PATIENCE_S = 150.0
STORE_BYTES = 80 << 20
KILL_AT = 100  # train iterations
SETS = (
    "exp_name=run",
    "env.stop_value=1000",  # more than an episode can have
    "system.collector_num=1",
    "system.max_env_steps=15000",
    "policy.learn.learner.hook.save_ckpt_after_iter=50",
    "system.transport.resources={learner: {custom: {learners: 1}}}",
)


def train_iter(run: Path) -> int:
    try:
        return int(json.loads((run / "status.json").read_text())["train_iter"])
    except (OSError, ValueError):
        return 0


def main(folder: Path) -> None:
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": STORE_BYTES}
    )
    node = {"num_cpus": 1, "resources": {"learners": 1}, "object_store_memory": STORE_BYTES}
    doomed = cluster.add_node(**node)
    command = [sys.executable, "-m", "dingsdk", "train", "cartpole-dqn", "--output", str(folder)]
    command += ["--mode", "parallel", "--transport", "ray", "--quiet", "--seed", "0"]
    for each in (*SETS, f"system.transport.address={cluster.address}"):
        command += ["--set", each]
    try:
        with subprocess.Popen(command) as run:
            deadline = time.monotonic() + PATIENCE_S
            while train_iter(folder / "run") < KILL_AT and run.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            cluster.remove_node(doomed, allow_graceful=False)
            cluster.add_node(**node)
            run.wait(PATIENCE_S)
        assert run.returncode == 0
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
