"""Records by slot lie where kernels look for their fields."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvcanary_cli.backends.cpu.event_records import (
    LANE,
    LINE,
    OWNERSHIP,
    PAST,
    WRITES,
    make_records,
    place,
)

RECORDS = pytest.mark.parametrize(
    "record", [OWNERSHIP, PAST, WRITES, LANE], ids=["ownership", "past", "writes", "lane"]
)


@RECORDS
@pytest.mark.parametrize("count", [1, 7, 1000])
def test_no_record_crosses_a_line_of_the_cache(record: np.dtype[np.void], count: int) -> None:
    records = make_records(count, record)
    assert records.shape == (count,)
    assert LINE % records.strides[0] == 0
    assert records.ctypes.data % LINE == 0
    assert not records.tobytes().strip(b"\0")


@RECORDS
def test_kernels_and_arrays_see_the_same_fields(record: np.dtype[np.void]) -> None:
    from kvcanary_cli.backends.cpu.jit import helper
    from kvcanary_cli.backends.cpu.memory import load_i32, load_i64, load_u8

    @helper
    def load(line: Any, place: Any, size: Any) -> Any:
        if size == 8:
            return load_i64(line, place)
        return load_i32(line, place) if size == 4 else load_u8(line, place)

    records = make_records(5, record)
    assert record.names
    for number, name in enumerate(record.names, start=1):
        records[name] = number % 2 if records[name].dtype == np.bool_ else number
    for number, name in enumerate(record.names, start=1):
        field = records[name]
        expected = number % 2 if field.dtype == np.bool_ else number
        line = records.ctypes.data + 3 * record.itemsize
        assert load(line, place(record, name), field.dtype.itemsize) == expected, name
