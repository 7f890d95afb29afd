"""How the built-in roles drive a task: messages to its worker, and handling of its answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dingsdk.config import to_easydict
from dingsdk.errors import UnknownPluginError
from dingsdk.pipeline.train import compile_run
from dingsdk.pipeline.worker import make_transport
from dingsdk.worker.coordinator import Role, TaskState, create_role, create_roles
from dingsdk.worker.coordinator.live_payloads import MOST_ANNOUNCED, PAYLOAD_ROWS, LivePayloads
from dingsdk.worker.coordinator.roles import (
    LAST_ANSWERS,
    REFUSED_PAUSE_S,
    WAIT_S,
    CollectorRole,
    LearnerRole,
)

RUN_CFG: dict[str, Any] = {"system": {"learner_num": 1, "collector_num": 2}}
TASK = {"task_id": "t", "buffer_id": "b"}
HOME = {"counts": {"limiter": 3}, "pace": None}


class Payloads(LivePayloads):
    """Payloads of a home that has room while ``is_ready`` is set."""

    is_ready = True

    def can_push(self, rows: int) -> bool:
        return self.is_ready


class Control:
    """A fake coordinator: its worker gives preset answers, and all calls are recorded."""

    def __init__(self, *answers: Any) -> None:
        self.condition = threading.Condition(threading.Lock())
        self.payloads: LivePayloads | None = Payloads(1)
        self.state = self
        self.is_ending = False
        self.held_up_by = ""
        self.answers = list(answers)
        self.messages: list[dict[str, Any]] = []
        self.timeouts: list[str] = []
        self.calls: list[tuple[Any, ...]] = []
        self.done_at: set[int] = set()
        """Steps of reports and learn infos at which the task is done."""
        self.refusals = 0
        self.states: list[TaskState] = []
        self.data: list[list[str] | None] = []
        """What the home of a buffer is told, one value per exchange; None: it is closed."""
        self.has_told_all = True
        self.on_call: Callable[[str], None] = lambda name: None
        self.settings: list[dict[str, Any]] = []
        """The collect settings of the commander, one per demand."""
        self.closing: dict[str, Any] = {}
        """More entries of the worker's answer when its task is closed."""
        self.limit: int | None = None
        self.ends: list[bool] = []
        """Whether the commander wants the task to end, one value per demand."""

    def must_end(self, state: TaskState) -> bool:
        return self.is_ending

    def env_steps_of(self, state: TaskState) -> int:
        return 11

    def ask(
        self, state: TaskState, data: Mapping[str, Any], timeout_key: str = "answer_timeout_s"
    ) -> Mapping[str, Any]:
        self.messages.append(dict(data))
        self.timeouts.append(timeout_key)
        self.states.append(state)
        if data["name"].endswith(("start_task", "close_task")):
            return {"is": data["name"], **self.closing}
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        found: Mapping[str, Any] = answer
        return found

    def wants_end_of(self, state: TaskState) -> bool:
        return bool(self.ends) and self.ends.pop(0)

    def new_collect_setting(self, state: TaskState) -> dict[str, Any]:
        return {"collect_setting": self.settings.pop(0)} if self.settings else {}

    def limits_of(self, state: TaskState) -> dict[str, int | None]:
        return {"step_limit": self.limit}

    def payloads_of(self, state: TaskState) -> Any:
        return self.payloads

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        self.on_call(call[0])

    def of(self, name: str) -> list[Any]:
        return [call[1] if len(call) == 2 else call[1:] for call in self.calls if call[0] == name]

    def names(self) -> list[str]:
        return [message["name"] for message in self.messages]

    def new_home(self, state: TaskState) -> dict[str, Any]:
        self._note("home")
        return HOME

    def confirmed_of(self, state: TaskState) -> int | None:
        return 7 if self.data and self.data[0] is not None else None

    def has_news(self, state: TaskState) -> bool:
        return not self.has_told_all

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


