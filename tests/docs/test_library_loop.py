"""The example training loop in the docs: the page shows it, it is short and uses no pipeline."""

from __future__ import annotations

import ast
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "examples" / "library_loop.py"
PAGE = ROOT / "docs" / "how-to" / "use-as-a-library.md"


def test_page_shows_the_script() -> None:
    assert f"```python file=library_loop.py\n{SCRIPT.read_text()}```" in PAGE.read_text()


def test_loop_has_fewer_than_30_lines_and_uses_no_pipeline() -> None:
    source = SCRIPT.read_text()
    (main,) = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    assert main.end_lineno is not None
    assert main.end_lineno - main.lineno + 1 < 30
    assert "pipeline" not in source.partition('"""\n\n')[2]


def test_loop_collects_trains_and_evaluates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main = runpy.run_path(str(SCRIPT))["main"]

    assert main(max_env_steps=2000, stop_value=1000) is False
    assert main(stop_value=1) is True
    assert (tmp_path / "default_experiment" / "ckpt" / "ckpt_best.safetensors").is_file()


@pytest.mark.slow
def test_a_type_checker_accepts_the_script(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), SCRIPT]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.slow
def test_script_solves_cartpole(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, SCRIPT], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (ran.stdout, ran.stderr) == ("solved\n", "")
