"""Files of records: every cut drops only an incomplete record, and damage is never skipped."""

from __future__ import annotations

import logging
from itertools import accumulate
from pathlib import Path

import pytest

from dingsdk.errors import CheckpointCorruptError, RunFolderError
from dingsdk.runtime import Folder
from dingsdk.runtime.records import RecordFiles, record_of, records_in

CONTENTS = [b"first", b"", b"third record", b"last"]
RECORDS = [b"".join(record_of(each)) for each in CONTENTS]
FILE = b"".join(RECORDS)
STARTS = [0, *accumulate(map(len, RECORDS))]


def read(data: bytes) -> list[bytes]:
    return [bytes(content) for _, content in records_in(data, "a file", "restore it")[0]]


def test_records_are_read_with_their_offsets() -> None:
    assert record_of(b"fir", b"st")[1:] == [b"fir", b"st"]
    assert b"".join(record_of(b"fir", b"st")) == RECORDS[0]
    found, torn_bytes = records_in(memoryview(FILE), "a file", "")
    assert [(at, bytes(each)) for at, each in found] == list(zip(STARTS, CONTENTS, strict=False))
    assert torn_bytes == 0


def test_file_that_is_cut_at_any_byte_has_all_records_before_the_cut(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for cut in range(len(FILE) + 1):
        whole = sum(end <= cut for end in STARTS[1:])
        left = cut - STARTS[whole]
        caplog.clear()
        assert read(FILE[:cut]) == CONTENTS[:whole]
        text = f"a file: dropped an incomplete record of {left} bytes at its end"
        assert caplog.messages == ([text] if left else [])


def test_each_flipped_bit_is_an_error_or_drops_the_last_record_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    for bit in range(8 * len(FILE)):
        data = bytearray(FILE)
        data[bit // 8] ^= 1 << bit % 8
        caplog.clear()
        if bit // 8 >= STARTS[-2] + 12:  # the content of the last record
            assert read(data) == CONTENTS[:-1]
            assert len(caplog.messages) == 1
            continue
        with pytest.raises(CheckpointCorruptError, match="; restore it") as caught:
            read(data)
        assert caught.value.path == "a file"
        assert caught.value.offset == max(start for start in STARTS if start <= bit // 8)


def test_damaged_header_is_refused_even_if_its_content_is_cut_off() -> None:
    data = bytearray(FILE[: STARTS[-2] + 12])
    data[STARTS[-2]] ^= 1
    with pytest.raises(CheckpointCorruptError):
        read(data)


def test_zeros_that_a_power_cut_left_at_the_end_are_dropped() -> None:
    assert read(FILE + bytes(4096)) == CONTENTS
    assert read(FILE[:-1] + b"\0") == CONTENTS[:-1]


def test_numbered_files_are_written_in_turn(tmp_path: Path) -> None:
    files = RecordFiles(Folder(tmp_path), "log-", ".bin", "restore it")
    files.create(1)
    files.begin(1)
    assert files.append(b"fir", b"st") == files.size_bytes == len(RECORDS[0])
    files.append(b"second")
    files.begin(2, b"third")
    assert (files.number, files.numbers()) == (2, [1, 2])
    assert [bytes(each) for _, each in files.read(1)[0]] == [b"first", b"second"]
    assert files.read(2)[1] == files.size_bytes
    (tmp_path / "log-000003.bin").write_bytes(b"x")
    with pytest.raises(RunFolderError):
        files.begin(3, b"fourth")
    assert files.number == 2
    files.remove_before(2)
    assert files.numbers() == [2, 3]
    with pytest.raises(CheckpointCorruptError, match=r"log-000001\.bin cannot be used"):
        files.read(1)