def test_collector_is_started_asked_for_reports_and_closed() -> None:
    control = Control(reports(payload("a", 4), {"cur_step": 5}), reports(has_ended=True))
    drive_collector(control)

    asked = ["collector_data_task"] * 2
    assert control.names() == ["collector_start_task", *asked, "collector_close_task"]
    limits = {"payload_rows": PAYLOAD_ROWS, "step_limit": None}
    assert control.messages[0]["task_info"] == {**TASK, **limits}
    assert control.timeouts[0] == "start_timeout_s"
    assert set(control.timeouts[1:]) == {"answer_timeout_s"}
    assert [call[0] for call in control.calls] == [
        "started", "collecting", "storage", "data", "progress", "progress", "storage", "finish",
    ]  # fmt: skip
    assert control.of("finish") == ["collector_close_task"]


def test_collector_gets_new_collect_settings() -> None:
    control = Control(reports(), reports(), reports(has_ended=True))
    control.settings = [{"eps": 0.5}, {"eps": 0.4}]
    drive_collector(control)
    told = [message.get("collect_setting") for message in control.messages[1:-1]]
    assert told == [{"eps": 0.5}, {"eps": 0.4}, None]


def test_collector_is_told_to_end_its_task() -> None:
    control = Control(reports(), reports(), reports(has_ended=True))
    control.ends = [False, True, True]
    drive_collector(control)
    told = [message.get("ends_now") for message in control.messages[1:-1]]
    assert told == [None, True, True]


def test_all_payloads_of_an_answer_wait_for_acknowledgment() -> None:
    control = Control(reports(payload("a", 4), payload("b", 8), {"cur_step": 9}, has_ended=True))
    state = drive_collector(control)
    both = {"a": 4, "b": 4}
    assert control.of("data") == [("a", both), ("b", both)]
    assert state.waiting == both


def test_finished_collector_is_asked_for_its_remaining_data() -> None:
    control = Control(*[reports({"cur_step": n}) for n in range(10)])
    control.done_at = {1}
    drive_collector(control)
    assert control.of("progress") == list(range(1 + LAST_ANSWERS))


def test_full_storage_is_reported_to_and_by_the_collector() -> None:
    control = Control(reports(held_up_by="disk full"), reports(), reports(has_ended=True))
    held_up = iter(["", "the policy", ""])
    control.on_call = lambda name: setattr(
        control, "held_up_by", next(held_up) if name == "storage" else control.held_up_by
    )
    control.held_up_by = "the policy"
    drive_collector(control)
    told = [message["is_held_up"] for message in control.messages[1:-1]]
    assert told == [True, False, True]
    assert control.of("storage") == ["disk full", "", ""]


def test_payload_refused_by_a_full_disk_is_offered_again_after_a_pause() -> None:
    control = Control(reports(payload("a", 4), has_ended=True))
    control.refusals, control.held_up_by = 2, "disk full"
    pauses = pauses_of(control)
    drive_collector(control)
    assert len(control.of("data")) == 3
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
    assert len(control.of("data")) == 2
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
    assert len(control.of("data")) == (1 if what == "ending" else 2)
    assert control.names()[-1] == "collector_close_task"


@pytest.mark.parametrize("what", ["limit", "ending", "commander"])
def test_collector_without_steps_is_asked_again_when_it_may_take_more_or_must_end(
    what: str,
) -> None:
    control = Control(
        reports({"cur_step": 40}, starved_at=40), reports(has_ended=True, starved_at=40)
    )
    control.limit = 40
    waits: list[bool] = []

    class Noted(threading.Condition):
        def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
            waits.append(bool(predicate()))
            if not waits[-1]:
                control.limit = 41 if what == "limit" else 40
                control.is_ending = what == "ending"
                control.ends = [True, True] if what == "commander" else []
                waits.append(bool(predicate()))

    control.condition = Noted(threading.Lock())
    drive_collector(control)
    assert waits == [True, False, True]
    assert control.messages[2].get("ends_now") == (True if what == "commander" else None)


# Learners -----------------------------------------------------------------------------------


def learned(step: int, *, is_idle: bool = False, held_up_by: str = "") -> dict[str, Any]:
    return {"info": {"learner_step": step, "is_idle": is_idle}, "held_up_by": held_up_by}


