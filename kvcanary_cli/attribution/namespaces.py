"""Content of another namespace, which no canary row shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution.damage import Cause
from kvcanary_cli.attribution.follow_cut import NAMESPACE_PREFIX
from kvcanary_cli.attribution.result import Culprit, RuledOut

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.attribution.book import FindingBook
    from kvcanary_cli.attribution.follow import Follower
    from kvcanary_cli.replay.forwards import Forward

    Ints = NDArray[np.int64]


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
        book: FindingBook,
    ) -> None:
        """Compare the namespaces of what ``forward`` reads, where it recorded its own."""
        if forward.namespaces is None or not len(slots):
            return
        code = self._follower.forwards.namespace_code
        own = np.array([0 if n is None else code(n) for n in forward.namespaces], dtype=np.int32)
        writes = self._follower.lane(forward.worker, "FULL")
        written, reading = writes.namespace[slots], own[reader_rows]
        alien = (written != 0) & (reading != 0) & (written != reading)
        for row in np.unique(reader_rows[alien]).tolist():
            mine = slots[alien & (reader_rows == row)]
            self._report(forward, row, mine, int(codes[row]), book)

    def explain(self, book: FindingBook) -> None:
        """Report matches of another namespace's entry that no read showed, from whatever tier."""
        told = {f.cause_event for f in book.findings if f.cls == "key_aliasing"}
        for event, (req, match) in self._follower.context.aliased.items():
            if event in told:
                continue
            theirs, ours = match.published or "", match.namespace or ""
            book.add(
                Cause(
                    cls="key_aliasing",
                    subtype=alias_subtype(theirs, ours),
                    cause_event=event,
                    corrupting_event=None,
                    culprit=Culprit(req=None, step=None, event=event),
                    ruled_out=[RuledOut("prefix_index", "the entry is the one that was asked for")],
                    evidence=[
                        f"entry {match.entry} was published under {theirs} and matched under "
                        f"{ours} at event {event}"
                    ],
                ),
                self._follower.names.name(req),
                None,
                np.array(match.slots, dtype=np.int64),
                np.arange(len(match.slots), dtype=np.int64),
            )

    def _report(
        self, forward: Forward, row: int, slots: Ints, reader: int, book: FindingBook
    ) -> None:
        follower = self._follower
        writes, names = follower.lane(forward.worker, "FULL"), follower.names
        first = int(slots[0])
        theirs = (names.name(int(writes.namespace[first])) or "").removeprefix(NAMESPACE_PREFIX)
        ours = follower.context.namespace((forward.namespaces or [])[row] or "")
        match = follower.context.matched(reader, first)
        book.add(
            Cause(
                cls="key_aliasing",
                subtype=alias_subtype(theirs, ours),
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


def alias_subtype(theirs: str, ours: str | None) -> str:
    """Sub-type of ``key_aliasing``: two namespaces may be one adapter at two versions."""
    same = ours is not None and theirs.split("@")[0] == ours.split("@")[0]
    return "adapter_version" if same else "namespace"
