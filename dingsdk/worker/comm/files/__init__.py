"""Payloads and policies as files of a folder that the workers of a run share."""

from dingsdk.worker.comm.files.data_store import DATA_FOLDERS, FileDataStore, check_free
from dingsdk.worker.comm.files.policy_store import (
    POLICY_FOLDER,
    FilePolicyStore,
    Returned,
    check_policy,
    decode_policy,
    encode_policy,
)

__all__ = [
    "DATA_FOLDERS",
    "POLICY_FOLDER",
    "FileDataStore",
    "FilePolicyStore",
    "Returned",
    "check_free",
    "check_policy",
    "decode_policy",
    "encode_policy",
]
