"""How the built-in roles drive a task: messages to its worker, and handling of its answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from dingsdk.config import to_easydict
from dingsdk.errors import UnknownPluginError
from dingsdk.worker.coordinator import Role, TaskState, create_role, create_roles
from dingsdk.worker.coordinator.live_payloads import MOST_ANNOUNCED, LivePayloads
from dingsdk.worker.coordinator.role import WAIT_S
from dingsdk.worker.coordinator.roles import (
    LAST_ANSWERS,
    REFUSED_PAUSE_S,
    CollectorRole,
    LearnerRole,
)

RUN_CFG: dict[str, Any] = {"system": {"learner_num": 1, "collector_num": 2}, "policy": {}}
TASK = {"task_id": "t", "buffer_id": "b"}


class Payloads(LivePayloads):
    """Payloads of a home that has room while ``is_ready`` is set."""

    is_ready = True
    _has_news = False

    def can_push(self, rows: int) -> bool:
        return self.is_ready


class Control:
    """A fake coordinator: its worker gives preset answers, and all calls are recorded."""

    def __init__(self, *answers: Any) -> None:
        self.condition = threading.Condition(threading.Lock())
        self.payloads: Payloads | None = Payloads(1)
        self.state = self.end = self.limits = self.commander = self.outage = self
        self.buffers = {"b": self.payloads}
        self.is_ending = False
        self.text = ""
        self.answers = list(answers)
        self.messages: list[dict[str, Any]] = []
        self.calls: list[tuple[Any, ...]] = []
        self.done_at: set[int] = set()
        """Steps of reports and learn infos at which the task is done."""
        self.refusals = 0
        self.states: list[TaskState] = []
        self.data: list[list[str] | None] = []
        """What the home of a buffer is told, one value per exchange; None: it is closed."""
        self.on_call: Callable[[str], None] = lambda name: None
        self.closing: dict[str, Any] = {}
        """More entries of the worker's answer when its task is closed."""

    def must_end(self, state: TaskState) -> bool:
        return self.is_ending

    def env_steps_of(self, state: TaskState) -> int:
        return 11

    def ask(
        self, state: TaskState, data: Mapping[str, Any], timeout_key: str = "answer_timeout_s"
    ) -> Mapping[str, Any]:
        self.messages.append(dict(data))
        self.states.append(state)
        if data["name"].endswith(("start_task", "close_task")):
            return {"is": data["name"], **self.closing}
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        found: Mapping[str, Any] = answer
        return found

    def of(self, state: TaskState) -> dict[str, int | None]:
        return {"step_limit": None}

    def wants_end_of(self, state: TaskState) -> bool:
        return False

    def get_collect_setting(self, task_id: str) -> None:
        return None

    def payloads_of(self, state: TaskState) -> Any:
        return None if self.data and self.data[0] is None else self.payloads

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        self.on_call(call[0])

    def noted(self, name: str) -> list[Any]:
        return [call[1] if len(call) == 2 else call[1:] for call in self.calls if call[0] == name]

    def names(self) -> list[str]:
        return [message["name"] for message in self.messages]

    def deal_with_task_started(self, state: TaskState) -> None:
        self._note("started")

    def deal_with_storage(self, state: TaskState, held_up_by: str) -> None:
        self._note("storage", held_up_by)

    def deal_with_collecting(self) -> None:
        self._note("collecting")

    def deal_with_collector_send_data(
        self, task_id: str, buffer_id: str, data_id: str, data: Mapping[str, Any]
    ) -> bool:
        assert (task_id, buffer_id, data_id) == ("t", "b", data["data_id"])
        self._note("data", data_id, dict(self.states[-1].waiting))
        if self.refusals:
            self.refusals -= 1
            return False
        return True

    def deal_with_collector_judge_finish(self, task_id: str, data: Mapping[str, Any]) -> bool:
        self._note("progress", data["cur_step"])
        return data["cur_step"] in self.done_at

    def deal_with_collector_finish_task(self, task_id: str, finished: Any) -> None:
        self._note("finish", finished["is"])

    def deal_with_learner_get_data(
        self, task_id: str, buffer_id: str, batch_size: int, cur_learner_iter: int
    ) -> Any:
        assert (task_id, buffer_id, batch_size) == ("t", "b", MOST_ANNOUNCED)
        self._note("get_data")
        return self.data.pop(0)

    def deal_with_learner_send_info(
        self, task_id: str, buffer_id: str, info: Mapping[str, Any]
    ) -> None:
        assert (task_id, buffer_id) == ("t", "b")
        self._note("info", info["learner_step"])

    def deal_with_learner_judge_finish(self, task_id: str, info: Mapping[str, Any]) -> bool:
        return info["learner_step"] in self.done_at

    def deal_with_learner_finish_task(
        self, task_id: str, finished: Mapping[str, Any], *, has_trained_out: bool
    ) -> None:
        self._note("finish", finished["is"], has_trained_out)


