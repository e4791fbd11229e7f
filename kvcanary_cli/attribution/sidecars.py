"""Sidecar data that changed beside healthy KV: scales, indexer keys and their kin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.attribution.damage import Cause
from kvcanary_cli.attribution.follow_copies import POOL_LANE
from kvcanary_cli.attribution.ledger import NEVER
from kvcanary_cli.attribution.result import PROBABLE, Culprit, RuledOut

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kvcanary_cli.attribution.book import FindingBook
    from kvcanary_cli.attribution.follow import Follower
    from kvcanary_cli.attribution.result import Finding
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.pool import PoolState
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]


class Sidecars:
    """Fingerprints of what stood beside a slot when it was written, for each pool on the device.

    Args:
        follower: Last writers.
    """

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        # By lane and name: fingerprints, and the event of each, ``NEVER`` = not known.
        self._stored: dict[tuple[str, str], dict[str, tuple[Ints, Ints]]] = {}
        # The copy that brought what is expected beside each slot.
        self._copied: dict[tuple[tuple[str, str], str], Ints] = {}
        # Changes that were told since the last forward: who reads them, it will show.
        self._met: list[tuple[Finding, Ints]] = []
        # Findings of which a reader is known.
        self._read: set[str] = set()

    def event(self, segment: Segment, k: int, row: int, book: FindingBook | None) -> None:
        """Take one ``sidecar_hash``: ``after`` is what was written, ``before`` is compared.

        What changed goes to ``book``, if there is one.
        """
        table = segment.tables["sidecar_hash"]
        slots, hashes = table.get_ints("slots", row), table.get_ints("hash", row)
        assert slots is not None
        assert hashes is not None
        name = segment.text("sidecar_hash", "name", row) or ""
        pool = segment.text("sidecar_hash", "pool", row) or "full"
        if pool not in POOL_LANE:
            return
        lane = POOL_LANE[pool]
        event, step = int(segment.index[k]), table.get_int("step", row)
        values, events = self._beside(lane, name)
        if segment.text("sidecar_hash", "phase", row) == "after":
            values[slots], events[slots] = hashes, event
            return
        changed = (events[slots] != NEVER) & (values[slots] != hashes)
        if changed.any():
            if book is not None:
                self._report(lane, name, slots[changed], hashes[changed], events, event, step, book)
            values[slots[changed]] = hashes[changed]

    def _beside(self, lane: tuple[str, str], name: str) -> tuple[Ints, Ints]:
        stored = self._stored.setdefault(lane, {})
        if name not in stored:
            count = len(self._follower.lane(*lane).req)
            stored[name] = np.zeros(count, dtype=np.int64), np.full(count, NEVER, dtype=np.int64)
            self._copied[lane, name] = np.full(count, NEVER, dtype=np.int64)
        return stored[name]

    def known(self) -> Iterator[tuple[str, str, Ints, Ints]]:
        """What is known to stand beside slots: name, pool, fingerprints by slot, those slots."""
        pool_of = {lane: pool for pool, lane in POOL_LANE.items()}
        for lane, stored in self._stored.items():
            for name, (values, events) in stored.items():
                yield name, pool_of[lane], values, np.flatnonzero(events != NEVER)

    def _report(
        self,
        lane: tuple[str, str],
        name: str,
        slots: Ints,
        hashes: Ints,
        events: Ints,
        event: int,
        step: int | None,
        book: FindingBook,
    ) -> None:
        writes, names = self._follower.lane(*lane), self._follower.names
        constant = len(slots) > 1 and len(np.unique(hashes)) == 1
        owners = writes.req[slots]
        for owner in np.unique(owners).tolist():
            mine = slots[owners == owner]
            copied = bool((self._copied[lane, name][mine] == events[mine]).any())
            runs = owner not in self._follower.context.ended
            positions = writes.position[mine].astype(np.int64)
            finding = book.add(
                Cause(
                    cls="payload_mutation",
                    subtype="sidecar_scale",
                    cause_event=None,
                    cause_window=(int(events[mine].max()), event),
                    corrupting_event=None,
                    culprit=Culprit(req=None, step=None, event=None),
                    ruled_out=[
                        RuledOut("wrong_token_fed", f"{name} does not follow from what was fed")
                    ],
                    evidence=[
                        f"{name} of these slots is not what was written"
                        if not copied
                        else f"{name} of these slots is not what stood beside the source of the "
                        f"copy at event {int(events[mine].max())}: the copy left it behind, or it "
                        "changed since",
                        "all of them now hold one value" if constant else "the values differ",
                    ],
                    rests_on={"transfer": PROBABLE},
                ),
                names.name(owner) if runs else None,
                step,
                mine,
                positions[positions >= 0],
                lane=lane,
            )
            self._met.append((finding, mine))

    def read(self, forward: Forward, codes: NDArray[np.int32], pool: PoolState) -> None:
        """A forward shows who reads what changed: its victims.

        Args:
            forward: The forward.
            codes: [bs] request of each batch row.
            pool: The request table and the translation table, as it reads them.
        """
        for finding, slots in self._met:
            if finding.worker != forward.worker:
                continue
            for row, prefix, code in zip(forward.rows, forward.prefix, codes, strict=True):
                name = self._follower.names.name(int(code))
                if name is None:
                    continue
                cells = pool.table[int(row), : int(prefix)].astype(np.int64)
                seen = np.array(forward.row_as_read.get(int(row), []), dtype=np.int64)
                cells[: len(seen)] = seen[: len(cells)]
                if finding.pool_kind == "SWA" and pool.lut is not None:
                    cells = pool.lut[cells]
                positions = np.flatnonzero(np.isin(cells, slots))
                if len(positions):
                    self._reader(finding, name, positions)
        self._met.clear()

    def _reader(self, finding: Finding, name: str, positions: Ints) -> None:
        """``name`` reads the slots of ``finding`` at ``positions``."""
        if finding.id not in self._read:
            self._read.add(finding.id)
            finding.victim, finding.positions = name, set()
            finding.blast_radius.clear()
        finding.blast_radius[name] = None
        if finding.positions is not None and name == finding.victim:
            finding.positions.update(positions.tolist())

    def written(self, forward: Forward, lanes: list[Ints]) -> None:
        """A forward rewrote slots: what stands beside them is not known until it is recorded."""
        for index, slots in enumerate(lanes):
            stored = self._stored.get((forward.worker, "SWA" if index else "FULL"), {})
            for _values, events in stored.values():
                keep = slots[slots >= 0]
                stale = keep[events[keep] < forward.event]
                events[stale] = NEVER

    def copied(self, segment: Segment, row: int, event: int) -> None:
        """A copy rewrote slots: what stood beside its source belongs beside them from then on.

        Of a source that is not on the device, or of which nothing is known, nothing is known here.
        """
        dst = segment.tables["copy"].get_ints("dst", row)
        source: Any = segment.json("copy", "src", row)
        assert dst is not None
        from_lane = POOL_LANE.get(segment.text("copy", "src_pool", row) or "full", ("", ""))
        lane = POOL_LANE.get(segment.text("copy", "dst_pool", row) or "full", ("", ""))
        beside = self._stored.get(from_lane, {}) if lane == from_lane else {}
        for name, (values, events) in self._stored.get(lane, {}).items():
            known = beside.get(name)
            if known is None or not isinstance(source, list):
                events[dst] = NEVER
                continue
            src = np.array(source, dtype=np.int64)
            was = known[1][src]
            values[dst] = known[0][src]
            events[dst] = np.where(was == NEVER, NEVER, event)
            self._copied[lane, name][dst] = events[dst]
