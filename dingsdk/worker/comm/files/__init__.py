"""Payloads and policies as files in a folder that the workers of a run share."""

from dingsdk.worker.comm.files.data_store import DATA_FOLDERS as DATA_FOLDERS
from dingsdk.worker.comm.files.data_store import PAYLOAD_FOLDER as PAYLOAD_FOLDER
from dingsdk.worker.comm.files.data_store import FileDataStore as FileDataStore
from dingsdk.worker.comm.files.data_store import encode_payload as encode_payload
from dingsdk.worker.comm.files.policy_store import POLICY_FOLDER as POLICY_FOLDER
from dingsdk.worker.comm.files.policy_store import FilePolicyStore as FilePolicyStore
