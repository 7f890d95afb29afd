"""Payloads and policies as checked files in the run folder, each written in one step."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from dingsdk import SampleBatch
from dingsdk.data import decode_batch, decode_frame, encode_batch, encode_frame
from dingsdk.errors import DataMissingError
from dingsdk.runtime import PrivateDir, check_id
from dingsdk.worker.comm import PolicyStore, StepDataStore

MAX_BYTES = 256 << 20
SUFFIX = ".data"


class FileDataStore(StepDataStore):
    def __init__(self, folder: PrivateDir) -> None:
        self._folder = folder

    def put(self, data_id: str, batch: SampleBatch) -> None:
        name = check_id(data_id, "data_id") + SUFFIX
        if self._folder.stat(name) is None:
            self._folder.write_atomic(name, encode_batch(batch)[0])

    def get(self, data_id: str, timeout_s: float = 2.0, digest: str | None = None) -> SampleBatch:
        # On one host a file is visible as soon as it is written, so there is no need to wait. `put`
        # returns no digest, so there is none here.
        name = check_id(data_id, "data_id") + SUFFIX
        try:
            content = self._folder.view(name, MAX_BYTES)
        except DataMissingError as error:
            raise DataMissingError(f"no payload {data_id!r}", data_id=data_id) from error
        return decode_batch(content, MAX_BYTES)

    def has(self, data_id: str, timeout_s: float = 2.0) -> bool:
        return self._folder.stat(check_id(data_id, "data_id") + SUFFIX) is not None

    def delete(self, data_ids: Iterable[str]) -> None:
        for data_id in data_ids:
            self._folder.unlink(check_id(data_id, "data_id") + SUFFIX)

    def __len__(self) -> int:
        return sum(name.endswith(SUFFIX) for name in self._folder.names())


class FilePolicyStore(PolicyStore):
    """One file for each policy: the newest version, with its version number."""

    def __init__(self, folder: PrivateDir) -> None:
        self._folder = folder
        self._publishing = threading.Lock()

    def publish(self, policy_id: str, state: Mapping[str, Any], version: int) -> None:
        name = check_id(policy_id, "policy_id") + SUFFIX
        with self._publishing:
            if self.newest(policy_id, newer_than=version - 1) is None:
                value = {"version": version, "state": dict(state)}
                buffers, _ = encode_frame("policy", value)
                self._folder.write_atomic(name, buffers)

    def newest(
        self, policy_id: str, newer_than: int | None = None
    ) -> tuple[int, dict[str, Any]] | None:
        try:
            content = self._folder.read(check_id(policy_id, "policy_id") + SUFFIX, MAX_BYTES)
        except DataMissingError:
            return None
        found = decode_frame("policy", content, MAX_BYTES)
        version = int(found["version"])
        is_newer = newer_than is None or version > newer_than
        return (version, found["state"]) if is_newer else None

    def discard(self, policy_id: str) -> None:
        self._folder.unlink(check_id(policy_id, "policy_id") + SUFFIX)
