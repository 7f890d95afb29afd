"""The rules of plugins that only observe, and the bench that checks them."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from dingsdk.plugins import PluginManager, Switches, use_manager
from dingsdk.plugins.hooks import DECISIONS
from dingsdk.testing.expect import Call, expect, expect_same
from dingsdk.testing.extension_rules.learner_hooks import small_learner
from dingsdk.testing.runner import Contract, RuleBench, RuleBook, RuleBroken, collect
from dingsdk.worker import SoloCommander
from dingsdk.worker.comm.transport import TaskAnswer
from dingsdk.worker.learner.checkpoint import SUFFIX, checkpoint_contents, save_checkpoint

Facts = dict[str, Any]
_OBJECTS = ("cls", "learner", "manager", "plugin")
"""Arguments that cannot be compared."""
THREADS = 4


class ObserverBench(RuleBench[Any]):
    """The bench of an observer: calls its hooks with arguments like those of a run."""

    def __enter__(self) -> ObserverBench:
        self.manager = PluginManager(Switches(), discover=list)
        self.manager.register_plugin(self._make, "observer")
        return self

    def call(self, hook: str, facts: Mapping[str, Any]) -> Any:
        """Call the observer's implementation of a hook; return None if it has none.

        If it writes no checkpoint, the checkpoint is written as dingsdk writes it.
        """
        answer = None
        for impl in getattr(self.manager.hook, hook).get_hookimpls():
            try:
                answer = self.keep(impl.function(*(facts[name] for name in impl.argnames)))
            except (Exception, SystemExit) as error:
                raise RuleBroken(f"{hook} raised {type(error).__name__}: {error}") from error
        if hook == "dingsdk_write_checkpoint" and answer is not True:
            path, state = facts["path"], facts["contents"]["state"]
            with use_manager(PluginManager(Switches(), discover=list)):
                save_checkpoint(path.parent, path.stem, state, iteration=2, envstep=64)
        return answer

    @cached_property
    def config(self) -> Any:
        """The compiled config of a run of DQN on CartPole."""
        from dingsdk.pipeline.compile import compile_config

        return compile_config({"env": {"env_id": "CartPole-v1"}, "policy": {"type": "dqn"}})

    @cached_property
    def task(self) -> Facts:
        """A task of a collector, as its worker receives it."""
        commander = SoloCommander(self.config)
        commander.get_learner_task()
        return {"name": "collector_start_task", "task_info": commander.get_collector_task()}

    @cached_property
    def contents(self) -> Facts:
        """The contents of a checkpoint."""
        with closing(small_learner(str(self.folder / "learner"))) as learner:
            return checkpoint_contents(learner.policy.state_dict(), iteration=2, envstep=64)

    def run(self, name: str, mean_return: float | None = 5.0) -> list[tuple[str, Facts]]:
        """Return the hooks that a short serial run calls, in order, with their arguments."""
        run_dir = self.folder / name
        run_dir.mkdir(exist_ok=True)
        config = copy.deepcopy(self.config)
        config.exp_name = name
        status = {"env_steps": 64, "train_iter": 2, "elapsed_s": 1.0, "buffer_fill": 64,
                  "workers": 1, "last_return": mean_return, "best_return": mean_return}  # fmt: skip
        result = self.result(config, run_dir, mean_return)
        plugin = {"plugin": self._make, "name": "observer", "manager": self.manager}
        return [
            ("dingsdk_plugin_registered", plugin),
            ("dingsdk_convert_config", {"config": config}),
            ("dingsdk_configure", {"config": config}),
            ("dingsdk_run_started", {"config": config, "run_dir": run_dir}),
            *self.work(run_dir),
            ("dingsdk_progress_columns", {"run_dir": run_dir}),
            ("dingsdk_should_stop", {"run_dir": run_dir, "status": status}),
            ("dingsdk_result_fields", {"run_dir": run_dir, "result": result}),
            ("dingsdk_run_finished", {"run_dir": run_dir, "result": result}),
            ("dingsdk_unconfigure", {}),
        ]

    def result(self, config: Any, run_dir: Path, mean_return: float | None) -> Facts:
        """Return the content of ``result.json`` of that run."""
        from dingsdk.pipeline.context import RunContext, RunStatus
        from dingsdk.pipeline.results import result_record

        context = RunContext(config, run_dir)
        context.recorder.mark_first_step()
        if mean_return is not None:
            context.recorder.add_evaluation([mean_return], 64, 2)
        context.status = lambda: RunStatus(64, 2, elapsed_s=1.0)
        return result_record(run_dir, context.finish("limit", "serial"), seed=config.seed)

    def work(self, run_dir: Path) -> list[tuple[str, Facts]]:
        """Return the hooks that workers call, in this process or another one."""
        task, answer = self.task, TaskAnswer("t1", True, {"message": "collector task has started"})
        episode = {"source": "collector", "env_id": 0, "episode_return": 5.0, "length": 5}
        collect = {"source": "collector", "sample_count": 32, "envstep": 32, "train_iter": 0}
        evaluation = {"source": "evaluator", "mean_return": 5.0, "train_iter": 2, "envstep": 64}
        with closing(small_learner(str(run_dir))) as learner:
            iteration = {"learner": learner, "iteration": 1, "log_vars": {"total_loss": 0.5}}
        path = run_dir / "ckpt" / f"ckpt_best{SUFFIX}"
        path.parent.mkdir(exist_ok=True)
        section = self.config.policy.other.replay_buffer
        part = {"kind": "buffers", "type_key": section.type, "cfg": section, "args": (None,),
                "cls": self.manager.class_of("buffers", section),
                "kwargs": {"exp_name": str(run_dir), "instance_name": "buffer"}}  # fmt: skip
        pace = {"worker_id": "w1", "relative_pace": 0.2, "is_straggler": True}
        return [
            ("dingsdk_create_component", part),
            ("dingsdk_before_task", {"worker_id": "w1", "task": task}),
            ("dingsdk_after_episode", episode),
            ("dingsdk_after_collect", collect),
            ("dingsdk_after_iter", iteration),
            ("dingsdk_after_evaluate", evaluation),
            ("dingsdk_write_checkpoint", {"path": path, "contents": self.contents}),
            ("dingsdk_after_checkpoint", {"path": path, "iteration": 2}),
            ("dingsdk_read_checkpoint", {"path": path}),
            ("dingsdk_pace_changed", pace),
            ("dingsdk_connection_lost", {"worker_id": "w1", "reason": "lease"}),
            ("dingsdk_after_task", {"worker_id": "w1", "task": task, "outcome": answer}),
        ]


def rule_03_serves_one_run_after_another(bench: ObserverBench) -> None:
    """No hook raises in later runs of the process, or in a run without an evaluation.

    Hooks do not change their arguments. Answers of decide hooks can be used: ``should_stop``
    returns a string or None, ``create_component`` an object with the methods of its kind; once
    ``write_checkpoint`` returns True, there is a file. Columns and result fields are dicts; values
    of columns are numbers, strings or None, values of result fields can be encoded as JSON.
    """
    for name, mean_return in (("first", 5.0), ("second", None), ("third", 6.0)):
        for hook, facts in bench.run(name, mean_return):
            given = {name: value for name, value in facts.items() if name not in _OBJECTS}
            before = copy.deepcopy(given)
            answer = bench.call(hook, facts)
            expect_same(given, before, f"what {hook} was given, after it,")
            if answer is not None:
                _expect_usable(answer, hook, facts)


def rule_05_threads_may_call_at_once(bench: ObserverBench) -> None:
    """No hook raises in the process of a worker, where ``dingsdk_run_started`` was not called.

    Several threads may call the hooks at the same time, as workers that are threads do. Decide
    hooks are called by one thread.
    """
    bench.call("dingsdk_configure", {"config": bench.config})
    calls = []
    for hook, facts in bench.work(bench.folder):
        if hook in DECISIONS:
            bench.call(hook, facts)
        else:
            calls.append((hook, facts))
    barrier = threading.Barrier(THREADS)

    def work() -> None:
        barrier.wait(bench.patience_s)
        for _ in range(50):
            for hook, facts in calls:
                bench.call(hook, facts)

    for call in [Call(work, "a hook") for _ in range(THREADS)]:
        call.value(bench.patience_s)


def _expect_usable(answer: Any, hook: str, facts: Mapping[str, Any]) -> None:
    if hook in DECISIONS:
        wrong = DECISIONS[hook](answer, facts)
        expect(not wrong, f"{hook} returned {answer!r:.80}; {wrong}")
    elif hook in ("dingsdk_progress_columns", "dingsdk_result_fields"):
        expect(isinstance(answer, Mapping), f"{hook} returned {answer!r}")
        for name, value in answer.items():
            is_column = isinstance(value, str | int | float | None)
            is_plain = is_column if hook == "dingsdk_progress_columns" else _is_json(value)
            expect(isinstance(name, str) and is_plain, f"{hook} returned {name!r}: {value!r}")


def _is_json(value: Any) -> bool:
    try:
        msgspec.json.encode(value)
    except TypeError:
        return False
    return True


OBSERVER_BOOK: Final = RuleBook(collect(__name__), {}, ObserverBench)


class ObserverContract(Contract):
    """Base class of the contract tests of a plugin that only observes.

    Attributes:
        plugin: The module or object that has the hookimpls.
    """

    book = OBSERVER_BOOK
    maker = "plugin"
    plugin: ClassVar[Any]
