"""Slots that one row of a batch writes while another one of it reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution.damage import Damage
from kvcanary_cli.attribution.ledger import NOBODY
from kvcanary_cli.attribution.rules import lifetime_first

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.attribution.book import FindingBook
    from kvcanary_cli.attribution.rules import Classifier
    from kvcanary_cli.attribution.under_way import UnderWay
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.violations import ViolationChunk

    Ints = NDArray[np.int64]


class Overwritten:
    """Tells prefix reads from what a batch writes, and explains where both meet.

    Args:
        now: The forward that is being judged.
        book: Takes the findings.
        classifier: Says why.
        num_slots: Slots of the pool.
    """

    def __init__(
        self, now: UnderWay, book: FindingBook, classifier: Classifier, num_slots: int
    ) -> None:
        self._now, self._book, self._classifier = now, book, classifier
        self._row_writing = np.full(num_slots, NOBODY, dtype=np.int64)
        # Entries of what the forward reads that another of its rows writes.
        self._overwritten: Ints = np.empty(0, dtype=np.int64)

    def others(
        self, forward: Forward, read_slots: Ints, reader_rows: Ints, written: Ints
    ) -> NDArray[np.bool_]:
        """Which reads are prefix reads: a row's own out_cache_loc is none."""
        kept = written >= 0
        self._row_writing[written[kept]] = forward.token_row[kept]
        writing = self._row_writing[read_slots]
        others: NDArray[np.bool_] = writing != reader_rows
        self._overwritten = np.flatnonzero(others & (writing != NOBODY) & (read_slots != 0))
        self._row_writing[written[kept]] = NOBODY
        return others

    def explain(self, forward: Forward, found: list[ViolationChunk]) -> None:
        """One row of the batch wrote what another one of it reads: the model saw the new content.

        Canary rows alone show that at the next read, if there is one.
        """
        now = self._now
        if now.replay is None or not now.replay.options.checks_step(forward.step):
            return
        if not len(self._overwritten):
            return
        slots, rows = now.read.slots, now.read.batch_rows
        full = [chunk for chunk in found if chunk.pool_kind == "FULL"]
        shown = {int(slot) for chunk in full for slot in chunk.columns["slot"]}
        writes = now.follower.lane(forward.worker, "FULL")
        for k in self._overwritten.tolist():
            slot, row = int(slots[k]), int(rows[k])
            key = (forward.worker, "FULL", slot, int(writes.came(slots[k : k + 1])[0]))
            if slot in shown:
                continue
            damage, finding = self._damage(forward, k), self._book.known.get(key)
            if finding is None:
                same = self._overwritten[slots[self._overwritten] == slot]
                others = (self._damage(forward, int(j)) for j in same if rows[j] != row)
                first = lifetime_first(damage, others, self._classifier.cause)
                finding = self._book.known[key] = self._book.of_damage(*first)
            if finding.pool_kind != "FULL":
                # The SWA lane of this very forward showed it first: its slots tell it.
                continue
            name = now.follower.names.name(damage.victim)
            self._book.enter(finding, slot, damage.position, damage.victim, name, forward.step)
            finding.violations -= 1

    def _damage(self, forward: Forward, k: int) -> Damage:
        """What the ``k``-th entry that the forward reads found there."""
        read, row = self._now.read, int(self._now.read.batch_rows[k])
        writes, slot = self._now.follower.lane(forward.worker, "FULL"), int(read.slots[k])
        return Damage(
            worker=forward.worker,
            pool_kind="FULL",
            victim=int(self._now.codes[row]),
            row=int(forward.rows[row]),
            position=int(read.positions[k]),
            slot=slot,
            stored_position=int(writes.position[slot]),
            stored_token=NOBODY,
            expected_token=None,
            kv_only=False,
            step=forward.step,
            event=forward.event,
            forward=forward,
            true_position=None,
            row_offset=0,
            writes=writes,
        )