def reports(*found: Mapping[str, Any], **answer: Any) -> dict[str, Any]:
    return {"reports": list(found), "has_ended": False, **answer}


def payload(name: str, step: int) -> dict[str, Any]:
    return {"data_id": name, "rows": 4, "cur_step": step}


def drive_collector(control: Control) -> TaskState:
    state = TaskState("t", "collector", TASK)
    CollectorRole({}, RUN_CFG).drive(control, state, TASK)
    return state


def drive_learner(control: Control) -> TaskState:
    state = TaskState("t", "learner", TASK)
    LearnerRole({}, RUN_CFG).drive(control, state, TASK)
    return state


# Collectors ---------------------------------------------------------------------------------


def pauses_of(control: Control) -> list[float | None]:
    """Return a list to which each wait of the driver appends its timeout in seconds."""
    pauses: list[float | None] = []

    class Noted(threading.Condition):
        def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
            pauses.append(timeout)
            return super().wait_for(predicate, timeout)

    control.condition = Noted(threading.Lock())
    return pauses


def test_all_payloads_of_an_answer_wait_for_acknowledgment() -> None:
    control = Control(reports(payload("a", 4), payload("b", 8), {"cur_step": 9}, has_ended=True))
    state = drive_collector(control)
    both = {"a": 4, "b": 4}
    assert control.noted("data") == [("a", both), ("b", both)]
    assert state.waiting == both


def test_finished_collector_is_asked_for_its_remaining_data() -> None:
    control = Control(*[reports({"cur_step": n}) for n in range(10)])
    control.done_at = {1}
    drive_collector(control)
    assert control.noted("progress") == list(range(1 + LAST_ANSWERS))


def test_payload_refused_by_a_full_disk_is_offered_again_after_a_pause() -> None:
    control = Control(reports(payload("a", 4), has_ended=True))
    control.refusals, control.text = 2, "disk full"
    pauses = pauses_of(control)
    drive_collector(control)
    assert len(control.noted("data")) == 3
    assert pauses.count(REFUSED_PAUSE_S) == 2


def test_payload_waits_for_room_without_polling() -> None:
    control = Control(reports(payload("a", 4), has_ended=True))
    control.refusals = 1
    payloads = control.payloads = Payloads(1)
    payloads.is_ready = False
    driver = threading.Thread(target=drive_collector, args=(control,))
    refused = threading.Event()
    control.on_call = lambda name: refused.set() if name == "data" else None
    driver.start()
    assert refused.wait(20.0)
    with control.condition:
        waiting = control.states[0]
        assert waiting.waits_for == "room for 4 rows in the replay buffer"
        payloads.is_ready = True
        control.condition.notify_all()
    driver.join(20.0)
    assert len(control.noted("data")) == 2
    assert waiting.waits_for == ""


