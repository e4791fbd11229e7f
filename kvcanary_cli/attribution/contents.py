"""Damage that no canary row shows: sidecar data that changed, and content of another namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution.damage import Cause
from kvcanary_cli.attribution.ledger import NEVER
from kvcanary_cli.attribution.result import Culprit, RuledOut

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvcanary_cli.attribution.follow import Follower
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.trace.header import TraceHeader
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]
    Add = Callable[[Cause, str | None, int | None, Ints, Ints], None]

_PREFIX = "namespace:"


class Sidecars:
    """Fingerprints of scales and their kin: what stood beside a slot when it was written."""

    def __init__(self, header: TraceHeader, follower: Follower) -> None:
        self._slots = header.pool.max_slot + 1
        self._follower = follower
        self._stored: dict[str, tuple[Ints, Ints]] = {}

    def event(self, segment: Segment, k: int, row: int, add: Add) -> None:
        """Take one ``sidecar_hash``: ``after`` is what was written, ``before`` is compared."""
        table = segment.tables["sidecar_hash"]
        slots, hashes = table.get_ints("slots", row), table.get_ints("hash", row)
        assert slots is not None
        assert hashes is not None
        name = segment.text("sidecar_hash", "name", row) or ""
        event, step = int(segment.index[k]), table.get_int("step", row)
        if name not in self._stored:
            self._stored[name] = (
                np.zeros(self._slots, dtype=np.int64),
                np.full(self._slots, NEVER, dtype=np.int64),
            )
        values, events = self._stored[name]
        if segment.text("sidecar_hash", "phase", row) == "after":
            values[slots], events[slots] = hashes, event
            return
        changed = (events[slots] != NEVER) & (values[slots] != hashes)
        if changed.any():
            self._report(name, slots[changed], hashes[changed], events, event, step, add)
            values[slots[changed]] = hashes[changed]

    def _report(
        self,
        name: str,
        slots: Ints,
        hashes: Ints,
        events: Ints,
        event: int,
        step: int | None,
        add: Add,
    ) -> None:
        writes = self._follower.lane("target", "FULL")
        constant = len(slots) > 1 and len(np.unique(hashes)) == 1
        owners = writes.req[slots]
        for owner in np.unique(owners).tolist():
            mine = slots[owners == owner]
            add(
                Cause(
                    cls="payload_mutation",
                    subtype="sidecar_scale",
                    cause_event=None,
                    cause_window=(int(events[mine].max()), event),
                    corrupting_event=None,
                    culprit=Culprit(req=None, step=None, event=None),
                    ruled_out=[
                        RuledOut("wrong_token_fed", "token, position, chain and KV bytes agree")
                    ],
                    evidence=[
                        f"{name} of these slots is not what was written",
                        "all of them now hold one value" if constant else "the values differ",
                    ],
                ),
                self._follower.names.name(owner),
                step,
                mine,
                writes.position[mine].astype(np.int64),
            )

    def written(self, forward: Forward, slots: Ints) -> None:
        """A forward rewrote ``slots``: what stood beside them is not known until it is recorded."""
        keep = slots[slots >= 0]
        for _values, events in self._stored.values():
            stale = keep[events[keep] < forward.event]
            events[stale] = NEVER


class Namespaces:
    """Content that was written under another namespace than it is read under."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    def check(
        self,
        forward: Forward,
        slots: Ints,
        reader_rows: Ints,
        codes: NDArray[np.int32],
        add: Add,
    ) -> None:
        """Compare the namespaces of what ``forward`` reads, where it recorded its own."""
        if forward.namespaces is None or not len(slots):
            return
        code = self._follower.namespace_code
        own = np.array([0 if n is None else code(n) for n in forward.namespaces], dtype=np.int32)
        writes = self._follower.lane(forward.worker, "FULL")
        written, reading = writes.namespace[slots], own[reader_rows]
        alien = (written != 0) & (reading != 0) & (written != reading)
        for row in np.unique(reader_rows[alien]).tolist():
            mine = slots[alien & (reader_rows == row)]
            self._report(forward, row, mine, int(codes[row]), add)

    def _report(self, forward: Forward, row: int, slots: Ints, reader: int, add: Add) -> None:
        follower = self._follower
        writes, names = follower.lane(forward.worker, "FULL"), follower.names
        first = int(slots[0])
        theirs = (names.name(int(writes.namespace[first])) or "").removeprefix(_PREFIX)
        ours = follower.context.namespace((forward.namespaces or [])[row] or "")
        match = follower.context.matched(reader, first)
        same_base = theirs.split("@")[0] == ours.split("@")[0]
        add(
            Cause(
                cls="key_aliasing",
                subtype="adapter_version" if same_base else "namespace",
                cause_event=forward.event if match is None else match.event,
                corrupting_event=None,
                culprit=Culprit(
                    req=names.name(int(writes.req[first])),
                    step=int(writes.step[first]),
                    event=int(writes.event[first]),
                ),
                ruled_out=[RuledOut("use_after_free", "every canary field of the slots agrees")],
                evidence=[f"written under {theirs}, read under {ours}"],
            ),
            names.name(reader),
            forward.step,
            slots,
            writes.position[slots].astype(np.int64),
        )
