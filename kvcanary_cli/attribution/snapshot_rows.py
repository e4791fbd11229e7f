"""The violations of one finding in one step, as the columns that its scene is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.constants import FailReason, fail_reason_labels
from kvcanary_cli.attribution.book import ONE_STEP
from kvcanary_cli.attribution.facts import MAX_SLOTS, OtherReader, SeamFact
from kvcanary_cli.replay.violations import VERIFY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from kvcanary_cli.attribution.result import Finding
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.violations import ViolationChunk

    Ints = NDArray[np.int64]

_ACCESS = {True: "read", False: "write"}


@dataclass(slots=True)
class Rows:
    """The violations of one finding in one step, as columns [n].

    Attributes:
        slot, position, token, stored_position: Where, and what was found there.
        expected, checked: The token that belongs there, and whether it was compared.
        seam, prev: Whether only the predecessor was replaced, and which slot that is.
        bits: Fail reasons.
        rows, is_read: Table row of each, -1 = none, and whether it is of a read.
        row: Table row of the first, -1 = none.
        access: ``read``, ``write`` or ``check``.
    """

    slot: Ints
    position: Ints
    token: Ints
    stored_position: Ints
    expected: Ints
    checked: NDArray[np.bool_]
    seam: NDArray[np.bool_]
    prev: Ints
    bits: Ints
    rows: Ints
    is_read: NDArray[np.bool_]
    row: int = -1
    access: str = "read"

    @classmethod
    def of(cls, finding: Finding, found: Sequence[ViolationChunk]) -> Rows:
        parts: list[tuple[ViolationChunk, NDArray[np.bool_]]] = []
        mine = np.array(sorted(finding.slots | finding.seam_slots), dtype=np.int64)
        for chunk in found:
            if (chunk.worker, chunk.pool_kind) != (finding.worker, finding.pool_kind):
                continue
            mask = np.isin(chunk.columns["slot"], mine)
            if mask.any():
                parts.append((chunk, mask))

        def column(name: str) -> Ints:
            if not parts:
                return np.empty(0, dtype=np.int64)
            return np.concatenate([c.columns[name][m] for c, m in parts]).astype(np.int64)

        bits = [c.bits[m] for c, m in parts]
        first = parts[0][0] if parts else None
        row = column("row")
        reads = [np.full(int(m.sum()), c.check == VERIFY) for c, m in parts]
        return cls(
            slot=column("slot"),
            position=column("expected_position"),
            token=column("stored_token"),
            stored_position=column("position"),
            expected=column("expected_token"),
            checked=column("token_checked") != 0,
            seam=column("seam") != 0,
            prev=column("prev_slot"),
            bits=np.concatenate(bits) if bits else np.empty(0, dtype=np.int64),
            rows=row,
            is_read=np.concatenate(reads) if reads else np.empty(0, dtype=np.bool_),
            row=int(row[0]) if len(row) else -1,
            access=_unshown(finding) if first is None else _ACCESS[first.check == VERIFY],
        )

    def of_reader(self, req: str | None, forward: Forward | None) -> int:
        """Table row through which ``req`` met the damage; else that of the first violation."""
        if forward is not None and req is not None:
            for row, name in zip(forward.rows.tolist(), forward.reqs, strict=True):
                if name == req and (self.rows == row).any():
                    return int(row)
        return self.row

    def met(self, row: int) -> set[int]:
        """Damaged slots that the reader in table row ``row`` met."""
        return set(self.slot[(self.rows == row) & ~self.seam].tolist())

    def others(
        self, row: int, forward: Forward | None, met: Iterable[int]
    ) -> tuple[OtherReader, ...]:
        """Who read damaged slots that the reader in ``row`` did not meet, each slot once."""
        if forward is None or row < 0:
            return ()
        told, out = set(met), []
        for b, other in enumerate(forward.rows.tolist()):
            req = forward.reqs[b]
            hit = (self.rows == other) & self.is_read & ~self.seam
            slots = set(self.slot[hit].tolist()) - told
            if not slots or other == row or req is None:
                continue
            told |= slots
            some = tuple(sorted(slots)[:MAX_SLOTS])
            prefix = int(forward.prefix[b])
            out.append(
                OtherReader(
                    reader=req, row=other, prefix=prefix, slots=some, slots_total=len(slots)
                )
            )
        return tuple(out)

    def reasons(self) -> tuple[tuple[str, int], ...]:
        """(fail reason, how many entries), of the damaged entries."""
        bits, counts = self.bits[~self.seam], {}
        for reason in FailReason:
            hit = int((bits & int(reason) != 0).sum())
            labels = fail_reason_labels(int(reason))
            if hit and labels:
                counts[labels[0]] = hit
        return tuple(counts.items())

    def seams(self) -> tuple[SeamFact, ...]:
        """The seams, in order."""
        at = np.flatnonzero(self.seam)
        columns = (self.slot[at], self.position[at], self.prev[at])
        return tuple(
            SeamFact(slot=slot, position=position, prev_slot=prev)
            for slot, position, prev in zip(*(c.tolist() for c in columns), strict=True)
        )


def _unshown(finding: Finding) -> str:
    """How a finding was met that no violation shows."""
    if finding.cls in ONE_STEP:
        return "write"
    return "check" if finding.cls == "payload_mutation" else "read"
