"""Every command and every piece of code in the documentation is run.

In a fenced block, ``console`` lines that start with ``$ `` are commands, ``python`` is executed
(blocks of one page share their names), and a block with ``file=PATH`` is written to that file for
the blocks after it. ``text`` is output and is not run.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dingsdk.cli import main
from dingsdk.plugins import PluginManager, Switches, use_manager

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("plugins/*/README.md"),
    ]
    if "reference" not in path.parts
)
LANGUAGES = {"console", "python", "text", "yaml", "toml"}
QUICK = {"README.md", "first-run.md"}
"""Pages whose code runs in `make test` too."""
BUDGET = ["-q", "--set", "system.max_env_steps=300"]
PARALLEL_BUDGET = ["-q", "--set", "system.max_env_steps=1500"]
"""These options make a documented training run short. A parallel run needs more env steps: with
fewer it may end before the learner gets its first batch."""
CONTINUED_BUDGET = ["-q", "--set", "system.max_env_steps=3000"]
"""For a run that begins with a checkpoint, whose env steps count too."""


@dataclass(frozen=True)
class Block:
    language: str
    file: str | None
    text: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    start: int | None = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
            continue
        language, _, rest = lines[start].removeprefix("```").partition(" ")
        file = re.search(r"file=(\S+)", rest)
        text = "\n".join(lines[start + 1 : number]) + "\n"
        found.append(Block(language, file[1] if file else None, text, start + 1))
        start = None
    assert start is None, f"{page}: a block is never closed"
    return found


def commands_of(block: Block) -> list[str]:
    return [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]


class Reader:
    """Runs the blocks of one page in a separate folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "documented"}
        self.site = folder / ".site"
        monkeypatch.chdir(folder)
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder / ".minari"))
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.syspath_prepend(str(self.site))

    def follow(self, block: Block) -> None:
        if block.file is not None:
            target = self.folder / block.file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            exec(compile(block.text, f"line {block.line}", "exec"), self.names)
        elif block.language == "console":
            for command in commands_of(block):
                self.run(shlex.split(command))

    def run(self, command: list[str]) -> None:
        program, *arguments = command
        if program == "dingsdk" and (arguments[0] == "watch" or "--watch" in arguments):
            self.run_until_ctrl_c(arguments)
        elif program == "dingsdk":
            extra = []
            if arguments[0] == "train":
                extra = PARALLEL_BUDGET if "parallel" in arguments else BUDGET
                if any("load_ckpt_before_run" in each for each in arguments):
                    extra = CONTINUED_BUDGET
                if any("train_iterations" in each for each in arguments):
                    extra = ["-q"]  # the page limits it
            assert main([*arguments, *extra]) == 0, command
        elif program == "make":
            # Only a dry run: the real one would create an environment and start these tests again.
            subprocess.run(["make", "-n", *arguments], cwd=ROOT, check=True, capture_output=True)
        elif program == "pytest":
            self.run_tests(arguments)
        elif command[:2] == ["pip", "install"]:
            self.install(arguments[1:])
        elif command[:2] == ["python", "-m"]:
            few = ["--seeds", "4"]  # instead of the hundreds in the page
            subprocess.run([sys.executable, *arguments, *few], cwd=ROOT, check=True, timeout=150)
        else:
            pytest.fail(f"the test does not know how to run {command}")

    def run_until_ctrl_c(self, arguments: list[str]) -> None:
        """Start a command that does not end, wait until it is ready, and interrupt it."""
        is_training = arguments[0] == "train"
        process = subprocess.Popen(
            [sys.executable, "-m", "dingsdk", *arguments, *(BUDGET if is_training else [])],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert process.stdout is not None
        with process.stdout:
            sign = "stays until Ctrl-C" if is_training else "live page"
            assert any(sign in line for line in process.stdout), arguments
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0, arguments

    def run_tests(self, arguments: list[str]) -> None:
        options = ["-q", "-W", "error", "-c", os.devnull, "-p", "no:cacheprovider"]
        environment = {**os.environ, "PYTHONPATH": str(self.site)}
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", *options, "--rootdir", ".", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr

    def install(self, sources: list[str]) -> None:
        # Editable installs need no other folder, and the extras are installed already.
        sources = [each.removesuffix("[test]") for each in sources if each != "-e"]
        if not all((self.folder / source).is_dir() for source in sources):
            # A folder of this repository, which is installed already.
            missing = [each for each in sources if not (ROOT / each / "pyproject.toml").is_file()]
            assert not missing, f"neither the page nor the repository has {missing}"
            return
        options = ["--no-deps", "--no-build-isolation", "--quiet", "--target", str(self.site)]
        subprocess.run(
            [sys.executable, "-m", "pip", "install", *options, *sources],
            check=True,
            capture_output=True,
            timeout=120,
        )
        importlib.invalidate_caches()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=str(page.relative_to(ROOT)),
            marks=[] if page.name in QUICK and "plugins" not in page.parts else pytest.mark.slow,
        )
        for page in PAGES
    ],
)
def test_code_and_commands_of_the_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(tmp_path, monkeypatch)

    try:
        with use_manager(PluginManager(Switches())):
            for block in blocks_of(page):
                reader.follow(block)
    finally:
        # Later tests must not see the modules that the page wrote and imported.
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
                del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_have_a_known_language_and_commands(page: Path) -> None:
    for block in blocks_of(page):
        assert block.language in LANGUAGES, f"{page}, line {block.line}"
        if block.language == "console":
            assert commands_of(block), f"{page}, line {block.line}: no line starts with '$ '"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_point_to_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), f"{page}: {target}"
