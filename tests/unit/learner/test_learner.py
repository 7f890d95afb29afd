import threading
import time

import numpy as np
import pytest

from dingsdk.errors import (
    CheckpointCorruptError,
    ConfigError,
    NonFiniteError,
    PolicyOutputTypeError,
    RunFolderError,
)
from dingsdk.worker.learner import base
from dingsdk.worker.learner.checkpoint import load_checkpoint
from dingsdk.worker.learner.hooks import LearnerHook
from tests.own_plugins import plugin_of, using

QUIET = {"hook": {"save_ckpt_after_iter": False, "save_ckpt_after_run": False}}


class Recorder(LearnerHook):
    def __init__(self, position, calls, name="recorder", priority=100):
        super().__init__(name, priority, position=position)
        self._calls = calls

    def __call__(self, engine):
        self._calls.append((self.name, self.position, engine.last_iter.val))


def record_all(learner):
    calls = []
    for position in LearnerHook.positions:
        learner.register_hook(Recorder(position, calls))
    return calls


def test_learner_before_training_has_empty_logs_and_counts(make_learner, scripted):
    learner = make_learner(None, QUIET)

    assert (learner.sample_count, learner.priority_info, dict(learner.log_vars)) == (0, {}, {})
    assert learner.log_buffer == {"scalar": {}, "scalars": {}, "histogram": {}}
    assert learner.monitor.averages() == {}
    assert learner.learn_info["learner_done"] is False
    assert (learner.train_iter, learner.collector_envstep) == (0, 0)
    learner.policy = scripted(lambda data: {"loss": 1.0})
    assert learner.train([{}, {}]) == [{"loss": 1.0}]
    assert (learner.train_iter, learner.sample_count, learner.collector_envstep) == (1, 2, -1)


def test_data_time_and_train_time_are_logged(make_learner, scripted, monkeypatch):
    now = iter([100.0, 100.5, 101.0, 103.0, 104.0])  # start and end of data, then of training
    monkeypatch.setattr(base, "perf_counter", lambda: next(now))
    learner = make_learner(scripted(lambda data: {}), {**QUIET, "train_iterations": 1})
    learner.get_data = lambda size: [{}]

    learner.start()

    assert dict(learner.log_vars) == {"data_time": 0.5, "train_time": 2.0}
    assert next(now) == 104.0


def test_loss_is_the_latest_one_if_it_is_a_number(make_learner, scripted):
    logged = [{"total_loss": np.zeros(3)}, {}, {"total_loss": 2}]
    learner = make_learner(scripted(lambda data: logged.pop()), QUIET)
    assert learner.loss is None
    learner.train([{}])
    assert learner.loss == 2.0
    learner.train([{}])
    assert learner.loss is None
    with pytest.raises(PolicyOutputTypeError):
        learner.train([{}])
    assert learner.loss is None


def test_a_list_of_logs_advances_by_one_iteration_each(make_learner, scripted):
    learner = make_learner(scripted(lambda data: [{"loss": 1.0}, {"loss": 2.0}]), QUIET)
    calls = record_all(learner)

    logs = learner.train([{}])

    assert logs == [{"loss": 1.0}, {"loss": 2.0}]
    assert learner.train_iter == 2
    seen = [(position, iteration) for _, position, iteration in calls]
    assert seen == [("before_iter", 0), ("after_iter", 0), ("after_iter", 1)]


def test_prefixed_entries_reach_the_hooks_but_not_the_caller(make_learner, scripted):
    output = {"loss": 1.0, "[scalars]norms": {"a": 1.0}, "[histogram]action": [0, 1, 1]}
    learner = make_learner(scripted(lambda data: output), QUIET)
    seen = []

    class Look(LearnerHook):
        def __call__(self, engine):
            seen.append({kind: dict(held) for kind, held in engine.log_buffer.items()})

    learner.register_hook(Look("look", 0, position="after_iter"))

    assert learner.train([{}]) == [{"loss": 1.0}]
    assert seen[0]["scalars"] == {"norms": {"a": 1.0}}
    assert seen[0]["histogram"] == {"action": [0, 1, 1]}
    assert seen[0]["scalar"]["loss"] == 1.0
    assert seen[0]["scalar"]["train_time"] >= 0.0
    assert output.keys() == {"loss", "[scalars]norms", "[histogram]action"}


def test_priorities_come_with_the_ids_of_their_batch(make_learner, learn_mode, batch):
    learner = make_learner(learn_mode(priority=True), QUIET)
    ids, slots = np.arange(50, 58), np.arange(8)

    logs = learner.train(batch(replay_unique_id=ids, replay_buffer_idx=slots))

    info = learner.priority_info
    assert len(info["priority"]) == 8
    np.testing.assert_array_equal(info["replay_unique_id"], ids)
    np.testing.assert_array_equal(info["replay_buffer_idx"], slots)
    assert "priority" not in logs[0]


