"""A wrong value anywhere in a config gives one line of error, and no file is written."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dingsdk.cli import main
from dingsdk.config import to_plain
from dingsdk.pipeline.json_schema import config_schema
from dingsdk.pipeline.train import compile_run

WRONG = [
    None, True, False, -1, 0, 7, 2**70, -1.5, 1e308, float("inf"), float("nan"),
    "", "x", "1", "\0", "é" * 300, [], [1, "a", None], [[]],
    {}, {"a": 1}, {"type": "x"}, {"": {}}, {"a": {"b": []}},
]  # fmt: skip
EXAMPLES = ("cartpole-dqn", "cartpole-ppo", "cartpole-r2d2", "pendulum-sac")


@cache
def compiled(example: str) -> tuple[dict[str, Any], Any]:
    """Return a complete config and a validator with its schema."""
    cfg = compile_run(example, "parallel")
    schema = config_schema(cfg)
    return to_plain(cfg), jsonschema.Draft202012Validator(schema)


def paths_of(section: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each value, also of sections."""
    for key, value in section.items():
        yield (*path, key)
        if isinstance(value, Mapping):
            yield from paths_of(value, (*path, key))


def replaced(section: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    head, *rest = path
    return {**section, head: replaced(section[head], tuple(rest), value) if rest else value}


@st.composite
def changes(draw: st.DrawFn) -> tuple[str, tuple[str, ...], Any]:
    example = draw(st.sampled_from(EXAMPLES))
    path = draw(st.sampled_from(sorted(paths_of(compiled(example)[0]))))
    return example, path, draw(st.sampled_from(WRONG))


def check(folder: Path, change: tuple[str, tuple[str, ...], Any]) -> None:
    example, path, value = change
    cfg, validator = compiled(example)
    changed = replaced(cfg, path, value)
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(changed, allow_unicode=True), encoding="utf-8")
    told = io.StringIO()

    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
        code = main(["config", "validate", "--mode", "parallel", str(file)])

    where = f"{'.'.join(path)} = {value!r}: {told.getvalue()}"
    assert code in (0, 2), where
    # An empty section in YAML is null, which means the defaults.
    if value is not None and not validator.is_valid(changed):
        assert code == 2, where
    if code == 2:
        assert len(told.getvalue().splitlines()) == 1, where
        assert "Traceback" not in told.getvalue(), where
    assert os.listdir(folder) == ["config.yaml"], where  # noqa: PTH208 - one name


FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(changes())
@settings(FOLDER, max_examples=40)
def test_wrong_value_gives_one_line_of_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, tuple[str, ...], Any]
) -> None:
    monkeypatch.chdir(tmp_path)

    check(tmp_path, change)


NO_CONFIGS = {
    "list.yaml": b"- 1\n- 2\n",
    "text.yaml": b"hello",
    "empty.yaml": b"",
    "nothing.json": b"null",
    "number.json": b"7",
    "binary.yaml": bytes(range(256)) * 8,
    "utf16.yaml": "env: {}".encode("utf-16"),
    "image.json": b"\x89PNG\r\n\x1a\n" + bytes(64),
    "torn.json": b'{"env": {"env_id": "CartPole-v1"',
    "large.yaml": b"env: {env_id: CartPole-v1}\n" + b"# comment\n" * (1 << 20),
    "large.json": b'{"a": "' + b"x" * (10 << 20) + b'"}',
    "large.py": b"main_config = {}\ncreate_config = {}\n" + b"# comment\n" * (1 << 20),
    "module.py": b"VALUE = 1\n",
    "raises.py": b"raise RuntimeError('no config')\n",
    "exits.py": b"raise SystemExit(0)\n",
    "config.toml": b"[env]\nenv_id = 'CartPole-v1'\n",
}


@pytest.mark.parametrize("name", NO_CONFIGS)
@pytest.mark.parametrize("command", [("train",), ("config", "validate")])
def test_file_that_is_not_a_config_gives_one_line_of_error(
    name: str,
    command: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(NO_CONFIGS[name])

    code = main([*command, name])

    told = capsys.readouterr().err
    assert code == 2, told
    assert len(told.splitlines()) == 1, told
    assert name in told or (name == "large.py" and ("_config" in told or "policy.type" in told))
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("place", [".", "/", "/dev/null", "no\0name", "x" * 5000, ""])
def test_path_that_is_not_a_file_gives_one_line_of_error(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["config", "validate", place]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not list(tmp_path.iterdir())
