"""``dingsdk examples`` lists every shipped example and its missing requirements."""

from __future__ import annotations

import json
import sys

import pytest

import dingsdk
from dingsdk.cli import main
from dingsdk.config import EXAMPLES_DIR

NAMES = sorted(path.stem for path in EXAMPLES_DIR.glob("*.yaml"))


def test_every_example_is_listed_with_a_description(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["examples"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == NAMES
    assert "cartpole-dqn" in NAMES
    assert all(len(line.split()) > 5 for line in lines)
    at = 2 + max(map(len, NAMES))
    assert [line[: at - 2].rstrip() for line in lines] == NAMES  # two columns
    assert {line[at - 2 : at] for line in lines} == {"  "}
    assert not any(line[at].isspace() for line in lines)


def test_python_and_json_return_the_same_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["examples", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    found = dingsdk.list_examples()
    assert [row["name"] for row in rows] == [each.name for each in found] == NAMES
    (cartpole,) = (each for each in found if each.name == "cartpole-dqn")
    assert (cartpole.env_id, cartpole.policy) == ("CartPole-v1", "dqn")
    assert (cartpole.extra, cartpole.is_installed, cartpole.install) == ("", True, "")


@pytest.mark.parametrize("module", ["Box2D", "ale_py", "pettingzoo"])
def test_missing_extra_is_shown_with_its_install_command(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    needing = [each for each in dingsdk.list_examples() if not each.is_installed]
    main(["examples"])
    out = capsys.readouterr().out
    assert needing
    for each in needing:
        assert each.install.startswith("pip install")
        assert f"Extra {each.extra} (not installed: {each.install})." in out
