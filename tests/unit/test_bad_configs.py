"""Malicious configs raise a one-line error quickly and without using much memory."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk import evaluate, load_policy, record, resume, train
from dingsdk.config import apply_set, load_config, save_config, to_easydict
from dingsdk.config.plain import check_bounds
from dingsdk.data import Dataset, SampleBatch
from dingsdk.envs import make_env_fns
from dingsdk.errors import CheckpointMissingError, ConfigError, DingError
from dingsdk.pipeline.status_file import read_status
from dingsdk.pipeline.train import compile_run, run_coordinator
from dingsdk.policy import create_policy
from dingsdk.worker import EvalSchedule, read_dataset
from dingsdk.worker.commander.one_vs_one import saved_league
from dingsdk.worker.datasets import has_dataset, write_dataset
from dingsdk.worker.learner.checkpoint import load_checkpoint
from dingsdk.worker.replay_server import ReplayClient, ReplayServer
from tests.extras import needs
from tests.programs import python


def alias_bomb() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 10):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]")
    return "\n".join(lines)


def merge_bomb() -> str:
    lines = ["m0: &m0 {x: 1}"]
    for level in range(1, 10):
        lines.append(f"m{level}: &m{level} {{<<: [{', '.join([f'*m{level - 1}'] * 10)}]}}")
    return "\n".join(lines)


def chain_of_merges() -> str:
    lines = [f"m{i}: &m{i} {{<<: *m{i - 1}, k{i}: 1}}" for i in range(1, 4_000)]
    return "\n".join(["m0: &m0 {k0: 1}", *lines])


def many_merges_of_one() -> str:
    keys = ", ".join(f"k{i}: 1" for i in range(1_000))
    return f"a: &a {{{keys}}}\nb: {{<<: [{','.join(['*a'] * 30_000)}]}}"


def long_text_bomb() -> str:
    return f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 10_000)}]"


def chain_of_aliases() -> str:
    return "a0: &a0 [1]\n" + "\n".join(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 2_000))


SELF_REFERENCE = """
main_config = {}
main_config["env"] = main_config
create_config = {}
"""
DEEP = """
section = {}
for _ in range(20_000):
    section = {"a": section}
