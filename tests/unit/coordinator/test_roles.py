"""How the built-in roles drive a task: messages to its worker, and handling of its answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dingsdk.config import to_easydict
from dingsdk.errors import UnknownPluginError, WorkerLostError
from dingsdk.pipeline.train import compile_run
from dingsdk.pipeline.worker import make_transport
from dingsdk.worker.coordinator import TaskState, create_role, create_roles
from dingsdk.worker.coordinator import experience as coordinator_experience
from dingsdk.worker.coordinator.on_policy import OnPolicyExperience
from dingsdk.worker.coordinator.roles import (
    LAST_ANSWERS,
    REFUSED_PAUSE_S,
    WAIT_S,
    CollectorRole,
    LearnerRole,
    Role,
)
from dingsdk.worker.inference.role import InferenceRole

RUN_CFG: dict[str, Any] = {"system": {"learner_num": 1, "collector_num": 2}}
TASK = {"task_id": "t", "buffer_id": "b"}


class Buffer:
    """A buffer that has room and samples while ``is_ready`` is set."""

    def __init__(self) -> None:
        self.is_ready = True

    def can_push(self, rows: int) -> bool:
        return self.is_ready

    def can_sample(self, batch_size: int) -> bool:
        return self.is_ready


class Experience(coordinator_experience.Experience):
    columns = ("reward",)

    def __init__(self) -> None:
        self.buffer = Buffer()
        self.can_push, self.can_sample = self.buffer.can_push, self.buffer.can_sample


class Control:
    """A fake coordinator: its worker gives preset answers, and all calls are recorded."""

    def __init__(self, *answers: Any) -> None:
        self.condition = threading.Condition(threading.Lock())
        self.experience: Experience | None = Experience()
        self.is_ending = False
        self.held_up_by = ""
        self.answers = list(answers)
        self.messages: list[dict[str, Any]] = []
        self.timeouts: list[str] = []
        self.calls: list[tuple[Any, ...]] = []
        self.done_at: set[int] = set()
        self.home_of = self.begin_home = lambda state: None  # the coordinator leases batches
        """Steps of reports and learn infos at which the task is done."""
        self.refusals = 0
        self.states: list[TaskState] = []
        self.data: list[dict[str, Any] | None] = []
        self.on_call: Callable[[str], None] = lambda name: None
        self.settings: list[dict[str, Any]] = []
        """The collect settings of the commander, one per demand."""
        self.closing: dict[str, Any] = {}
        """More entries of the worker's answer when its task is closed."""
        self.ends: list[bool] = []
        """Whether the commander wants the task to end, one value per demand."""

    def must_end(self, state: TaskState) -> bool:
        return self.is_ending

    def ask(
        self, state: TaskState, data: Mapping[str, Any], timeout_key: str = "answer_timeout_s"
    ) -> Mapping[str, Any]:
        self.messages.append(dict(data))
        self.timeouts.append(timeout_key)
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

    def experience_of(self, state: TaskState) -> Any:
        return self.experience

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        self.on_call(call[0])

    def of(self, name: str) -> list[Any]:
        return [call[1] if len(call) == 2 else call[1:] for call in self.calls if call[0] == name]

    def names(self) -> list[str]:
        return [message["name"] for message in self.messages]

    def open_experience(self, state: TaskState) -> None:
        self._note("open")

    def end_batch_leases(self, state: TaskState) -> None:
        self._note("end_leases")

    def deal_with_task_started(self, state: TaskState) -> None:
        self._note("started")

    def deal_with_storage(self, state: TaskState, held_up_by: str) -> None:
        self._note("storage", held_up_by)

    def deal_with_collecting(self) -> None:
        self._note("collecting")

    def deal_with_collector_send_data(self, state: TaskState, meta: Mapping[str, Any]) -> bool:
        self.states.append(state)
        self._note("data", meta["data_id"], dict(state.waiting))
        if self.refusals:
            self.refusals -= 1
            return False
        return True

    def deal_with_collector_progress(self, state: TaskState, report: Mapping[str, Any]) -> bool:
        self._note("progress", report["cur_step"])
        return report["cur_step"] in self.done_at

    def deal_with_collector_finish_task(self, state: TaskState, finished: Any) -> None:
        self._note("finish", finished["is"])

    def deal_with_learner_get_data(self, state: TaskState, demand: Any) -> Any:
        self._note("get_data", demand["batch_size"])
        return self.data.pop(0)

    def deal_with_learner_send_info(self, state: TaskState, info: Mapping[str, Any]) -> None:
        self._note("info", info["learner_step"])

    def deal_with_learner_known(self, state: TaskState, known: Any) -> None:
        self._note("known", known)

    def deal_with_learner_judge_finish(self, state: TaskState, info: Mapping[str, Any]) -> bool:
        return info["learner_step"] in self.done_at

    def deal_with_learner_finish_task(
        self, state: TaskState, finished: Mapping[str, Any], *, has_trained_out: bool
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
    assert control.messages[0]["task_info"] == {**TASK, "columns": ["reward"]}
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


def test_collector_is_closed_when_the_run_ends() -> None:
    control = Control(reports({"cur_step": 1}), reports({"cur_step": 2}))

    def end(name: str) -> None:
        control.is_ending = name == "progress"

    control.on_call = end
    drive_collector(control)
    assert control.of("progress") == [1]
    assert control.names()[-1] == "collector_close_task"


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


def test_payload_is_offered_until_the_buffer_takes_it() -> None:
    control = Control(reports(payload("a", 4), has_ended=True))
    control.refusals = 3
    drive_collector(control)
    assert len(control.of("data")) == 4
    assert control.of("progress") == [4]


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
    assert control.experience is not None
    buffer = control.experience.buffer
    buffer.is_ready = False
    driver = threading.Thread(target=drive_collector, args=(control,))
    refused = threading.Event()
    control.on_call = lambda name: refused.set() if name == "data" else None
    driver.start()
    assert refused.wait(20.0)
    with control.condition:
        waiting = control.states[0]
        assert waiting.waits_for == "room for 4 rows in the replay buffer"
        assert waiting.wanted == 0
        buffer.is_ready = True
        control.condition.notify_all()
    driver.join(20.0)
    assert len(control.of("data")) == 2
    assert (waiting.waits_for, waiting.wanted) == ("", 0)


@pytest.mark.parametrize("what", ["ending", "buffer"])
def test_driver_stops_offering_a_payload_when_the_run_or_the_buffer_ends(what: str) -> None:
    control = Control(reports(payload("a", 4), has_ended=True))
    assert control.experience is not None
    control.experience.buffer.is_ready = False
    control.refusals = 10**6 if what == "ending" else 1

    def change(name: str) -> None:
        if name == "data" and what == "ending":
            control.is_ending = True
        elif name == "data":
            control.experience = None

    control.on_call = change
    drive_collector(control)
    assert len(control.of("data")) == (1 if what == "ending" else 2)
    assert control.names()[-1] == "collector_close_task"


def test_demand_has_no_limit_if_the_collector_is_not_limited() -> None:
    control = Control(reports(has_ended=True))
    drive_collector(control)
    (demand,) = [m for m in control.messages if m["name"] == "collector_data_task"]
    assert demand == {"name": "collector_data_task", "is_held_up": False}


def test_collector_is_not_asked_until_it_has_admitted_steps() -> None:
    control = Control(reports(has_ended=True))
    experience = control.experience = OnPolicyExperience(4, 0)  # type: ignore[assignment]
    experience.push({"data_id": "a", "rows": 4, "policy_iter": 0}, 0)
    learner = TaskState("l", "learner", {"buffer_id": "b"})
    assert experience.lease(learner, 1, 1, 0) is not None
    is_asked = threading.Event()
    ask = control.ask

    def note(state: TaskState, data: Mapping[str, Any], *args: Any) -> Mapping[str, Any]:
        if data["name"] == "collector_data_task":
            is_asked.set()
        return ask(state, data, *args)

    control.ask = note  # type: ignore[method-assign]
    waits = threading.Event()
    wait_for = control.condition.wait_for

    def note_wait(predicate: Any, timeout: float | None = None) -> Any:
        waits.set()
        return wait_for(predicate, timeout)

    control.condition.wait_for = note_wait  # type: ignore[method-assign]
    driver = threading.Thread(target=drive_collector, args=(control,))
    with control.condition:
        driver.start()
    assert waits.wait(20.0)
    with control.condition:
        was_asked = is_asked.is_set()
        info = {"learner_step": 5, "lost_payloads": [], "priority_info": {}}
        experience.settle(learner, info)
        control.condition.notify_all()
    driver.join(20.0)
    assert not was_asked
    demand = control.messages[1]
    assert (demand["admitted_steps"], demand["policy_iter"]) == (4, 5)


def test_evaluation_beside_an_on_policy_learner_has_no_step_limit() -> None:
    control = Control(reports(has_ended=True))
    control.experience = OnPolicyExperience(4, 0)  # type: ignore[assignment]
    state = TaskState("t", "collector", {**TASK, "collector_cfg": {"eval_flag": True}})
    CollectorRole({}, RUN_CFG).drive(control, state, state.task)
    assert "admitted_steps" not in control.messages[1]
    assert "columns" not in control.messages[0]["task_info"]


@pytest.mark.parametrize("what", ["ending", "buffer"])
def test_collector_without_admitted_steps_is_closed_when_the_run_or_the_buffer_ends(
    what: str,
) -> None:
    control = Control(reports(has_ended=True))
    experience = control.experience = OnPolicyExperience(4, 0)  # type: ignore[assignment]
    experience.push({"data_id": "a", "rows": 4, "policy_iter": 0}, 0)
    assert experience.lease(TaskState("l", "learner", {"buffer_id": "b"}), 1, 1, 0) is not None
    waits: list[float | None] = []
    looks: list[bool] = []

    class Noted(threading.Condition):
        def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
            waits.append(timeout)
            looks.append(bool(predicate()))
            control.is_ending = what == "ending"
            control.experience = control.experience if control.is_ending else None
            looks.append(bool(predicate()))

    control.condition = Noted(threading.Lock())
    drive_collector(control)
    assert (looks, waits) == ([False, True], [WAIT_S])
    assert control.names()[-1] == "collector_close_task"


# Learners -----------------------------------------------------------------------------------

DEMAND = {"batch_size": 8, "batches": 2, "cur_learner_iter": 0}


def learned(step: int) -> dict[str, Any]:
    return {"info": {"learner_step": step}}


def test_learner_is_leased_batches_until_it_is_done() -> None:
    control = Control(DEMAND, learned(1), DEMAND, learned(2))
    control.data = [{"batches": ["first"]}, {"batches": ["second"]}]
    control.done_at = {2}
    drive_learner(control)

    assert control.names() == [
        "learner_start_task",
        *["learner_get_data_task", "learner_learn_task"] * 2,
        "learner_close_task",
    ]
    learns = [m["data"] for m in control.messages if m["name"] == "learner_learn_task"]
    assert learns == [{"batches": ["first"]}, {"batches": ["second"]}]
    assert control.timeouts.count("learn_timeout_s") == 2
    assert control.timeouts[0] == "start_timeout_s"
    assert control.of("info") == [1, 2]
    assert control.of("finish") == [("learner_close_task", True)]
    assert [call[0] for call in control.calls][:2] == ["open", "started"]


def test_iterations_before_the_close_of_a_learner_count() -> None:
    control = Control(DEMAND, learned(3))
    control.data, control.done_at, control.closing = [{"batches": ["first"]}], {3}, learned(5)
    drive_learner(control)
    assert control.of("info") == [3, 5]
    assert [call[0] for call in control.calls][-2:] == ["info", "finish"]


def test_learner_that_sends_its_next_demand_is_not_asked_for_it() -> None:
    next_demand = {**DEMAND, "batch_size": 9}
    control = Control(DEMAND, {**learned(1), "demand": next_demand}, learned(2), DEMAND, learned(3))
    control.data = [{"batches": [number]} for number in range(3)]
    control.done_at = {3}
    drive_learner(control)
    assert control.names()[1:-1] == [
        *("learner_get_data_task", "learner_learn_task", "learner_learn_task"),
        *("learner_get_data_task", "learner_learn_task"),
    ]
    assert control.of("get_data") == [8, 9, 8]


def test_learner_without_a_demand_is_asked_again_until_it_has_ended() -> None:
    pending = {"pending": True, "learner_done": False, "held_up_by": "disk full"}
    control = Control(pending, {**pending, "learner_done": True, "held_up_by": ""})
    drive_learner(control)
    assert control.names().count("learner_get_data_task") == 2
    assert control.of("storage") == ["disk full", ""]
    assert control.of("finish") == [("learner_close_task", True)]


def test_learner_that_is_closed_early_has_not_trained_out() -> None:
    control = Control(DEMAND, learned(1), DEMAND)
    control.data = [{"batches": []}]

    def end(name: str) -> None:
        control.is_ending = name == "info"

    control.on_call = end
    drive_learner(control)
    assert control.of("finish") == [("learner_close_task", False)]


@pytest.mark.parametrize("what", ["ending", "buffer"])
def test_waiting_learner_is_closed_when_the_run_or_the_buffer_ends(what: str) -> None:
    control = Control(DEMAND)
    assert control.experience is not None
    control.experience.buffer.is_ready = False
    control.data = [None]

    def change(name: str) -> None:
        if name == "storage":
            control.is_ending, control.experience = what == "ending", None

    control.on_call = change
    drive_learner(control)
    assert control.of("finish") == [("learner_close_task", False)]
    assert len(control.of("get_data")) == (0 if what == "ending" else 1)


def test_driver_waits_for_a_batch_without_polling() -> None:
    control = Control(DEMAND, learned(1))
    control.data, control.done_at = [{"batches": ["first"]}], {1}
    assert control.experience is not None
    control.experience.buffer.is_ready = False
    state, waits = TaskState("t", "learner", TASK), threading.Event()
    seen: list[Any] = []

    class Noted(threading.Condition):
        def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
            seen.append((state.waits_for, state.wanted, timeout, bool(predicate())))
            waits.set()
            return super().wait_for(predicate, timeout)

    control.condition = Noted(threading.Lock())
    driver = threading.Thread(
        target=LearnerRole({}, RUN_CFG).drive, args=(control, state, state.task)
    )
    driver.start()
    assert waits.wait(20.0)
    with control.condition:
        assert control.of("get_data") == []
        control.experience.buffer.is_ready = True
        control.condition.notify_all()
    driver.join(20.0)
    assert seen[0] == ("a batch of 8 samples", 8, WAIT_S, False)
    assert control.of("get_data") == [8]
    assert (state.waits_for, state.wanted) == ("", 0)


def test_buffer_without_a_batch_is_asked_again_after_a_pause() -> None:
    control = Control(DEMAND, learned(1))
    control.data = [None, None, {"batches": ["at last"]}]
    control.done_at = {1}
    pauses = pauses_of(control)
    drive_learner(control)
    assert len(control.of("get_data")) == 3
    assert pauses.count(REFUSED_PAUSE_S) == 2
    assert control.of("info") == [1]


def go_on_as_learner(control: Control) -> None:
    LearnerRole({}, RUN_CFG).go_on(control, TaskState("t", "learner", TASK))


def test_learner_of_an_earlier_coordinator_reports_its_training_and_continues() -> None:
    control = Control({"known": [3, 4], **learned(5)}, DEMAND, learned(6))
    control.data, control.done_at = [{"batches": ["next"]}], {6}
    go_on_as_learner(control)
    assert control.messages[0] == {"name": "learner_go_on_task", "task_id": "t"}
    assert control.names()[1:] == [
        "learner_get_data_task", "learner_learn_task", "learner_close_task",
    ]  # fmt: skip
    assert control.timeouts[:2] == ["learn_timeout_s", "answer_timeout_s"]
    assert [call[0] for call in control.calls[:3]] == ["started", "known", "info"]
    assert control.of("known") == [[3, 4]]
    assert control.of("info") == [5, 6]


def test_finished_learner_of_an_earlier_coordinator_is_closed() -> None:
    control = Control({"known": [], **learned(5)})
    control.done_at = {5}
    go_on_as_learner(control)
    assert control.names() == ["learner_go_on_task", "learner_close_task"]
    assert control.of("finish") == [("learner_close_task", True)]


def test_learner_that_did_not_train_on_its_last_lease_gets_a_new_one() -> None:
    control = Control({"known": [], "info": None}, DEMAND, learned(6))
    control.data, control.done_at = [{"batches": ["again"]}], {6}
    go_on_as_learner(control)
    assert [call[0] for call in control.calls[:3]] == ["started", "known", "end_leases"]
    assert control.of("info") == [6]


@pytest.mark.parametrize("is_evaluation", [False, True])
def test_collector_of_an_earlier_coordinator_keeps_its_admitted_steps(
    is_evaluation: bool,
) -> None:
    answer = {"admitted_steps": 8, "delivered_steps": 3, "policy_iter": 5}
    control = Control(answer, reports(has_ended=True))
    experience = control.experience = OnPolicyExperience(4, 0)  # type: ignore[assignment]
    state = TaskState("t", "collector", {**TASK, "collector_cfg": {"eval_flag": is_evaluation}})
    found: list[Any] = []
    control.on_call = lambda name: found.append(experience.admission.has_outstanding("t"))
    CollectorRole({}, RUN_CFG).go_on(control, state)
    assert control.messages[0] == {"name": "collector_go_on_task", "task_id": "t"}
    assert [call[0] for call in control.calls] == ["started", "collecting", "storage", "finish"]
    assert found == [False, *[not is_evaluation] * 3]
    experience.admission.report("t", 7, None)
    assert experience.admission.has_outstanding("t") is not is_evaluation
    experience.admission.report("t", 8, None)
    assert not experience.admission.has_outstanding("t")


def test_collector_without_a_buffer_gets_no_columns() -> None:
    control = Control(reports(has_ended=True))
    control.experience = None
    drive_collector(control)
    assert control.messages[0]["task_info"] == TASK


def test_retried_task_has_another_seed_or_resumes_from_a_checkpoint() -> None:
    collector, cfg = CollectorRole({}, RUN_CFG), {"seed": 7, "eval_flag": False}

    def retried(attempt: int, **own: Any) -> dict[str, Any]:
        task = {**TASK, "collector_cfg": {**cfg, **own}}
        found = collector.retried(TaskState("t", "collector", task, attempt=attempt))
        return dict(found["collector_cfg"])

    seeds = {retried(attempt)["seed"] for attempt in (1, 2)}
    assert len(seeds | {7}) == 3
    assert retried(1) == retried(1)
    assert retried(1, eval_flag=True) == {"seed": 7, "eval_flag": True}
    assert retried(1, seed=None) == {"seed": None, "eval_flag": False}
    learner = LearnerRole({}, RUN_CFG)
    assert learner.retried(TaskState("t", "learner", TASK)) == {**TASK, "resume": True}


def test_lost_learner_has_no_result() -> None:
    control = Control(WorkerLostError("gone"))
    with pytest.raises(WorkerLostError):
        drive_learner(control)
    assert control.of("finish") == []


class EndsWithItsAnswers(Control):
    """A coordinator whose run ends when all answers were given."""

    def must_end(self, state: TaskState) -> bool:
        return not self.answers


def test_inference_worker_is_polled_until_the_run_ends() -> None:
    control, state = EndsWithItsAnswers({}, {}), TaskState("t", "inference", TASK)
    InferenceRole({}, RUN_CFG).drive(control, state, TASK)
    assert control.names() == [
        "inference_start_task",
        "inference_poll_task",
        "inference_poll_task",
        "inference_close_task",
    ]
    assert control.messages[0]["task_info"] == TASK
    assert control.timeouts == ["start_timeout_s", *3 * ["answer_timeout_s"]]
    assert control.calls == [("started",)]


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


def test_inference_worker_may_import_the_modules_in_the_config(tmp_path: Path) -> None:
    cfg = compile_run("cartpole-dqn", "parallel", "in_memory")
    cfg.policy.import_names = ["json"]
    transport = make_transport(cfg, tmp_path)
    worker: Any = InferenceRole({}, cfg).create_worker(transport, "inference-0")
    assert worker._cfg.allowed_modules == ["json"]
    assert worker.info.worker_id == "inference-0"
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