def test_newest_priorities_of_rows_carry_their_ids(make_learner, scripted):
    outputs = iter([[{"priority": [1.0]}, {"priority": [0.5, 0.6]}], {"loss": 1.0}])
    learner = make_learner(scripted(lambda data: next(outputs)), QUIET)

    logs = learner.train([{"replay_unique_id": 7, "replay_buffer_idx": 1}, {"replay_unique_id": 9}])

    assert learner.priority_info == {
        "priority": [0.5, 0.6],
        "replay_unique_id": [7, 9],
        "replay_buffer_idx": [1, None],
    }
    assert logs == [{}, {}]
    learner.train([{"replay_unique_id": 2}])
    assert learner.priority_info == learner.learn_info["priority_info"] == {}


@pytest.mark.parametrize("output", [None, 1.0, ["text"], ({"loss": 1.0},)])
def test_output_that_is_not_a_log_is_refused(make_learner, scripted, output):
    learner = make_learner(scripted(lambda data: output), QUIET)

    with pytest.raises(PolicyOutputTypeError) as caught:
        learner.train([{}])

    assert isinstance(caught.value, TypeError)
    assert learner.train_iter == 0


def test_observers_are_called_for_every_iteration(make_learner, scripted):
    heard = []

    def hear(iteration, log_vars):
        heard.append((iteration, dict(log_vars)))

    with using(plugin_of(after_iter=hear)):
        learner = make_learner(scripted(lambda data: [{"loss": 1.0}, {"loss": 2.0}]), QUIET)
        learner.train([{}])

    assert heard == [(0, {"loss": 1.0}), (1, {"loss": 2.0})]


def test_error_of_a_hook_names_it(make_learner, scripted):
    class Broken(LearnerHook):
        def __call__(self, engine):
            raise KeyError("x")

    learner = make_learner(scripted(lambda data: {}), QUIET)
    learner.register_hook(Broken("mine", 50, position="before_iter"))

    with pytest.raises(KeyError) as caught:
        learner.train([{}])

    assert caught.value.__notes__ == ["raised by the learner hook 'mine' (before_iter)"]


class Counting(Recorder):
    """Saves and restores how often it was called."""

    def state_dict(self):
        return {"calls": len(self._calls)}

    def load_state_dict(self, state):
        self._calls[:] = ["earlier"] * state["calls"]


def test_learner_continues_from_a_saved_state_with_the_same_hooks(make_learner, scripted):
    losses = iter((0.0, 1.0, 2.0))

    def make(*positions):
        learner = make_learner(scripted(lambda data: {"loss": next(losses)}), QUIET)
        calls = []
        for position in positions:
            learner.register_hook(Recorder(position, [], priority=1))
            learner.register_hook(Counting(position, calls))
        return learner, calls

    saved, _ = make("before_iter", "after_iter")
    for step in range(3):
        saved.train([{}], envstep=10 * step)
    learner, calls = make("before_iter", "after_iter")

    learner.load_state_dict(saved.state_dict())

    assert (learner.train_iter, learner.collector_envstep) == (3, 20)
    assert learner.monitor.avg("loss") == 1.0
    assert len(calls) == 6
    other, calls = make("before_iter")
    with pytest.raises(CheckpointCorruptError, match="other hooks"):
        other.load_state_dict(saved.state_dict())
    assert (other.train_iter, calls) == (0, [])


def test_an_unwritable_run_folder_is_a_typed_error(make_learner, scripted, tmp_path):
    (tmp_path / "run").write_text("a file in the place of the run folder")

    with pytest.raises(RunFolderError) as caught:
        make_learner(scripted(lambda data: {}), QUIET)

    assert str(tmp_path / "run") in caught.value.facts["path"]


