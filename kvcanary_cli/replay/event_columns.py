"""A segment's columns as the event kernel reads them, and which of its events are left to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.backends.cpu.event_state import Columns, Kind, Mode
from kvcanary_cli.trace.schema import GAP_OWNER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.replay.prefixes import PrefixIndex
    from kvcanary_cli.replay.requests import Requests
    from kvcanary_cli.replay.watched_ledger import Ledger
    from kvcanary_cli.trace.columns import Column, Table
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]

COMPILED_KINDS = {
    "alloc": Kind.ALLOC,
    "map": Kind.MAP,
    "history": Kind.HISTORY,
    "forward": Kind.FORWARD,
    "own": Kind.OWN,
    "free": Kind.FREE,
    "publish": Kind.PUBLISH,
    "unpublish": Kind.UNPUBLISH,
    "match": Kind.MATCH,
    "finish": Kind.FINISH,
    "abort": Kind.ABORT,
    "retract": Kind.RETRACT,
    "row_release": Kind.ROW_RELEASE,
}
_MODES = {"DECODE": Mode.DECODE, "EXTEND": Mode.EXTEND, "MIXED": Mode.EXTEND}
#: Optional fields with which an event is for the general path.
_UNUSUAL = {
    "alloc": ("at", "shared"),
    "map": ("at", "req"),
    "history": ("kv_pos", "kv"),
    "forward": ("draft_step", "landed", "row_as_read", "tree", "namespaces"),
    "free": ("at",),
    "publish": ("start", "prev_slot", "gone", "namespace"),
    "match": ("namespace",),
}
#: Lists without which it is.
_LISTS = {
    "alloc": ("slots",),
    "map": ("slots",),
    "history": ("ids",),
    "forward": ("positions", "input_ids", "out_cache_loc"),
    "own": ("slots",),
    "free": ("slots",),
    "publish": ("slots",),
    "match": ("slots",),
}
#: Owners whose slots come from a stretch that was not recorded.
_LOST = {"own": "from", "free": "owner"}
#: Fields of the kinds that have no further ones: numbers, requests, entries, one list of numbers.
_INTS: dict[str, dict[str, Columns]] = {
    "map": {"row": Columns.MAP_ROW, "start": Columns.MAP_START},
    "history": {"start": Columns.HISTORY_START},
    "row_release": {"row": Columns.RELEASE_ROW},
}
_REQS: dict[str, dict[str, Columns]] = {
    "alloc": {"owner": Columns.ALLOC_OWNER},
    "history": {"req": Columns.HISTORY_REQ},
    "own": {"from": Columns.OWN_FROM, "owner": Columns.OWN_OWNER},
    "free": {"owner": Columns.FREE_OWNER},
    "publish": {"req": Columns.PUBLISH_REQ},
    "match": {"req": Columns.MATCH_REQ},
    "finish": {"req": Columns.FINISH_REQ},
    "abort": {"req": Columns.ABORT_REQ},
    "retract": {"req": Columns.RETRACT_REQ},
    "row_release": {"req": Columns.RELEASE_REQ},
}
_ENTRIES: dict[str, dict[str, Columns]] = {
    "own": {"entry": Columns.OWN_ENTRY},
    "publish": {"entry": Columns.PUBLISH_ENTRY},
    "unpublish": {"entry": Columns.UNPUBLISH_ENTRY},
}
_ONE_LIST: dict[str, tuple[str, Columns, Columns]] = {
    "alloc": ("slots", Columns.ALLOC_SLOTS, Columns.ALLOC_OFFSETS),
    "map": ("slots", Columns.MAP_SLOTS, Columns.MAP_OFFSETS),
    "history": ("ids", Columns.HISTORY_IDS, Columns.HISTORY_OFFSETS),
    "own": ("slots", Columns.OWN_SLOTS, Columns.OWN_OFFSETS),
    "free": ("slots", Columns.FREE_SLOTS, Columns.FREE_OFFSETS),
    "publish": ("slots", Columns.PUBLISH_SLOTS, Columns.PUBLISH_OFFSETS),
    "match": ("slots", Columns.MATCH_SLOTS, Columns.MATCH_OFFSETS),
}


class EventColumns:
    """The block of one segment at a time.

    Args:
        requests: Number the requests that the events name.
        prefixes: Numbers the entries.
        ledger: Has codes for the reasons of frees; None = they do not matter.

    Attributes:
        block: ``Columns``.
        kinds: [events] ``Kind`` of each event.
    """

    def __init__(self, requests: Requests, prefixes: PrefixIndex, ledger: Ledger | None) -> None:
        self._requests, self._prefixes, self._ledger = requests, prefixes, ledger
        self.block: Ints = np.zeros(len(Columns) + 1, dtype=np.int64)
        self.kinds: NDArray[np.uint8] = np.empty(0, dtype=np.uint8)
        # What the block points to.
        self._kept: list[NDArray[np.generic]] = []

    def read(self, segment: Segment) -> None:
        """Fill the block with the columns of ``segment``, which may be prepared."""
        prepared = segment.prepared
        if not isinstance(prepared, PreparedColumns):
            prepared = PreparedColumns(segment)
        self.kinds, self._kept = prepared.kinds, [*prepared.kept]
        self.block[:] = prepared.block
        if "free" in segment.tables:
            self._put(Columns.FREE_REASON, self._reasons(prepared, segment))
        self._prefixes.forget_names()
        for cell, wanted, number_of in (
            (Columns.REQ_OF, prepared.reqs, self._requests.code),
            (Columns.ENTRY_OF, prepared.entries, self._prefixes.code),
        ):
            numbers = np.full(len(segment.strings) + 1, -1, dtype=np.int64)
            numbers[wanted] = [number_of(segment.strings[code]) for code in wanted]
            self._put(cell, numbers)

    def _put(self, cell: Columns, array: NDArray[np.generic]) -> None:
        self._kept.append(array)
        self.block[cell] = array.ctypes.data

    def _reasons(self, prepared: PreparedColumns, segment: Segment) -> NDArray[np.int32]:
        """[frees] code of each one's reason."""
        codes = np.zeros(len(segment.strings) + 1, dtype=np.int32)
        if self._ledger is not None:
            for code in prepared.reasons:
                codes[code] = self._ledger.reason(segment.strings[code])
        return codes[prepared.reason_of]


