"""Packages written by ``dingsdk new plugin`` work unchanged: their tests, a check, a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from dingsdk.cli import main
from dingsdk.plugins import TEMPLATES, PluginManager, new_plugin, use_manager
from tests.unit.plugins.conftest import write_dist

ROOT = Path(__file__).parents[2]
KIND = "limiter"
"""`make test` tries this kind, the fastest; the tests of the documentation try all of them."""


def run(command: Sequence[str], cwd: Path, path: str = "") -> str:
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_generated_package_passes_its_checks_and_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = new_plugin(KIND, "own-part", tmp_path)
    # With the metadata that pip would write, the package counts as installed.
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    write_dist(package, project["name"], project["entry-points"], project["version"])
    monkeypatch.syspath_prepend(str(package))
    monkeypatch.chdir(tmp_path)
    try:
        with use_manager(PluginManager()):
            assert main(["check", package.name, "--badge", "badge.json"]) == 0
            how = ["--set", "system.max_env_steps=400", "--quiet", "--mode", TEMPLATES[KIND].mode]
            assert main(["train", str(package / "example.yaml"), *how]) == 0
    finally:
        sys.modules.pop("dingsdk_own_part", None)

    assert "failed" not in capsys.readouterr().out
    assert json.loads((tmp_path / "badge.json").read_text())["color"] == "brightgreen"


@pytest.mark.slow
def test_generated_packages_pass_mypy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = [new_plugin(kind, f"own-{kind}", tmp_path) for kind in TEMPLATES]
    modules = [f"dingsdk_{package.name.removeprefix('dingsdk-rl-')}" for package in packages]
    names = [part for module in modules for part in ("-p", module.replace("-", "_"))]
    monkeypatch.setenv("MYPYPATH", ":".join(map(str, packages)))

    # With the settings of the repository, so that mypy uses its cache of dingsdk and torch.
    run([sys.executable, "-m", "mypy", *names], ROOT)
