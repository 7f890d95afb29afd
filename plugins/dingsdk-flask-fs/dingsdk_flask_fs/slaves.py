"""Slaves for custom collectors and learners, with the task names of the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from dingsdk.errors import TaskFail
from dingsdk.worker.comm import Slave, Transport, WorkerInfo


class _NamedSlave(Slave):
    """Calls ``callback_fn[deal_with_...]`` for each kind of task of its role.

    Answers to a task have its ``task_id`` and ``buffer_id``, unless the function returns its own.

    Args:
        transport: Connects it with its master.
        info: This worker's id, role and resources.
        callback_fn: ``deal_with_...`` -> function; all functions of the role are required.
    """

    _table: ClassVar[Mapping[str, tuple[str, str | None]]]
    """Task name -> (callback, key of the task to pass to it; None: call it without arguments)."""

    def __init__(
        self,
        transport: Transport,
        info: WorkerInfo,
        *,
        callback_fn: Mapping[str, Callable[..., Any]],
    ) -> None:
        missing = sorted({name for name, _ in self._table.values()} - callback_fn.keys())
        if missing:
            raise ValueError(f"{type(self).__name__} needs callback_fn for {', '.join(missing)}")
        super().__init__(transport, info)
        self._functions = dict(callback_fn)
        self._ids: dict[str, Any] = {}

    def _process_task(self, task: Mapping[str, Any]) -> Mapping[str, Any] | None:
        name = task.get("name", "")
        if name not in self._table:
            raise TaskFail({"message": "task name error"}, f"unknown task {name!r}")
        callback, key = self._table[name]
        if key == "task_info":
            self._ids = {each: task[key].get(each) for each in ("task_id", "buffer_id")}
        given = () if key is None else (task[key],)
        result: Mapping[str, Any] = self._functions[callback](*given)
        if name == "resource" or key == "task_info":
            return result
        return {**self._ids, **(result or {})}


class CollectorSlave(_NamedSlave):
    """Serves ``resource`` and the ``collector_{start,data,close}_task``."""

    _table: ClassVar[Mapping[str, tuple[str, str | None]]] = {
        "resource": ("deal_with_resource", None),
        "collector_start_task": ("deal_with_collector_start", "task_info"),
        "collector_data_task": ("deal_with_collector_data", None),
        "collector_close_task": ("deal_with_collector_close", None),
    }


class LearnerSlave(_NamedSlave):
    """Serves ``resource`` and the ``learner_{start,learn,close}_task``."""

    _table: ClassVar[Mapping[str, tuple[str, str | None]]] = {
        "resource": ("deal_with_resource", None),
        "learner_start_task": ("deal_with_learner_start", "task_info"),
        "learner_learn_task": ("deal_with_learner_learn", "data"),
        "learner_close_task": ("deal_with_learner_close", None),
    }
