"""Records by slot: what is kept of one slot in one line of the cache, for NumPy and for kernels.

A kernel that follows a token touches most fields of its slot, which as arrays of their own would
each cost a miss. NumPy sees every field as an array by slot; kernels get the address of the first
record, and reach a field by ``line`` and ``place``. Nothing here imports Numba.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.backends.cpu.pages import LINE as LINE
from kvcanary_cli.backends.cpu.pages import zeros

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Bytes of a record that is smaller.
HALF_LINE = 32

#: Codes of owners that are no names, and of the first that is one: the prefix cache.
UNKNOWN, FREE, TREE = 0, 1, 2
#: Instead of an event, where nothing happened.
NEVER = -(1 << 63)
#: Instead of the last read that found nothing wrong, where reads cannot tell.
UNTOLD = (1 << 63) - 1
#: How the last content of a slot came there.
BY_NOTHING, BY_FORWARD, BY_VERIFY, BY_COPY, BY_STATE = range(5)


def _record(size: int, **fields: str) -> np.dtype[np.void]:
    """A record of ``size`` bytes with ``fields`` (name to NumPy type), none of them unaligned."""
    types = [np.dtype(kind) for kind in fields.values()]
    ends = np.cumsum([kind.itemsize for kind in types])
    assert ends[-1] <= size
    offsets = [int(end) - kind.itemsize for end, kind in zip(ends, types, strict=True)]
    assert all(at % kind.itemsize == 0 for at, kind in zip(offsets, types, strict=True))
    return np.dtype({"names": list(fields), "formats": types, "offsets": offsets, "itemsize": size})


_LANE = {"mapper": "i8", "read": "i8", "refs": "i4", "written_at": "i4", "stamp": "i4"}
#: ``replay.lanes.Lane`` and ``replay.known.Known``; ``stamp`` is the kernel's own: number of the
#: event that last wrote the slot, gave it out, or tried to.
LANE = _record(LINE, **_LANE)

#: What each event asks of ``attribution.ledger.Ownership``, behind the fields of the lane in which
#: the pool's requests write: whoever looks at one mostly looks at the other.
OWNERSHIP = _record(
    LINE,
    **_LANE,
    owner="i4",
    since="i8",
    alloc_event="i8",
    published_event="i8",
    last_owner="i4",
    bad_what="i1",
    shared="?",
    forked="?",
    padded="?",
)

#: The rest of it that ordinary events change.
PAST = _record(
    HALF_LINE,
    free_event="i8",
    free_chain="i8",
    free_by="i4",
    free_reason="i4",
    published_by="i4",
)

#: ``attribution.ledger.Writes``.
WRITES = _record(
    LINE,
    event="i8",
    before_event="i8",
    moved_event="i8",
    req="i4",
    step="i4",
    position="i4",
    true_position="i4",
    batch_row="i4",
    namespace="i4",
    before_req="i4",
    before_step="i4",
    kind="i1",
    foreign="?",
)

#: Map events of a run of them (``attribution.row_table``).
RUN_EVENTS = 15
#: Map events of a row, each of whose cells begin where those of the one before end.
MAP_RUN = np.dtype(
    [
        ("start", "i4"),  # first cell
        ("count", "i4"),
        ("below", "i4"),  # the row's next older run, or the next free one; -1 = none
        ("unused", "i4"),
        ("events", "i8", RUN_EVENTS),
        ("stops", "i4", RUN_EVENTS),  # one behind the last cell of each event
        ("owners", "i4", RUN_EVENTS),  # of the last slot of each event then
    ]
)


def place(record: np.dtype[np.void], name: str) -> int:
    """Number of a field in its record, counted in items of its own size, as kernels load it."""
    assert record.fields is not None
    kind, offset = record.fields[name][:2]
    return int(offset) // kind.base.itemsize


def make_records(count: int, record: np.dtype[np.void], **values: int) -> NDArray[Any]:
    """[count] records of zero bytes but for ``values``; none crosses a line of the cache."""
    records = zeros(count, record)
    if values:
        first = np.zeros(1, dtype=record)
        for name, value in values.items():
            first[name] = value
        # As plain integers, since a record is filled field by field.
        records.view(np.int64).reshape(count, -1)[:] = first.view(np.int64)
    return records
