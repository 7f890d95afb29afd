"""Checkpoints that are damaged, forged or none: refused, and never half loaded."""

import json
import os
import pickle

import pytest
import torch

from dingsdk.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointMissingError,
    CheckpointVersionError,
    RunFolderError,
)
from dingsdk.worker.learner import manifest as manifests
from dingsdk.worker.learner.checkpoint import load_checkpoint, save_checkpoint

from .checkpoint_files import save, tensor_file


class TestRefusal:
    def test_missing(self, tmp_path):
        for path in (tmp_path, tmp_path / "latest", tmp_path / "no" / "folder.json"):
            with pytest.raises(CheckpointMissingError) as caught:
                load_checkpoint(path)
            assert isinstance(caught.value, FileNotFoundError)
            assert str(path.parent) in caught.value.facts["path"]

    def test_tensor_file_truncated_at_any_length(self, tmp_path):
        path = tensor_file(save(tmp_path))
        whole = path.read_bytes()

        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            with pytest.raises(CheckpointCorruptError):
                load_checkpoint(tmp_path / "iteration_1")

    def test_tensor_file_with_any_byte_flipped(self, tmp_path):
        path = tensor_file(save(tmp_path))
        whole = path.read_bytes()

        for position in range(len(whole)):
            flipped = bytearray(whole)
            flipped[position] ^= 1 << position % 8
            path.write_bytes(flipped)
            with pytest.raises(CheckpointCorruptError):
                load_checkpoint(tmp_path / "iteration_1")

    def test_tensor_file_gone_or_longer(self, tmp_path):
        path = tensor_file(save(tmp_path))
        whole = path.read_bytes()

        path.write_bytes(whole + b" ")
        with pytest.raises(CheckpointCorruptError):
            load_checkpoint(tmp_path / "iteration_1")
        path.unlink()
        with pytest.raises(CheckpointCorruptError, match="missing"):
            load_checkpoint(tmp_path / "iteration_1")

    def test_manifest_truncated_at_any_length(self, tmp_path):
        path = save(tmp_path)
        whole = path.read_bytes()

        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            with pytest.raises(CheckpointCorruptError):
                load_checkpoint(path)

    def test_manifest_with_any_byte_flipped_never_gives_another_state(self, tmp_path):
        path = save_checkpoint(tmp_path, "a", {"lr": 1e-7, "text": "x"}, iteration=5, envstep=6)
        whole = path.read_bytes()
        before = load_checkpoint(path)
        harmless = 0

        for position in range(len(whole)):
            for bit in range(8):
                flipped = bytearray(whole)
                flipped[position] ^= 1 << bit
                path.write_bytes(flipped)
                try:
                    found = load_checkpoint(path)
                except CheckpointCorruptError:
                    continue
                harmless += 1
                assert (found.state, found.iteration) == (before.state, before.iteration)

        # White space, and e-07 against E-07, are all that may change unnoticed.
        assert harmless < 100

    def test_a_pickle_is_refused_and_its_code_does_not_run(self, tmp_path):
        canary = tmp_path / "canary"

        class Bomb:
            def __reduce__(self):
                return os.mkdir, (str(canary),)

        class Hidden(dict):
            def __reduce__(self):
                return os.mkdir, (str(canary),)

        (tmp_path / "pickle.pth.tar").write_bytes(pickle.dumps(Bomb()))
        torch.save({"model": Hidden()}, tmp_path / "torch.pt")
        (tmp_path / "text.json").write_bytes(pickle.dumps(Bomb(), protocol=0))
        (tmp_path / "pickle.json").write_bytes(pickle.dumps(Bomb()))
        (tmp_path / "zip.json").write_bytes((tmp_path / "torch.pt").read_bytes())

        for name in ("pickle.pth.tar", "torch.pt", "text.json", "pickle.json", "zip.json"):
            with pytest.raises(CheckpointCorruptError) as caught:
                load_checkpoint(tmp_path / name)
            if name != "text.json":
                assert "never unpickles" in str(caught.value)
        path = save(tmp_path)
        tensor_file(path).write_bytes((tmp_path / "torch.pt").read_bytes())
        with pytest.raises(CheckpointCorruptError):
            load_checkpoint(path)
        assert not canary.exists()

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"[]",
            b"{}",
            b"null",
            b'{"format": "other"}',
            b"\xff\xfe",
            b"[" * 100_000,
            b'{"a": 1, "a": 2}',
            b'{"a": NaN}',
            b"1" * 5000,
        ],
        ids=lambda content: repr(content[:12]),
    )
    def test_other_json_is_refused(self, tmp_path, content):
        (tmp_path / "a.json").write_bytes(content)

        with pytest.raises(CheckpointCorruptError):
            load_checkpoint(tmp_path / "a.json")

    def forge(self, path, **changes):
        """Rewrite a manifest as somebody would who knows the digest rule."""
        fields = json.loads(path.read_text()) | changes
        del fields["sha256"]
        path.write_text(json.dumps(fields | {"sha256": manifests._digest(fields)}))

    @pytest.mark.parametrize("version", [0, 2, "1", None])
    def test_another_format_version_is_named(self, tmp_path, version):
        path = save(tmp_path)
        self.forge(path, version=version, dingsdk="9.9")

        with pytest.raises(CheckpointVersionError, match=r"9\.9") as caught:
            load_checkpoint(tmp_path)

        assert (caught.value.found, caught.value.expected) == (version, 1)

    @pytest.mark.parametrize(
        "changes",
        [
            {"tensor_file": "../iteration_1-0123456789abcdef.safetensors"},
            {"tensor_file": "/etc/passwd"},
            {"tensor_bytes": 1 << 60},
            {"tensor_bytes": -1},
            {"tensor_sha256": "0" * 64},
            {"iteration": "1"},
            {"iteration": True},
            {"state": {"model": {"$tensor": "model/weight"}}},
            {"state": {"$tensor": "absent"}},
            {"state": {"$tensor": ["a"]}},
            {"state": {"$code": "os.system"}},
            {"state": {"$float": "1e999"}},
            {"state": {"$items": [[["unhashable"], 1]]}},
            {"state": {"$items": 3}},
            {"state": {"$tuple": 3}},
            {"state": [1]},
        ],
        ids=str,
    )
    def test_a_forged_manifest_is_refused(self, tmp_path, changes):
        path = save(tmp_path)
        self.forge(path, **changes)

        with pytest.raises(CheckpointCorruptError):
            load_checkpoint(path)

    def test_unknown_fields_of_the_same_version_are_ignored(self, tmp_path):
        path = save(tmp_path)
        self.forge(path, comment="from a later release")

        assert load_checkpoint(path).iteration == 1

    @pytest.mark.parametrize("planted", ["folder", "pipe", "symlink"])
    def test_something_else_in_the_place_of_a_manifest(self, tmp_path, planted):
        real = save(tmp_path)
        path = tmp_path / "a.json"
        if planted == "folder":
            path.mkdir()
            path = tmp_path / "a"
        elif planted == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(real)

        with pytest.raises(CheckpointCorruptError):
            load_checkpoint(path)

    def test_a_manifest_over_the_cap_is_not_read(self, tmp_path):
        path = tmp_path / "a.json"
        with path.open("wb") as file:
            file.truncate(1 << 40)

        with pytest.raises(CheckpointCorruptError, match="at most"):
            load_checkpoint(path)

    def test_a_state_over_the_cap_is_not_written(self, tmp_path):
        with pytest.raises(CheckpointError, match="as tensors"):
            save_checkpoint(
                tmp_path, "a", {"text": "x" * manifests.MAX_MANIFEST_BYTES}, iteration=0
            )

        assert list(tmp_path.iterdir()) == []

    def test_a_file_in_the_place_of_the_folder(self, tmp_path):
        (tmp_path / "ckpt").write_text("not a folder")

        with pytest.raises(RunFolderError) as caught:
            save(tmp_path / "ckpt")

        assert caught.value.facts["path"] == str(tmp_path / "ckpt")
