"""Findings by what they have in common with others: a trace may show one fault many times."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcanary_cli.attribution.result import Finding


class FindingIndex:
    """Findings by their events and by their slots, those of the full pool: SWA slots are others.

    Args:
        findings: The first ones.
    """

    def __init__(self, findings: Iterable[Finding] = ()) -> None:
        self._by_id: dict[str, Finding] = {}
        self._by_event: dict[int, list[Finding]] = {}
        self._by_any: dict[int, dict[str, Finding]] = {}
        self._by_slot: dict[int, dict[str, Finding]] = {}
        for finding in findings:
            self.add(finding)

    def __contains__(self, finding: Finding) -> bool:
        return finding.id in self._by_id

    def add(self, finding: Finding) -> None:
        """Enter a finding, or what it has become since."""
        if finding.id not in self._by_id:
            self._by_id[finding.id] = finding
            if finding.cause_event is not None:
                self._by_event.setdefault(finding.cause_event, []).append(finding)
        for event in (finding.cause_event, finding.corrupting_event, *finding.follows):
            if event is not None:
                self._by_any.setdefault(event, {})[finding.id] = finding
        for slot in finding.slots | finding.sources if finding.pool_kind == "FULL" else ():
            self._by_slot.setdefault(slot, {})[finding.id] = finding

    def caused_by(self, *events: int | None) -> list[Finding]:
        """Findings whose cause is one of ``events``, in their order."""
        wanted = {event for event in events if event is not None}
        found = [one for event in wanted for one in self._by_event.get(event, ())]
        return sorted(found, key=lambda one: int(one.id[1:]))

    def of_event(self, event: int) -> Iterable[Finding]:
        """Findings that an event caused, damaged, or would have caused by itself."""
        return self._by_any.get(event, {}).values()

    def at(self, slot: int) -> Iterable[Finding]:
        """Findings that a slot of the full pool belongs to, or that came from it."""
        return self._by_slot.get(slot, {}).values()
