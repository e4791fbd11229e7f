"""Follows a replay and keeps the ledger: owners, writers, rows, and the rules they must keep."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.constants import PADDING_ROW, PoolKind
from kvcanary_cli.attribution.context import (
    AcceptFact,
    Context,
    PutFact,
)
from kvcanary_cli.attribution.earlier_frees import EarlierFrees
from kvcanary_cli.attribution.event_runs import EventRuns
from kvcanary_cli.attribution.follow_copies import CopyEvents
from kvcanary_cli.attribution.follow_cut import CutRows
from kvcanary_cli.attribution.follow_forwards import ForwardWrites
from kvcanary_cli.attribution.follow_prefixes import PrefixEvents
from kvcanary_cli.attribution.ledger import (
    NOBODY,
    TREE,
    Names,
    Writes,
)
from kvcanary_cli.attribution.ownership import OwnershipRules
from kvcanary_cli.replay.chains import slot_hash
from kvcanary_cli.replay.lanes import get_rows
from kvcanary_cli.trace.memory import check_memory
from kvcanary_cli.trace.schema import GAP_OWNER, TREE_OWNER

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.pool import PoolState
    from kvcanary_cli.replay.prefixes import PrefixIndex
    from kvcanary_cli.trace.header import TraceHeader
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]


# Kinds by which a request may begin before it gets slots, and the field that names it.
_BEGINS = {"match": "req", "fork": "child"}


class Follower:
    """The ledger's side of a replay: everything but the conclusions.

    Attributes:
        names: Interned owners, requests and namespaces.
        rules: Owners and ownership findings.
        writes: Lane to its writers.
        context: What is not slot by slot.
        copies: Enters transfers and copies.
        forwards: Enters what forwards write.
        frees: Which free took a slot from somebody.
    """

    def __init__(self, header: TraceHeader) -> None:
        check_memory(header)
        pool = header.pool
        self.header = header
        self.names = Names()
        self.context = Context()
        self.rules = OwnershipRules(pool.max_slot + 1, self.names, self.context.ended)
        self._sizes = {
            ("target", "FULL"): pool.max_slot + 1,
            ("target", "SWA"): pool.swa_max_slot + 1,
            ("draft", "FULL"): pool.max_slot + 1,
        }
        self.writes: dict[tuple[str, str], Writes] = {}
        self.pool: PoolState | None = None
        self.frees = EarlierFrees(self.rules.state, self.names, self._prefix_index)
        self._step = NOBODY
        self._steps_seen = 0
        self._end_steps: dict[int, tuple[int, int]] = {}
        self._handlers: dict[str, Callable[[Segment, int, int], None]] = {
            name.removeprefix("_on_"): getattr(self, name)
            for name in dir(self)
            if name.startswith("_on_")
        }
        self.copies = copies = CopyEvents(self.names, self.rules, self.context, self.lane)
        self.forwards = ForwardWrites(self.names, self.context, self.lane)
        prefixes = PrefixEvents(self.names, self.rules, self.context, self.frees)
        self._handlers |= prefixes.handlers()
        self._handlers |= {
            "transfer_begin": copies.transfer_begin,
            "transfer_end": copies.transfer_end,
            "transfer_fail": copies.transfer_fail,
            "copy": copies.copy,
            "canary_rows": CutRows(self.names, self.lane).canary_rows,
        }
        self._runs = EventRuns(self.rules, self.context, self._begin_again)

    def lane(self, worker: str, kind: str) -> Writes:
        """Writers of a lane, made when first asked for."""
        writes = self.writes.get((worker, kind))
        if writes is None:
            writes = self.writes[worker, kind] = Writes(self._sizes[worker, kind])
        return writes

    def is_cached_chain(self, slot: int) -> bool:
        """Whether the prefix cache holds the chain that ``slot`` held when it was freed."""
        chain = int(self.rules.state.free_chain[slot])
        lane = None if self.pool is None else self.pool.lanes.get(("target", PoolKind.FULL))
        if lane is None or chain == 0:
            return False
        cached = np.flatnonzero(self.rules.state.owner == TREE)
        rows = get_rows(lane.group.k_head, cached)
        return bool(len(cached) and (slot_hash(rows, cached) == chain).any())

    def _prefix_index(self) -> PrefixIndex | None:
        return None if self.pool is None else self.pool.prefixes

    # Events other than forwards.

    def event(self, segment: Segment, k: int, kind: str, row: int) -> None:
        """Apply one event; kinds that say nothing about ownership pass."""
        self.rules.state.past_frees.note(segment)
        self.begins(segment, kind, row, int(segment.index[k]))
        handler = self._handlers.get(kind)
        if handler is not None and not self._runs.covers(segment, k, kind, row):
            handler(segment, row, int(segment.index[k]))

    def begins(self, segment: Segment, kind: str, row: int, event: int) -> None:
        """Look at a match or a fork, by which a request may begin; an alloc does it by itself."""
        if kind in _BEGINS:
            self._begin_again(segment.text(kind, _BEGINS[kind], row) or "", event)

    def applied_to(self, segment: Segment) -> int:
        """Events of ``segment`` before this one have been applied already."""
        return self._runs.applied_to(segment)

    def steps_seen(self) -> tuple[int, int]:
        """The last step, and how many there were."""
        return self._step, self._steps_seen

    def go_on_from(self, step: int, steps_seen: int) -> None:
        """Somebody else followed some forwards."""
        self._step, self._steps_seen = step, steps_seen

    def _on_alloc(self, segment: Segment, row: int, event: int) -> None:
        slots = segment.tables["alloc"].get_ints("slots", row)
        assert slots is not None
        owner = segment.text("alloc", "owner", row) or ""
        self._begin_again(owner, event)
        for at, mine in _by_event(segment.tables["alloc"].get_ints("at", row), slots, event):
            self.rules.alloc(owner, mine, at)
        shared = segment.tables["alloc"].get_ints("shared", row)
        if shared is not None:
            self.rules.share(shared)

    def _on_free(self, segment: Segment, row: int, event: int) -> None:
        slots = segment.tables["free"].get_ints("slots", row)
        assert slots is not None
        reason = None
        if "reason" in segment.tables["free"].columns:
            reason = segment.text("free", "reason", row)
        lane = None if self.pool is None else self.pool.lanes.get(("target", PoolKind.FULL))
        if lane is not None:
            self.rules.state.free_chain[slots] = slot_hash(
                get_rows(lane.group.k_head, slots), slots
            )
        owner = segment.text("free", "owner", row) or ""
        if owner == GAP_OWNER:
            # Who had these slots before is not known, so that a late reader is no stranger.
            return
        for at, mine in _by_event(segment.tables["free"].get_ints("at", row), slots, event):
            self.rules.free(owner, mine, at, reason)

    def _on_own(self, segment: Segment, row: int, event: int) -> None:
        table = segment.tables["own"]
        slots = table.get_ints("slots", row)
        assert slots is not None
        owner = segment.text("own", "owner", row) or ""
        entry = segment.text("own", "entry", row) if "entry" in table.columns else None
        visible = owner == TREE_OWNER and entry is not None
        giver = segment.text("own", "from", row) or ""
        if giver == GAP_OWNER:
            return
        self.rules.own(giver, owner, slots, event, visible=visible)
        if giver == owner:
            # State that is told again: whether others may read the slots is not in it.
            self.rules.share(slots)

    def _on_map(self, segment: Segment, row: int, event: int) -> None:
        table = segment.tables["map"]
        slots = table.get_ints("slots", row)
        target, start = table.get_int("row", row), table.get_int("start", row)
        assert slots is not None
        assert target is not None
        assert start is not None
        owner = int(self.rules.state.owner[slots[-1]]) if len(slots) else NOBODY
        at = table.get_ints("at", row)
        if at is None:
            self.context.row(target).map(event, start, start + len(slots), owner)
            return
        edges = np.flatnonzero(np.diff(at)) + 1
        for first, stop in pairwise([0, *edges.tolist(), len(at)] if len(at) else []):
            self.context.row(target).map(int(at[first]), start + first, start + stop, owner)

    def _on_row_release(self, segment: Segment, row: int, event: int) -> None:
        table = segment.tables["row_release"]
        facts = self.context.row(table.get_int("row", row) or 0)
        facts.release(event, self.names.code(segment.text("row_release", "req", row) or ""))

    def _begin_again(self, owner: str, event: int) -> None:
        """An ended request that is served or gets slots is a new one under an old name.

        Unless it still has slots and its row: an engine may say of a request that it ends before
        its last steps are done.
        """
        code = self.names.code(owner)
        end = self._end_steps.get(code)
        if end is None:
            return
        if self.context.table.released_since(code, end[0]) or not self.rules.has_slots(code):
            self.names.begin_again(owner, event)
            return
        del self._end_steps[code]
        self.context.ended.pop(code, None)

    def _end(self, kind: str, segment: Segment, row: int, event: int) -> None:
        self.note_end(
            self.names.code(segment.text(kind, "req", row) or ""), event, self._steps_seen
        )

    def note_end(self, code: int, event: int, steps_seen: int) -> None:
        """A request ended, when there had been so many steps."""
        self.context.ended[code] = event
        self._end_steps[code] = (event, steps_seen)

    def _on_finish(self, segment: Segment, row: int, event: int) -> None:
        self._end("finish", segment, row, event)

    def _on_abort(self, segment: Segment, row: int, event: int) -> None:
        self._end("abort", segment, row, event)

    def _on_launch(self, segment: Segment, row: int, event: int) -> None:
        req = self.names.code(segment.text("launch", "req", row) or "")
        step = segment.tables["launch"].get_int("step", row) or 0
        self.context.launches[req, step] = event

    def _on_accept(self, segment: Segment, row: int, event: int) -> None:
        table = segment.tables["accept"]
        nodes, tokens = table.get_ints("nodes", row), table.get_ints("tokens", row)
        assert nodes is not None
        assert tokens is not None
        req = self.names.code(segment.text("accept", "req", row) or "")
        length = table.get_int("committed_len", row) if "committed_len" in table.columns else None
        at = table.get_int("at", row)
        self.context.accepts[req] = AcceptFact(
            event if at is None else at, tuple(nodes.tolist()), tuple(tokens.tolist()), length
        )

    def _on_future_put(self, segment: Segment, row: int, event: int) -> None:
        table = segment.tables["future_put"]
        req = self.names.code(segment.text("future_put", "req", row) or "")
        ring, token = table.get_int("ring", row) or 0, table.get_int("token", row) or 0
        step = self.context.last_step_of.get(req, NOBODY)
        puts: deque[PutFact] = self.context.puts.setdefault(ring, deque(maxlen=4))
        puts.append(PutFact(event, req, token, step))

    def _on_future_get(self, segment: Segment, row: int, event: int) -> None:
        table = segment.tables["future_get"]
        req = self.names.code(segment.text("future_get", "req", row) or "")
        ring, token = table.get_int("ring", row) or 0, table.get_int("token", row) or 0
        self.context.gets[req] = (event, ring, token)

    def _on_lut(self, segment: Segment, row: int, event: int) -> None:
        full = segment.tables["lut"].get_ints("full", row)
        assert full is not None
        for slot in full.tolist():
            self.context.lut_event[slot] = event

    # Forwards.

    def req_codes(self, forward: Forward) -> NDArray[np.int32]:
        """[bs] name code of each batch row, ``NOBODY`` for padding."""
        return np.array(
            [NOBODY if req is None else self.names.code(req) for req in forward.reqs],
            dtype=np.int32,
        )

    def reads(
        self, forward: Forward, slots: Ints, reader_rows: Ints, codes: NDArray[np.int32]
    ) -> NDArray[np.bool_]:
        """Check what a forward reads; which entries broke a rule."""
        self._note_step(forward)
        for code, table_row in zip(codes.tolist(), forward.rows.tolist(), strict=True):
            if table_row != PADDING_ROW:
                self.context.last_step_of[code] = forward.step
        came = self.lane(forward.worker, "FULL").came(slots)
        return self.rules.read(slots, codes[reader_rows], came, forward.event, forward.step)

    def _note_step(self, forward: Forward) -> None:
        if forward.step != self._step:
            self._step = forward.step
            self._steps_seen += 1

    def write_rules(self, forward: Forward, slots: Ints, codes: NDArray[np.int32]) -> Ints:
        """Check what a forward writes; [tokens of rows] 1 where the writer was no owner."""
        writers = codes[forward.token_row]
        foreign = self.rules.write(slots, writers, forward.event, forward.step)
        pad = self.forwards.padding_slots(forward)
        if len(pad):
            nobody = np.full(len(pad), NOBODY, dtype=np.int32)
            self.rules.write(pad, nobody, forward.event, forward.step)
        out: Ints = foreign.astype(np.int64)
        return out

    def leaks(self, in_transfer: Ints) -> int:
        """Report slots of requests that ended at least two steps before the trace did.

        Args:
            in_transfer: Slots of transfers under way, which are none.

        Returns:
            How many would have been reported else.
        """
        ended = {
            code: event
            for code, (event, seen) in self._end_steps.items()
            if code > TREE and self._steps_seen - seen >= 2
        }
        return self.rules.leaks(ended, in_transfer)


def _by_event(at: Ints | None, slots: Ints, event: int) -> list[tuple[int, Ints]]:
    """``slots`` by the event that did this to them: a cut tells it, elsewhere it is ``event``."""
    if at is None:
        return [(event, slots)]
    return [(each, slots[at == each]) for each in np.unique(at).tolist()]
