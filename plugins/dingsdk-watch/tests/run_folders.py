"""Helpers: write run folders like those of a run, and send requests to a server."""

from __future__ import annotations

import http.client
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

from dingsdk_watch.server import Server

STATUS: dict[str, Any] = {
    "format": 1,
    "mode": "parallel",
    "reason": None,
    "env_steps": 1200,
    "train_iter": 300,
    "last_return": 50.5,
    "best_return": 60.0,
    "buffer_fill": 700,
    "buffer_capacity": 1000,
    "workers": 2,
    "elapsed_s": 12.0,
    "held_up_by": "",
    "samples": {
        "collected": 1210,
        "acknowledged": 1200,
        "trained": 4800,
        "live": 700,
        "evicted": {"overwritten": 500},
    },
    "tasks": [
        {
            "task_id": "t7",
            "kind": "collector",
            "worker_id": "c0",
            "progress": 64,
            "per_s": 41.5,
            "is_straggler": True,
            "attempt": 1,
            "waits_for": "room",
        }
    ],
    "policy_lag": {"mean": 1.5, "p99": 2, "largest": 3},
    "connected": [
        {"worker_id": "c0", "role": "collector", "lease_s": 9.5},
        {"worker_id": "l0", "role": "learner", "lease_s": 8.0},
    ],
    "loss": 0.25,
    "exploration": {"eps": 0.1},
    "numbers": {"is_success": 0.8},
    "max_env_steps": 5000,
    "max_train_iter": None,
    "goal": 100.0,
    "env_steps_per_s": 100.0,
    "updates_per_s": 25.0,
    "left_s": 38.0,
    "columns": {"gpu": 0.5, "phase": "warm"},
    "pid": 1,
    "host": "here",
    "evaluations": [
        {
            "elapsed_s": 1.0,
            "env_steps": 100,
            "train_iter": 20,
            "mean": 10.0,
            "min": 8.0,
            "max": 12.0,
        },
        {
            "elapsed_s": 9.0,
            "env_steps": 900,
            "train_iter": 200,
            "mean": 50.5,
            "min": 40.0,
            "max": 61.0,
            "numbers": {"is_success": {"mean": 0.8, "min": 0.0, "max": 1.0}},
        },
    ],
}


def write_run(folder: Path, lines: int = 3, **changes: Any) -> Path:
    """Write the files of a run into a folder, and return the folder."""
    log = folder / "log" / "learner"
    log.mkdir(parents=True)
    (log / "learner_logger.txt").write_text("first line\nlast line\n")
    (folder / "config.yaml").write_text("exp_name: x\n")
    status = {**STATUS, "written_at": time.time(), **changes}
    (folder / "status.json").write_text(json.dumps(status))
    rows = [
        {
            "elapsed_s": float(n),
            "env_steps": 100 * n,
            "loss": 1.0 / (n + 1),
            "exploration": {"eps": 0.5},
        }
        for n in range(lines)
    ]
    (folder / "progress.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> Answer:
    """Send a request, by default with the token of the server as a bearer token."""
    given = {"Authorization": f"Bearer {server.token}", **headers}
    given = {name.replace("_", "-"): value for name, value in given.items() if value}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request(method, path, headers=given)
        answer = connection.getresponse()
        return Answer(answer.status, dict(answer.getheaders()), answer.read().decode())
    finally:
        connection.close()
