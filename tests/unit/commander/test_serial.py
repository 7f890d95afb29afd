from __future__ import annotations

from types import SimpleNamespace

import pytest

from dingsdk.errors import NotSetError
from dingsdk.policy import create_policy
from dingsdk.worker.commander.serial import BaseSerialCommander


def test_step_gives_collect_settings_for_the_progress():
    eps = {"type": "linear", "start": 1.0, "end": 0.0, "decay": 100}
    policy = create_policy({"type": "dqn", "other": {"eps": eps}}, enable_field=["command"])
    learner = SimpleNamespace(learn_info={"learner_step": 3})
    collector = SimpleNamespace(envstep=0)
    commander = BaseSerialCommander({"a": 1}, learner, collector, "evaluator", "buffer")
    assert (commander._cfg, commander._evaluator) == ({"a": 1}, "evaluator")  # for subclasses
    assert commander._replay_buffer == "buffer"
    with pytest.raises(NotSetError, match="policy"):
        commander.step()

    commander.policy = policy.command_mode

    assert commander.step() == {"eps": 1.0}
    collector.envstep = 75
    assert commander.step() == {"eps": 0.25}
    commander.policy = SimpleNamespace(get_setting_collect=dict)
    assert commander.step() == {"learner_step": 3, "envstep": 75}
    assert BaseSerialCommander.default_config().cfg_type == "BaseSerialCommanderDict"
