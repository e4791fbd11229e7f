"""Takes the ordinary events of a segment in compiled code, for a replay that allows it.

The kernel (``backends.cpu.events``) works on the same arrays as the general path. What the general
path keeps in numbers and sets of its own is handed to the kernel in a block before it runs, and
taken back behind it (``_enter``, ``_leave``), so that either may go on where the other stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kvcanary_cli.backends.cpu.event_state import Columns, Kind, Mode, Request, State, Stop

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.replay.driver import Replay
    from kvcanary_cli.replay.worker import WorkerCanary
    from kvcanary_cli.trace.columns import Column, Table
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]

_NO_LIMIT = np.iinfo(np.int64).max
_LIST_ROOM = 1 << 14
# From so many events, or tokens, of a segment on it pays to load the kernel, or to compile it once.
_LEAST_EVENTS, _LEAST_TOKENS = 8192, 1 << 16
COMPILED_KINDS = {
    "alloc": Kind.ALLOC,
    "map": Kind.MAP,
    "history": Kind.HISTORY,
    "forward": Kind.FORWARD,
}
_MODES = {"DECODE": Mode.DECODE, "EXTEND": Mode.EXTEND, "MIXED": Mode.EXTEND}
#: Optional fields with which an event is for the general path.
_UNUSUAL = {
    "alloc": ("at", "shared"),
    "map": ("at", "req"),
    "history": ("kv_pos", "kv"),
    "forward": ("draft_step", "landed", "row_as_read", "tree", "namespaces"),
}
_LISTS = {
    "alloc": ("slots",),
    "map": ("slots",),
    "history": ("ids",),
    "forward": ("positions", "input_ids", "out_cache_loc"),
}


class Ledger(Protocol):
    """A watcher's side: arrays that the kernel keeps, and what it cannot look up."""

    def block(self, cells: Ints) -> None:
        """Put addresses and numbers into the block, those of the cells from HAS_LEDGER on."""

    def refresh(self, cells: Ints) -> None:
        """Put the addresses of what may have grown into the block."""

    def take_back(self, cells: Ints, last_event: int | None) -> None:
        """The kernel is done for now.

        Args:
            cells: The block.
            last_event: ``i`` of the last event that it took, None = it took none.
        """

    def code(self, req: str) -> int:
        """Code of a request."""

    def tenant(self, row: int, req: str, event: int) -> None:
        """``req`` runs in ``row``, which the ledger did not know."""

    def make_room(self) -> None:
        """The list of map events is full."""

    def applied_to(self, segment: Segment) -> int:
        """Events of ``segment`` before this one were applied already."""


def allows_compiled(replay: Replay) -> bool:
    """Whether the options and the trace leave anything to the kernel."""
    options, header = replay.options, replay.header
    return (
        replay.incremental
        and replay.backend.name == "cpu"
        and options.steps is None
        and not options.v_half
        and not options.sweep_interval
        and not replay.check_kv
        and not header.pool.swa_slots
        and not header.starts_mid_run
        and not replay.is_cut
        and "map" in header.records
        and header.tokens != "absent"
        and "sidecar_hash" not in header.records
    )


def is_large(segment: Segment) -> bool:
    """Whether a segment is worth the kernel's loading."""
    if len(segment) >= _LEAST_EVENTS:
        return True
    forwards = segment.tables.get("forward")
    positions = None if forwards is None else forwards.columns.get("positions")
    return positions is not None and len(positions.values) >= _LEAST_TOKENS