main_config = section
create_config = {}
"""
CONFIGS = {
    "alias bomb.yaml": alias_bomb(),
    "merge bomb.yaml": merge_bomb(),
    "merge chain.yaml": chain_of_merges(),
    "many merges.yaml": many_merges_of_one(),
    "text bomb.yaml": long_text_bomb(),
    "alias chain.yaml": chain_of_aliases(),
    "self reference.yaml": "env: &e {x: *e}",
    "self reference in a list.yaml": "env: &e [*e]",
    "self reference.py": SELF_REFERENCE,
    "deep list.yaml": "env: " + "[" * 20_000 + "]" * 20_000,
    "deep map.yaml": "{a: " * 20_000 + "1" + "}" * 20_000,
    "deep.json": '{"env": ' + "[" * 20_000 + "]" * 20_000 + "}",
    "quite deep.json": '{"env": ' + "[" * 500 + "]" * 500 + "}",
    "deep.py": DEEP,
    "long number.yaml": f"seed: {'9' * 5_000}",
    "long negative number.yaml": f"seed: -{'9' * 5_000}",
    "long hexadecimal number.yaml": f"seed: 0x{'f' * 5_000}",
    "long number.json": f'{{"seed": {"9" * 5_000}}}',
    "long number.py": "main_config = {'seed': 10 ** 5_000}\ncreate_config = {}",
    "number as key.yaml": "1: x",
    "null as key.yaml": "env: {null: 1}",
    "list as key.yaml": "? [a, b]\n: x",
    "bytes as key.yaml": "? !!binary aGVsbG8=\n: x",
    "number as key.py": "main_config = {1: 2}\ncreate_config = {2: 3}",
    "long name.yaml": f"exp_name: {'n' * 300}\nenv: {{env_id: CartPole-v1}}\npolicy: {{type: dqn}}",
    "control character.yaml": "env: \0",
    "large file.yaml": "a: 1  # " + "x" * (1 << 20),
}
PROGRAM = """
import sys
from pathlib import Path
from dingsdk.cli import main
code = main(sys.argv[1:])
status = Path("/proc/self/status").read_text()
print(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
sys.exit(code)
"""


@pytest.mark.parametrize(
    "name",
    [
        "alias bomb.yaml",
        "many merges.yaml",
        "deep map.yaml",
        "self reference.py",
    ],
)
def test_command_line_reports_a_bad_config_in_one_line_with_little_memory(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text(CONFIGS[name])

    done = python("-c", PROGRAM, "train", name, cwd=tmp_path)

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert name in done.stderr or "exp_name" in done.stderr
    assert int(done.stdout) < 200 << 10, "KiB"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=needs("di-engine")) if name == "number as key.py" else name
        for name in CONFIGS
    ],
)
def test_bad_config_is_a_config_error_of_one_line(tmp_path: Path, name: str) -> None:
    from dingsdk.pipeline.train import compile_run

    (tmp_path / name).write_text(CONFIGS[name])
    started_at = time.process_time()

    with pytest.raises(ConfigError) as caught:
        compile_run(tmp_path / name)

    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 1_000
    # Unchecked bombs take hours. The limit has a factor of five for slow machines.
    assert time.process_time() - started_at < 10


def test_run_folder_instead_of_a_config_suggests_the_config_of_that_run(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("{}")

    with pytest.raises(ConfigError, match="is a folder") as error:
        load_config(tmp_path)

    assert error.value.facts["nearest"] == str(config)


@pytest.mark.parametrize("text", ["9" * 5_000, "[" * 20_000, "&a [*a]", "{1: 2}", "a\x01b"])
@pytest.mark.parametrize("key", ["env.x", "a." * 2_000 + "a"])
def test_bad_override_raises_a_short_one_line_error(key: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply_set({}, f"{key}={text}")

    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize(
    "assignment", [f"{'a.' * 2_000}a=1", f"{'a.' * 30}a={'[' * 30 + ']' * 30}"]
)
def test_override_that_nests_too_deep_is_a_config_error(assignment: str) -> None:
    with pytest.raises(ConfigError, match="nested deeper than 50 levels"):
        apply_set({}, assignment)


def own_and_deep() -> list[dict[str, Any]]:
    """Return a config that contains itself, and one of 5,000 levels."""
    own: dict[str, Any] = {}
    own["a"] = own
    deep: dict[str, Any] = {}
    for _ in range(5_000):
        deep = {"a": deep}
    return [own, deep]


@pytest.mark.parametrize("use", [compile_run, create_policy, to_easydict])
@pytest.mark.parametrize("config", own_and_deep(), ids=["own", "deep"])
def test_dict_that_is_nested_too_deep_is_a_config_error(
    use: Callable[[Any], Any], config: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="nested deeper than 50 levels"):
        use(config)


@pytest.mark.parametrize(
    "call",
    [
        lambda: load_config(5),  # type: ignore[arg-type]
        lambda: train(5),  # type: ignore[arg-type]
        lambda: train({1: 2}),  # type: ignore[dict-item]
        lambda: train("cartpole-dqn", sets=3),  # type: ignore[arg-type]
        lambda: train("cartpole-dqn", sets=[3]),  # type: ignore[list-item]
        lambda: train("cartpole-dqn", callbacks=print),  # type: ignore[arg-type]
        lambda: train("cartpole-dqn", callbacks=None),  # type: ignore[arg-type]
        lambda: load_policy(5),  # type: ignore[arg-type]
        lambda: load_policy("x" * 300_000),
        lambda: evaluate("x" * 300_000),
        lambda: resume("x" * 300_000),
        lambda: make_env_fns({"env_id": "CartPole-v1"}, math.nan),  # type: ignore[arg-type]
        lambda: EvalSchedule(math.nan),  # type: ignore[arg-type]
        lambda: record("run", 1, explore="yes"),  # type: ignore[arg-type]
        lambda: record("run", 1, overwrite=1),  # type: ignore[arg-type]
        lambda: read_dataset(5),  # type: ignore[arg-type]
        lambda: save_config({}, 5),  # type: ignore[arg-type]
        lambda: save_config({}, "no\0name"),
        lambda: load_checkpoint(5),  # type: ignore[arg-type]
        lambda: ReplayClient(path=5),  # type: ignore[arg-type]
        lambda: ReplayServer({}, {}, path=5),  # type: ignore[arg-type]
        lambda: ReplayServer({}, {}, run=3),  # type: ignore[arg-type]
        lambda: train("cartpole-dqn", mode=np.arange(3)),  # type: ignore[arg-type]
        lambda: train("cartpole-dqn", keep=np.arange(3)),  # type: ignore[arg-type]
        lambda: train("cartpole-dqn", "parallel", np.arange(3)),  # type: ignore[arg-type]
        lambda: apply_set({}, 3),  # type: ignore[arg-type]
        lambda: make_env_fns(3, 1),  # type: ignore[arg-type]
        lambda: create_policy({"type": "dqn"}, 3),  # type: ignore[arg-type]
        lambda: Dataset(3),  # type: ignore[arg-type]
    ],
    ids=range(29),
)
def test_argument_of_the_wrong_kind_raises_a_short_error(call: Callable[[], Any]) -> None:
    with pytest.raises((ConfigError, CheckpointMissingError)) as caught:
        call()
    assert len(str(caught.value)) < 300


class NoRepr:
    """A value that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class NoPath:
    """A path whose text is another value, or none at all."""

    def __init__(self, text: Any) -> None:
        self.text = text

    def __fspath__(self) -> Any:
        if self.text is None:
            raise RuntimeError("no path")
        return self.text


@pytest.mark.parametrize(
    "value", [NoRepr(), NoPath(None), NoPath(5), NoPath(b"a")], ids=["repr", *"abc"]
)
@pytest.mark.parametrize(
    "use",
    [
        load_config,
        lambda value: save_config({}, value),
        lambda value: train("cartpole-dqn", value),
        lambda value: train("cartpole-dqn", "parallel", value),
        lambda value: train("cartpole-dqn", sets=value),
        lambda value: train("cartpole-dqn", seed=value),
        lambda value: train("cartpole-dqn", output=value),
        lambda value: train("cartpole-dqn", progress=value),
        lambda value: train("cartpole-dqn", start_from=value),
        resume,
        load_policy,
        load_checkpoint,
        read_dataset,
        lambda value: SampleBatch({value: np.arange(3)}),
        lambda value: ReplayClient(path=value),
        lambda value: ReplayClient(value),
    ],
    ids=range(16),
)
def test_value_whose_own_code_raises_is_refused(use: Callable[[Any], Any], value: Any) -> None:
    with pytest.raises(DingError) as caught:
        use(value)
    assert len(str(caught.value)) < 400


def transitions() -> Dataset:
    """Return a data set of one step."""
    obs, flag = np.zeros((1, 2), np.float32), np.zeros(1, bool)
    columns = {"obs": obs, "next_obs": obs, "action": np.zeros(1, int), "reward": obs[:, 0]}
    return Dataset({**columns, "terminated": ~flag, "truncated": flag})


@pytest.mark.parametrize("place", ["x" * 300, "no\0name", "file/below", "loop/below"])
@pytest.mark.parametrize(
    "use",
    [
        load_config,
        load_policy,
        resume,
        load_checkpoint,
        lambda place: evaluate("run", checkpoint=place),
        lambda place: load_checkpoint(f"{place}/latest"),
        lambda place: train("cartpole-dqn", start_from=place),
        lambda place: train("cartpole-dqn", output=place),
        lambda place: run_coordinator(compile_run("cartpole-dqn", "parallel"), Path(place), print),
        lambda place: read_status(Path(place)),
        lambda place: ReplayClient(path=place, timeout_s=0.0).stats(),
        saved_league,
        read_dataset,
        lambda place: read_dataset(f"{place}.npz"),
        lambda place: has_dataset(f"{place}.npz"),
        lambda place: write_dataset(transitions(), f"{place}.npz"),
        lambda place: write_dataset(transitions(), f"{place}/data.npz"),
    ],
    ids=range(17),
)
def test_path_that_cannot_exist_raises_a_typed_error(
    use: Callable[[str], Any], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text("{}")
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")

    with pytest.raises(DingError):
        use(place)

    assert {each.name for each in tmp_path.iterdir()} == {"run", "file", "loop"}


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("write", "suffix"),
    [(json.dumps, "json"), (lambda cfg: json.dumps(cfg).replace(",", ", "), "yaml")],
    ids=["json", "yaml"],
)
def test_bounds_are_exact(tmp_path: Path, write: Callable[[Any], str], suffix: str) -> None:
    largest = {"a": nested(49), "b": 10**100 - 1, "c": -(10**100) + 1}
    path = tmp_path / f"cfg.{suffix}"
    path.write_text(write(largest))
    assert load_config(path) == largest

    for beyond in ({"a": nested(50)}, {"b": 10**100}, {"c": -(10**100)}):
        path.write_text(write(beyond))
        with pytest.raises(ConfigError):
            load_config(path)


def test_too_large_value_is_named_by_its_path() -> None:
    with pytest.raises(ConfigError) as caught:
        check_bounds({"a": [1, {"b": 10**100}]})

    assert caught.value.path == "a.1.b"


def test_largest_allowed_number_of_values_passes() -> None:
    check_bounds({"a": [0] * 99_998})
    with pytest.raises(ConfigError, match="100,000 values"):
        check_bounds({"a": [0] * 99_999})
    check_bounds({"a": "x" * 9_999_700})
    with pytest.raises(ConfigError):
        check_bounds({"a": "x" * 9_999_900})


def test_largest_allowed_number_of_merged_keys_passes(tmp_path: Path) -> None:
    keys = ", ".join(f"k{i}: 1" for i in range(1_000))
    path = tmp_path / "cfg.yaml"

    path.write_text(f"a: &a {{{keys}}}\nb: {{<<: [{','.join(['*a'] * 100)}]}}")
    assert load_config(path)["b"] == {f"k{i}": 1 for i in range(1_000)}

    path.write_text(f"a: &a {{{keys}}}\nb: {{<<: [{','.join(['*a'] * 101)}]}}")
    with pytest.raises(ConfigError, match="100,000 keys") as caught:
        load_config(path)
    assert caught.value.line == 2


def test_largest_allowed_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cfg.json"

    path.write_text('{"a": 1}'.ljust(1_048_576))
    assert load_config(path) == {"a": 1}

    path.write_text('{"a": 1}'.ljust(1_048_577))
    with pytest.raises(ConfigError, match="1,048,577 bytes"):
        load_config(path)


def test_single_override_string_is_refused_with_the_list_form() -> None:
    from dingsdk.pipeline.train import compile_run

    with pytest.raises(ConfigError, match=r"sets=\['system.max_env_steps=9'\]"):
        compile_run("cartpole-dqn", "serial", sets="system.max_env_steps=9")
