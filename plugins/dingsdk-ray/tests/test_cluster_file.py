"""The documented cluster file and the documented config section."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from dingsdk.config import to_plain
from dingsdk.pipeline.train import compile_run

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_cluster_file_is_one_of_ray_and_asks_for_tokens() -> None:
    import ray

    content = yaml.safe_load((DOCS / "examples" / "ray" / "cluster.yaml").read_text())
    schema = Path(ray.__file__).parent / "autoscaler" / "ray-schema.json"
    jsonschema.validate(content, json.loads(schema.read_text()))
    starts = [
        command
        for kind in ("head", "worker")
        for command in content[f"{kind}_start_ray_commands"]
        if "ray start" in command
    ]
    assert len(starts) == 2
    (install,) = (each for each in content["setup_commands"] if "pip install" in each)
    # Our packages are not on an index, so all are installed from their folders.
    assert set(install.split()) >= {
        f"~/dingsdk{folder}"
        for folder in ("", "/plugins/dingsdk-shared-memory", "/plugins/dingsdk-ray")
    }
    assert all("RAY_AUTH_MODE=token" in command for command in starts)
    broken = {**content, "worker": 1}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, json.loads(schema.read_text()))


def test_documented_section_is_read() -> None:
    text = (DOCS / "how-to" / "run-on-a-ray-cluster.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.S)
    section = yaml.safe_load(block)["system"]["transport"]
    sets = [f"system.transport.{key}={json.dumps(value)}" for key, value in section.items()]
    compiled = compile_run("cartpole-dqn", "parallel", None, sets)
    assert compiled.system.transport.resources["learner"]["num_gpus"] == 1
    assert yaml.safe_load(yaml.safe_dump(to_plain(compiled.system.transport))) == {
        **to_plain(compiled.system.transport)
    }
    assert compiled.system.transport.placement == "SPREAD"
