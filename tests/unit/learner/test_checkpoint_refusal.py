"""Damaged, forged and missing checkpoints are refused and never partly loaded."""

import json
import os
import pickle
import re
from typing import ClassVar

import pytest
import torch

from dingsdk.data import encode_json, encode_safetensors
from dingsdk.data.container import VERSION, digest_of
from dingsdk.errors import (
    CheckpointCorruptError,
    CheckpointMissingError,
    CheckpointVersionError,
)
from dingsdk.worker.learner.checkpoint import load_checkpoint, save_checkpoint

from .checkpoint_files import save


def split(content):
    """Return the header and the tensors of a safetensors file."""
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def forged(header, body):
    """Return a file with this content and a valid digest."""
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + body
    digest = re.search(b"sha256:[0-9a-f]{64}", content)[0]
    content = content.replace(digest, b"sha256:" + b"0" * 64)
    found = digest_of((content,), "sha256").encode()
    return content.replace(b"sha256:" + b"0" * 64, found)


class TestRefusal:
    def test_missing(self, tmp_path):
        for path in (
            tmp_path,
            tmp_path / "latest",
            tmp_path / "no" / "folder.safetensors",
            tmp_path / "no" / "latest",
        ):
            with pytest.raises(CheckpointMissingError) as caught:
                load_checkpoint(path)
            assert isinstance(caught.value, FileNotFoundError)
            assert str(path.parent) in caught.value.facts["path"]

    def test_latest_of_a_missing_folder_is_not_a_checkpoint_of_that_name(self, tmp_path):
        save_checkpoint(tmp_path, "run", {}, iteration=1)

        with pytest.raises(CheckpointMissingError, match=r"no checkpoint at .*/run\."):
            load_checkpoint(tmp_path / "run" / "latest")

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
        (tmp_path / "text.safetensors").write_bytes(pickle.dumps(Bomb(), protocol=0))
        (tmp_path / "pickle.safetensors").write_bytes(pickle.dumps(Bomb()))
        (tmp_path / "zip.safetensors").write_bytes((tmp_path / "torch.pt").read_bytes())

        for name in (
            *("pickle.pth.tar", "torch.pt"),
            *("text.safetensors", "pickle.safetensors", "zip.safetensors"),
        ):
            with pytest.raises(CheckpointCorruptError) as caught:
                load_checkpoint(tmp_path / name)
            if name != "text.safetensors":
                assert "never unpickles" in str(caught.value)
        (tmp_path / "latest.json").write_bytes(pickle.dumps(Bomb()))
        with pytest.raises(CheckpointCorruptError):
            load_checkpoint(tmp_path)
        assert not canary.exists()

    @pytest.mark.parametrize("version", [0, 2, 4, "3", None])
    def test_error_for_another_format_version_names_it(self, tmp_path, version):
        path = save(tmp_path)
        header, body = split(path.read_bytes())
        text = header["__metadata__"]["dingsdk"]
        other = text.replace(f'"version":{VERSION}', f'"version":{json.dumps(version)}')
        path.write_bytes(forged({**header, "__metadata__": {"dingsdk": other}}, body))

        with pytest.raises(CheckpointVersionError) as caught:
            load_checkpoint(tmp_path)

        assert (caught.value.found, caught.value.expected) == (version, VERSION)

    CONTENTS: ClassVar = {
        "iteration": 1,
        "envstep": 2,
        "meta": {},
        "state": {},
        "dingsdk": "1",
        "torch": "2",
    }

    @pytest.mark.parametrize(
        "changes",
        [
            {"iteration": "1"},
            {"iteration": True},
            {"iteration": -1},
            {"envstep": None},
            {"meta": []},
            {"state": [1]},
            {"state": None},
        ],
        ids=str,
    )
    def test_contents_of_other_types_are_refused(self, tmp_path, changes):
        content = encode_safetensors("checkpoint", self.CONTENTS | changes)
        (tmp_path / "a.safetensors").write_bytes(content)

        with pytest.raises(CheckpointCorruptError):
            load_checkpoint(tmp_path / "a")

    def test_unknown_fields_are_ignored_and_missing_ones_refused(self, tmp_path):
        more = encode_safetensors("checkpoint", self.CONTENTS | {"comment": "of a later release"})
        less = encode_safetensors("checkpoint", {"iteration": 1})
        (tmp_path / "more.safetensors").write_bytes(more)
        (tmp_path / "less.safetensors").write_bytes(less)

        assert load_checkpoint(tmp_path / "more").iteration == 1
        with pytest.raises(CheckpointCorruptError):
            load_checkpoint(tmp_path / "less")

    @pytest.mark.parametrize("stem", ["../a", "a/b", "", 7, None, "a.b"])
    def test_pointer_to_another_folder_is_not_followed(self, tmp_path, stem):
        save(tmp_path)
        pointer = encode_json("newest-checkpoint", {"stem": stem, "iteration": 1})
        (tmp_path / "latest.json").write_bytes(pointer)

        found = load_checkpoint(tmp_path)

        assert found.path == tmp_path / "iteration_1.safetensors"
        assert len(found.skipped) == 1

    @pytest.mark.parametrize("planted", ["folder", "pipe", "symlink"])
    def test_folder_pipe_or_symlink_in_place_of_a_checkpoint_is_refused(self, tmp_path, planted):
        real = save(tmp_path)
        path = tmp_path / "a.safetensors"
        if planted == "folder":
            path.mkdir()
            with pytest.raises(CheckpointMissingError):
                load_checkpoint(path)
            path = tmp_path / "a"
        elif planted == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(real)

        with pytest.raises(CheckpointCorruptError):
            load_checkpoint(path)