class PreparedColumns:
    """What of a block follows from the segment alone, so that whoever reads it can make it.

    Args:
        segment: The segment.

    Attributes:
        block: ``Columns``, without names.
        kinds: [events] ``Kind`` of each event.
        kept: The arrays that the block points to.
        reqs, entries: Strings that the kernel must know as requests, and as entries.
        reason_of: [frees] string that tells each one's reason, -1 = none.
        reasons: These strings, in the order in which they come.
    """

    def __init__(self, segment: Segment) -> None:
        self.block: Ints = np.zeros(len(Columns) + 1, dtype=np.int64)
        self.kept: list[NDArray[np.generic]] = []
        # [strings + 1], the last one of which stands for no string.
        self._is_req = np.zeros(len(segment.strings) + 1, dtype=np.bool_)
        self._is_entry = self._is_req.copy()
        lookup = np.zeros(len(segment.kind_names), dtype=np.uint8)
        usual = {}
        for number, name in enumerate(segment.kind_names):
            if name not in COMPILED_KINDS or name not in segment.tables:
                continue
            table = segment.tables[name]
            if table.rows and self._read_table(name, table, segment):
                lookup[number] = COMPILED_KINDS[name]
                usual[number] = _is_usual(name, table, segment)
        kinds = lookup[segment.kind]
        for number, is_usual in usual.items():
            if not is_usual.all():
                mine = np.flatnonzero(segment.kind == number)
                kinds[mine[~is_usual[segment.row[mine]]]] = Kind.OTHER
        self.kinds = kinds
        self._put(Columns.KINDS, kinds, np.uint8)
        self._put(Columns.INDEX, segment.index, np.int64)
        self._put(Columns.ROWS, segment.row, np.int32)
        self.reqs: list[int] = np.flatnonzero(self._is_req[:-1]).tolist()
        self.entries: list[int] = np.flatnonzero(self._is_entry[:-1]).tolist()
        self.reason_of = _reasons(segment)
        self.reasons = _in_order(self.reason_of, len(segment.strings))

    def _put(self, cell: Columns, values: NDArray[np.generic], dtype: type[np.generic]) -> None:
        array = np.ascontiguousarray(values, dtype=dtype)
        self.kept.append(array)
        self.block[cell] = array.ctypes.data

    def _ints(self, cell: Columns, column: Column) -> None:
        self._put(cell, column.values, np.int64)

    def _strings(self, cell: Columns, table: Table, name: str, wanted: NDArray[np.bool_]) -> None:
        """A column of strings, each of which is among the ``wanted``; -1 = none."""
        column = table.columns.get(name)
        if column is None:
            self._put(cell, np.full(table.rows, -1, dtype=np.int32), np.int32)
            return
        values = column.values
        if column.present is not None and column.offsets is None:
            values = np.where(column.present.astype(bool), values, -1)
        wanted[values] = True
        self._put(cell, values, np.int32)

    def _offsets(self, cell: Columns, *columns: Column) -> bool:
        """The offsets of lists; False if they are not equally long."""
        arrays = [column.offsets for column in columns if column.offsets is not None]
        assert len(arrays) == len(columns)
        self._put(cell, arrays[0], np.int64)
        return all(np.array_equal(arrays[0], array) for array in arrays[1:])

    def _read_table(self, name: str, table: Table, segment: Segment) -> bool:
        """Put a table's columns into the block; False if it is not as the kernel needs it."""
        columns = table.columns
        if any(field not in columns for field in _LISTS.get(name, ())):
            return False
        if name == "forward":
            return self._read_forwards(table, segment)
        for field, cell in _INTS.get(name, {}).items():
            self._ints(cell, columns[field])
        for field, cell in _REQS.get(name, {}).items():
            self._strings(cell, table, field, self._is_req)
        for field, cell in _ENTRIES.get(name, {}).items():
            self._strings(cell, table, field, self._is_entry)
        if name in _ONE_LIST:
            field, values, offsets = _ONE_LIST[name]
            self._ints(values, columns[field])
            self._offsets(offsets, columns[field])
        return True

    def _read_forwards(self, table: Table, segment: Segment) -> bool:
        columns = table.columns
        self._strings(Columns.REQS, table, "reqs", self._is_req)
        for cell, field in (
            (Columns.STEP, "step"),
            (Columns.REQ_ROWS, "req_pool_indices"),
            (Columns.SEQ_LENS, "seq_lens"),
            (Columns.IDS, "input_ids"),
            (Columns.POSITIONS, "positions"),
            (Columns.LOCS, "out_cache_loc"),
        ):
            self._ints(cell, columns[field])
        raw = np.full(table.rows, -1, dtype=np.int64)
        if "raw_bs" in columns:
            has = _has(columns["raw_bs"], table.rows)
            raw[has] = columns["raw_bs"].values[has]
        self._put(Columns.RAW_BS, raw, np.int64)
        self._put(Columns.MODE, _modes(table, segment), np.uint8)
        requests = (columns[name] for name in ("reqs", "req_pool_indices", "seq_lens"))
        tokens = (columns[name] for name in ("positions", "input_ids", "out_cache_loc"))
        same = self._offsets(Columns.REQ_OFFSETS, *requests)
        same &= self._offsets(Columns.TOKEN_OFFSETS, *tokens)
        if "extend_seq_lens" in columns and "extend_prefix_lens" in columns:
            prefixes, extends = columns["extend_prefix_lens"], columns["extend_seq_lens"]
            self._ints(Columns.PREFIX_LENS, prefixes)
            self._ints(Columns.EXTEND_LENS, extends)
            same &= self._offsets(Columns.EXTEND_OFFSETS, prefixes, extends)
        return same


