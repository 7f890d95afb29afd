from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from easydict import EasyDict
from hypothesis import given, settings
from hypothesis import strategies as st

from dingsdk.config import (
    apply_set,
    deep_merge_dicts,
    load_config,
    save_config,
    to_easydict,
    to_plain,
)
from dingsdk.config.plain import check_bounds, put
from dingsdk.errors import ConfigError, ConfigTypeError

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text("aZé☃ 019e.+-_:#'\"\\{}[],&*!|>%@`~=<\n\t", max_size=12)
    | st.sampled_from(["1e-3", "1e5", "2024-01-01", "on", "~", "0x10", ".inf", "1:30", "=", "<<"])
)
KEYS = st.text("abcxyz_019-. :#", min_size=1, max_size=6) | st.sampled_from(["on", "1e3", "null"])
CONFIGS = st.dictionaries(
    KEYS,
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


# merge


def test_merge_prefers_the_second_config_key_by_key() -> None:
    merged = deep_merge_dicts(
        {"a": {"x": 1, "y": 2}, "b": 1, "c": [1]}, {"a": {"y": 3, "z": 4}, "b": {"n": 1}}
    )

    assert merged == {"a": {"x": 1, "y": 3, "z": 4}, "b": {"n": 1}, "c": [1]}


@settings(max_examples=40, deadline=None)
@given(CONFIGS, CONFIGS)
def test_merge_does_not_change_its_inputs_and_shares_no_container(
    a: dict[str, Any], b: dict[str, Any]
) -> None:
    def wreck(value: Any) -> None:
        items = list(value.values()) if isinstance(value, dict) else list(value)
        for item in items:
            if isinstance(item, dict | list):
                wreck(item)
        value.clear()

    before = copy.deepcopy((a, b))

    wreck(deep_merge_dicts(a, b))

    assert (a, b) == before


# files


@settings(max_examples=40, deadline=None)
@given(cfg=CONFIGS)
def test_saved_config_loads_back_equal(tmp_path_factory: Any, cfg: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("cfg") / "config.yaml"

    save_config(cfg, path)

    loaded = load_config(path)
    assert loaded == cfg
    assert repr(loaded) == repr(cfg)  # also compares the order and the types


def test_infinities_survive_and_numpy_scalars_tuples_and_paths_become_plain(tmp_path: Path) -> None:
    cfg = EasyDict(
        top=math.inf,
        low=-math.inf,
        sizes=(64, np.int64(32)),
        rate=np.float32(0.5),
        flag=np.bool_(True),
        where=Path("a") / "b",
    )

    save_config(cfg, tmp_path / "c.yaml")

    assert load_config(tmp_path / "c.yaml") == {
        "top": math.inf,
        "low": -math.inf,
        "sizes": [64, 32],
        "rate": 0.5,
        "flag": True,
        "where": str(Path("a") / "b"),
    }


@pytest.mark.parametrize("value", [object(), print, {1, 2}, np.zeros(2), b"x"])
def test_value_with_no_plain_form_is_refused_with_its_path(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("old: 1\n")

    with pytest.raises(ConfigTypeError) as caught:
        save_config({"env": {"list": [1, value]}}, path)

    assert caught.value.path == "env.list.1"
    assert path.read_text() == "old: 1\n"


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("c.yaml", "a:\n  b: 1\n  c: 2\n  b: 3\n", 4),
        ("c.yaml", "a: [1, 2\nb: 3\n", 2),
        ("c.yaml", "a: !!python/object/apply:os.system [ls]\n", 1),
        ("c.json", '{"a": 1,\n "a": 2}', None),
        ("c.json", '{"a": 1,\n oops}', 2),
        ("c.py", "main_config = {}\ncreate_config = {'a': 1 / 0}\n", 2),
        ("c.py", "main_config = {}\ncreate_config = {\n", 2),
        ("c.py", "import sys\nsys.exit(3)\n", 2),
        ("c.py", "import json\n\nmain_config = json.loads('{')\n", 3),
    ],
)
def test_broken_file_is_named_with_its_line(
    tmp_path: Path, name: str, text: str, line: int | None
) -> None:
    path = tmp_path / name
    path.write_text(text)

    with pytest.raises(ConfigError, match=name) as caught:
        load_config(path)

    assert (caught.value.path, caught.value.line) == (str(path), line)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("c.toml", "a = 1\n", "a config is a .yaml, .yml, .json or .py file"),
        ("c.yaml", "", "is empty; a config is a mapping"),
        ("c.json", "[1]", "is a list; a config is a mapping"),
        ("c.py", "config = {}\nmain_config = 1\n", "defines no dict whose name ends in _config"),
    ],
)
def test_file_that_holds_no_config_is_refused_with_what_a_config_is(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    path = tmp_path / name
    path.write_text(text)

    with pytest.raises(ConfigError) as caught:
        load_config(path)

    assert caught.value.path == str(path)
    assert problem in str(caught.value)


def test_python_config_returns_its_raw_dicts_and_does_not_run_its_main_block(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c.py"
    path.write_text(
        "from easydict import EasyDict\n"
        "main_config = EasyDict(exp_name='x', policy=dict(nstep=(1, 2)))\n"
        "create_config = dict(policy=dict(type='dqn'))\n"
        "options, other_config = {'a': 1}, 3\n"
        "if __name__ == '__main__':\n"
        "    raise RuntimeError('ran')\n"
    )

    loaded = load_config(path)

    assert loaded == {
        "main_config": {"exp_name": "x", "policy": {"nstep": (1, 2)}},
        "create_config": {"policy": {"type": "dqn"}},
    }
    assert type(loaded["main_config"]["policy"]) is dict


def test_error_for_a_misspelled_example_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'cartpole-dqn'\?") as caught:
        load_config("cartpole-dqm")

    assert (caught.value.path, caught.value.nearest) == ("cartpole-dqm", "cartpole-dqn")
    assert caught.value.known == sorted(caught.value.known)


def test_yaml_merge_keys_and_anchors_work(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\n")

    assert load_config(tmp_path / "c.yaml")["b"] == {"x": 1, "y": 3}


# --set


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-3", 1e-3),
        ("true", True),
        ("null", None),
        ("", None),
        (".inf", math.inf),
        ("[64, 64]", [64, 64]),
        ("{x: 1}", {"x": 1}),
        ("CartPole-v1", "CartPole-v1"),
        ("'3'", "3"),
        ("x=y", "x=y"),
    ],
)
def test_set_reads_the_value_as_yaml(text: str, value: Any) -> None:
    cfg = {"a": {"b": 0, "kept": 1}}

    assert apply_set(cfg, f"a.b={text}") is cfg

    assert cfg == {"a": {"b": value, "kept": 1}}


@pytest.mark.parametrize("assignment", ["a.b", "=1", "a..b=1", ".a=1", "a.=1", ""])
def test_set_without_path_and_value_is_refused(assignment: str) -> None:
    with pytest.raises(ConfigError):
        apply_set({}, assignment)


@pytest.mark.parametrize("value", [3, [1, 2], None, "text"])
def test_set_below_a_value_that_is_no_section_is_refused(value: Any) -> None:
    cfg = {"a": {"b": value}}

    with pytest.raises(ConfigError) as caught:
        apply_set(cfg, "a.b.c=1")

    assert caught.value.path == "a.b"
    assert cfg == {"a": {"b": value}}


# conversions


@pytest.mark.parametrize("key", ["items", "keys", "update", "pop", "get", "copy", "__class__"])
def test_key_that_hides_a_dict_method_is_refused_with_its_path(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        to_easydict({"env": {"list": [{key: 1}]}})

    assert caught.value.path == f"env.list.0.{key}"


@pytest.mark.parametrize("key", [1, None, True, (1, 2)])
def test_key_that_is_no_string_is_refused_with_its_path(key: Any) -> None:
    for convert in (to_easydict, to_plain):
        with pytest.raises(ConfigTypeError) as caught:
            convert({"env": {key: 1}})
        assert caught.value.path == f"env.{key}"


# values by their path


def test_put_creates_sections_and_does_not_replace_other_values() -> None:
    cfg: dict[str, Any] = {"a": {"b": 1}, "n": None}

    for path in ("a.c", "a.b.d", "x.y.z", "n.m", "top"):
        put(cfg, path, 5)

    assert cfg == {"a": {"b": 1, "c": 5}, "n": {"m": 5}, "x": {"y": {"z": 5}}, "top": 5}


@pytest.mark.parametrize(
    "value",
    ["\ud800", "a\0b", ["\udcff"], {"\ud800": 1}, {"a": [{"b": "x\udfffy"}]}, {"é\ud800": {}}],
)
def test_text_that_no_file_can_hold_is_refused(value: Any, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"env": value}))
    for read in (
        lambda: apply_set({}, f"env.x={json.dumps(value)}"),
        lambda: load_config(file),
        lambda: check_bounds({"env": value}),
    ):
        with pytest.raises(ConfigError, match=r"env.*half of a surrogate pair"):
            read()
