"""Training data: batches, nested structures, messages, containers, files and seeds.

This package needs numpy; torch is imported only by the functions that return tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dingsdk.lazy import lazy_names

if TYPE_CHECKING:
    from dingsdk.data.action_mask import legal_actions as legal_actions
    from dingsdk.data.connections import Connections as Connections
    from dingsdk.data.connections import format_address as format_address
    from dingsdk.data.connections import listen as listen
    from dingsdk.data.connections import url_host as url_host
    from dingsdk.data.connections import why_not_bound as why_not_bound
    from dingsdk.data.container import FrameInfo as FrameInfo
    from dingsdk.data.container import decode_batch as decode_batch
    from dingsdk.data.container import decode_frame as decode_frame
    from dingsdk.data.container import decode_json as decode_json
    from dingsdk.data.container import decode_safetensors as decode_safetensors
    from dingsdk.data.container import encode_batch as encode_batch
    from dingsdk.data.container import encode_frame as encode_frame
    from dingsdk.data.container import encode_json as encode_json
    from dingsdk.data.container import encode_safetensors as encode_safetensors
    from dingsdk.data.dataloader import AsyncDataLoader as AsyncDataLoader
    from dingsdk.data.deadline import checked_timeout as checked_timeout
    from dingsdk.data.files import Buffer as Buffer
    from dingsdk.data.files import Folder as Folder
    from dingsdk.data.files import PrivateDir as PrivateDir
    from dingsdk.data.files import check_id as check_id
    from dingsdk.data.files import is_locked as is_locked
    from dingsdk.data.files import open_private as open_private
    from dingsdk.data.locks import LockContext as LockContext
    from dingsdk.data.locks import LockContextType as LockContextType
    from dingsdk.data.sample_batch import RowLoaders as RowLoaders
    from dingsdk.data.sample_batch import SampleBatch as SampleBatch
    from dingsdk.data.sample_batch import collate as collate
    from dingsdk.data.secret import Secret as Secret
    from dingsdk.data.secret import check_reach as check_reach
    from dingsdk.data.secret import create_secret as create_secret
    from dingsdk.data.secret import find_secret as find_secret
    from dingsdk.data.secret import is_loopback as is_loopback
    from dingsdk.data.secret import named_secret as named_secret
    from dingsdk.data.seeding import derive_seed as derive_seed
    from dingsdk.data.wire import decode_message as decode_message
    from dingsdk.data.wire import encode_message as encode_message
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__)
