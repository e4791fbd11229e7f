"""Takes the ordinary events of a segment in compiled code, for a replay that allows it.

The kernel (``backends.cpu.events``) works on the same arrays as the general path. What the general
path keeps in numbers and sets of its own is handed to the kernel in a block before it runs, and
taken back behind it (``_enter``, ``_leave``), so that either may go on where the other stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.backends.cpu.event_state import LIST_ROOM, Kind, Request, State, Stop
from kvcanary_cli.replay.event_columns import EventColumns, PreparedColumns
from kvcanary_cli.trace.schema import TREE_OWNER

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvcanary_cli.replay.driver import Replay
    from kvcanary_cli.replay.watched_ledger import Ledger
    from kvcanary_cli.replay.worker import WorkerCanary
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]

_NO_LIMIT = np.iinfo(np.int64).max
# From so many events, or tokens, of a segment on it pays to load the kernel, or to compile it once.
_LEAST_EVENTS, _LEAST_TOKENS = 8192, 1 << 16


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


def preparing(replay: Replay) -> Callable[[Segment], object] | None:
    """What whoever reads segments can do for compiled events beside the replay, None = nothing."""
    wanted = replay.options.compiled
    if wanted is False or not allows_compiled(replay):
        return None

    def prepare(segment: Segment) -> PreparedColumns | None:
        return PreparedColumns(segment) if wanted or is_large(segment) else None

    return prepare


class CompiledEvents:
    """Runs the kernel over segments of one replay.

    Args:
        replay: The replay.
        ledger: The watcher's, None = nobody watches.
    """

    def __init__(self, replay: Replay, ledger: Ledger | None) -> None:
        self._replay, self._ledger = replay, ledger
        pool = replay.pool
        self._state = np.zeros(len(State) + 1, dtype=np.int64)
        self._columns = EventColumns(pool.requests, pool.prefixes, ledger)
        self._out = np.zeros(3, dtype=np.int64)
        self._segment: Segment | None = None
        self._new = np.zeros(LIST_ROOM, dtype=np.int64)
        self._row_stamps, self._sure = np.zeros((2, pool.table.shape[0]), dtype=np.int64)
        self._stamp = 0
        self._worker: WorkerCanary | None = None
        # Arrays that are replaced when they grow, by the cell with their address.
        self._growing: dict[State, NDArray[Any]] = {}
        self._addresses = tuple(
            block.ctypes.data for block in (self._state, self._columns.block, self._out)
        )

    # Segments.

    def run(self, segment: Segment, k: int) -> int:
        """Take events of ``segment`` from ``k`` on; the first that is for the general path.

        Returns:
            Its number, that of events in the segment if there is none.
        """
        from kvcanary_cli.backends.cpu.warm import event_kernel

        # No forward waits for fingerprints behind it: where they count, nothing is compiled.
        stop, begun = len(segment), k
        worker = self._ready()
        if worker is None or k >= stop:
            return k
        if segment is not self._segment:
            self._segment = segment
            self._columns.read(segment)
        if self._ledger is not None and k < self._ledger.applied_to(segment):
            return k
        if self._columns.kinds[k] == Kind.OTHER:
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
        self._leave(worker, segment, int(segment.index[k - 1]) if k > begun else None)
        self._replay.events += k - begun
        return k

    def _ready(self) -> WorkerCanary | None:
        """The one worker, if the state is such that the kernel may go on from it."""
        replay = self._replay
        worker = replay.workers.get("target")
        if worker is None or len(replay.workers) > 1 or replay.sweep_due is not None:
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
        pool, ledger, state = self._replay.pool, self._ledger, self._state
        full = ledger is not None and state[State.MAP_FREE] < 0
        lists = (State.NEW_COUNT, State.NAMED_COUNT, State.ENDED_COUNT, State.MATCHED_COUNT)
        if why == Stop.ROOM and not full and not any(state[cell] for cell in lists):
            return False
        self._leave(worker, segment, None)
        if why == Stop.STORE_FULL:
            assert pool.histories is not None
            pool.histories.store.make_room(first)
        elif why == Stop.PLACES_FULL:
            pool.prefixes.make_room(first)
        elif why == Stop.TENANT and ledger is not None:
            ledger.tenant(first, pool.requests.names[second], int(segment.index[k]))
        elif full and ledger is not None:
            ledger.make_room()
        self._enter(worker)
        return True

    # The block.

    def _enter(self, worker: WorkerCanary) -> None:
        replay, state = self._replay, self._state
        pool, tally, known = replay.pool, replay.tally, worker.lanes[0].known
        assert known is not None
        if worker is not self._worker:
            self._worker = worker
            self._fill(worker)
        growing: dict[State, NDArray[Any]] = {
            State.REQUESTS: pool.requests.cells,
            State.ENTRIES: pool.prefixes.cells,
            State.PLACES: pool.prefixes.places,
        }
        if pool.histories is not None:
            growing[State.STORE] = pool.histories.store.values
        for cell, array in growing.items():
            if self._growing.get(cell) is not array:
                self._growing[cell] = array
                state[cell] = array.ctypes.data
        state[State.STAMP] = self._stamp
        state[State.SERIAL] = worker.lanes[0].serial
        state[State.ENTRIES_VERIFIED] = tally.entries_verified
        state[State.ENTRIES_WRITTEN] = tally.entries_written
        state[State.TOKEN_ENTRIES] = tally.token_entries
        state[State.FORWARDS] = replay.forwards
        state[State.STEPS] = replay.steps
        state[State.CHECKED_STEPS] = replay.checked_steps
        state[State.LAST_STEP], state[State.LAST_CHECKED] = replay.last_steps()
        state[State.NEW_COUNT] = 0
        if self._ledger is not None:
            self._ledger.block(state, pool.requests)

    def _fill(self, worker: WorkerCanary) -> None:
        """Addresses that stay for the whole replay."""
        replay, state = self._replay, self._state
        lane = worker.lanes[0]
        known, pool = lane.known, replay.pool
        assert known is not None
        state[State.ROWS], state[State.ROW_LEN] = pool.table.shape
        state[State.SLOTS] = lane.num_slots
        state[State.CANARY] = lane.group.k_head.data_ptr()
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
            State.PREFIX_NUMBERS: pool.prefixes.numbers,
            State.RETURNS: pool.prefixes.returns,
        }
        if pool.histories is not None:
            arrays[State.POOL] = pool.histories.pool
            arrays[State.HISTORY_NUMBERS] = pool.histories.numbers
            arrays[State.ROW_REQ] = pool.histories.row_req
            state[State.POOL_WIDTH] = pool.histories.pool.shape[1]
        for cell, array in arrays.items():
            state[cell] = array.ctypes.data
        state[State.KEEPS_READS] = known.read_events is not None
        state[State.KERNEL_RUNS] = worker.state.kernel_run_counters.data_ptr()
        state[State.SLOT_RUNS] = worker.state.slot_run_counters.data_ptr()
        state[State.TREE] = pool.requests.code(TREE_OWNER)
        limits = replay.capacities
        for cell, limit in (
            (State.VERIFY_CAPACITY, limits.verify),
            (State.REQUEST_CAPACITY, limits.write_req),
            (State.TOKEN_CAPACITY, limits.write_entry),
        ):
            state[cell] = _NO_LIMIT if limit is None else limit

    def _leave(self, worker: WorkerCanary, segment: Segment, last_event: int | None) -> None:
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
            self._ledger.take_back(state, requests, segment, last_event)
        state[State.NEW_COUNT] = 0
