"""What a read that broke a rule goes back to, beyond the owners: a match, or a cell of the row."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcanary_cli.attribution import result as what
from kvcanary_cli.attribution.broken_rules import in_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvcanary_cli.attribution.follow import Follower
    from kvcanary_cli.attribution.late_cells import Cell, LateCells
    from kvcanary_cli.attribution.ownership import Root
    from kvcanary_cli.attribution.result import OwnershipFinding

#: ``Root.what`` of a read through a cell that was set to a slot which was not the reader's then.
LATE_CELL = "late_cell"


class ReadRoots:
    """Asked when the trace has ended.

    Args:
        follower: Names, launches and matches.
        cells: What led reads to slots that were not the reader's.
    """

    def __init__(self, follower: Follower, cells: LateCells) -> None:
        self._follower, self._cells = follower, cells
        # By reader, the reads of slots that were not its own, in order.
        self._reads: dict[str | None, list[OwnershipFinding]] = {}
        for found in follower.rules.findings:
            if found.what in what.READS:
                self._reads.setdefault(found.actor, []).append(found)

    @property
    def launches(self) -> Mapping[tuple[int, int], int]:
        """Name code and step of a forward to the event that queued it."""
        return self._follower.context.launches

    def of(self, found: OwnershipFinding, root: Root) -> Iterator[Root]:
        """``root``, split by what its slots really go back to: the first free, not the last.

        Who was served a slot when it was free, or another's, already, or whose cell was set to it
        then, suffers neither from the free nor from the owner.
        """
        owner_did_it = bool(root.what) and root.event != found.event
        by_name = found.what in what.READS or found.what in what.MATCHES
        if owner_did_it or found.actor is None or not by_name:
            yield root
            return
        # The slots are no part of what is alike: there may be very many.
        bare = replace(root, slots=())
        groups: dict[Root, list[int]] = {}
        for slot in root.slots:
            groups.setdefault(self._of_slot(found, bare, slot), []).append(slot)
        # The order of what happened, not of the slots' numbers.
        for one in sorted(groups, key=in_order):
            yield replace(one, slots=tuple(groups[one]))

    def _of_slot(self, found: OwnershipFinding, root: Root, slot: int) -> Root:
        """What ``slot`` goes back to."""
        context = self._follower.context
        reader = self._follower.names.code_at(found.actor or "", found.event)
        at = found.event, reader, slot
        taken = context.taken.get(at)
        if found.what in what.MATCHES and at in context.taken:
            if taken is None:
                return replace(root, follows=None, by=None)
            return replace(root, follows=taken.free.event, by=taken.free.by, surely=taken.surely)
        if found.what in what.MATCHES:
            return root
        freed = root.event != found.event
        match = context.matched(reader, slot)
        if match is not None and match.event < found.event:
            if taken is not None and taken.free.event < match.event:
                free = taken.free
                return replace(
                    root,
                    what=what.MATCH_OF_FREE,
                    event=match.event,
                    follows=free.event,
                    by=free.by,
                )
            if not freed or root.event < match.event:
                return self._not_by_free(found, root, what.MATCH_OF_FREE, match.event)
        elif (cell := self.cell(found, slot)) is not None:
            # What was put into the row behind its free was not freed while the reader named it.
            return self._not_by_free(found, root, LATE_CELL, cell.set_at)
        if taken is None or not freed:
            return root
        return replace(root, event=taken.free.event, by=taken.free.by, surely=taken.surely)

    @staticmethod
    def _not_by_free(found: OwnershipFinding, root: Root, name: str, event: int) -> Root:
        # If that free took the slots from somebody, it is to blame for this, too.
        freed = None if root.event == found.event else root.event
        return replace(root, what=name, event=event, follows=freed)

    def cell(self, found: OwnershipFinding, slot: int) -> Cell | None:
        """What led a read to ``slot``."""
        code = self._follower.names.code_at(found.actor or "", found.event)
        return self._cells.cell(found.event, code, slot)

    def read_later(self, found: OwnershipFinding) -> OwnershipFinding | None:
        """The first read by the owner of what was taken from it, when it was another's already."""
        for later in self._reads.get(found.owner, ()):
            if later.event > found.event and not set(later.slots).isdisjoint(found.slots):
                return later
        return None
