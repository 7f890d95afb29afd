import contextlib
import gc
import logging
import resource
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dingsdk.errors import PolicyOutputTypeError, RunFolderError
from dingsdk.worker import run_logger
from dingsdk.worker.learner.monitor import LearnerMonitor
from dingsdk.worker.run_logger import (
    MAX_TEXT_BYTES,
    build_logger,
    build_tb_logger,
    floats_of,
    remove_logs,
    write_statistics,
)
from tests.tensorboard_events import read_events

QUIET_SAVE = {"save_ckpt_after_iter": False, "save_ckpt_after_run": False}


@contextlib.contextmanager
def full_disk(after_bytes):
    """Limit the size of each file of this process to ``after_bytes``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (after_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


class TestBuildLogger:
    def test_writes_a_text_file_and_tensorboard_events_for_the_user_alone(self, tmp_path):
        logger, writer = build_logger(tmp_path / "log", name="learner")
        logger.info("hello %s", "there")
        writer.add_scalar("a/b", 2.5, 7)
        writer.add_histogram("h", [1, 2, 2], 7)
        logger.close()
        writer.close()

        text = (tmp_path / "log" / "learner_logger.txt").read_text()
        assert text.endswith("[INFO] hello there\n")
        events = set(read_events(tmp_path / "log" / "learner_tb_logger"))
        assert events == {("a/b", 7, 2.5), ("h", 7, "histogram")}
        modes = {(path.is_dir(), path.stat().st_mode & 0o777) for path in tmp_path.rglob("*")}
        assert modes == {(True, 0o700), (False, 0o600)}, "only the user can read the logs"

    @pytest.mark.parametrize("logger_name", ["", "dingsdk", "dingsdk.run"])
    @pytest.mark.parametrize(
        ("level", "shown"),
        [(logging.INFO, ["a", "b"]), (logging.WARNING, ["b"]), (logging.ERROR, [])],
    )
    def test_handlers_get_what_their_level_admits_and_the_file_gets_all(
        self, tmp_path, caplog, logger_name, level, shown
    ):
        logger, _ = build_logger(tmp_path, "learner", need_tb=False)
        with caplog.at_level(level, logger_name):
            caplog.handler.setLevel(logging.NOTSET)
            logger.info("a")
            logger.warning("b")
        logger.close()

        assert [record.getMessage() for record in caplog.records] == shown
        assert {record.name for record in caplog.records} <= {"dingsdk.run.learner"}
        lines = (tmp_path / "learner_logger.txt").read_text().splitlines()
        assert [line.rpartition(" ")[2] for line in lines] == ["a", "b"]

    def test_folder_has_one_writer_until_its_last_user_closes_it(self, tmp_path):
        (first, writer), (second, same) = (build_logger(tmp_path, "a") for _ in range(2))
        assert same is writer

        writer.close()
        third, again = build_logger(tmp_path, "a")
        assert again is writer
        writer.close()
        same.add_scalar("x", 1.0, 1)
        same.close()
        same.add_scalar("too late", 1.0, 1)
        fourth, other = build_logger(tmp_path, "a")

        assert other is not writer
        assert list(read_events(tmp_path / "a_tb_logger")) == [("x", 1, 1.0)]
        writer.close()  # one close too many must not affect the new writer of the folder
        fifth, still = build_logger(tmp_path, "a")
        assert still is other
        for closable in (first, second, third, fourth, other, fifth, still):
            closable.close()

    def test_global_logging_is_not_changed_and_closing_releases_the_file(self, tmp_path):
        handlers = list(logging.getLogger().handlers)
        known = set(logging.Logger.manager.loggerDict)
        logger, _ = build_logger(tmp_path, "private", need_tb=False)
        assert logging.getLogger().handlers == handlers
        assert "private" not in set(logging.Logger.manager.loggerDict) - known

        logger.close()
        logger.close()
        logger.info("after close")

        assert logger.handlers == []
        del logger
        gc.collect()  # an open file would raise a ResourceWarning, which is an error here

    @pytest.mark.parametrize("at", [100, 200, 1000])
    def test_full_disk_ends_each_log_with_one_warning(self, tmp_path, caplog, at):
        logger, writer = build_logger(tmp_path, "a")
        logger.info("before")
        with full_disk(at):
            for step in range(300):
                logger.info("line %d", step)
                writer.add_scalar("x", float(step), step)
                writer.flush()
            logger.close()
            writer.close()
            writer.close()

        warnings = [text for text in caplog.messages if "the run continues" in text]
        assert sorted(("tfevents" in text) for text in warnings) == [False, True]
        assert all(text.endswith("the run continues: File too large") for text in warnings)
        assert (tmp_path / "a_logger.txt").read_text().splitlines()[0].endswith("before")
        gc.collect()  # an open file would raise a ResourceWarning, which is an error here

    def test_long_text_log_is_rotated_and_the_oldest_file_removed(self, tmp_path):
        logger, _ = build_logger(tmp_path, "a", need_tb=False)

        for number in range(6):
            logger.info("%d%s", number, "x" * MAX_TEXT_BYTES)
        logger.close()

        files = sorted(path.name for path in tmp_path.iterdir())
        assert files == ["a_logger.txt", *(f"a_logger.txt.{n}" for n in (1, 2, 3))]
        assert "[INFO] 5x" in (tmp_path / "a_logger.txt").read_text()[:60]
        assert "[INFO] 2x" in (tmp_path / "a_logger.txt.3").read_text()[:60]

    @pytest.mark.parametrize("blocked", ["", "a_logger.txt", "a_tb_logger"])
    def test_a_folder_that_cannot_be_written_is_a_typed_error(self, tmp_path, blocked):
        folder = tmp_path / "log"
        if not blocked:
            folder.write_text("a file in the place of the folder")
        else:
            folder.mkdir()
            if blocked.endswith(".txt"):
                (folder / blocked).mkdir()
            else:
                (folder / blocked).write_text("a file in the place of the folder")

        with pytest.raises(RunFolderError) as caught:
            build_logger(folder, "a")

        assert caught.value.facts["path"] == str(folder / blocked)
        gc.collect()  # an open file would raise a ResourceWarning, which is an error here

    def test_line_that_cannot_be_formatted_is_reported_and_the_log_continues(
        self, tmp_path, capsys
    ):
        logger, _ = build_logger(tmp_path, "a", need_tb=False)
        logger.propagate = False  # otherwise pytest raises the error

        logger.info("%d", "no number")
        logger.info("next")
        logger.close()

        assert "TypeError: %d format: a real number is required" in capsys.readouterr().err
        assert (tmp_path / "a_logger.txt").read_text().endswith("[INFO] next\n")

    def test_points_are_written_after_at_most_half_a_minute(self, tmp_path, monkeypatch):
        now = 1000.0
        monkeypatch.setattr(
            run_logger, "time", SimpleNamespace(time=time.time, monotonic=lambda: now)
        )
        writer = build_tb_logger(tmp_path, "a")
        written = []
        for second in (0, 20, 31, 50, 61, 62):
            now = 1000.0 + second
            writer.add_scalar("x", 1.0, second)
            written.append([step for _, step, _ in read_events(tmp_path / "a_tb_logger")])
        writer.close()

        assert written == [[], [], [0, 20, 31], [0, 20, 31], [0, 20, 31], [0, 20, 31, 50, 61, 62]]

    def test_tables(self, tmp_path):
        logger, _ = build_logger(tmp_path, "a", need_tb=False, need_text=False)

        assert logger.get_tabulate_vars({"loss": 0.25, "n": 3}).splitlines() == [
            "name | value",
            "-----+------",
            "loss |  0.25",
            "   n |     3",
        ]
        assert logger.get_tabulate_vars({"x": 1 / 3, "n": "one"}).splitlines()[2:] == [
            "   x | 0.333333",
            "   n |      one",
        ]
        assert logger.get_tabulate_vars_hor({"loss": 0.25, "n": 3}).splitlines() == [
            "loss | n",
            "-----+--",
            "0.25 | 3",
        ]
        lines = logger.get_tabulate_vars_hor({f"v{i}": i for i in range(7)}).splitlines()
        assert [line.count("v") for line in lines] == [5, 0, 0, 2, 0, 0]
        assert logger.get_tabulate_vars_hor({}) == ""

    def test_level_hides_debug_lines(self, tmp_path):
        logger, _ = build_logger(tmp_path, "a", need_tb=False)
        logger.debug("hidden")
        logger.close()
        loud, _ = build_logger(tmp_path, "a", need_tb=False, level=logging.DEBUG)
        loud.debug("shown")
        loud.close()

        text = (tmp_path / "a_logger.txt").read_text()
        assert "shown" in text
        assert "hidden" not in text


def test_each_statistic_has_a_curve_over_iterations_and_one_over_env_steps():
    points = []
    writer = SimpleNamespace(add_scalar=lambda *point: points.append(point))

    write_statistics(writer, "collector", {"a": 0.5, "total_envstep_count": 70.0}, 3, 70)
    write_statistics(None, "collector", {"a": 0.5}, 3, 70)

    assert points == [
        ("collector_iter/a", 0.5, 3),
        ("collector_step/a", 0.5, 70),
        ("collector_iter/total_envstep_count", 70.0, 3),
    ]


def test_settings_that_are_not_numbers_have_no_curves():
    assert floats_of({"eps": 0.5, "mode": "x", "n": 3, "is_on": True}) == {"eps": 0.5}


def test_logs_of_all_components_are_removed_and_nothing_else(tmp_path):
    logger, writer = build_logger(tmp_path / "log" / "learner", "learner")
    writer.add_scalar("x", 1.0, 1)
    logger.close()
    writer.close()
    for name in ("learner_logger.txt.1", "learner_logger.py", "notes.txt"):
        (tmp_path / "log" / "learner" / name).write_text("")

    remove_logs(tmp_path)
    remove_logs(tmp_path)

    found = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"learner_logger.py", "notes.txt"}


class TestLogShow:
    def test_shows_moving_averages_over_iterations_and_env_steps(
        self, make_learner, scripted, tmp_path
    ):
        losses = iter(range(21))
        output = {"[scalars]norm": {"first": 3.0}, "[histogram]action": [0, 1, 1]}
        learner = make_learner(
            scripted(lambda data: {"loss": next(losses), "unshown": 5, **output}),
            {"hook": {**QUIET_SAVE, "log_show_after_iter": 20}},
        )

        for step in range(21):
            learner.train([{}], envstep=100 + step)
        learner.close()

        log = tmp_path / "run" / "log" / "learner"
        events = set(read_events(log / "learner_tb_logger"))
        assert ("learner_iter/loss_avg", 0, 0.0) in events
        assert ("learner_iter/loss_avg", 20, 15.5) in events  # mean of 11 to 20
        assert ("learner_step/loss_avg", 120, 15.5) in events
        assert ("learner_iter/norm/first", 20, 3.0) in events
        assert ("learner/action", 20, "histogram") in events
        tags = {tag for tag, _, _ in events}
        assert "learner_iter/train_time_avg" in tags
        assert not any("unshown" in tag for tag in tags)
        text = (log / "learner_logger.txt").read_text()
        assert "scripted policy" in text
        assert "iteration 20, env step 120" in text
        assert "loss_avg" in text

    @pytest.mark.parametrize(("envstep", "axes"), [(-1, {"iter"}), (0, {"iter", "step"})])
    def test_short_run_has_curves_also_over_env_steps_if_these_are_known(
        self, make_learner, scripted, tmp_path, envstep, axes
    ):
        learner = make_learner(scripted(lambda data: {"loss": 1.0}), {"hook": QUIET_SAVE})

        for _ in range(50):
            learner.train([{}], envstep)
        learner.close()

        events = list(read_events(tmp_path / "run" / "log" / "learner" / "learner_tb_logger"))
        assert {tag.partition("/")[0] for tag, _, _ in events} == {f"learner_{a}" for a in axes}
        shown = [step for tag, step, _ in events if tag == "learner_iter/loss_avg"]
        assert shown == [0, 1, 2, 4, 8, 16, 32]

    def test_a_shared_writer_is_used_and_left_open(self, make_learner, scripted, tmp_path):
        _, writer = build_logger(tmp_path / "shared", "run", need_text=False)
        learner = make_learner(
            scripted(lambda data: {"loss": 1.0}), {"hook": QUIET_SAVE}, tb_logger=writer
        )

        learner.train([{}])
        learner.close()
        writer.add_scalar("after", 1.0, 1)
        writer.close()

        tags = {tag for tag, _, _ in read_events(tmp_path / "shared" / "run_tb_logger")}
        assert {"learner_iter/loss_avg", "after"} <= tags

    @pytest.mark.parametrize(
        ("extra", "is_logging"), [({}, False), ({"only_monitor_rank0": False}, True)]
    )
    def test_other_ranks_log_only_when_asked_to_and_never_save(
        self, make_learner, scripted, tmp_path, extra, is_logging
    ):
        learner = make_learner(
            scripted(lambda data: {"loss": 1.0}),
            {**extra, "hook": {"log_reduce_after_iter": False}},
            dist_info=(1, 2),
        )

        learner.train([{}])

        assert (tmp_path / "run").exists() is is_logging
        assert not learner.checkpoint_dir.exists()
        assert learner.log_buffer["scalar"] == {}


class TestMonitor:
    def test_a_value_that_is_not_renewed_expires(self):
        monitor = LearnerMonitor(["rare", "never"], window=3)
        monitor.record({"rare": 1.0})

        for _ in range(3):
            monitor.tick()
            assert monitor.averages() == {"rare": 1.0}
        monitor.tick()

        assert monitor.averages() == {}
        assert monitor.avg("never") is None

    @pytest.mark.parametrize(
        "number",
        [2, True, np.float64(2), np.int32(2), np.array(2), np.array([2.0]), torch.tensor([2.0])],
    )
    def test_any_one_number_is_kept_as_a_float(self, number):
        monitor = LearnerMonitor(["x"])

        monitor.record({"x": number})

        assert monitor.avg("x") == float(number if isinstance(number, bool) else 2)
        assert type(monitor.avg("x")) is float

    @pytest.mark.parametrize(
        "other", ["2", None, [2.0], np.zeros(2), torch.zeros(2), np.array([]), {}, 2j]
    )
    def test_value_that_is_not_one_number_is_refused(self, other):
        with pytest.raises(PolicyOutputTypeError, match="'x'"):
            LearnerMonitor().record({"x": other})
