"""Who has a row of the request table, by the map events that set it.

A map event names no request. Whose it is follows from what it sets the cells to: slots that a
request was just given, or what a match just served it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvcanary_cli.attribution.ledger import NEVER, NOBODY, TREE
from kvcanary_cli.attribution.row_table import END
from kvcanary_cli.attribution.rules.facts import Facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcanary_cli.attribution.context import MapFact, MatchFact, RowFacts


class Tenancy(NamedTuple):
    """A map event by which ``req`` got a row; ``sure`` = it can have been nobody else."""

    event: int
    req: int
    sure: bool


class RowTenancies(Facts):
    """Whose a row is, as far as its cells tell."""

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        # By row and map event, who got the row by it; None = nobody did.
        self._begins: dict[tuple[int, int], Tenancy | None] = {}
        # By row: its newest map event, all of them, and whose the row is from each on.
        self._courses: dict[int, tuple[object, list[int], list[Tenancy | None]]] = {}

    def newest(self, facts: RowFacts, upto: int) -> Tenancy | None:
        """The newest tenancy of the row up to event ``upto``, from its first map event on."""
        events, tenancies = self._course(facts)
        at = bisect_right(events, upto)
        return tenancies[at - 1] if at else None

    def _course(self, facts: RowFacts) -> tuple[list[int], list[Tenancy | None]]:
        """The row's map events, and whose it is from each on; gone through when one is added."""
        newest = next(facts.table.newest_first(facts.row), None)
        known = self._courses.get(facts.row)
        if known is not None and known[0] == newest:
            return known[1:]
        maps = sorted(facts.maps, key=lambda fact: fact.event)
        tenancies: list[Tenancy | None] = []
        now: Tenancy | None = None
        for fact in maps:
            begin = self._got_by(facts, fact)
            if begin is not None and (now is None or begin.req != now.req):
                now = begin
            tenancies.append(now)
        events = [fact.event for fact in maps]
        self._courses[facts.row] = newest, events, tenancies
        return events, tenancies

    def before(self, facts: RowFacts, begin: Tenancy) -> Tenancy | None:
        """Who had the row before ``begin``, and since when: who ran there or got it last."""
        ran = ((at, req) for req, at in reversed(facts.ran) if at < begin.event)
        at, req = next(ran, (NEVER, NOBODY))
        got = self.newest(facts, begin.event - 1)
        if got is not None and (got.event > at or got.req == req):
            return got
        return None if at == NEVER else Tenancy(at, req, sure=True)

    def _got_by(self, facts: RowFacts, fact: MapFact) -> Tenancy | None:
        """Who got a row by a map event, if anybody did."""
        key = facts.row, fact.event
        if key in self._begins:
            return self._begins[key]
        ran = {req for req, at in facts.ran if at > fact.event}
        begin = None
        if fact.owner > TREE and fact.start == 0:
            own = fact.owner in ran or not self.runs_elsewhere(facts.row, fact.owner, fact.event)
            begin = Tenancy(fact.event, fact.owner, sure=True) if own else None
        else:
            whose = [
                (match.event, req)
                for req, match in self._served(fact)
                if self._agrees(facts, fact, match, req)
                and (req in ran or not self.runs_elsewhere(facts.row, req, fact.event))
                and (req in ran or not self._set_elsewhere(facts.row, match.event, fact))
            ]
            if whose:
                req = max(whose)[1]
                # A request may find what it computed in the cache, and name that from then on.
                begin = Tenancy(fact.event, req, sure=fact.owner == req or req in ran)
        self._begins[key] = begin
        return begin

    def _served(self, fact: MapFact) -> Iterator[tuple[int, MatchFact]]:
        """Requests that had not ended, with their last match before a map event."""
        among = [fact.owner] if fact.owner > TREE else list(self.context.matches)
        for req in among:
            ended = self.context.ended.get(req, NEVER)
            matches = self.context.matches.get(req, ())
            match = next((m for m in reversed(matches) if m.event < fact.event), None)
            if match is not None and not NEVER < ended < fact.event:
                yield req, match

    def _agrees(self, facts: RowFacts, fact: MapFact, match: MatchFact, req: int) -> bool:
        """Whether a row held what a match gave when the cells were set, as far as it still does.

        Where the last slot is the request's own, what stood before the cells is from the match.
        """
        end = fact.start if fact.owner == req else fact.stop
        if not 0 < end <= len(match.slots) or (fact.owner != req and end != len(match.slots)):
            return False
        table = facts.mapped_at_each(np.arange(end, dtype=np.int64))
        cells = np.array([self.now.cell(None, facts.row, p) for p in range(end)])
        same = cells == match.slots[:end]
        return bool((same | (table > fact.event)).all() and (table <= fact.event).any())

    def _set_elsewhere(self, row: int, matched: int, fact: MapFact) -> bool:
        """Whether another row was set likewise behind a match, and before ``fact``."""
        rows = np.flatnonzero(self.context.table.heads != END).tolist()
        return any(
            matched < event < fact.event and (start, stop) == (fact.start, fact.stop)
            for other in rows
            if other != row
            for event, start, stop, _owner in self.context.table.newest_first(other)
        )

    def runs_elsewhere(self, row: int, req: int, then: int) -> bool:
        """Whether a request had another row at event ``then``: one that it ran in, and kept."""
        for other in np.flatnonzero(self.context.table.tenants == req).tolist():
            facts = self.context.row(other)
            ran, gone = facts.ran[-1][1], facts.released_event
            back = any(f.owner == req and gone < f.event < then for f in facts.maps)
            if other != row and ran < then and (back or not ran < gone < then):
                return True
        return False
