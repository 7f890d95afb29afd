"""The factories of ``dingsdk.worker`` and ``dingsdk.policy``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dingsdk import worker
from dingsdk.errors import ConfigError
from dingsdk.pipeline.train import compile_run
from dingsdk.plugins import PluginManager, use_manager
from dingsdk.policy import get_policy_cls
from tests.own_plugins import using


class Made:
    """Keeps the section that it was made from."""

    def __init__(self, cfg: Any) -> None:
        self.cfg = cfg


@pytest.mark.parametrize(
    ("get_class", "known"),
    [
        (worker.get_serial_collector_cls, "sample"),
        (worker.get_serial_evaluator_cls, "metric"),
        (worker.get_parallel_collector_cls, "zergling"),
        (worker.get_buffer_cls, "naive"),
        (worker.get_parallel_commander_cls, "solo"),
        (get_policy_cls, "dqn"),
    ],
)
def test_error_for_a_section_without_a_type_lists_the_known_types(
    get_class: Callable[[dict[str, Any]], Any], known: str
) -> None:
    with pytest.raises(ConfigError, match="names no type") as caught:
        get_class({})

    assert known in caught.value.known
    assert get_class({"type": known}) is not None


@pytest.mark.parametrize(
    ("create", "kind", "alias"),
    [
        (worker.create_learner, "learners", "learner_type"),
        (worker.create_comm_learner, "comm_learners", "comm_learner_type"),
        (worker.create_comm_collector, "comm_collectors", "comm_collector_type"),
        (worker.create_buffer, "buffers", "learner_type"),
    ],
)
def test_factory_takes_the_alias_of_type(
    create: Callable[[dict[str, Any]], Any], kind: str, alias: str
) -> None:
    with using(**{kind: {"mine": Made}}):
        assert create({alias: "mine", "size": 3}).cfg == {"type": "mine", "size": 3}


def test_alias_of_import_names_is_replaced_by_import_names(tmp_path: Path) -> None:
    (tmp_path / "acme_alias.py").write_text(
        "from dingsdk import default_manager\n"
        "from tests.unit.test_factory import Made\n"
        "default_manager().registry('buffers').register('aliased', Made)\n"
    )
    cfg = {"type": "aliased", "import_module": ["acme_alias"], "size": 3}

    with use_manager(PluginManager()), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        created: Any = worker.create_buffer(cfg)

    assert created.cfg == {"type": "aliased", "import_names": ["acme_alias"], "size": 3}
    assert cfg == {"type": "aliased", "import_module": ["acme_alias"], "size": 3}
    del sys.modules["acme_alias"]


def test_alias_that_contradicts_the_type_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        worker.create_learner({"type": "base", "learner_type": "mine"}, config_path="a.b")
    assert caught.value.path == "a.b.learner_type"

    with pytest.raises(ConfigError) as caught:
        worker.create_learner({"type": "base", "learner_type": "mine"})
    assert caught.value.path == "learner_type"


def test_commander_is_created_by_its_alias() -> None:
    cfg = compile_run("cartpole-dqn", "parallel")
    section = cfg.policy.other.commander
    section.parallel_commander_type = section.pop("type")

    assert isinstance(worker.create_parallel_commander(cfg), worker.SoloCommander)
    assert "type" not in section


def test_commander_section_without_a_type_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        worker.create_parallel_commander({"policy": {"other": {"commander": {}}}})

    assert caught.value.path == "policy.other.commander.type"


def test_serial_and_parallel_parts_are_built_by_their_type(tmp_path: Path) -> None:
    collector = worker.create_serial_collector({"type": "sample"}, exp_name=str(tmp_path))
    assert isinstance(collector, worker.SampleSerialCollector)
    collector.close()

    cfg: dict[str, Any] = {"eval_freq": 3}
    evaluator = worker.create_serial_evaluator(cfg, exp_name=str(tmp_path))
    assert isinstance(evaluator, worker.InteractionSerialEvaluator)
    assert cfg["type"] == "interaction"
    evaluator.close()

    with using(parallel_collectors={"mine": Made}):
        built: Any = worker.create_parallel_collector({"type": "mine", "size": 3})
    assert built.cfg == {"type": "mine", "size": 3}
