import importlib.metadata
import json
import os
import textwrap

import pytest
import safetensors.torch
import torch

from dingsdk.errors import (
    CheckpointCorruptError,
    CheckpointError,
)
from dingsdk.worker.learner import checkpoint as checkpoints
from dingsdk.worker.learner.checkpoint import load_checkpoint, prune_checkpoints, save_checkpoint
from tests.own_plugins import plugin_of, using
from tests.programs import python
from tools.os_calls import recorded_writes

from .checkpoint_files import save, value_of


def stems_in(folder):
    return {path.stem for path in folder.glob("*.safetensors")}


class TestRoundTrip:
    def test_state_of_a_torch_optimizer_and_the_counts_survive_saving(self, tmp_path):
        moments = {"step": torch.tensor(1.0), "exp_avg": torch.ones(2, 3)}
        group = {"lr": 3e-4, "betas": (0.9, 0.95), "fused": None, "params": [0]}
        saved = {"model": {}, "optimizer": {"state": {0: moments}, "param_groups": [group]}}

        path = save_checkpoint(tmp_path, "a", saved, iteration=7, envstep=56, meta={"note": "x"})
        found = load_checkpoint(tmp_path / "a")

        assert found.state["optimizer"]["param_groups"] == [group]
        (loaded,) = found.state["optimizer"]["state"].values()
        assert list(found.state["optimizer"]["state"]) == [0]
        assert all(torch.equal(loaded[name], tensor) for name, tensor in moments.items())
        assert (found.iteration, found.envstep, found.meta) == (7, 56, {"note": "x"})
        assert found.path == path == tmp_path / "a.safetensors"
        with safetensors.safe_open(path, "pt") as file:
            manifest = json.loads(file.metadata()["dingsdk"])
        assert importlib.metadata.version("torch") in json.dumps(manifest)

    def test_other_values_are_refused_with_their_path(self, tmp_path):
        with pytest.raises(CheckpointError) as caught:
            save_checkpoint(tmp_path, "a", {"model": {"odd": [object()]}}, iteration=0)

        assert (caught.value.facts["key"], caught.value.facts["found"]) == ("model.odd.0", "object")
        assert list(tmp_path.iterdir()) == []


class TestNames:
    @pytest.mark.parametrize("name", ["ckpt_best", "ckpt_best.pth.tar", "ckpt_best.safetensors"])
    def test_one_checkpoint_has_several_spellings(self, tmp_path, name):
        save(tmp_path, "ckpt_best.pth.tar", iteration=3)

        assert load_checkpoint(tmp_path / name).iteration == 3
        assert load_checkpoint(str(tmp_path / name)).iteration == 3

    def test_folder_and_latest_load_the_last_written_checkpoint(self, tmp_path):
        save(tmp_path, "iteration_9", iteration=9)
        save(tmp_path, "iteration_2", iteration=2)

        assert load_checkpoint(tmp_path).iteration == 2
        assert load_checkpoint(tmp_path / "latest").iteration == 2
        assert load_checkpoint(tmp_path / "latest.json").iteration == 2

    @pytest.mark.parametrize("name", ["latest", "", "../up", "a/b", "a b", "x" * 129, "a.b", "a\n"])
    def test_invalid_names_are_refused(self, tmp_path, name):
        with pytest.raises(CheckpointError):
            save(tmp_path / "ckpt", name)

        assert list(tmp_path.iterdir()) == []

    def test_the_exception_checkpoint_is_never_the_newest(self, tmp_path):
        save(tmp_path, "iteration_1", iteration=1)
        save(tmp_path, checkpoints.EXCEPTION, iteration=2)

        assert load_checkpoint(tmp_path).iteration == 1
        assert load_checkpoint(tmp_path / checkpoints.EXCEPTION).iteration == 2
        (tmp_path / "latest.json").unlink()
        assert load_checkpoint(tmp_path).iteration == 1

    def test_pruning_keeps_the_newest_and_the_best(self, tmp_path):
        for number in (1, 2, 3, 10):
            path = save(tmp_path, f"iteration_{number}", iteration=number)
            os.utime(path, (-number, -number))  # the clock was set back
        others = {"ckpt_best", "iteration_x", "iteration_", "iteration_1a", "other_1"}
        for name in others:
            save(tmp_path, name, iteration=2)
        (tmp_path / "iteration_7.txt").write_text("notes")

        prune_checkpoints(tmp_path, 2)

        assert stems_in(tmp_path) == {"iteration_3", "iteration_10", *others}
        assert (tmp_path / "iteration_7.txt").exists()

    @pytest.mark.parametrize(
        ("keep_last", "kept"),
        [(1, {3}), (2, {3, 2}), (3, {3, 2, 1}), (4, {3, 2, 1, 10}), (5, {3, 2, 1, 10, 4})],
    )
    def test_pruning_first_removes_numbers_after_the_newest(self, tmp_path, keep_last, kept):
        for number in (1, 2, 4, 10, 3):  # continued from 2
            save(tmp_path, f"iteration_{number}")

        prune_checkpoints(tmp_path, keep_last)

        assert stems_in(tmp_path) == {f"iteration_{number}" for number in kept}

    def test_a_checkpoint_survives_a_power_cut(self, tmp_path):
        with recorded_writes() as log:
            path = save(tmp_path)

        assert log.is_durable(path)
        assert log.is_durable(tmp_path / "latest.json")
        named = [call[2] for call in log.calls if call[0] == "rename"]
        assert named == [str(path), str(tmp_path / "latest.json")]


