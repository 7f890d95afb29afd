"""Checks a release before it is published: ``python -m tools.release_check``, with network.

It builds wheels and sdists of all distributions, lets pip resolve their dependencies to wheels for
each version of Python, and trains a short run with the wheels on each interpreter that it finds. It
prints what was not checked, and exits with 1 if something failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).parents[1]
PROJECTS = (ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml")))
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""Has torch without CUDA (gigabytes); PyPI has such wheels only for Linux on ARM and macOS."""
SMOKE = (
    ["--version"],
    ["plugins", "--check"],
    ["config", "schema"],
    ["train", "cartpole-dqn", "--set", "system.max_env_steps=300", "-q"],
    ["train", "cartpole-dqn", "--set", "system.max_env_steps=300", "-q", "--mode", "parallel",
     "--transport", "in_memory", "--set", "exp_name=in-memory"],
    ["train", "cartpole-dqn", "--set", "system.max_env_steps=300", "-q", "--mode", "parallel",
     "--transport", "flask_fs", "--set", "exp_name=flask-fs"],
    ["train", "cartpole-dqn", "--set", "system.max_env_steps=300", "-q", "--mode", "parallel",
     "--transport", "shared_memory", "--set", "exp_name=shared-memory"],
    ["eval", "runs/cartpole-dqn", "--episodes", "1"],
)  # fmt: skip
IS_FROM = "import dingsdk, dingsdk_in_memory, dingsdk_flask_fs; print(dingsdk.__file__)"


class CheckFailedError(Exception):
    """A step failed; the text is the output of the command."""


def run(command: Sequence[str | Path], *, cwd: Path = ROOT, timeout_s: float = 900) -> str:
    """Run a command, return its output; raise CheckFailedError if it fails or takes too long."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired as error:
        raise CheckFailedError(
            f"{' '.join(map(str, command))}: no end after {timeout_s} s"
        ) from error
    if done.returncode != 0:
        raise CheckFailedError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(into: Path, projects: Sequence[Path] = PROJECTS) -> list[Path]:
    """Build each distribution as a wheel and an sdist, without network; return the wheels."""
    for project in projects:
        run([sys.executable, "-m", "hatchling", "build", "-d", into], cwd=project)
    return sorted(into.glob("*.whl"))


def reachable(index: str) -> list[str]:
    """Return the pip options for an index, or no option if the index does not answer."""
    try:
        with urlopen(f"{index}/torch/", timeout=10):
            return ["--extra-index-url", index]
    except OSError as error:
        print(f"without {index}: {error}")  # noqa: T201
        return []


def resolve(version: str, index: Sequence[str]) -> list[str]:
    """Return the names of the wheels that pip would install on a version of Python.

    pip evaluates markers, such as ``python_version < "3.14"``, for the Python that runs it.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        run([
            sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed",
            "--only-binary=:all:", "--python-version", version, "--target", folder,
            *index, "-c", ROOT / "constraints.txt",
            "--report", report, *map(str, _wheels()),
        ])  # fmt: skip
        found = json.loads(report.read_text(encoding="utf-8"))
    return [each["metadata"]["name"] for each in found["install"]]


def _wheels() -> list[Path]:
    return sorted((ROOT / "dist").glob("*.whl"))


def smoke(python: Path, folder: Path) -> None:
    """Train, evaluate and list plugins with the wheels installed for an interpreter."""
    found = run([python, "-c", IS_FROM], cwd=folder).strip()
    if not Path(found).is_relative_to(python.parents[1]):
        raise CheckFailedError(f"{found} is not what was installed in {python.parents[1]}")
    for arguments in SMOKE:
        run([python, "-m", "dingsdk", *arguments], cwd=folder, timeout_s=180)


def new_environment(folder: Path, wheels: Sequence[Path]) -> Path:
    """Install wheels, without network, in a new environment that can import this one's packages.

    Returns:
        The interpreter of the environment.
    """
    run([sys.executable, "-m", "venv", "--without-pip", folder])
    python = folder / "bin" / "python"
    (site,) = (folder / "lib").glob("python*/site-packages")
    here = next(path for path in sys.path if path.endswith("site-packages"))
    # Editable packages of this environment are not visible, because its .pth files are not read.
    (site / "packages-of-the-project.pth").write_text(f"{here}\n", encoding="utf-8")
    run([
        sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index",
        "--no-build-isolation", "--no-deps", "--ignore-installed", *wheels,
    ])  # fmt: skip
    return python


def smoke_with_dependencies(interpreter: str, index: Sequence[str], folder: Path) -> None:
    """Run the smoke test with the wheels and their dependencies on another interpreter."""
    run([interpreter, "-m", "venv", folder / "venv"])
    python = folder / "venv" / "bin" / "python"
    run([
        python, "-m", "pip", "install", "--quiet", *index, "-c", ROOT / "constraints.txt",
        *_wheels(),
    ])  # fmt: skip
    smoke(python, folder)


def interpreter_of(version: str) -> str | None:
    """Return the path of an interpreter on PATH or in pyenv, or None."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [*pyenv.glob(f"{version}.*/bin/python")]
    return shutil.which(f"python{version}") or (str(found[0]) if found else None)


def check(version: str, index: Sequence[str], *, with_cuda: bool) -> str:
    """Check a version of Python and return a summary; raise CheckFailedError on a failure."""
    packages = resolve(version, index)
    cuda = [name for name in packages if name.startswith(("nvidia-", "cuda-"))]
    resolved = f"{len(packages)} packages resolve to wheels"
    with tempfile.TemporaryDirectory() as folder:
        if version == "{}.{}".format(*sys.version_info):
            smoke(new_environment(Path(folder) / "venv", _wheels()), Path(folder))
            return f"{resolved}; smoke test passed"
        interpreter = interpreter_of(version)
        if interpreter is None:
            return f"{resolved}; NOT RUN: no interpreter found"
        if cuda and not with_cuda:
            return f"{resolved}; NOT RUN: {len(cuda)} are of CUDA, gigabytes (--cuda installs them)"
        smoke_with_dependencies(interpreter, index, Path(folder))
        return f"{resolved}; smoke test passed"


def main() -> int:
    """Build, then check each version of Python; print one line per version."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pythons", nargs="+", default=PYTHONS)
    parser.add_argument("--torch-index", default=TORCH_INDEX)
    parser.add_argument("--cuda", action="store_true", help="install CUDA where torch needs it")
    options = parser.parse_args()
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    build(ROOT / "dist")
    print("\n".join(path.name for path in sorted((ROOT / "dist").iterdir())))  # noqa: T201
    index = reachable(options.torch_index)
    has_failed = False
    for version in options.pythons:
        try:
            text = check(version, index, with_cuda=options.cuda)
        except CheckFailedError as error:
            text, has_failed = f"FAILED: {error}", True
        print(f"Python {version}: {text}", flush=True)  # noqa: T201
    return int(has_failed)


if __name__ == "__main__":
    raise SystemExit(main())
