from __future__ import annotations

from dingsdk.worker.commander.naive import NaiveCommander


def test_newest_info_of_each_learner_is_kept_while_its_task_runs(main_config):
    commander = NaiveCommander(main_config(type="naive"))
    learner = commander.get_learner_task()
    for step in (1, 2):
        commander.update_learner_info(learner["task_id"], {"learner_step": step})

    assert commander.learner_info == {"learner_task_id0": {"learner_step": 2}}


def test_places_and_task_numbers_continue_from_a_saved_state(main_config):
    cfg = main_config(type="naive", collector_task_space=2)
    saved = NaiveCommander(cfg)
    saved.finish_collector_task(saved.get_collector_task()["task_id"], {})
    out, learner = saved.get_collector_task(), saved.get_learner_task()
    saved.increase_collector_task_space()
    commander = NaiveCommander(cfg)

    commander.load_state_dict(saved.state_dict())

    assert commander.get_learner_task() is None
    tasks = [commander.get_collector_task() for _ in range(3)]
    assert [task and task["task_id"] for task in tasks] == [
        "collector_task_id2", "collector_task_id3", None,
    ]  # fmt: skip
    commander.finish_collector_task(out["task_id"], {})
    commander.finish_learner_task(learner["task_id"], learner)
    assert commander.finished_collector_tasks == 2
    assert commander.get_learner_task()["task_id"] == "learner_task_id1"