def test_learner_gets_announcements_until_it_is_done() -> None:
    control = Control(learned(1, held_up_by="disk full"), learned(2))
    control.data, control.done_at = [["a"], []], {2}
    control.closing = learned(5)
    drive_learner(control)

    learns = ["learner_learn_task"] * 2
    assert control.names() == ["learner_start_task", *learns, "learner_close_task"]
    assert control.messages[0]["task_info"] == {**TASK, "home": HOME}
    told = {"confirmed": 7, "env_steps": 11}
    assert [m["data"] for m in control.messages[1:-1]] == [
        {"announcements": news, **told} for news in (["a"], [])
    ]
    assert control.timeouts == ["start_timeout_s", *["learn_timeout_s"] * 2, "answer_timeout_s"]
    assert [call[0] for call in control.calls] == [
        *("home", "started"),
        *("get_data", "info", "storage") * 2,
        *("info", "finish"),
    ]
    assert control.of("info") == [1, 2, 5]
    assert control.of("storage") == ["disk full", ""]
    assert control.of("finish") == [("learner_close_task", True)]


@pytest.mark.parametrize("what", ["ending", "buffer"])
def test_learner_that_is_closed_early_has_not_trained_out(what: str) -> None:
    control = Control(learned(1))
    control.data, control.closing = [[], None], learned(1)

    def end(name: str) -> None:
        control.is_ending = what == "ending" and name == "storage"

    control.on_call = end
    drive_learner(control)
    assert control.names()[1:] == ["learner_learn_task", "learner_close_task"]
    assert control.of("finish") == [("learner_close_task", False)]


@pytest.mark.parametrize("what", ["ending", "news"])
def test_idle_learner_is_not_asked_until_there_is_news_or_the_run_ends(what: str) -> None:
    control = Control(learned(1, is_idle=True), learned(2, is_idle=True))
    control.data, control.done_at, control.closing = [[], []], {2}, learned(2)
    state, waits = TaskState("t", "learner", TASK), list[Any]()

    class Noted(threading.Condition):
        def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
            before = predicate()
            control.is_ending = what == "ending"
            control.has_told_all = control.is_ending
            waits.append((state.waits_for, timeout, before, predicate()))

    control.condition = Noted(threading.Lock())
    LearnerRole({}, RUN_CFG).drive(control, state, state.task)
    assert waits == [("samples to train on", WAIT_S, False, True)]
    assert state.waits_for == ""
    assert control.of("info") == ([1, 2] if what == "ending" else [1, 2, 2])


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


@pytest.mark.parametrize("learner_num", [1, 2])
def test_learner_gets_the_number_of_training_processes(tmp_path: Path, learner_num: int) -> None:
    cfg = compile_run("cartpole-dqn", "parallel", "in_memory")
    cfg.system.learner_num = learner_num
    transport = make_transport(cfg, tmp_path)
    worker: Any = create_role("learner", cfg).create_worker(transport, "learner-0")
    assert worker.learner_num == learner_num
    worker.close()
    transport.close()


@pytest.mark.parametrize(
    ("replay", "own"),
    [({}, True), ({"type": "server"}, True), ({"type": "server", "address": "127.0.0.1:1"}, False)],
)
def test_workers_have_a_client_of_the_runs_replay_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replay: dict[str, str], own: bool
) -> None:
    monkeypatch.setenv("DINGSDK_SECRET", "x" * 64)
    cfg = compile_run("cartpole-dqn", "parallel", "in_memory")
    cfg.system.replay = {"path": "", "address": "", "timeout_s": 7.0, **replay}
    cfg.system.roles = {"inference": {"num": 1}}
    cfg.system.collector.allowed_modules = ["json"]
    transport = make_transport(cfg, tmp_path)
    assert ("replay-server" in create_roles(cfg)) is (bool(replay) and own)
    for role in ("learner", "collector"):
        worker: Any = create_role(role, cfg).create_worker(transport, f"{role}-0")
        if not replay:
            assert worker.replay is None
        else:
            assert worker.replay._timeout_s == 7.0
            assert worker.replay.address == replay.get("address", "")
            found = worker.replay._path
            assert (found is not None and found.is_relative_to(tmp_path)) is own
        assert (getattr(worker, "inference", None) is not None) is (role == "collector")
        assert ("json" in worker._cfg.allowed_modules) is (role == "collector")
        worker.close()
    transport.close()
