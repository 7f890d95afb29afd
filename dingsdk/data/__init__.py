"""Training data: columns that read as rows, tree helpers, messages, files and seeds.

This package needs numpy; torch is imported only by the functions that hand out tensors.
"""

from dingsdk.data.collate import collate
from dingsdk.data.sample_batch import SampleBatch
from dingsdk.data.seeding import derive_seed
from dingsdk.data.wire import decode_message, encode_message

__all__ = ["SampleBatch", "collate", "decode_message", "derive_seed", "encode_message"]
