"""Which cells of a table's rows differ from a shadow copy.

Most rows of a step differ in one cell or none, so bytes are compared in chunks, eight at a time,
and only a chunk that differs is looked at cell by cell.
"""

from __future__ import annotations

from kvcanary_cli.abi.diff_checks import DIFF_FIELDS
from kvcanary_cli.backends.cpu.jit import helper, kernel
from kvcanary_cli.backends.cpu.memory import load_i32, load_i64, store_i32, store_i64

_CHUNK_WORDS = 32
_WORD_BYTES = 8


@helper
def _load(base, index, cell_bytes):  # type: ignore[no-untyped-def]
    if cell_bytes == _WORD_BYTES:
        return load_i64(base, index)
    return load_i32(base, index)


@helper
def _first_other(row, other, start, stop, cell_bytes):  # type: ignore[no-untyped-def]
    """First cell from ``start`` on that lies in a chunk which differs; ``stop`` if none does."""
    chunk_cells = _CHUNK_WORDS * _WORD_BYTES // cell_bytes
    while start + chunk_cells <= stop:
        left, right = row + start * cell_bytes, other + start * cell_bytes
        differing = 0
        for word in range(_CHUNK_WORDS):
            differing |= load_i64(left, word) ^ load_i64(right, word)
        if differing != 0:
            return start
        start += chunk_cells
    return start


@kernel
def diff_rows(  # type: ignore[no-untyped-def]
    rows,
    lens,
    num_rows,
    table,
    shadow,
    table_rows,
    row_len,
    cell_bytes,
    width,
    entries,
    capacity,
):
    """Fill ``entries``, take them over into ``shadow``, and return how many cells differ."""
    found = 0
    chunk_cells = _CHUNK_WORDS * _WORD_BYTES // cell_bytes
    for k in range(num_rows):
        row = load_i64(rows, k)
        if row < 0 or row >= table_rows:
            continue
        stop = min(load_i64(lens, k), width)
        offset = row * row_len * cell_bytes
        left, right = table + offset, shadow + offset
        start = 0
        while start < stop:
            start = _first_other(left, right, start, stop, cell_bytes)
            end = min(stop, start + chunk_cells)
            for cell in range(start, end):
                value = _load(left, cell, cell_bytes)
                if value == _load(right, cell, cell_bytes):
                    continue
                if found < capacity:
                    store_i64(entries, found * DIFF_FIELDS, row)
                    store_i64(entries, found * DIFF_FIELDS + 1, cell)
                    store_i64(entries, found * DIFF_FIELDS + 2, value)
                found += 1
            start = end
    for k in range(min(found, capacity)):
        row = load_i64(entries, k * DIFF_FIELDS)
        at = row * row_len + load_i64(entries, k * DIFF_FIELDS + 1)
        value = load_i64(entries, k * DIFF_FIELDS + 2)
        if cell_bytes == _WORD_BYTES:
            store_i64(shadow, at, value)
        else:
            store_i32(shadow, at, value)
    return found
