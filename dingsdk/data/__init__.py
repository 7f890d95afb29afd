"""Training data: batches, nested structures, messages, containers and seeds.

This package needs numpy; torch is imported only by the functions that return tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dingsdk.lazy import lazy_names

if TYPE_CHECKING:
    from dingsdk.data.action_mask import legal_actions as legal_actions
    from dingsdk.data.container import FrameInfo as FrameInfo
    from dingsdk.data.container import decode_batch as decode_batch
    from dingsdk.data.container import decode_frame as decode_frame
    from dingsdk.data.container import decode_json as decode_json
    from dingsdk.data.container import decode_safetensors as decode_safetensors
    from dingsdk.data.container import encode_batch as encode_batch
    from dingsdk.data.container import encode_frame as encode_frame
    from dingsdk.data.container import encode_json as encode_json
    from dingsdk.data.container import encode_safetensors as encode_safetensors
    from dingsdk.data.dataset import Dataset as Dataset
    from dingsdk.data.pytree import map_leaves as map_leaves
    from dingsdk.data.pytree import part_of as part_of
    from dingsdk.data.sample_batch import SampleBatch as SampleBatch
    from dingsdk.data.sample_batch import collate as collate
    from dingsdk.data.seeding import derive_seed as derive_seed
    from dingsdk.data.wire import decode_message as decode_message
    from dingsdk.data.wire import encode_message as encode_message
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__)
