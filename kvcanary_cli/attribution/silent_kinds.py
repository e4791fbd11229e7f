"""Kinds of events that a trace promises and never shows: what rests on their absence is less sure.

A recorder that misses every ``free`` makes a sound engine look as if it handed its slots out twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.attribution.result import CONFIDENCES, POSSIBLE, PROBABLE
from kvcanary_cli.replay.coverage import CLASS_NEEDS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

    from kvcanary_cli.attribution.result import Finding

_OWNERS = frozenset({"alloc", "free", "own"})
#: Kind to the sub-types that rest on there being none. Without any ``alloc`` every free slot stays
#: free for good: all that speaks of owners rests on that.
_RESTS_ON = {
    "alloc": frozenset({"publish_of_free", "phantom_hit"}),
    "free": frozenset({"double_alloc"}),
    "own": frozenset({"free_by_non_owner", "own_by_non_owner"}),
}


def weigh_silent_kinds(
    findings: Iterable[Finding], records: frozenset[str], kinds: AbstractSet[str]
) -> None:
    """Lower what rests on the absence of a kind of which the trace has no event at all.

    Args:
        findings: Of one trace; changed in place.
        records: Families that it promises.
        kinds: Kinds of the events that were met.
    """
    if "alloc" not in records or not kinds & _OWNERS:
        return
    silent = sorted(_OWNERS - kinds)
    for finding in findings:
        resting = tuple(kind for kind in silent if _rests_on(finding, kind))
        if not resting:
            continue
        finding.unseen += resting
        ceiling = PROBABLE if finding.violations else POSSIBLE
        finding.confidence = max(finding.confidence, ceiling, key=CONFIDENCES.index)
        finding.evidence.extend(
            f"the trace has no {kind} event at all: a recorder that misses them leaves the same one"
            for kind in resting
        )


def _rests_on(finding: Finding, kind: str) -> bool:
    if finding.subtype in _RESTS_ON[kind]:
        return True
    return kind == "alloc" and any("alloc" in way for way in CLASS_NEEDS.get(finding.cls, ()))
