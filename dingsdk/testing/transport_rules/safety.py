"""Rules 33 and 35: received data is never executed, dialled or used as a path."""

from __future__ import annotations

import contextlib
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.errors import DingError, ProtocolError
from dingsdk.testing.expect import expect, expect_equal, expect_same, raises
from dingsdk.testing.transport_rules.bench import Bench
from dingsdk.worker.comm import TaskAnswer, WorkerInfo

_UNUSED_MODULE = "tabnanny"
"""A module of the standard library that is not imported elsewhere and has no side effects."""


def rule_33_nothing_received_is_executed(bench: Bench) -> None:
    """Received data is never executed: no pickles, no expressions, no names to import.

    In messages, payloads and policies, data that looks like code arrives unchanged, as text or
    bytes. A transport never connects to an address from a message.
    """
    import torch

    trap = bench.closed_at_exit(socket.create_server(("127.0.0.1", 0)))
    trap.settimeout(0.02)
    marker = bench.folder / "executed"
    host, port = trap.getsockname()
    address = {"host": host, "port": port, "address": f"http://{host}:{port}", "ip": host}
    hostile = {**_hostile(marker), **address, "url": address["address"], "master": address}
    known = _UNUSED_MODULE in sys.modules
    end = bench.slave()
    end.join(WorkerInfo("w0", "collector", hostile), bench.patience_s)
    info = bench.listener.expect("joined", "w0")[0]
    expect_same(dict(info.resource), hostile, "resource")
    bench.send("w0", "t1", hostile=hostile)
    expect_same(bench.receive(end).data["hostile"], hostile, "task")
    end.answer(TaskAnswer("t1", False, hostile, hostile["yaml"], hostile["expression"]))
    answer = bench.listener.expect("answered", "w0")[0]
    expect_same(dict(answer.result), hostile, "result")
    expect_equal(answer.message, hostile["yaml"], "message")
    column = hostile["pickle"].copy()
    bench.far.data_store().put("p", SampleBatch({"c": column}))
    expect_same(bench.near.data_store().get("p").columns["c"], hostile["pickle"], "payload")
    bench.far.policy_store().publish("p", {"c": torch.from_numpy(column.copy())}, 1)
    newest = bench.near.policy_store().newest("p")
    expect(newest is not None, "the policy did not arrive")
    if newest is not None:
        expect_same(newest[1], {"c": torch.from_numpy(hostile["pickle"])}, "policy")
    expect(not marker.exists(), "something that was received was run")
    expect(known == (_UNUSED_MODULE in sys.modules), "a name that was received was imported")
    with raises("accept() of an address out of a message", TimeoutError):
        trap.accept()[0].close()


def rule_35_ids_are_not_paths(bench: Bench) -> None:
    """Payload and policy ids that look like paths are refused, or used like any other ids.

    They never refer to a file outside the transport's own folders.
    """
    outside = bench.folder / "outside"
    outside.mkdir()
    (outside / "there").write_bytes(b"not yours")
    up = "../" * 12 + str(outside / "up").lstrip("/")
    for name in (str(outside / "absolute"), up, "../sibling", str(outside / "there"), "a/b", ".."):
        with contextlib.suppress(ProtocolError):
            bench.far.data_store().put(name, SampleBatch({"c": np.arange(3)}))
        with contextlib.suppress(ProtocolError):
            bench.far.policy_store().publish(name, {"c": np.arange(3)}, 1)
        with contextlib.suppress(DingError):
            bench.near.data_store().get(name, 0.0)
        with contextlib.suppress(ProtocolError):
            bench.near.data_store().delete([name])
        with contextlib.suppress(ProtocolError):
            bench.near.policy_store().discard(name)
    expect_equal(sorted(path.name for path in outside.iterdir()), ["there"], "files outside")
    expect_equal((outside / "there").read_bytes(), b"not yours", "a file outside")
    runs = {path.name for path in bench.folder.iterdir()} - {"outside"}
    expect(all(name.startswith("run") for name in runs), f"new beside the run folder: {runs}")


def _hostile(marker: Path) -> dict[str, Any]:
    """Return plain data that makes a careless receiver create ``marker``."""
    path = str(marker)
    # A pickle, in its oldest protocol, of a call of os.mkdir.
    pickled = f"cos\nmkdir\n(S'{path}'\ntR.".encode("ascii", "replace")
    return {
        "pickle": np.frombuffer(pickled, np.uint8).copy(),
        "pickle_text": pickled.decode("ascii"),
        "expression": f"__import__('os').mkdir({path!r})",
        "yaml": f"!!python/object/apply:os.mkdir [{path!r}]",
        "template": "{{ ''.__class__.__mro__ }} ${jndi:ldap://127.0.0.1/a}",
        "import_names": [_UNUSED_MODULE],
        "type": f"{_UNUSED_MODULE}:check",
        "py/object": f"{_UNUSED_MODULE}.NannyNag",
        "__reduce__": ["os.mkdir", [path]],
        "__class__": "pathlib.Path",
    }