@pytest.mark.parametrize("what", ["ending", "buffer"])
def test_driver_stops_offering_a_payload_when_the_run_or_the_buffer_ends(what: str) -> None:
    control = Control(reports(payload("a", 4), has_ended=True))
    payloads = control.payloads = Payloads(1)
    payloads.is_ready = False
    control.refusals = 10**6 if what == "ending" else 1

    def change(name: str) -> None:
        if name == "data" and what == "ending":
            control.is_ending = True
        elif name == "data":
            control.payloads = None

    control.on_call = change
    drive_collector(control)
    assert len(control.noted("data")) == (1 if what == "ending" else 2)
    assert control.names()[-1] == "collector_close_task"


# Learners -----------------------------------------------------------------------------------


def learned(step: int, *, is_idle: bool = False, held_up_by: str = "") -> dict[str, Any]:
    return {"info": {"learner_step": step, "is_idle": is_idle}, "held_up_by": held_up_by}


@pytest.mark.parametrize("what", ["ending", "buffer"])
def test_learner_that_is_closed_early_has_not_trained_out(what: str) -> None:
    control = Control(learned(1))
    control.data, control.closing = [[], None], learned(1)

    def end(name: str) -> None:
        control.is_ending = what == "ending" and name == "storage"

    control.on_call = end
    drive_learner(control)
    assert control.names()[1:] == ["learner_learn_task", "learner_close_task"]
    assert control.noted("finish") == [("learner_close_task", False)]


@pytest.mark.parametrize("what", ["ending", "closed", "news"])
def test_idle_learner_is_not_asked_until_there_is_news_or_its_task_ends(what: str) -> None:
    control = Control(learned(1, is_idle=True), learned(2, is_idle=True))
    control.data, control.done_at, control.closing = [[], []], {2}, learned(2)
    state, waits = TaskState("t", "learner", TASK), list[Any]()

    class Noted(threading.Condition):
        def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
            before = predicate()
            control.is_ending = what == "ending"
            assert control.payloads is not None
            control.payloads._has_news = what == "news"
            control.data = [None] if what == "closed" else control.data
            waits.append((state.waits_for, timeout, before, predicate()))

    control.condition = Noted(threading.Lock())
    LearnerRole({}, RUN_CFG).drive(control, state, state.task)
    assert waits == [("samples to train on", WAIT_S, False, True)]
    assert state.waits_for == ""
    assert control.noted("info") == ([1, 2, 2] if what == "news" else [1, 2])


def test_new_home_is_told_the_pace_of_episodes() -> None:
    control = Control()
    control.is_ending, control.closing = True, learned(1)
    learn, other = {"update_per_collect": 3, "batch_size": 16}, {"replay_buffer": {}}
    policy = {"collect": {"n_episode": 4}, "learn": learn, "other": other}
    LearnerRole({}, {**RUN_CFG, "policy": policy}).drive(
        control, TaskState("t", "learner", TASK), TASK
    )
    home = control.messages[0]["task_info"]["home"]
    assert (home["counts"], home["trained_rows"]) == (None, 0)
    assert (home["pace"]["n_episode"], home["pace"]["updates"]) == (4, 3)


# Roles of a run -----------------------------------------------------------------------------


def test_run_has_a_learner_collectors_and_the_configured_roles() -> None:
    roles = create_roles(RUN_CFG)
    assert list(roles) == ["learner", "collector"]
    assert [role.worker_num for role in roles.values()] == [1, 2]
    assert [role.ends_run for role in roles.values()] == [True, False]
    assert [role.resumes for role in roles.values()] == [True, False]
    assert [role.rejoins for role in roles.values()] == [True, True]
    assert [Role.ends_run, Role.resumes, Role.rejoins] == [False] * 3, "the defaults of a role"
    assert create_role("collector", RUN_CFG).name == "collector"
    unknown = to_easydict({"system": {"roles": {"colector": {}}}})
    with pytest.raises(UnknownPluginError) as caught:
        create_roles({**unknown, **RUN_CFG, "system": {**RUN_CFG["system"], **unknown["system"]}})
    assert caught.value.nearest == "collector"