class TestStart:
    def test_training_ends_when_there_is_no_more_data(self, make_learner, learn_mode, batch):
        learner = make_learner(learn_mode(), QUIET)
        calls = record_all(learner)
        batches = [batch(), batch(seed=1), None]
        asked = []
        learner.get_data = lambda size: (asked.append(size), batches.pop(0))[1]

        learner.start()

        assert learner.train_iter == 2
        assert learner.learn_info["learner_done"] is True
        assert asked == [learner.policy.get_attribute("batch_size")] * 3
        assert calls[0][1] == "before_run"
        assert calls[-1] == ("recorder", "after_run", 2)

    def test_stops_after_train_iterations(self, make_learner, scripted):
        learner = make_learner(
            scripted(lambda data: {"loss": 1.0}), {**QUIET, "train_iterations": 3}
        )
        learner.get_data = lambda size: [{}] * size
        learner.collector_envstep = 320

        learner.start()

        assert (learner.train_iter, learner.collector_envstep) == (3, 320)

    def test_callables_in_the_data_are_called_for_their_rows(self, make_learner, scripted):
        seen = []
        policy = scripted(lambda data: (seen.append(data), {"loss": 1.0})[1])
        learner = make_learner(policy, {**QUIET, "train_iterations": 1})
        learner.get_data = lambda size: [lambda: {"obs": 1}, lambda: {"obs": 2}]

        learner.start()

        assert seen == [[{"obs": 1}, {"obs": 2}]]

    def test_start_of_a_closed_learner_returns_at_once(self, make_learner, scripted):
        learner = make_learner(scripted(lambda data: {"loss": 1.0}), QUIET)
        calls = record_all(learner)
        learner.get_data = lambda size: [{}]
        learner.close()

        learner.start()

        assert calls == []

    def test_error_in_training_saves_a_checkpoint_and_is_raised(
        self, make_learner, learn_mode, batch
    ):
        learner = make_learner(learn_mode(), QUIET)
        bad = batch(reward=np.full(8, np.inf, np.float32))
        batches = [batch(), bad]
        learner.get_data = lambda size: batches.pop(0)

        with pytest.raises(NonFiniteError):
            learner.start()

        saved = load_checkpoint(learner.checkpoint_dir / "ckpt_exception")
        assert saved.iteration == 1
        assert learner.learn_info["learner_done"] is False

    def test_first_error_is_raised_if_saving_fails_too(self, make_learner, scripted):
        def fail(data):
            raise KeyError("the policy's own mistake")

        learner = make_learner(scripted(fail), QUIET)
        learner.checkpoint_dir.write_text("a file in the place of the folder")
        learner.get_data = lambda size: [{}]

        with pytest.raises(KeyError, match="the policy's own mistake") as caught:
            learner.start()

        assert "No checkpoint ckpt_exception" in caught.value.__notes__[0]

    def test_error_without_a_data_source_names_get_data(self, make_learner, scripted):
        with pytest.raises(ConfigError, match="get_data"):
            make_learner(scripted(lambda data: {}), QUIET).start()

    @pytest.mark.parametrize(("section", "count"), [({}, 0), ({"num_workers": 2}, 1)])
    def test_section_dataloader_is_dropped_with_a_warning(
        self, make_learner, scripted, caplog, section, count
    ):
        make_learner(scripted(lambda data: {}), {**QUIET, "dataloader": section})

        warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
        assert len(warnings) == count
        assert all("policy.learn.learner.dataloader has no effect" in each for each in warnings)


def test_closing_twice_releases_the_logs_once(make_learner, scripted):
    learner = make_learner(scripted(lambda data: {}), QUIET)
    other = make_learner(scripted(lambda data: {}), QUIET)

    learner.close()
    learner.close()

    assert learner.logger.handlers == []
    assert other.tb_logger is learner.tb_logger
    other.tb_logger.add_scalar("still/open", 1.0, 0)


def test_hooks_that_hang_on_close_are_abandoned_and_closed_only_once(
    make_learner, scripted, caplog
):
    gate, closed = threading.Event(), []

    class Hook(LearnerHook):
        def __call__(self, engine):
            pass

        def close(self):
            closed.append(self.name)
            if self.name != "quick":
                gate.wait(60)

    learner = make_learner(scripted(lambda data: {}), QUIET)
    learner.hook_close_s = 0.3
    for name in ("hangs too", "hangs", "quick"):
        learner.register_hook(Hook(name, 50, position="after_iter"))
    began = time.monotonic()
    try:
        learner.close()
        learner.close()
    finally:
        gate.set()

    assert time.monotonic() - began < 5.5  # the limit is for all hooks together
    assert sorted(closed) == ["hangs", "hangs too", "quick"]
    left = [each for each in caplog.messages if "did not return in time" in each]
    assert [each.partition(" did not")[0].partition(" of ")[2] for each in left] == [
        f"policy.learn.learner, in the hook {name!r}" for name in ("hangs too", "hangs")
    ]


@pytest.mark.parametrize("is_limited", [False, True])
def test_error_in_the_close_of_a_hook_is_logged(make_learner, scripted, caplog, is_limited):
    class Hook(LearnerHook):
        def __call__(self, engine):
            pass

        def close(self):
            raise OSError("no disk")

    learner = make_learner(scripted(lambda data: {}), QUIET)
    learner.hook_close_s = 30.0 if is_limited else None
    learner.register_hook(Hook("mine", 50, position="after_iter"))
    learner.close()

    assert "the learner hook 'mine' could not be closed: no disk" in caplog.text


@pytest.mark.parametrize("closes", [False, True])
def test_hooks_are_closed_after_the_after_run_hooks(make_learner, scripted, closes):
    """The training thread closes them if a hook called ``close()``; else ``close()`` does it."""
    order = []

    class Hook(LearnerHook):
        def __call__(self, engine):
            if closes:
                engine.close()
            order.append(self.position)

        def close(self):
            order.append("close")

    learner = make_learner(scripted(lambda data: {}), {**QUIET, "train_iterations": 1})
    learner.get_data = lambda size: [{"x": 0.0}]
    for position in ("after_iter", "after_run"):
        learner.register_hook(Hook(position, 50, position=position))
    learner.start()

    assert order == ["after_iter", "after_run", *(["close"] * 2 if closes else [])]
    learner.close()
    assert order == ["after_iter", "after_run", "close", "close"]


def test_policy_kwargs_reach_forward(make_learner, scripted):
    learner = make_learner(scripted(lambda data, scale=1.0: {"loss": scale}), QUIET)

    assert learner.train([{}], policy_kwargs={"scale": 3.0}) == [{"loss": 3.0}]
