"""A journal, a save or a replay buffer of another run in a run folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import dingsdk
from dingsdk.errors import CheckpointError
from dingsdk.pipeline.train import resume
from tests.integration.short_runs import QUICK
from tests.integration.test_links_in_run_folder import tree

SETS = (*QUICK, "policy.learn.learner.train_iterations=8", "system.save_every=0.001")
MORE = ("policy.learn.learner.train_iterations=12",)


@pytest.mark.parametrize(
    ("mode", "part"),
    [("serial", "resume"), ("parallel", "journal"), ("parallel", "facts"), ("parallel", "replay")],
)
def test_part_of_another_run_with_the_same_config_is_refused_by_its_id(
    tmp_path: Path, mode: str, part: str
) -> None:
    sets = [*SETS, *(["system.transport.type=flask_fs"] if mode == "parallel" else [])]
    sets += ["system.replay.type=server"] if part == "replay" else []
    first, other = (
        dingsdk.train("cartpole-dqn", mode, sets=sets, output=str(tmp_path / each)).run_dir
        for each in ("a", "b")
    )
    if part == "facts":  # all but the file that names the owner
        for path in (first / "journal").glob("0*"):
            path.unlink()
        for path in (other / "journal").glob("0*"):
            shutil.copy(path, first / "journal")
    else:
        shutil.rmtree(first / part)
        shutil.copytree(other / part, first / part)
    before = tree(first)

    with pytest.raises(CheckpointError, match="is of another run: its id is"):
        resume(first, sets=MORE)

    assert tree(first) == before
    shutil.copytree(other, tmp_path / "copy")  # a copy of a whole run is that run
    assert resume(tmp_path / "copy", sets=MORE).train_iter == 12
