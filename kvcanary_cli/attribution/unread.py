"""Broken ownership rules whose damage nobody read: they are findings of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution import result as what
from kvcanary_cli.attribution.damage import Cause
from kvcanary_cli.attribution.ownership import BAD_WHATS
from kvcanary_cli.attribution.result import Culprit, RuledOut

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from kvcanary_cli.attribution.ownership import OwnershipRules
    from kvcanary_cli.attribution.result import Finding, OwnershipFinding

    Ints = NDArray[np.int64]
    Add = Callable[[Cause, str | None, int | None, Ints, Ints], None]

# Ownership rule to the class and sub-type that it stands for; None = the rule's own name.
_CAUSES: dict[str, tuple[str, str | None]] = {
    what.DOUBLE_ALLOC: ("double_alloc", None),
    what.DOUBLE_FREE: ("double_alloc", None),
    what.FREE_BY_NON_OWNER: ("double_alloc", None),
    what.WRITE_BY_NON_OWNER: ("late_write", None),
    what.READ_OF_FOREIGN: ("use_after_free", None),
    what.READ_OF_FREE: ("use_after_free", None),
    what.READ_BEFORE_WRITE: ("unwritten_read", "never_written_since_alloc"),
    what.PUBLISH_OF_FREE: ("prefix_index", None),
    what.MATCH_OF_FREE: ("prefix_index", "phantom_hit"),
    what.MATCH_OF_FOREIGN: ("prefix_index", "phantom_hit"),
}
_READS = frozenset({what.READ_OF_FOREIGN, what.READ_OF_FREE})


def explain_unread(rules: OwnershipRules, findings: Sequence[Finding], add: Add) -> None:
    """Report the broken rules that no finding covers yet.

    Args:
        rules: Holds the broken rules and what each goes back to.
        findings: Those made from damaged content.
        add: Takes cause, victim, step, slots and positions.
    """
    explained = {slot for finding in findings for slot in finding.slots}
    causes = {finding.cause_event for finding in findings}
    for found, (root, event) in zip(rules.findings, rules.roots, strict=True):
        slots = [slot for slot in found.slots if slot not in explained]
        if not slots or found.what not in _CAUSES or event in causes:
            continue
        add(
            _cause(found, root, event),
            _victim(found),
            found.step,
            np.array(slots, dtype=np.int64),
            np.empty(0, dtype=np.int64),
        )


def _victim(found: OwnershipFinding) -> str | None:
    if found.what in _READS:
        return found.actor
    return found.owner if found.owner != "tree" else None


def _cause(found: OwnershipFinding, root: str, event: int) -> Cause:
    cls, subtype = _CAUSES[found.what]
    if found.what == what.WRITE_BY_NON_OWNER and found.step is None:
        cls, subtype = "transfer_race", "copy_write_by_non_owner"
    elif found.what == what.WRITE_BY_NON_OWNER and found.actor is None:
        cls, subtype = "pad_or_dummy_write", "dummy_write"
    if root in BAD_WHATS[1:]:
        cls, subtype = "double_alloc", root
    elif not root and found.what in _READS:
        subtype = "freed_while_mapped"
    nobody = "a copy" if found.step is None else "a padding row"
    by = found.owner if found.what in _READS else found.actor
    return Cause(
        cls=cls,
        subtype=subtype or found.what,
        cause_event=event,
        corrupting_event=None,
        culprit=Culprit(req=by, step=found.step, event=found.event),
        ruled_out=[RuledOut("not_corruption", f"{found.what} needs no hash")],
        evidence=[
            f"{found.what}: {found.actor or nobody} at event {found.event}, "
            f"owner {found.owner or 'the free list'}",
            "no damaged content was read in this trace",
        ],
    )
