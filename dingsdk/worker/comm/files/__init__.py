"""Payloads and policies as files in a folder that the workers of a run share."""

from dingsdk.worker.comm.files.data_store import DATA_FOLDERS as DATA_FOLDERS
from dingsdk.worker.comm.files.data_store import FileDataStore as FileDataStore
from dingsdk.worker.comm.files.data_store import WaitingDataStore as WaitingDataStore
from dingsdk.worker.comm.files.data_store import check_free as check_free
from dingsdk.worker.comm.files.data_store import conflict as conflict
from dingsdk.worker.comm.files.data_store import encode_payload as encode_payload
from dingsdk.worker.comm.files.policy_store import FilePolicyStore as FilePolicyStore
from dingsdk.worker.comm.files.policy_versions import POLICY_FOLDER as POLICY_FOLDER
from dingsdk.worker.comm.files.policy_versions import Version as Version
from dingsdk.worker.comm.files.policy_versions import VersionedPolicyStore as VersionedPolicyStore
