"""Keys of other tiers that no store filled, and loads of them (TAXONOMY of transfer_mismatch)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvcanary_cli.attribution.context import transfer_key
from kvcanary_cli.attribution.damage import Cause
from kvcanary_cli.attribution.ledger import NEVER, NOBODY, TREE
from kvcanary_cli.attribution.result import CERTAIN, POSSIBLE, PROBABLE, Culprit, RuledOut
from kvcanary_cli.trace.schema import DEVICE_POOLS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from kvcanary_cli.attribution.book import FindingBook
    from kvcanary_cli.attribution.cargo import Cargo
    from kvcanary_cli.attribution.context import Context
    from kvcanary_cli.attribution.follow import Follower
    from kvcanary_cli.attribution.snapshot import Snapshots
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.watcher import Reads
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]

# Keys that are remembered; the one that was stored longest ago goes first.
_KEYS = 65536


@dataclass(slots=True)
class _Stored:
    """What stores did to a key.

    Attributes:
        begun, failed: Of the last store; ``failed`` is ``NEVER`` while it runs.
        transfer: Its id.
        by: Whose it is, a name code.
        filled: Some store of the key ended well.
        loads: Loads of the key while it was not filled.
    """

    begun: int
    transfer: str
    by: int
    failed: int = NEVER
    filled: bool = False
    loads: list[_Load] = field(default_factory=list)


class _Reading(NamedTuple):
    """``slots`` [n] were read at ``positions`` [n] in ``step``."""

    step: int
    slots: Ints
    positions: Ints


@dataclass(slots=True)
class _Load:
    """A load of pages that no store of its key had filled.

    Attributes:
        cause: What that is.
        pages: (pool, slot) of the other tier to the slot that it went to.
        reader: Name code of the request that it was made for, ``NOBODY`` = not known.
        told: It is known to be wrong, whether or not a canary row shows it.
        readings: By request, how it first read what the load brought.
    """

    cause: Cause
    pages: dict[tuple[str, int], int]
    reader: int
    told: bool
    readings: dict[str, _Reading] = field(default_factory=dict)


class StoredKeys:
    """Follows stores by the key that they file content under.

    A key whose only stores failed, or still run, is served too early: what its pages hold is
    another key's, or nobody's. Where the trace does not tell what a page held before, no canary
    row shows that.

    Args:
        follower: The ledger.
        snapshots: Keeps the scene of what is found.
    """

    def __init__(self, follower: Follower, snapshots: Snapshots) -> None:
        self._follower, self._snapshots = follower, snapshots
        self._stored: OrderedDict[str, _Stored] = OrderedDict()
        self._forgot = False
        self._open: dict[str, str] = {}
        self._loads: list[_Load] = []
        # By slot: the load that filled it, and the event of that.
        self._came: dict[int, tuple[_Load, int]] = {}

    @property
    def _context(self) -> Context:
        return self._follower.context

    def begin(self, segment: Segment, row: int, event: int) -> None:
        """A ``transfer_begin``, followed already."""
        table = segment.tables["transfer_begin"]

        def text(name: str) -> str | None:
            return segment.text("transfer_begin", name, row) if name in table.columns else None

        transfer = transfer_key(segment.json("transfer_begin", "id", row))
        if transfer is None:
            return
        if not (text("via") in ("store", "d2h") or text("direction") == "out"):
            self._context.unfilled.pop(transfer, None)
            return
        by, key = self._context.served.get(transfer, (NOBODY, None))
        if key is None:
            return
        known = self._stored.get(key)
        new = _Stored(event, transfer, by, filled=known is not None and known.filled)
        self._keep(key, new)
        self._open[transfer] = key

    def end(self, segment: Segment, row: int, event: int, *, failed: bool) -> None:
        """A ``transfer_end`` or ``transfer_fail``."""
        kind = "transfer_fail" if failed else "transfer_end"
        transfer = transfer_key(segment.json(kind, "id", row))
        if transfer is not None and transfer not in self._open:
            if not failed:
                self._arrived(transfer, event)
            return
        key = None if transfer is None else self._open.pop(transfer, None)
        known = None if key is None else self._stored.get(key)
        if known is None or known.transfer != transfer:
            return
        if failed:
            known.failed = event
        else:
            known.filled = True

    def _arrived(self, transfer: str, event: int) -> None:
        """A load has ended: what no copy tells of it cannot be content that no store filed."""
        window = self._context.window(transfer)
        if window is None or transfer not in self._context.served:
            return
        reader, key = self._context.served[transfer]
        key = self._asked_for([reader]) if key is None else key
        stored = None if key is None else self._stored.get(key)
        untold = [slot for slot in window.slots.tolist() if slot not in window.brought]
        if key is None or stored is None or not untold or self._context.tiers.has_content(key):
            return
        if stored.filled or stored.failed == NEVER:
            return
        cause = self._failed(event, key, stored)
        cause.evidence.append(f"no copy of transfer {transfer} is recorded: what came is not known")
        self._context.unfilled[transfer] = window.begun, cause
        pages = {("", slot): slot for slot in untold}
        self._enter(_Load(cause, pages, reader, told=True), event)

    def _enter(self, load: _Load, event: int) -> None:
        """``load`` brought its pages at ``event``."""
        self._loads.append(load)
        for slot in load.pages.values():
            self._came[slot] = load, event
            self._follower.rules.state.padded[slot] = True

    def copy(self, segment: Segment, row: int, event: int) -> None:
        """A ``copy`` that ``CargoNotes`` has noted: a store of a key, or a load of one."""
        cargo = self._context.cargos.at(event)
        if cargo is not None:
            self._loaded(cargo)
            return
        table = segment.tables["copy"]

        def text(name: str) -> str | None:
            return segment.text("copy", name, row) if name in table.columns else None

        pool, dst = text("dst_pool") or "full", table.get_ints("dst", row)
        if pool in DEVICE_POOLS or dst is None:
            return
        transfer = transfer_key(segment.json("copy", "id", row) if "id" in table.columns else None)
        key = transfer_key(segment.json("copy", "key", row) if "key" in table.columns else None)
        if transfer in self._open:
            self._fills(self._stored.get(self._open[transfer]), pool, dst.tolist(), event)
        elif key is not None:
            # A store without a window is done when it is told.
            self._keep(key, _Stored(event, "", NOBODY, filled=True))

    def _keep(self, key: str, stored: _Stored) -> None:
        self._stored[key] = stored
        self._stored.move_to_end(key)
        if len(self._stored) > _KEYS:
            self._stored.popitem(last=False)
            self._forgot = True

    def _loaded(self, cargo: Cargo) -> None:
        """A load: were the pages that it read filled under its key?"""
        key = self._key(cargo)
        stored = None if key is None else self._stored.get(key)
        if key is None or stored is None or stored.filled or cargo.held is None:
            return
        wrong = [
            k for k, contents in enumerate(cargo.held) if not contents or contents[0][0].key != key
        ]
        if not wrong:
            return
        pool, failed = cargo.pool or "", stored.failed != NEVER
        pages = {(pool, int(cargo.src[k])): int(cargo.dst[k]) for k in wrong}
        reader = next((req for req in sorted(cargo.reqs) if req > TREE), NOBODY)
        cause = (
            self._failed(cargo.event, key, stored)
            if failed
            else self._early(cargo, key, stored, reader)
        )
        load = _Load(cause, pages, reader, told=failed)
        if not failed:
            stored.loads.append(load)
        self._enter(load, cargo.event)
        for slot in pages.values():
            # Where a canary row shows it, this is why; unless what was stored was damaged before.
            self._context.moved.setdefault(slot, (cargo.event, cause))

    def _key(self, cargo: Cargo) -> str | None:
        """What a load reads: its key, else the entry that its request was served from afar."""
        if cargo.key is not None or cargo.held is None:
            return cargo.key
        return self._asked_for(sorted(cargo.reqs))

    def _asked_for(self, reqs: Iterable[int]) -> str | None:
        """The entry that one of ``reqs`` was served last, if from afar."""
        matches = (self._context.matches.get(req) for req in reqs if req > TREE)
        last = (facts[-1] for facts in matches if facts)
        return next((fact.entry for fact in last if not len(fact.slots)), None)

    def _failed(self, loaded: int, key: str, stored: _Stored) -> Cause:
        names = self._follower.names
        return Cause(
            cls="transfer_mismatch",
            subtype="failed_transfer_served",
            cause_event=stored.failed,
            corrupting_event=loaded,
            culprit=Culprit(
                req=names.name(stored.by),
                step=None,
                event=stored.failed,
                details={"transfer": stored.transfer},
            ),
            # Somebody whose trace this is not may have stored the key.
            confidence=POSSIBLE if self._forgot else PROBABLE,
            ruled_out=[
                RuledOut("transfer_race", f"the store had failed before the load at event {loaded}")
            ],
            evidence=[
                f"store {stored.transfer} of key {key} began at event {stored.begun} and "
                f"failed at event {stored.failed}; no store of the key ended well",
                f"the load at event {loaded} was served the key all the same",
            ],
        )

    def _early(self, cargo: Cargo, key: str, stored: _Stored, reader: int) -> Cause:
        details = {} if cargo.transfer is None else {"transfer": cargo.transfer}
        return Cause(
            cls="transfer_race",
            subtype="read_before_stored",
            cause_event=cargo.event,
            corrupting_event=cargo.event,
            culprit=Culprit(
                req=self._follower.names.name(reader),
                step=None,
                event=cargo.event,
                details=dict(details),
            ),
            confidence=PROBABLE,
            ruled_out=[
                RuledOut("transfer_mismatch", f"store {stored.transfer} of the key still ran")
            ],
            evidence=[
                f"the load at event {cargo.event} read key {key} while store "
                f"{stored.transfer}, begun at event {stored.begun}, still filled it",
            ],
        )

    def _fills(self, stored: _Stored | None, pool: str, slots: list[int], event: int) -> None:
        """A store that runs fills ``slots`` of ``pool``: who has read them was too early."""
        for load in () if stored is None else stored.loads:
            if load.told or not any((pool, slot) in load.pages for slot in slots):
                continue
            load.told, load.cause.confidence = True, CERTAIN
            load.cause.evidence.append(f"the store filled the pages that it read at event {event}")

    def note(self, forward: Forward, reads: Reads, codes: NDArray[np.int32]) -> None:
        """A forward reads: does it read what such a load brought?"""
        if forward.worker != "target" or not self._came:
            return
        met = np.flatnonzero(np.isin(reads.slots, list(self._came)))
        if not len(met):
            return
        came = self._follower.lane("target", "FULL").came(reads.slots[met])
        state = self._follower.rules.state
        found: dict[tuple[int, int], tuple[_Load, list[int]]] = {}
        for k, at in zip(met.tolist(), came.tolist(), strict=True):
            slot = int(reads.slots[k])
            load, event = self._came.get(slot, (None, NEVER))
            if load is None or max(at, int(state.alloc_event[slot])) > event:
                # Written anew since, or given out anew.
                self._came.pop(slot, None)
                continue
            reads.again[k] = state.padded[slot] = True
            key = id(load), int(reads.batch_rows[k])
            found.setdefault(key, (load, []))[1].append(k)
        for (_load, row), (load, entries) in found.items():
            name = self._follower.names.name(int(codes[row]))
            if name is None or name in load.readings:
                continue
            one = _Reading(forward.step, reads.slots[entries], reads.positions[entries])
            if not load.readings:
                cause = load.cause.corrupting_event or 0
                self._snapshots.note_read(cause, one.slots, name, forward)
            load.readings[name] = one

    def explain(self, book: FindingBook) -> None:
        """Report what no canary row showed when it was read, and the loads that nobody read.

        Call it behind everything that explains a violation.
        """
        for load in self._loads:
            shown = book.by_cause.get(book.cause_key(load.cause, "target", "FULL"))
            if not load.told:
                continue
            if shown is None and load.cause.confidence != CERTAIN:
                # Nothing shows that what the pages held was wrong.
                load.cause.confidence = POSSIBLE
            for name, one in load.readings.items():
                book.add(load.cause, name, one.step, one.slots, one.positions)
            if load.readings:
                continue
            if shown is None:
                load.cause.evidence.append("no damaged content was read in this trace")
            slots = np.array(sorted(load.pages.values()), dtype=np.int64)
            victim = self._follower.names.name(load.reader)
            book.add(load.cause, victim, None, slots, np.empty(0, dtype=np.int64), read=False)
