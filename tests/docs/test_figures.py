"""Each learning curve in the docs comes with the result file of its run, and the text agrees."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dingsdk.pipeline.examples import list_examples

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = {example.name for example in list_examples()}
CURVES = sorted(path.stem for path in IMAGES.glob("*.png") if path.stem in EXAMPLES)


def test_there_are_curves() -> None:
    assert len(CURVES) >= 8


@pytest.mark.parametrize("name", CURVES)
def test_result_file_has_the_command_and_the_outcome(name: str) -> None:
    result = json.loads((IMAGES / "results" / f"{name}.json").read_text(encoding="utf-8"))

    assert result["command"] == f"dingsdk train {name} --quiet"
    assert result["reached"] is True
    assert result["evaluations"][-1]["mean"] == result["last_return"]
    assert result["versions"]["dingsdk"]


@pytest.mark.parametrize("name", CURVES)
def test_pages_link_the_result_of_a_curve_and_state_its_env_steps(name: str) -> None:
    result = json.loads((IMAGES / "results" / f"{name}.json").read_text(encoding="utf-8"))
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    shown = [text for text in texts if f"images/{name}.png" in text]
    told = [
        int(steps.replace(",", ""))
        for text in shown
        for steps in re.findall(rf"([\d,]+) (?:env steps|digits)\s+\(\[result\]\S+{name}", text)
    ]

    assert shown
    assert all(f"images/results/{name}.json" in text for text in shown)
    assert set(told) == {result["env_steps"]}
