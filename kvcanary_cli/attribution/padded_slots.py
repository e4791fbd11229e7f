"""Slots that padding rows wrote: their bytes are wrong for whoever reads them, canary or not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution.ledger import FREE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from kvcanary_cli.attribution.follow import Follower
    from kvcanary_cli.attribution.result import Finding
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.watcher import Reads

_UNREAD = "no damaged content was read in this trace"


@dataclass(slots=True)
class _Hit:
    """What one padding write did: its batch row, words about it, and who read the slot since."""

    batch_row: int
    words: list[str]
    stale: bool
    readers: list[tuple[str, int, int]] = field(default_factory=list)


class PaddedSlots:
    """Follows slots of somebody's that padding rows wrote until they are written anew.

    Fingerprints would show the damage at the read; where none are recorded, the read is all that
    can be told.

    Args:
        follower: The ledger.
    """

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._hits: dict[tuple[int, int], _Hit] = {}
        # By slot, the last padding write of it.
        self._open: dict[int, int] = {}

    def note(self, forward: Forward, reads: Reads, codes: NDArray[np.int32]) -> None:
        """Look at a forward before its writes are entered: what it reads, and what it pads."""
        if forward.worker != "target":
            return
        owners = self._follower.rules.state.owner
        for slot in self._follower.forwards.padding_slots(forward).tolist():
            if owners[slot] > FREE:
                self._hit(forward, slot)
        if self._open:
            self._read(forward, reads, codes)

    def _hit(self, forward: Forward, slot: int) -> None:
        follower = self._follower
        follower.forwards.note_padding(forward)
        row = int(follower.lane("target", "FULL").pad_row[slot])
        former = follower.context.batch_row_slot.get(row)
        stale = former is not None and former[0] == slot
        words = [follower.context.padded_batch(forward.event)]
        if stale and former is not None:
            words.append(f"the same row wrote slot {slot} at step {former[1]}: its entry is stale")
        self._hits[forward.event, slot] = _Hit(row, words, stale)
        self._open[slot] = forward.event
        follower.rules.state.padded[slot] = True

    def _read(self, forward: Forward, reads: Reads, codes: NDArray[np.int32]) -> None:
        met = np.flatnonzero(np.isin(reads.slots, list(self._open)))
        writes = self._follower.lane("target", "FULL")
        owners = self._follower.rules.state
        for k in met.tolist():
            slot = int(reads.slots[k])
            padded = self._open.get(slot)
            if padded is None:
                continue
            came = int(writes.came(reads.slots[k : k + 1])[0])
            if max(came, int(owners.alloc_event[slot])) > padded:
                # What the padding row left was overwritten, or the slot was given out anew.
                del self._open[slot]
                owners.padded[slot] = False
                continue
            reads.again[k] = True
            name = self._follower.names.name(int(codes[reads.batch_rows[k]]))
            if name is not None:
                reader = name, forward.step, int(reads.positions[k])
                self._hits[padded, slot].readers.append(reader)

    def explain(self, findings: Iterable[Finding]) -> None:
        """Say of each padding write that no fingerprint shows who read the slot, and its row."""
        for finding in findings:
            event = finding.cause_event
            hits = [
                hit
                for slot in sorted(finding.slots)
                if event is not None and (hit := self._hits.get((event, slot))) is not None
            ]
            if finding.cls == "pad_or_dummy_write" and hits and not finding.violations:
                _tell(finding, hits)


def _tell(finding: Finding, hits: list[_Hit]) -> None:
    finding.culprit.details["batch_row"] = hits[0].batch_row
    if any(hit.stale for hit in hits):
        finding.subtype = "stale_padded_tail"
    finding.evidence += dict.fromkeys(word for hit in hits for word in hit.words)
    readers = sorted((one for hit in hits for one in hit.readers), key=lambda one: one[1])
    if not readers:
        return
    victim, step, _position = readers[0]
    finding.victim, finding.first_bad_step = victim, step
    finding.positions = {position for name, _step, position in readers if name == victim}
    finding.blast_radius = dict.fromkeys(name for name, _step, _position in readers)
    finding.evidence[:] = [text for text in finding.evidence if text != _UNREAD]
    finding.evidence.append(
        f"{victim} read what the padding row left at step {step}; no fingerprint tells its bytes"
    )
