"""Trains whole examples and stores curve and result for the docs: ``python -m tools.curves``."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

IMAGES = Path(__file__).parents[1] / "docs" / "images"
EXAMPLES = (
    "cartpole-dqn",
    "cartpole-ppo",
    "metric-supervised",
    "acrobot-ppo",
    "cartpole-r2d2",
    "tictactoe-selfplay",
    "lunarlander-dqn",
    "pendulum-sac",
)


def train(example: str) -> None:
    """Train an example; copy its curve and its result, with the command, to ``docs/images``."""
    arguments = ["train", example, "--quiet"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "dingsdk", *arguments], cwd=folder, check=True)
        run = Path(folder) / "runs" / example
        shutil.copy(run / "curve.png", IMAGES / f"{example}.png")
        result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    result = {"command": " ".join(["dingsdk", *arguments]), **result}
    text = json.dumps(result, indent=2, ensure_ascii=False)
    (IMAGES / "results" / f"{example}.json").write_text(f"{text}\n", encoding="utf-8")


def main() -> None:
    """Train the named examples, or all examples whose curves the docs show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("examples", nargs="*", default=EXAMPLES)
    for example in parser.parse_args().examples:
        train(example)


if __name__ == "__main__":
    main()
