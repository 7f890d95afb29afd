"""Training data: columns that read as rows, tree helpers, messages, frames, files and seeds.

This package needs numpy; torch is imported only by the functions that hand out tensors.
"""

from dingsdk.data.collate import collate
from dingsdk.data.files import Buffer
from dingsdk.data.frames import FrameInfo, decode_frame, encode_frame
from dingsdk.data.ids import check_id
from dingsdk.data.private_dir import PrivateDir
from dingsdk.data.row_loaders import RowLoaders
from dingsdk.data.sample_batch import SampleBatch
from dingsdk.data.seeding import derive_seed
from dingsdk.data.tensor_file import decode_tensors, encode_tensors
from dingsdk.data.wire import decode_message, encode_message

__all__ = [
    "Buffer",
    "FrameInfo",
    "PrivateDir",
    "RowLoaders",
    "SampleBatch",
    "check_id",
    "collate",
    "decode_frame",
    "decode_message",
    "decode_tensors",
    "derive_seed",
    "encode_frame",
    "encode_message",
    "encode_tensors",
]
