"""Records by slot: what is kept of one slot in one line of the cache, for NumPy and for kernels.

A kernel that follows a token touches most fields of its slot, which as arrays of their own would
each cost a miss. NumPy sees every field as an array by slot; kernels get the address of the first
record, and reach a field by ``line`` and ``place``. Nothing here imports Numba.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Bytes of a line of the cache, and of a record of the ledger.
LINE = 64
#: Bytes of a record of a lane.
HALF_LINE = 32

#: Codes of owners that are no names, and of the first that is one: the prefix cache.
UNKNOWN, FREE, TREE = 0, 1, 2
#: Instead of an event, where nothing happened.
NEVER = -(1 << 63)
#: How the last content of a slot came there.
BY_NOTHING, BY_FORWARD, BY_VERIFY, BY_COPY, BY_STATE = range(5)


def _record(size: int, **fields: str) -> np.dtype[np.void]:
    """A record of ``size`` bytes with ``fields`` (name to NumPy type), the largest first."""
    types = [np.dtype(kind) for kind in fields.values()]
    ends = np.cumsum([kind.itemsize for kind in types])
    assert ends[-1] <= size
    offsets = [int(end) - kind.itemsize for end, kind in zip(ends, types, strict=True)]
    assert all(at % kind.itemsize == 0 for at, kind in zip(offsets, types, strict=True))
    return np.dtype({"names": list(fields), "formats": types, "offsets": offsets, "itemsize": size})


#: ``attribution.ledger.Ownership``.
OWNERSHIP = _record(
    LINE,
    since="i8",
    alloc_event="i8",
    free_event="i8",
    bad_event="i8",
    published_event="i8",
    owner="i4",
    last_owner="i4",
    free_by="i4",
    free_reason="i4",
    published_by="i4",
    bad_what="i1",
    shared="?",
    forked="?",
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

#: ``replay.lanes.Lane`` and ``replay.known.Known``; ``stamp`` is the kernel's own: number of the
#: event that last wrote the slot, gave it out, or tried to.
LANE = _record(HALF_LINE, mapper="i8", stamp="i8", refs="i4", written_at="i4")

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


def make_records(count: int, record: np.dtype[np.void]) -> NDArray[Any]:
    """[count] records of zero bytes, none of which crosses a line of the cache."""
    return aligned_zeros(count * record.itemsize).view(record)


def aligned_zeros(size: int) -> NDArray[np.uint8]:
    """[size] bytes that begin with a line of the cache."""
    memory = np.zeros(size + LINE, dtype=np.uint8)
    skipped = -memory.ctypes.data % LINE
    return memory[skipped : skipped + size]
