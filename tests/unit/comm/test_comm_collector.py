"""What a comm collector tells its collector of policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dingsdk.config import to_easydict
from dingsdk.pipeline.worker import make_transport
from dingsdk.worker.comm.collector import BaseCommCollector


def test_each_policy_has_versions_of_its_own(tmp_path: Path) -> None:
    cfg = to_easydict({"system": {"transport": {"type": "in_memory"}}})
    transport = make_transport(cfg, tmp_path)
    worker: Any = BaseCommCollector({}, transport, "collector-0")
    worker._task_info = {"collector_cfg": {"eval_flag": False}}
    store = transport.policy_store()
    store.publish("trained", {"w": torch.zeros(1)}, 7)
    store.publish("past", {"w": torch.ones(1)}, 3)

    assert worker.get_policy_update_info("trained")["iter"] == 7
    assert worker.get_policy_update_info("past")["iter"] == 3
    assert worker.get_policy_update_info("trained") is None
    assert worker.get_policy_update_info("past") is None
    store.publish("trained", {"w": torch.zeros(1)}, 8)
    assert worker.get_policy_update_info("trained")["iter"] == 8
    assert worker.get_policy_update_info("past") is None
    transport.close()
