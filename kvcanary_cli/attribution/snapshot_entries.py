"""The damaged entries of a finding: what the slots hold, what belongs there, who wrote them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.constants import PoolKind
from kvcanary_cli.attribution.facts import MAX_ENTRIES, Act, EntryFact
from kvcanary_cli.attribution.ledger import NEVER, NOBODY, TREE
from kvcanary_cli.replay.lanes import get_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.attribution.follow import Follower
    from kvcanary_cli.attribution.ledger import Writes
    from kvcanary_cli.attribution.result import Finding
    from kvcanary_cli.attribution.snapshot_rows import Rows
    from kvcanary_cli.replay.forwards import Forward

    Ints = NDArray[np.int64]

_HOW = ("nothing", "forward", "verify", "copy", "state")


class Entries:
    """Reads them while the ledger still shows them.

    Args:
        follower: The ledger.
    """

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    def of(
        self, finding: Finding, rows: Rows, forward: Forward | None, slots: Ints
    ) -> tuple[EntryFact, ...]:
        """The entries of ``finding`` in ``slots`` [n], by position.

        Args:
            finding: The finding.
            rows: The violations that made it.
            forward: The forward that showed it, or None.
            slots: Its slots; of more than ``MAX_ENTRIES`` the first ones are told.
        """
        writes = self._follower.lane(finding.worker, finding.pool_kind)
        at: dict[int, int] = {}
        for k, slot in enumerate(rows.slot.tolist()):
            # Where a forward failed at a slot twice, what it read tells more than what it wrote.
            if not rows.seam[k]:
                at.setdefault(slot, k)
        stored = self._stored(finding, slots[:MAX_ENTRIES])
        entries = []
        for n, slot in enumerate(slots[:MAX_ENTRIES].tolist()):
            hit = at.get(slot)
            writer, before = self._last(writes, slot), self._before(writes, slot)
            if hit is None:
                fed = self._fed(forward, slot) if rows.access == "write" else None
                if fed is not None and forward is not None:
                    before = writer
                    writer = Act(finding.victim, forward.step, forward.event, "forward")
                token, place = stored[n]
                position = -1 if place is None else place
                if fed is not None:
                    position, token, place = fed
                entries.append(
                    EntryFact(
                        slot=slot,
                        position=position,
                        found_token=token,
                        found_position=place,
                        expected_token=None if fed is not None else self._true(finding, position),
                        writer=writer,
                        before=before,
                    )
                )
                continue
            if rows.access == "write" and forward is not None:
                before = writer
                writer = Act(finding.victim, forward.step, forward.event, "forward")
            entries.append(
                EntryFact(
                    slot=slot,
                    position=int(rows.position[hit]),
                    found_token=int(rows.token[hit]),
                    found_position=int(rows.stored_position[hit]),
                    expected_token=int(rows.expected[hit]) if rows.checked[hit] else None,
                    writer=writer,
                    before=before,
                )
            )
        return tuple(sorted(entries, key=lambda e: (e.position, e.slot)))

    @staticmethod
    def _fed(forward: Forward | None, slot: int) -> tuple[int, int, int] | None:
        """What the forward wrote to ``slot``: where it belonged, the token, where it was put."""
        if forward is None:
            return None
        at = np.flatnonzero(forward.out_cache_loc[: len(forward.token_row)] == slot)
        if not len(at):
            return None
        k = int(at[-1])
        return int(forward.true_positions[k]), int(forward.input_ids[k]), int(forward.positions[k])

    def _true(self, finding: Finding, position: int) -> int | None:
        """The token that the victim has at ``position``, as far as its history is known."""
        pool = self._follower.pool
        if pool is None or pool.histories is None or finding.victim is None or position < 0:
            return None
        tokens = pool.histories.tokens(finding.victim)
        at = position + (finding.worker == "draft")
        return int(tokens[at]) if at < len(tokens) and tokens[at] >= 0 else None

    def _stored(self, finding: Finding, slots: Ints) -> list[tuple[int | None, int | None]]:
        """Tokens and positions that the canary rows hold; None where the trace does not tell."""
        pool = self._follower.pool
        lane = None
        if pool is not None:
            lane = pool.lanes.get((finding.worker, PoolKind[finding.pool_kind]))
        if lane is None or not len(slots):
            return [(None, None)] * len(slots)
        told = [True] * len(slots) if lane.unknown is None else (~lane.unknown[slots]).tolist()
        rows = get_rows(lane.group.k_head, slots)[:, :2].tolist()
        return [(t, p) if known else (None, None) for (t, p), known in zip(rows, told, strict=True)]

    def _last(self, writes: Writes, slot: int) -> Act:
        how, moved = _HOW[int(writes.kind[slot])], int(writes.moved_event[slot])
        act = self._act(writes.req, writes.step, writes.event, slot, how)
        return act if moved == NEVER else replace(act, moved=moved)

    def _before(self, writes: Writes, slot: int) -> Act:
        how = "nothing" if writes.before_event[slot] == NEVER else "forward"
        return self._act(writes.before_req, writes.before_step, writes.before_event, slot, how)

    def _act(
        self, req: NDArray[np.int32], step: NDArray[np.int32], event: Ints, slot: int, how: str
    ) -> Act:
        when = int(event[slot])
        return Act(
            req=None if int(req[slot]) == TREE else self._follower.names.name(int(req[slot])),
            step=None if int(step[slot]) == NOBODY else int(step[slot]),
            event=None if when == NEVER else when,
            how=how,
        )
