"""Sources of the secret; an invalid source is an error instead of a fallback."""

from __future__ import annotations

import os
import pickle
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from dingsdk_flask_fs.transport import FlaskFSTransport

from dingsdk.errors import AuthError, InsecureBindError, WorkerLostError
from dingsdk.runtime import PrivateDir, check_reach, create_secret, find_secret, named_secret
from dingsdk.testing import open_files
from dingsdk.worker.comm import WorkerInfo

from .conftest import Served, listener

GOOD = "g" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[PrivateDir]:
    with PrivateDir(tmp_path / "run") as made:
        yield made


def secret_file(tmp_path: Path, content: str, mode: int = 0o600) -> Path:
    path = tmp_path / "mine"
    path.write_text(content)
    path.chmod(mode)
    return path


def test_worker_with_another_folder_does_not_join(served: Served, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    elsewhere = FlaskFSTransport({}, folder)
    with pytest.raises(WorkerLostError, match="other/transport does not belong to the run"):
        elsewhere.slave_end(served.address).join(WorkerInfo("w0", "collector"), 0.5)
    elsewhere.close()
    another_run = FlaskFSTransport({}, folder)
    another_run.master_end().open(listener())  # with the same secret
    with pytest.raises(WorkerLostError, match="other/transport does not belong to the run"):
        another_run.slave_end(served.address).join(WorkerInfo("w0", "collector"), 0.5)
    another_run.close()
    served.slave().close()


def test_worker_without_a_secret_names_the_folder(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DINGSDK_SECRET")
    elsewhere = FlaskFSTransport({}, tmp_path / "other")
    with pytest.raises(WorkerLostError, match=r"no secret in .*other/transport yet"):
        elsewhere.slave_end(served.address).join(WorkerInfo("w0", "collector"), 0.5)
    elsewhere.close()


def test_master_makes_a_private_random_secret_that_workers_find(folder: PrivateDir) -> None:
    assert find_secret(folder, {}) is None
    made = create_secret(folder, {})
    path = folder.path / "secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert len(made.reveal()) == 64
    found = find_secret(folder, {})
    assert found is not None
    assert found.reveal() == made.reveal() == create_secret(folder, {}).reveal()
    assert not made.is_explicit


def test_order_of_secrets_is_named_file_then_variable_then_own_file(
    folder: PrivateDir, tmp_path: Path
) -> None:
    create_secret(folder, {})
    path = secret_file(tmp_path, GOOD + "\n")
    both = {"DINGSDK_SECRET_FILE": str(path), "DINGSDK_SECRET": "v" * 32}
    for source in (create_secret, find_secret):
        by_file = source(folder, both)
        by_variable = source(folder, {"DINGSDK_SECRET": "v" * 32})
        assert by_file is not None
        assert by_variable is not None
        assert by_file.reveal() == GOOD.encode()
        assert by_variable.reveal() == b"v" * 32
        assert by_file.is_explicit
        assert by_variable.is_explicit
        assert (by_file.source, by_variable.source) == (str(path), "DINGSDK_SECRET")


@pytest.mark.parametrize("content", ["", "   \n", "short", "x" * 15])
def test_empty_or_short_secret_fails_the_start(
    folder: PrivateDir, tmp_path: Path, content: str
) -> None:
    path = secret_file(tmp_path, content)
    for environ in ({"DINGSDK_SECRET": content}, {"DINGSDK_SECRET_FILE": str(path)}):
        with pytest.raises(AuthError, match="at least 16"):
            create_secret(folder, environ)
    assert folder.names() == []


def test_missing_unsafe_or_irregular_secret_file_fails_the_start(
    folder: PrivateDir, tmp_path: Path
) -> None:
    good = secret_file(tmp_path, GOOD)
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(good)
    os.mkfifo(pipe, 0o600)
    before = open_files(collect=True)
    missing = tmp_path / "missing"
    refused = {missing: "unreadable", link: "type", pipe: "type", tmp_path: "type"}
    for path, reason in refused.items():
        with pytest.raises(AuthError) as caught:
            create_secret(folder, {"DINGSDK_SECRET_FILE": str(path), "DINGSDK_SECRET": GOOD})
        assert caught.value.reason == reason
    for mode in (0o640, 0o604, 0o620):
        good.chmod(mode)
        with pytest.raises(AuthError, match="chmod 600"):
            create_secret(folder, {"DINGSDK_SECRET_FILE": str(good)})
    with pytest.raises(AuthError):
        create_secret(folder, {"DINGSDK_SECRET_FILE": ""})
    assert open_files() == before


def test_secret_file_of_another_user_fails_the_start(folder: PrivateDir, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    path = secret_file(tmp_path, GOOD)
    os.chown(path, 12345, -1)
    with pytest.raises(AuthError) as caught:
        create_secret(folder, {"DINGSDK_SECRET_FILE": str(path)})
    assert caught.value.reason == "owner"


def test_runs_own_file_that_was_opened_to_others_is_refused(folder: PrivateDir) -> None:
    create_secret(folder, {})
    (folder.path / "secret").chmod(0o644)
    with pytest.raises(AuthError, match="chmod 600"):
        find_secret(folder, {})


def test_secret_is_never_shown_nor_copied() -> None:
    secret = named_secret({"DINGSDK_SECRET": GOOD})
    assert secret is not None
    assert GOOD not in repr(secret)
    assert GOOD not in f"{secret}"
    with pytest.raises(TypeError, match="not copied"):
        pickle.dumps(secret)


@pytest.mark.parametrize(
    ("host", "is_reached"),
    [
        ("localhost", False),
        ("127.0.0.1", False),
        ("127.8.8.8", False),
        ("::1", False),
        ("0.0.0.0", True),
        ("::", True),
        ("", True),
        ("192.168.0.3", True),
        ("localhost.box.lan", True),
    ],
)
def test_address_that_other_hosts_reach_needs_a_secret_of_the_user(
    folder: PrivateDir, host: str, is_reached: bool, caplog: pytest.LogCaptureFixture
) -> None:
    made, chosen = create_secret(folder, {}), named_secret({"DINGSDK_SECRET": GOOD})
    assert chosen is not None
    if is_reached:
        with pytest.raises(InsecureBindError) as caught:
            check_reach(host, made, "system.transport.host")
        assert caught.value.facts == {"path": "system.transport.host", "host": host}
    else:
        check_reach(host, made, "system.transport.host")
    assert caplog.messages == []
    check_reach(host, chosen, "system.transport.host")
    assert [f"listening on {host}: " in each for each in caplog.messages] == [True] * is_reached


def test_worker_with_another_secret_gets_a_clear_error(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DINGSDK_SECRET", "another secret of good length")
    end = served.transport.slave_end(served.address)
    with pytest.raises(AuthError, match="secret is another one, or the clocks differ"):
        end.join(WorkerInfo("w0", "collector"), 5.0)
    assert served.listener.events == []
