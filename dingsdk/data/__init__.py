"""Training data: columns that read as rows, tree helpers, messages, containers, files and seeds.

This package needs numpy; torch is imported only by the functions that hand out tensors.
"""

from dingsdk.data.action_mask import legal_actions
from dingsdk.data.connections import Connections
from dingsdk.data.container import (
    FrameInfo,
    decode_batch,
    decode_frame,
    decode_json,
    decode_safetensors,
    encode_batch,
    encode_frame,
    encode_json,
    encode_safetensors,
)
from dingsdk.data.dataloader import AsyncDataLoader
from dingsdk.data.files import Buffer, Folder, PrivateDir, check_id, open_private
from dingsdk.data.locks import LockContext, LockContextType
from dingsdk.data.sample_batch import RowLoaders, SampleBatch, collate
from dingsdk.data.secret import (
    Secret,
    check_reach,
    create_secret,
    find_secret,
    is_loopback,
    named_secret,
)
from dingsdk.data.seeding import derive_seed
from dingsdk.data.wire import decode_message, encode_message

__all__ = [
    "AsyncDataLoader",
    "Buffer",
    "Connections",
    "Folder",
    "FrameInfo",
    "LockContext",
    "LockContextType",
    "PrivateDir",
    "RowLoaders",
    "SampleBatch",
    "Secret",
    "check_id",
    "check_reach",
    "collate",
    "create_secret",
    "decode_batch",
    "decode_frame",
    "decode_json",
    "decode_message",
    "decode_safetensors",
    "derive_seed",
    "encode_batch",
    "encode_frame",
    "encode_json",
    "encode_message",
    "encode_safetensors",
    "find_secret",
    "is_loopback",
    "legal_actions",
    "named_secret",
    "open_private",
]
