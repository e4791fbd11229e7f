"""The replay that a cut folds its past into, and what it must remember besides a pool's state."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.cut.past import Past
from kvcanary_cli.replay.driver import Replay
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.trace.memory import check_memory
from kvcanary_cli.trace.schema import TREE_OWNER

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvcanary_cli.trace.header import TraceHeader
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]
    Handler = Callable[[Segment, int, int], None]


class Owners:
    """Who owns each slot, as the allocator's events tell.

    Attributes:
        names: Owner codes to names.
        owner: [num_slots] int32 code of the slot's last known owner, -1 = unknown.
        free: [num_slots] bool: the owner gave the slot back.
        allocated_at: Worker to [num_slots] int64: the number of writes into that worker's pool
            that stood before the slot's last ``alloc``.
    """

    def __init__(self, num_slots: int) -> None:
        self.names: list[str] = []
        self._codes: dict[str, int] = {}
        self.owner = np.full(num_slots, -1, dtype=np.int32)
        self.free = np.zeros(num_slots, dtype=np.bool_)
        self.allocated_at: dict[str, Ints] = {}

    def code(self, name: str) -> int:
        code = self._codes.get(name)
        if code is None:
            code = self._codes[name] = len(self.names)
            self.names.append(name)
        return code

    def set(self, slots: Ints, name: str, *, free: bool) -> None:
        self.owner[slots] = self.code(name)
        self.free[slots] = free

    def mark(self, worker: str, slots: Ints, writes: int) -> None:
        marks = self.allocated_at.get(worker)
        if marks is None:
            marks = self.allocated_at[worker] = np.zeros(len(self.owner), dtype=np.int64)
        marks[slots] = writes

    def written_since(self, worker: str, written_at: NDArray[np.int32]) -> NDArray[np.bool_]:
        """[num_slots] which owned slots the worker wrote since their ``alloc``."""
        marks = self.allocated_at.get(worker)
        after: NDArray[np.bool_] = written_at > (0 if marks is None else marks)
        return after & (self.owner >= 0)


class StateReplay(Replay):
    """A replay that only makes state, and keeps what a cut has to repeat.

    Attributes:
        past: The ledger: writers of the slots, and the events that gave and took them.
        owners: Slot owners.
        adapters: Adapter name to its last event.
        launches: Launches of steps that are still to come, in order.
        transfers: Open transfers by id, in order.
        futures: Future ring to its last put.
        accepts: Request that goes on to what was last accepted of its drafts.
        entries: Visible prefix entry to the request and namespace that it was published with.
        released: Request to the row that it gave back.
        ends: Request to the kind of event that ended it.
    """

    def __init__(self, header: TraceHeader, first: int) -> None:
        check_memory(header)
        self.past = Past(header)
        super().__init__(
            header,
            ReplayOptions(backend="cpu", steps=(first, None), v_half="kv_hash" in header.records),
            watcher=self.past,
        )
        self.past.replay = self
        self.first = first
        self.owners = Owners(header.pool.max_slot + 1)
        self.adapters: dict[str, dict[str, Any]] = {}
        self.launches: list[dict[str, Any]] = []
        self.transfers: dict[str, dict[str, Any]] = {}
        self.futures: dict[int, dict[str, Any]] = {}
        self.accepts: dict[str, dict[str, Any]] = {}
        self.entries: dict[str, dict[str, str]] = {}
        self.released: dict[str, int] = {}
        self.ends: dict[str, str] = {}
        also: dict[str, Handler] = {
            "alloc": self._note_alloc,
            "free": self._note_free,
            "own": self._note_own,
            "publish": self._note_publish,
            "unpublish": self._note_unpublish,
            "adapter": self._note_adapter,
            "launch": self._note_launch,
            "transfer_begin": self._note_begin,
            "transfer_end": self._note_end_of_transfer,
            "transfer_fail": self._note_end_of_transfer,
            "future_put": self._note_future,
            "accept": self._note_accept,
            "row_release": self._note_release,
            "finish": self._note_end,
            "abort": self._note_end,
        }
        for kind, handler in also.items():
            self._handlers[kind] = _in_turn(self._handlers.get(kind), handler)

    def behind_gap(self) -> StateReplay:
        """The state where events were lost: as ``replay.gaps`` goes on, with nothing known."""
        anew = StateReplay(replace(self.header, starts_mid_run=True), self.first)
        anew.kv_layer = self.kv_layer
        return anew

    # The allocator.

    def _note_alloc(self, segment: Segment, k: int, row: int) -> None:
        slots = _slots(segment, "alloc", row)
        self.owners.set(slots, segment.text("alloc", "owner", row) or "", free=False)
        for name, worker in self.workers.items():
            # The forward under way stands before this event, though its rows count when it ends.
            writes = worker.lanes[0].serial + (worker.pending is not None)
            self.owners.mark(name, slots, writes)

    def _note_free(self, segment: Segment, k: int, row: int) -> None:
        owner = segment.text("free", "owner", row) or ""
        self.owners.set(_slots(segment, "free", row), owner, free=True)

    def _note_own(self, segment: Segment, k: int, row: int) -> None:
        owner = segment.text("own", "owner", row) or ""
        self.owners.set(_slots(segment, "own", row), owner, free=False)
        entry = segment.text("own", "entry", row)
        if entry is not None and owner == TREE_OWNER:
            self.entries[entry] = {"req": segment.text("own", "from", row) or ""}

    # The prefix index.

    def _note_publish(self, segment: Segment, k: int, row: int) -> None:
        entry = segment.text("publish", "entry", row) or ""
        values = {name: segment.text("publish", name, row) for name in ("req", "namespace")}
        self.entries[entry] = {name: value for name, value in values.items() if value is not None}

    def _note_unpublish(self, segment: Segment, k: int, row: int) -> None:
        self.entries.pop(segment.text("unpublish", "entry", row) or "", None)

    # What is under way.

    def _note_adapter(self, segment: Segment, k: int, row: int) -> None:
        self.adapters[segment.text("adapter", "name", row) or ""] = _event(segment, k)

    def _note_launch(self, segment: Segment, k: int, row: int) -> None:
        step = segment.tables["launch"].get_int("step", row)
        if step is not None and step >= self.first:
            self.launches.append(_event(segment, k))

    def _note_begin(self, segment: Segment, k: int, row: int) -> None:
        self.transfers[_transfer_id(segment, k, row)] = _event(segment, k)

    def _note_end_of_transfer(self, segment: Segment, k: int, row: int) -> None:
        self.transfers.pop(_transfer_id(segment, k, row), None)

    def _note_future(self, segment: Segment, k: int, row: int) -> None:
        ring = segment.tables["future_put"].get_int("ring", row) or 0
        self.futures[ring] = _event(segment, k)

    def _note_accept(self, segment: Segment, k: int, row: int) -> None:
        req = segment.text("accept", "req", row) or ""
        self.accepts[req] = {"at": int(segment.index[k])} | _event(segment, k)

    # Requests.

    def _note_release(self, segment: Segment, k: int, row: int) -> None:
        req = segment.text("row_release", "req", row) or ""
        self.released[req] = segment.tables["row_release"].get_int("row", row) or 0

    def _note_end(self, segment: Segment, k: int, row: int) -> None:
        kind = segment.kind_of(k)
        req = segment.text(kind, "req", row) or ""
        self.ends[req] = kind
        self.accepts.pop(req, None)

    def readers_of_rows(self) -> dict[str, int]:
        """Requests whose publishes still find their positions through a table row.

        A request that gave its row back is left out once another one ran there.
        """
        row_of = self.pool.row_of
        last_in = {row: req for req, row in row_of.items()}
        return {
            req: row
            for req, row in row_of.items()
            if last_in[row] == req or self.released.get(req) != row
        }


def _in_turn(first: Handler | None, second: Handler) -> Handler:
    if first is None:
        return second

    def both(segment: Segment, k: int, row: int) -> None:
        first(segment, k, row)
        second(segment, k, row)

    return both


def _slots(segment: Segment, kind: str, row: int) -> Ints:
    slots = segment.tables[kind].get_ints("slots", row)
    assert slots is not None
    return slots


def _event(segment: Segment, k: int) -> dict[str, Any]:
    event = segment.event(k)
    del event["i"]
    return event


def _transfer_id(segment: Segment, k: int, row: int) -> str:
    """The id's JSON text: any JSON value may be one."""
    kind = segment.kind_of(k)
    code = segment.tables[kind].get_code("id", row)
    return "" if code is None else segment.strings[code]