class CompiledEvents:
    """Runs the kernel over segments of one replay.

    Args:
        replay: The replay.
        ledger: The watcher's, None = nobody watches.
    """

    def __init__(self, replay: Replay, ledger: Ledger | None) -> None:
        self._replay, self._ledger = replay, ledger
        self._state = np.zeros(len(State) + 1, dtype=np.int64)
        self._columns = np.zeros(len(Columns) + 1, dtype=np.int64)
        self._out = np.zeros(3, dtype=np.int64)
        self._segment: Segment | None = None
        self._kept: list[NDArray[np.generic]] = []
        self._new = np.zeros(_LIST_ROOM, dtype=np.int64)
        pool = replay.pool
        self._row_stamps, self._sure = np.zeros((2, pool.table.shape[0]), dtype=np.int64)
        self._stamp = 0
        self._worker: WorkerCanary | None = None
        self._cells: Ints = self._out
        self._addresses = self._state.ctypes.data, self._columns.ctypes.data, self._out.ctypes.data

    # Segments.

    def run(self, segment: Segment, k: int) -> int:
        """Take events of ``segment`` from ``k`` on; the first that is for the general path."""
        from kvcanary_cli.backends.cpu.warm import event_kernel

        # The last event waits for what stands behind it.
        stop, begun = len(segment) - 1, k
        worker = self._ready()
        if worker is None or k >= stop:
            return k
        if segment is not self._segment:
            self._read_segment(segment)
        if self._ledger is not None and k < self._ledger.applied_to(segment):
            return k
        if not self._kinds[k]:
            return k
        take_events = event_kernel()
        self._enter(worker)
        out = self._out
        while True:
            k = take_events(*self._addresses[:2], k, stop, self._addresses[2])
            why, first, second = out.tolist()
            if why in (Stop.END, Stop.GENERAL) or not self._help(
                worker, why, first, second, segment, k
            ):
                break
        self._leave(worker, int(segment.index[k - 1]) if k > begun else None)
        self._replay.events += k - begun
        return k

    def _ready(self) -> WorkerCanary | None:
        """The one worker, if the state is such that the kernel may go on from it."""
        replay = self._replay
        worker = replay.workers.get("target")
        if worker is None or len(replay.workers) > 1 or replay.sweep_is_due:
            return None
        lane = worker.lanes[0]
        if lane.unknown is not None or lane.lineage is not None or lane.proposal is not None:
            return None
        if lane.any_unlinked or lane.known is None or not replay.forwards:
            return None
        return worker

    def _help(
        self, worker: WorkerCanary, why: int, first: int, second: int, segment: Segment, k: int
    ) -> bool:
        """Do what the kernel stopped for; False if the general path must."""
        replay, ledger, state = self._replay, self._ledger, self._state
        requests = replay.pool.requests
        if why == Stop.BIND:
            assert replay.pool.histories is not None
            replay.pool.histories.bind(first, requests.names[second])
            return True
        if why == Stop.ROOM:
            had = int(state[State.NEW_COUNT])
            full = ledger is not None and state[State.MAP_FREE] < 0
            if not had and not full:
                return False
            self._leave(worker, None)
            if ledger is not None and full:
                ledger.make_room()
            self._enter(worker)
            return True
        assert ledger is not None
        if why == Stop.NAME:
            requests.cells[first, Request.LEDGER_CODE] = ledger.code(requests.names[first])
            ledger.refresh(state)
        else:
            ledger.tenant(first, requests.names[second], int(segment.index[k]))
        return True

    # The block.

    def _enter(self, worker: WorkerCanary) -> None:
        replay, state = self._replay, self._state
        pool, tally, known = replay.pool, replay.tally, worker.lanes[0].known
        assert known is not None
        if worker is not self._worker:
            self._worker = worker
            self._fill(worker)
        if pool.requests.cells is not self._cells:
            self._cells = pool.requests.cells
            state[State.REQUESTS] = self._cells.ctypes.data
        state[State.STAMP] = self._stamp
        state[State.SERIAL] = worker.lanes[0].serial
        state[State.HAS_TOKENS] = pool.histories is not None and pool.histories.any
        state[State.ENTRIES_VERIFIED] = tally.entries_verified
        state[State.ENTRIES_WRITTEN] = tally.entries_written
        state[State.TOKEN_ENTRIES] = tally.token_entries
        state[State.FORWARDS] = replay.forwards
        state[State.STEPS] = replay.steps
        state[State.CHECKED_STEPS] = replay.checked_steps
        state[State.LAST_STEP], state[State.LAST_CHECKED] = replay.last_steps()
        state[State.NEW_COUNT] = 0
        if self._ledger is not None:
            self._ledger.block(state)

    def _fill(self, worker: WorkerCanary) -> None:
        """Addresses that stay for the whole replay."""
        replay, state = self._replay, self._state
        lane = worker.lanes[0]
        known, pool = lane.known, replay.pool
        assert known is not None
        state[State.ROWS], state[State.ROW_LEN] = pool.table.shape
        state[State.SLOTS] = lane.num_slots
        for cell, buffer in ((State.HEAD, lane.group.k_head), (State.TAIL, lane.group.k_tail)):
            state[cell] = buffer.data_ptr()
        arrays: dict[State, NDArray[Any]] = {
            State.TABLE: pool.table,
            State.ROW_STAMPS: self._row_stamps,
            State.SURE: self._sure,
            State.RECORDS: lane.records,
            State.CHECKED: known.checked,
            State.TOKENS_KNOWN: known.tokens_known,
            State.LIMITS: known.limits,
            State.AGAIN: known.again,
            State.TENANTS: known.tenants,
            State.ROW_READ: known.row_read,
            State.READ_LEN: known.read_len,
            State.NEW_REQUESTS: self._new,
        }
        for cell, array in arrays.items():
            state[cell] = array.ctypes.data
        if known.read_events is not None:
            state[State.READ_EVENTS] = known.read_events.ctypes.data
        if pool.histories is not None:
            state[State.POOL] = pool.histories.pool.ctypes.data
            state[State.POOL_WIDTH] = pool.histories.pool.shape[1]
        state[State.KERNEL_RUNS] = worker.state.kernel_run_counters.data_ptr()
        state[State.SLOT_RUNS] = worker.state.slot_run_counters.data_ptr()
        state[State.NEW_ROOM] = _LIST_ROOM
        limits = replay.capacities
        for cell, limit in (
            (State.VERIFY_CAPACITY, limits.verify),
            (State.REQUEST_CAPACITY, limits.write_req),
            (State.TOKEN_CAPACITY, limits.write_entry),
        ):
            state[cell] = _NO_LIMIT if limit is None else limit

    def _leave(self, worker: WorkerCanary, last_event: int | None) -> None:
        replay, state = self._replay, self._state
        tally = replay.tally
        self._stamp = int(state[State.STAMP])
        worker.lanes[0].go_on_from(int(state[State.SERIAL]))
        tally.entries_verified = int(state[State.ENTRIES_VERIFIED])
        tally.entries_written = int(state[State.ENTRIES_WRITTEN])
        tally.token_entries = int(state[State.TOKEN_ENTRIES])
        replay.checked_forwards += int(state[State.FORWARDS]) - replay.forwards
        replay.forwards = int(state[State.FORWARDS])
        replay.steps = int(state[State.STEPS])
        replay.checked_steps = int(state[State.CHECKED_STEPS])
        replay.go_on_from(int(state[State.LAST_STEP]), int(state[State.LAST_CHECKED]))
        requests = replay.pool.requests
        for code in self._new[: state[State.NEW_COUNT]].tolist():
            name = requests.names[code]
            replay.requests.add(name)
            replay.requests_checked.add(name)
            replay.pool.row_of[name] = int(requests.cells[code, Request.TABLE_ROW])
        if self._ledger is not None:
            self._ledger.take_back(state, last_event)
        state[State.NEW_COUNT] = 0

    # Columns.

    def _read_segment(self, segment: Segment) -> None:
        self._segment = segment
        self._kept = []
        lookup = np.zeros(len(segment.kind_names), dtype=np.uint8)
        reqs: list[NDArray[np.int32]] = []
        usual = {}
        for number, name in enumerate(segment.kind_names):
            if name not in COMPILED_KINDS or name not in segment.tables:
                continue
            table = segment.tables[name]
            if table.rows and self._read_table(name, table, segment, reqs):
                lookup[number] = COMPILED_KINDS[name]
                usual[number] = _is_usual(name, table)
        kinds = lookup[segment.kind]
        for number, is_usual in usual.items():
            mine = np.flatnonzero(segment.kind == number)
            kinds[mine[~is_usual[segment.row[mine]]]] = Kind.OTHER
        self._kinds = kinds
        self._put(Columns.KINDS, kinds, np.uint8)
        self._put(Columns.INDEX, segment.index, np.int64)
        self._put(Columns.ROWS, segment.row, np.int32)
        req_of = np.full(max(1, len(segment.strings)), -1, dtype=np.int64)
        named = np.unique(np.concatenate(reqs)) if reqs else np.empty(0, dtype=np.int64)
        requests = self._replay.pool.requests
        for code in named.tolist():
            if code >= 0:
                req_of[code] = requests.code(segment.strings[code])
        self._put(Columns.REQ_OF, req_of, np.int64)

    def _put(self, cell: Columns, values: NDArray[np.generic], dtype: type[np.generic]) -> None:
        array = np.ascontiguousarray(values, dtype=dtype)
        self._kept.append(array)
        self._columns[cell] = array.ctypes.data

    def _read_table(
        self, name: str, table: Table, segment: Segment, reqs: list[NDArray[np.int32]]
    ) -> bool:
        """Put a table's columns into the block; False if it is not as the kernel needs it."""
        columns = table.columns
        if any(field not in columns for field in _LISTS[name]):
            return False

        def ints(cell: Columns, field: str) -> None:
            self._put(cell, columns[field].values, np.int64)

        def offsets(cell: Columns, *fields: str) -> bool:
            arrays = [columns[field].offsets for field in fields]
            assert all(array is not None for array in arrays)
            self._put(cell, arrays[0], np.int64)  # type: ignore[arg-type]
            return all(np.array_equal(arrays[0], array) for array in arrays[1:])  # type: ignore[arg-type]

        def strings(cell: Columns, field: str) -> None:
            values = columns[field].values.astype(np.int32, copy=False)
            self._put(cell, values, np.int32)
            reqs.append(values)

        if name == "alloc":
            strings(Columns.ALLOC_OWNER, "owner")
            ints(Columns.ALLOC_SLOTS, "slots")
            return offsets(Columns.ALLOC_OFFSETS, "slots")
        if name == "map":
            ints(Columns.MAP_ROW, "row")
            ints(Columns.MAP_START, "start")
            ints(Columns.MAP_SLOTS, "slots")
            return offsets(Columns.MAP_OFFSETS, "slots")
        if name == "history":
            strings(Columns.HISTORY_REQ, "req")
            ints(Columns.HISTORY_START, "start")
            ints(Columns.HISTORY_IDS, "ids")
            return offsets(Columns.HISTORY_OFFSETS, "ids")
        ints(Columns.STEP, "step")
        strings(Columns.REQS, "reqs")
        ints(Columns.REQ_ROWS, "req_pool_indices")
        ints(Columns.SEQ_LENS, "seq_lens")
        ints(Columns.IDS, "input_ids")
        ints(Columns.POSITIONS, "positions")
        ints(Columns.LOCS, "out_cache_loc")
        raw = np.full(table.rows, -1, dtype=np.int64)
        if "raw_bs" in columns:
            has = _has(columns["raw_bs"], table.rows)
            raw[has] = columns["raw_bs"].values[has]
        self._put(Columns.RAW_BS, raw, np.int64)
        self._put(Columns.MODE, _modes(table, segment), np.uint8)
        same = offsets(Columns.REQ_OFFSETS, "reqs", "req_pool_indices", "seq_lens")
        same &= offsets(Columns.TOKEN_OFFSETS, "positions", "input_ids", "out_cache_loc")
        if "extend_seq_lens" in columns and "extend_prefix_lens" in columns:
            ints(Columns.PREFIX_LENS, "extend_prefix_lens")
            ints(Columns.EXTEND_LENS, "extend_seq_lens")
            same &= offsets(Columns.EXTEND_OFFSETS, "extend_prefix_lens", "extend_seq_lens")
        return same


def _has(column: Column, rows: int) -> NDArray[np.bool_]:
    return np.ones(rows, dtype=np.bool_) if column.present is None else column.present.astype(bool)


def _is_usual(name: str, table: Table) -> NDArray[np.bool_]:
    """[rows] which events of a kind have none of the fields that only the general path knows."""
    usual = np.ones(table.rows, dtype=np.bool_)
    for field in _UNUSUAL[name]:
        if field in table.columns:
            usual &= ~_has(table.columns[field], table.rows)
    for field in _LISTS[name]:
        usual &= _has(table.columns[field], table.rows)
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
