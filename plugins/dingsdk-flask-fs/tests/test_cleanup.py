"""At its end a run deletes its own files from its folder, and keeps all other files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from dingsdk_flask_fs.transport import FlaskFSTransport

from dingsdk import SampleBatch


def used_transport(tmp_path: Path, **cfg: object) -> FlaskFSTransport:
    """Return a closed transport that a run has used."""
    transport = FlaskFSTransport(cfg, tmp_path)
    transport.master_end().open(object())  # type: ignore[arg-type]
    store = transport.data_store()
    for name in ("kept", "deleted"):
        store.put(name, SampleBatch({"obs": np.zeros((1000, 4), np.float32)}))
    store.delete(["deleted"])
    transport.policy_store().publish("policy", {"w": torch.zeros(3)}, 1)
    half_written = transport.data_dir / ".tmp-0123456789abcdef"
    half_written.write_bytes(b"x")
    transport.close()
    return transport


def test_run_files_are_kept_with_keep_data(tmp_path: Path) -> None:
    transport = used_transport(tmp_path, keep_data=True)

    transport.remove_data()

    assert (transport.data_dir / "secret").is_file()
    assert list((transport.data_dir / "data").rglob("kept.*"))


def test_foreign_files_and_the_users_secret_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "transport"
    folder.mkdir(mode=0o700)
    secret = folder / "secret"
    secret.write_text("chosen by the user 0123456789")
    secret.chmod(0o600)
    (folder / "notes.txt").write_text("mine")
    monkeypatch.setenv("DINGSDK_SECRET_FILE", str(secret))
    transport = used_transport(tmp_path)

    transport.remove_data()

    assert sorted(path.name for path in folder.iterdir()) == ["notes.txt", "secret"]


def test_note_for_workers_names_the_secret_without_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = used_transport(tmp_path)
    own = transport.joining_note()
    monkeypatch.setenv("DINGSDK_SECRET", "a secret of the user's choice")

    assert own == f"secret: {transport.data_dir / 'secret'}"
    assert transport.joining_note() == "secret: DINGSDK_SECRET"
