"""Payloads and policies as files of a folder that the workers of a run share."""

from dingsdk.worker.comm.files.data_store import DATA_FOLDERS, FileDataStore
from dingsdk.worker.comm.files.policy_store import POLICY_FOLDER, FilePolicyStore

__all__ = ["DATA_FOLDERS", "POLICY_FOLDER", "FileDataStore", "FilePolicyStore"]