class TestNewest:
    def test_damaged_newest_falls_back_to_the_one_before_with_a_warning(self, tmp_path, caplog):
        save(tmp_path, "iteration_1", 1.0, iteration=1)
        path = save(tmp_path, "iteration_2", 2.0, iteration=2)
        path.write_bytes(b"damage")

        found = load_checkpoint(tmp_path)

        assert (found.iteration, value_of(found)) == (1, 1.0)
        assert [type(error) for error in found.skipped] == [CheckpointCorruptError]
        assert "passing over" in caplog.text

    def test_all_damaged_is_an_error(self, tmp_path):
        for number in (1, 2):
            path = save(tmp_path, f"iteration_{number}", iteration=number)
            path.write_bytes(b"damage")

        with pytest.raises(CheckpointCorruptError) as caught:
            load_checkpoint(tmp_path)

        assert "iteration_2" in caught.value.facts["path"]
        assert "No other checkpoint" in caught.value.__notes__[0]

    @pytest.mark.parametrize("pointer", [None, b"", b"{}", b"\x80\x04."])
    def test_without_a_usable_pointer_the_highest_iteration_is_loaded(
        self, tmp_path, caplog, pointer
    ):
        for number in (1, 12, 2):
            save(tmp_path, f"iteration_{number}", iteration=number)
        (tmp_path / "latest.json").unlink()
        if pointer is not None:
            (tmp_path / "latest.json").write_bytes(pointer)

        found = load_checkpoint(tmp_path)

        assert found.iteration == 12
        assert len(found.skipped) == (pointer is not None)
        told = f"cannot tell the newest checkpoint of {tmp_path}: " in caplog.text
        assert told == (pointer is not None)


def test_observers_are_called_after_the_checkpoint_is_written(tmp_path):
    heard = []

    def hear(path, iteration):
        heard.append((load_checkpoint(path).iteration, iteration))

    with using(plugin_of(after_checkpoint=hear)):
        save(tmp_path, iteration=6)

    assert heard == [(6, 6)]


def test_a_writer_killed_at_any_point_leaves_the_old_or_the_new_checkpoint(tmp_path):
    """Kill the process at its 1st, 2nd, ... change of the folder, until it survives."""
    code = textwrap.dedent(
        """
        import os, sys
        import torch
        from dingsdk.worker.learner.checkpoint import load_checkpoint, save_checkpoint

        torch.set_num_threads(1)
        root = sys.argv[1]

        def save(folder, value):
            state = {"model": {"weight": torch.full((64,), float(value))}}
            save_checkpoint(folder, "ckpt_best", state, iteration=value)

        def die_at(countdown):
            def watch(event, args):
                nonlocal countdown
                writes = event == "open" and args[2] & (os.O_CREAT | os.O_WRONLY)
                if writes or event in ("os.rename", "os.remove", "os.mkdir"):
                    countdown -= 1
                    if countdown < 0:
                        os._exit(137)
            sys.addaudithook(watch)

        outcomes = []
        for countdown in range(100):
            folder = os.path.join(root, str(countdown))
            save(folder, 1)
            child = os.fork()
            if child == 0:
                die_at(countdown)
                save(folder, 2)
                os._exit(0)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            for path in (folder, os.path.join(folder, "ckpt_best")):
                found = load_checkpoint(path)
                assert found.skipped == ()
                assert found.state["model"]["weight"].unique().item() == found.iteration
            outcomes.append((code, found.iteration))
            save(folder, 3)
            assert load_checkpoint(folder).iteration == 3
            assert sorted(os.listdir(folder)) == ["ckpt_best.safetensors", "latest.json"]
            if code == 0:
                break
        print(outcomes)
        """
    )
    finished = python("-W", "ignore", "-c", code, str(tmp_path), timeout=120)

    assert finished.returncode == 0, finished.stderr
    outcomes = json.loads(finished.stdout.replace("(", "[").replace(")", "]"))
    codes, iterations = zip(*outcomes, strict=True)
    assert set(codes[:-1]) == {137}
    assert codes[-1] == 0
    assert set(iterations[:-1]) == {1, 2}
    assert list(iterations) == sorted(iterations)
