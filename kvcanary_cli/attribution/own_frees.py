"""Reads of slots that the reading request itself gave back, while it still runs.

A launched overrun of a request that ends looks the same and is no fault, so a reader is accused
only if it goes on: it was given slots, or its work was queued, after the free, or it reads at a
third step behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution.damage import Cause
from kvcanary_cli.attribution.finding_index import FindingIndex
from kvcanary_cli.attribution.ledger import FREE, NEVER, TREE
from kvcanary_cli.attribution.result import CERTAIN, PROBABLE, Culprit, RuledOut
from kvcanary_cli.attribution.rules.index import CELLS_REWRITTEN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.attribution.book import FindingBook
    from kvcanary_cli.attribution.follow import Follower
    from kvcanary_cli.attribution.snapshot import Snapshots
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.watcher import Reads

    Ints = NDArray[np.int64]

# Steps behind a free within which a launched overrun may still read.
_OVERRUN_STEPS = 2


@dataclass(slots=True)
class _Reads:
    """What one request read of one of its own frees.

    Attributes:
        slots: Slot to position.
        row: Row of the request table that led there.
        step: First step at which it is known to be no overrun, None so far.
        proof: Why.
        certain: Whether the trace proves it.
        steps: How many steps read it.
        last_step: The last of them.
    """

    slots: dict[int, int] = field(default_factory=dict)
    row: int = 0
    step: int | None = None
    proof: str = ""
    certain: bool = False
    steps: int = 0
    last_step: int | None = None


class OwnFreeReads:
    """Collects them, and reports those that no other finding explains.

    Args:
        follower: The ledger.
        snapshots: Keeps the scene.
    """

    def __init__(self, follower: Follower, snapshots: Snapshots) -> None:
        self._follower, self._snapshots = follower, snapshots
        # By request, free, and the event that set the cells to what was free already, ``NEVER`` =
        # they had been set before it.
        self._reads: dict[tuple[int, int, int], _Reads] = {}
        self._is_cut = "cut" in follower.header.raw
        # Events before it are a cut's state: told behind frees that they came before.
        self._state_end = NEVER

    def note(self, forward: Forward, reads: Reads, codes: NDArray[np.int32]) -> None:
        """Look at what ``forward`` reads.

        Args:
            forward: The forward.
            reads: What its rows read; free slots are told of each time.
            codes: [bs] request of each batch row.
        """
        if self._is_cut and self._state_end == NEVER:
            self._state_end = forward.event
        slots, reader_rows = reads.slots, reads.batch_rows
        state, ended = self._follower.rules.state, self._follower.context.ended
        mine = (state.owner[slots] == FREE) & (state.last_owner[slots] == codes[reader_rows])
        mine &= (slots != 0) & (state.free_event[slots] != NEVER)
        if not mine.any():
            return
        for row in np.unique(reader_rows[mine]).tolist():
            code = int(codes[row])
            if code in ended:
                continue
            at = np.flatnonzero(mine & (reader_rows == row))
            for freed in np.unique(state.free_event[slots[at]]).tolist():
                some = at[state.free_event[slots[at]] == freed]
                set_at = self._set_behind(forward, int(forward.rows[row]), reads.positions[some])
                set_at = np.where(set_at > freed, set_at, NEVER)
                for event in np.unique(set_at).tolist():
                    these = some[set_at == event]
                    places = dict(
                        zip(slots[these].tolist(), reads.positions[these].tolist(), strict=True)
                    )
                    key = code, freed, event
                    self._read(forward, key, int(forward.rows[row]), places)

    def _set_behind(self, forward: Forward, row: int, positions: Ints) -> Ints:
        """[n] event that set the row's cell of each position, ``NEVER`` = not known."""
        if row in forward.row_as_read:
            return np.full(len(positions), NEVER, dtype=np.int64)
        return self._follower.context.row(row).mapped_at_each(positions)

    def _read(
        self, forward: Forward, key: tuple[int, int, int], row: int, places: dict[int, int]
    ) -> None:
        code, freed, _set_at = key
        reads = self._reads.setdefault(key, _Reads(row=row))
        reads.steps += forward.step != reads.last_step
        reads.last_step = forward.step
        context = self._follower.context
        launched = context.launches.get((code, forward.step), NEVER)
        given = self._follower.rules.last_alloc.get(code, NEVER)
        proof, certain = reads.proof, True
        if launched > max(freed, self._state_end):
            proof = f"its step {forward.step} was queued at event {launched}, after the free"
        elif given > freed:
            proof = f"it was given further slots at event {given}, after the free"
        elif not proof and reads.steps > _OVERRUN_STEPS:
            proof, certain = f"it read them at {reads.steps} steps behind the free", False
        if not proof:
            return
        if reads.step is None:
            reads.step, reads.proof, reads.certain = forward.step, proof, certain
            slots = np.array(sorted(places), dtype=np.int64)
            self._snapshots.note_read(freed, slots, self._follower.names.name(code), forward)
        reads.slots.update(places)

    def explain(self, book: FindingBook) -> None:
        """Report them; call it behind everything else that explains a read."""
        index = FindingIndex(book.findings)
        # The free behind them, which a cut left out, may be one that is judged here.
        undated = {
            (f.victim, f.first_bad_step)
            for f in book.findings
            if f.cls == "use_after_free" and f.cause_event is None
        }
        for (code, freed, set_at), reads in self._reads.items():
            name = self._follower.names.name(code)
            if reads.step is None or _is_explained(index, freed, name, reads):
                continue
            if self._is_of_the_past(freed) and (name, reads.step) in undated:
                continue
            slots = np.array(list(reads.slots), dtype=np.int64)
            found = book.add(
                self._still_named(code, freed, reads)
                if set_at == NEVER
                else self._named_anew(code, freed, set_at, reads),
                name if code != TREE else None,
                reads.step,
                slots,
                np.array(list(reads.slots.values()), dtype=np.int64),
            )
            index.add(found)

    def _still_named(self, code: int, freed: int, reads: _Reads) -> Cause:
        """The request gave back what its row goes on to name."""
        name = self._follower.names.name(code)
        return Cause(
            cls="use_after_free",
            subtype="freed_while_mapped",
            cause_event=freed,
            corrupting_event=None,
            culprit=Culprit(req=name, step=None, event=freed),
            ruled_out=[
                RuledOut("late_write", f"no overrun that was launched before: {reads.proof}"),
            ],
            confidence=CERTAIN if reads.certain else PROBABLE,
            evidence=[
                f"freed by {name} at event {freed} while its row still named them",
                f"{name} goes on: {reads.proof}",
                "nobody had been given them when it read: the content was still its own",
            ],
        )

    def _named_anew(self, code: int, freed: int, set_at: int, reads: _Reads) -> Cause:
        """A row was set to what the request had given back before."""
        name = self._follower.names.name(code)
        first = self._follower.context.row(reads.row).maps_between(set_at)
        return Cause(
            cls="stale_mapping",
            subtype=CELLS_REWRITTEN,
            group=(code, reads.row, first),
            cause_event=set_at,
            corrupting_event=set_at,
            culprit=Culprit(
                req=name, step=None, event=set_at, details={"req_table_row": reads.row}
            ),
            ruled_out=[
                RuledOut(
                    "use_after_free",
                    f"event {set_at} set the cells behind the free at event {freed}",
                )
            ],
            confidence=CERTAIN if reads.certain else PROBABLE,
            evidence=[
                f"event {set_at} set cells of row {reads.row} to slots that {name} had given back "
                f"at event {freed}",
                f"{name} goes on: {reads.proof}",
            ],
        )

    def _is_of_the_past(self, freed: int) -> bool:
        return self._is_cut and freed < self._state_end


def _is_explained(index: FindingIndex, freed: int, reader: str | None, reads: _Reads) -> bool:
    """Whether the free belongs to a finding, or the reads to one that the reader is party to."""
    if any(True for _ in index.of_event(freed)):
        return True
    return any(
        slot in finding.slots and reader in {finding.victim, finding.culprit.req}
        for slot in reads.slots
        for finding in index.at(slot)
    )
