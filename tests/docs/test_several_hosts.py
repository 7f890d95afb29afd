"""The examples for several hosts use existing commands and options that match each other."""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
import yaml

from dingsdk.cli.root import root
from dingsdk.pipeline.train import compile_run

DOCS = Path(__file__).parents[2] / "docs"
MANIFESTS = sorted((DOCS / "examples" / "kubernetes").glob("*.yaml"))
SCRIPT = DOCS / "examples" / "slurm" / "train.sbatch"
PAGE = DOCS / "how-to" / "run-on-several-hosts.md"


def parse(command: list[str]) -> dict[str, Any]:
    """Return the options of a dingsdk command, parsed by click."""
    program, role, *arguments = command
    assert program == "dingsdk"
    with click.Context(root) as context:
        found = root.get_command(context, role)
    assert found is not None, role
    return found.make_context(role, arguments).params


def config_of(options: dict[str, Any]) -> Any:
    return compile_run(options["config"], "parallel", options["transport"], options["sets"])


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifest_has_valid_commands_and_matching_parts(path: Path) -> None:
    found = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    by_kind: dict[str, list[Any]] = {}
    for each in found:
        by_kind.setdefault(each["kind"], []).append(each)
    (service,), (claim,) = by_kind["Service"], by_kind["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    options: dict[str, dict[str, Any]] = {}
    for job in by_kind["Job"]:
        pod = job["spec"]["template"]["spec"]
        (container,), (volume,) = pod["containers"], pod["volumes"]
        (mount,) = container["volumeMounts"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert mount["name"] == volume["name"]
        assert [each["name"] for each in container["env"]] == ["DINGSDK_SECRET"]
        parsed = parse(container["command"])
        assert parsed["data"].is_relative_to(mount["mountPath"])
        options[container["command"][1]] = parsed
        if container["command"][1] == "coordinator":
            labels = job["spec"]["template"]["metadata"]["labels"]
            assert service["spec"]["selector"].items() <= labels.items()

    assert options.keys() == {"coordinator", "learner", "collector"}
    assert len({each["data"] for each in options.values()}) == 1
    coordinator = options["coordinator"]
    transport = config_of(coordinator).system.transport
    for role in ("learner", "collector"):
        address = urlsplit(options[role]["address"])
        assert address.hostname == service["metadata"]["name"]
        assert address.hostname in transport.allowed_hosts
        assert address.port == coordinator["port"] == service["spec"]["ports"][0]["port"]
        assert config_of(options[role]).policy == config_of(coordinator).policy


def test_commands_of_the_page_are_valid() -> None:
    commands = re.findall(r"^\$ (dingsdk .+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert [command.split()[1] for command in commands] == ["coordinator", "learner", "collector"]
    parsed = [parse(shlex.split(command)) for command in commands]
    assert len({each["data"] for each in parsed}) == 1
    assert all(urlsplit(each["address"]).port == parsed[0]["port"] for each in parsed[1:])


SRUN = """#!/bin/bash
# One task on this host, whatever is asked for.
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""


@pytest.mark.slow
def test_slurm_script_trains(tmp_path: Path) -> None:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    dingsdk = f'#!/bin/sh\nexec {sys.executable} -c "from dingsdk.cli import main; import sys; '
    programs = {"srun": SRUN, "dingsdk": dingsdk + 'sys.exit(main())" "$@"\n'}
    for name, text in programs.items():
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(stat.S_IRWXU)
    done = subprocess.run(
        ["bash", str(SCRIPT), "--config", "cartpole-dqn",
         "--set", "system.max_env_steps=300", "--set", "system.transport.lost_after_s=5"],
        capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False,
        env={**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}",
             "SLURM_JOB_ID": "7", "PORT": str(free_port())},
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "Limit reached" in done.stdout
    assert done.stdout.count("the run is over") == 2
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["slurm-7"]
    assert (tmp_path / "runs" / "slurm-7" / "result.json").is_file()


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
