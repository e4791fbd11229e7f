"""The scene of a finding as JSON values: what the text block shows, for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcanary_cli.attribution.facts import Act, FindingFacts


def scene_dict(facts: FindingFacts) -> dict[str, Any]:
    """The facts; lists are bounded, and what they leave out is counted in ``*_total``."""
    return {
        "access": facts.access,
        "event": facts.event,
        "step": facts.step,
        "forward_mode": facts.mode,
        "req": facts.reader,
        "row": facts.row,
        "prefix": facts.prefix,
        "others": [
            {
                "req": other.reader,
                "row": other.row,
                "prefix": other.prefix,
                "slots": list(other.slots),
                "slots_total": other.slots_total,
            }
            for other in facts.others
        ],
        "fail_reasons": dict(facts.reasons),
        "entries": [
            {
                "slot": entry.slot,
                "position": entry.position,
                "found_token": entry.found_token,
                "found_position": entry.found_position,
                "expected_token": entry.expected_token,
                "written_by": _act(entry.writer),
                "written_before_by": _act(entry.before),
            }
            for entry in facts.entries
        ],
        "entries_total": facts.entries_total,
        "seams": [
            {"slot": seam.slot, "position": seam.position, "prev_slot": seam.prev_slot}
            for seam in facts.seams
        ],
        "seams_total": facts.seams_total,
        "timeline": [
            {
                "event": event.event,
                "what": event.what,
                "who": event.who,
                "step": event.step,
                "slots": list(event.slots),
                "slots_total": event.slots_total,
                "note": event.note,
            }
            for event in facts.life
        ],
        "timeline_total": facts.life_total,
        "owners": [
            {
                "slot": owner.slot,
                "owner": owner.owner,
                "damaged": owner.damaged,
                "foreign": owner.foreign,
                "dangling": owner.dangling,
            }
            for owner in facts.owners
        ],
        "owners_are_writers": facts.owners_are_writers,
    }


def _act(act: Act) -> dict[str, Any] | None:
    if act.event is None:
        return None
    told = {"req": act.req, "step": act.step, "event": act.event, "how": act.how}
    return told if act.moved is None else told | {"moved_event": act.moved}