def _has(column: Column, rows: int) -> NDArray[np.bool_]:
    return np.ones(rows, dtype=np.bool_) if column.present is None else column.present.astype(bool)


def _reasons(segment: Segment) -> NDArray[np.int32]:
    """[frees] string that tells each one's reason, -1 = none."""
    table = segment.tables.get("free")
    if table is None:
        return np.empty(0, dtype=np.int32)
    column = table.columns.get("reason")
    if column is None:
        return np.full(table.rows, -1, dtype=np.int32)
    return np.where(_has(column, table.rows), column.values, -1).astype(np.int32)


def _in_order(codes: NDArray[np.int32], num_strings: int) -> list[int]:
    """The strings among ``codes``, in the order in which they first come."""
    is_there = np.zeros(num_strings + 1, dtype=np.bool_)
    is_there[codes] = True
    return sorted(
        np.flatnonzero(is_there[:-1]).tolist(), key=lambda code: int((codes == code).argmax())
    )


def _is_usual(name: str, table: Table, segment: Segment) -> NDArray[np.bool_]:
    """[rows] which events of a kind have nothing that only the general path knows."""
    usual = np.ones(table.rows, dtype=np.bool_)
    for field in _UNUSUAL.get(name, ()):
        if field in table.columns:
            usual &= ~_has(table.columns[field], table.rows)
    for field in _LISTS.get(name, ()):
        usual &= _has(table.columns[field], table.rows)
    if name in _LOST and GAP_OWNER in segment.strings:
        usual &= table.columns[_LOST[name]].values != segment.strings.index(GAP_OWNER)
    return usual


def _modes(table: Table, segment: Segment) -> NDArray[np.uint8]:
    """[forwards] ``Mode`` of each, 0 = for the general path."""
    columns = table.columns
    codes = columns["forward_mode"].values
    modes = np.zeros(table.rows, dtype=np.uint8)
    for code in np.unique(codes).tolist():
        if code >= 0:
            modes[codes == code] = _MODES.get(segment.strings[code], 0)
    if "worker" in columns:
        worker = columns["worker"]
        for code in np.unique(worker.values).tolist():
            if code < 0 or segment.strings[code] != "target":
                modes[_has(worker, table.rows) & (worker.values == code)] = 0
    lengths = _lengths(columns["reqs"])
    modes[(modes == Mode.DECODE) & (_lengths(columns["positions"]) != lengths)] = 0
    for field in ("extend_prefix_lens", "extend_seq_lens"):
        given = np.zeros(table.rows, dtype=np.bool_)
        if field in columns:
            given = _has(columns[field], table.rows) & (_lengths(columns[field]) == lengths)
        modes[(modes == Mode.EXTEND) & ~given] = 0
    return modes


def _lengths(column: Column) -> Ints:
    assert column.offsets is not None
    return np.diff(column.offsets)
