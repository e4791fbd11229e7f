"""Broken ownership rules whose damage nobody read: they are findings of their own."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution import result as what
from kvcanary_cli.attribution.damage import Cause
from kvcanary_cli.attribution.finding_index import FindingIndex
from kvcanary_cli.attribution.read_roots import LATE_CELL
from kvcanary_cli.attribution.result import (
    CERTAIN,
    CONFIDENCES,
    POSSIBLE,
    PROBABLE,
    Culprit,
    RuledOut,
)
from kvcanary_cli.attribution.rules.recycled_rows import RECYCLED
from kvcanary_cli.attribution.runner_up import runner_up

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from numpy.typing import NDArray

    from kvcanary_cli.attribution.book import FindingBook
    from kvcanary_cli.attribution.copy_faults import CopyFaults
    from kvcanary_cli.attribution.late_cells import Cell
    from kvcanary_cli.attribution.ownership import OwnershipRules, Root
    from kvcanary_cli.attribution.read_roots import ReadRoots
    from kvcanary_cli.attribution.result import Finding, OwnershipFinding

    Ints = NDArray[np.int64]


# Ownership rule to the class and sub-type that it stands for; None = the rule's own name.
_CAUSES: dict[str, tuple[str, str | None]] = {
    what.DOUBLE_ALLOC: ("double_alloc", None),
    what.DOUBLE_FREE: ("double_alloc", None),
    what.FREE_BY_NON_OWNER: ("double_alloc", None),
    what.WRITE_BY_NON_OWNER: ("late_write", None),
    what.READ_OF_FOREIGN: ("use_after_free", None),
    what.READ_OF_FREE: ("use_after_free", None),
    what.READ_BEFORE_WRITE: ("unwritten_read", "never_written_since_alloc"),
    what.OWN_BY_NON_OWNER: ("double_alloc", None),
    what.PUBLISH_OF_FREE: ("prefix_index", None),
    what.MATCH_OF_FREE: ("prefix_index", "phantom_hit"),
    what.MATCH_OF_FOREIGN: ("prefix_index", "phantom_hit"),
}
# What would excuse a broken rule, if it happened and was not recorded.
_EXCUSES = {
    what.READ_BEFORE_WRITE: ("transfer",),
    what.READ_OF_FOREIGN: ("prefix", "fork"),
    what.FREE_BY_NON_OWNER: ("fork",),
    what.OWN_BY_NON_OWNER: ("fork",),
}
_MAY_BE_EARLIER = "whether they were freed before, too, is not known"
_FREES = frozenset({what.FREE_BY_NON_OWNER, what.DOUBLE_FREE})
_MET_BY_READING = what.READS | {what.READ_BEFORE_WRITE}
# Findings of these classes say that somebody's idea of its slots is wrong: what it does to those
# slots by that idea follows from them. A fault of content or input misleads nobody.
_MISLEADING = frozenset(
    {
        "use_after_free",
        "double_alloc",
        "late_write",
        "transfer_race",
        "prefix_index",
        "stale_mapping",
        "unwritten_read",
        "bad_translation",
        "key_aliasing",
    }
)


def explain_unread(
    rules: OwnershipRules,
    book: FindingBook,
    roots: ReadRoots,
    copies: CopyFaults,
) -> None:
    """Report the broken rules that no finding covers yet.

    Args:
        rules: Holds the broken rules and what each goes back to.
        book: The findings made so far; takes these.
        roots: What reads go back to.
        copies: How copies went wrong.
    """
    shown, unread = FindingIndex(book.findings), FindingIndex()
    frees = {found.event for found in rules.findings if found.what in _FREES}
    broken = [
        (found, root, _late(found, root, rules, roots.launches, frees))
        for found, each_root in zip(rules.findings, rules.roots, strict=True)
        for each in each_root
        if found.what in _CAUSES
        for root in roots.of(found, each)
    ]
    # What a late forward reads on its way belongs to what it writes.
    for found, root, late in sorted(broken, key=lambda one: one[2] is None):
        if any(_same_root(f, found, root) for f in shown.caused_by(root.event, root.follows)):
            continue
        slots = [s for s in root.slots if not any(_covers(f, found, root) for f in shown.at(s))]
        if not slots:
            continue
        if found.what in _FREES:
            # Who shared what another gave back gives it back in its turn, and knows no better.
            slots = [s for s in slots if not any(_took(f, found, root) for f in unread.at(s))]
            if not slots:
                continue
        its_own = root.event == found.event or found.what == what.READ_BEFORE_WRITE
        by_copy = list(copies.causes(found, slots)) if its_own else [(None, slots)]
        by_copy = [one for one in by_copy if not _joins(unread, found, root, *one, rules)]
        if not by_copy:
            continue
        reads = found.what in _MET_BY_READING and _runs(found.actor, found, rules)
        if root.what == LATE_CELL:
            recycled = _recycled(book, found, roots.cell(found, slots[0]))
            if recycled is not None:
                _follow(recycled, found, root, slots, rules)
                shown.add(recycled)
                continue
            late = _late_cell(found, root, roots)
        for copied, mine in by_copy:
            cause = late if copied is None else _copied(copied, found, roots)
            finding = book.add(
                _cause(found, root, roots) if cause is None else cause,
                _victim(found, root),
                found.step,
                np.array(mine, dtype=np.int64),
                np.empty(0, dtype=np.int64),
                read=reads,
            )
            (shown if finding in shown else unread).add(finding)


def _late(
    found: OwnershipFinding,
    root: Root,
    rules: OwnershipRules,
    launches: Mapping[tuple[int, int], int],
    frees: Container[int],
) -> Cause | None:
    """The write of a forward that was on its way when its request gave the slots back, or None.

    ``frees``: events of frees that broke a rule.
    """
    freed, step = root.follows, found.step
    if found.what != what.WRITE_BY_NON_OWNER or root.event != found.event or step is None:
        return None
    if freed is None or found.actor is None or root.by != found.actor:
        return None
    if freed in frees:
        # Who freed what it never had gave nothing back.
        return None
    launched = launches.get((rules.names.code_at(found.actor, found.event), step))
    known = launched is not None and launched < freed
    if not known and (launched is not None or _runs(found.actor, found, rules)):
        return None
    return Cause(
        cls="late_write",
        subtype="overlap_forward_after_free",
        cause_event=freed,
        corrupting_event=found.event,
        culprit=Culprit(req=found.actor, step=step, event=found.event),
        ruled_out=[
            RuledOut(
                "use_after_free",
                f"{found.owner or 'nobody'} reads no slot of another: the write came too late",
            )
        ],
        confidence=CERTAIN if known else PROBABLE,
        evidence=[
            f"launched at event {launched}" if known else "the launch was not recorded",
            f"freed by {found.actor} at event {freed}",
            f"written by it at event {found.event}, owner {found.owner or 'the free list'}",
            "no damaged content was read in this trace",
        ],
    )


def _joins(
    unread: FindingIndex,
    found: OwnershipFinding,
    root: Root,
    copied: Cause | None,
    slots: list[int],
    rules: OwnershipRules,
) -> bool:
    """Add ``slots`` to a finding of an unread rule that has their cause, if there is one.

    What one copy did to several slots may be several faults: ``copied`` says which it was here.
    """
    same = (f for f in unread.caused_by(root.event, root.follows) if _same_root(f, found, root))
    if copied is not None:
        kind = copied.cls, copied.subtype
        same = (f for f in same if (f.cls, f.subtype) == kind)
    first = next(same, None)
    if first is None:
        return False
    _follow(first, found, root, slots, rules)
    if copied is not None:
        first.confidence = max(first.confidence, copied.confidence, key=CONFIDENCES.index)
    unread.add(first)
    return True


def _same_root(finding: Finding, found: OwnershipFinding, root: Root) -> bool:
    """Whether a finding of an unread rule has the cause that ``found`` goes back to."""
    if finding.cause_event is None:
        return False
    own_forward = found.step is not None and root.event == found.event
    if root.event == finding.cause_event and not own_forward:
        return True
    parties = {finding.victim, finding.culprit.req, *finding.blast_radius}
    return root.follows == finding.cause_event and found.actor in parties


def _follow(
    finding: Finding,
    found: OwnershipFinding,
    root: Root,
    slots: list[int],
    rules: OwnershipRules,
) -> None:
    """Add what a later broken rule tells of the same cause: ``slots`` go back to ``root``."""
    victim = _victim(found, root)
    on_its_way = found.what in what.READS and found.event == finding.corrupting_event
    if finding.cls == "late_write" and on_its_way and found.actor == finding.culprit.req:
        finding.evidence.append(
            f"the same forward of {found.actor} read {len(slots)} slots that it had no longer"
        )
        return
    if not root.surely and _MAY_BE_EARLIER not in finding.evidence:
        finding.evidence.append(_MAY_BE_EARLIER)
        finding.confidence = max(finding.confidence, PROBABLE, key=CONFIDENCES.index)
    if finding.pool_kind == "FULL":
        # Rules are about full slots; what the SWA lane showed is told by its own.
        finding.slots.update(slots)
    finding.last_event = found.event
    if finding.first_bad_step is None:
        finding.first_bad_step = found.step
    if finding.victim is None:
        finding.victim = victim
    if found.what in _MET_BY_READING and victim is not None and _runs(victim, found, rules):
        finding.blast_radius[victim] = None


def _runs(req: str | None, found: OwnershipFinding, rules: OwnershipRules) -> bool:
    """Whether ``req`` had not ended when the rule broke."""
    ended = None if req is None else rules.ended.get(rules.names.code_at(req, found.event))
    return ended is None or ended > found.event


def _covers(finding: Finding, found: OwnershipFinding, root: Root) -> bool:
    """Whether a finding explains a broken rule at one of its slots."""
    causes = {finding.cause_event, finding.corrupting_event} - {None}
    if {root.event, root.follows, found.event} & causes:
        return True
    if found.what == what.READ_BEFORE_WRITE:
        return True
    if finding.cls not in _MISLEADING or found.event < (finding.cause_event or found.event):
        return False
    parties = {finding.victim, finding.culprit.req, *finding.blast_radius}
    return found.actor in parties or (found.what in what.READS and found.owner in parties)


def _took(finding: Finding, found: OwnershipFinding, root: Root) -> bool:
    """Whether an early free took the slots from who gives them back in ``found``."""
    return finding.cls == "use_after_free" and _covers(finding, found, root)


def _victim(found: OwnershipFinding, root: Root) -> str | None:
    if found.what in _MET_BY_READING or found.what in what.MATCHES:
        return found.actor
    return found.owner if root.suffers else None


def _recycled(book: FindingBook, found: OwnershipFinding, cell: Cell | None) -> Finding | None:
    """The finding of a row that was given away in flight, of which ``cell`` is one."""
    if cell is None:
        return None
    for finding in book.findings:
        row = finding.culprit.details.get("req_table_row")
        if (finding.subtype, row, finding.victim) != (RECYCLED, cell.row, found.actor):
            continue
        if (finding.corrupting_event or 0) <= cell.set_at:
            return finding
    return None


def _late_cell(found: OwnershipFinding, root: Root, roots: ReadRoots) -> Cause:
    """The row of a request was set to a slot that was not its own."""
    slot = root.slots[0]
    cell = roots.cell(found, slot)
    row = 0 if cell is None else cell.row
    whose = "free" if cell is None or cell.was_free else f"{found.owner}'s"
    return Cause(
        cls="stale_mapping",
        subtype="cells_rewritten",
        cause_event=root.event,
        corrupting_event=root.event,
        culprit=Culprit(
            req=found.actor, step=None, event=root.event, details={"req_table_row": row}
        ),
        ruled_out=[
            RuledOut("use_after_free", f"slot {slot} was {whose} already when the cell was set")
        ],
        evidence=[
            f"event {root.event} set cells of row {row} to {len(root.slots)} slots that were "
            f"{whose} then",
            f"{found.what}: {found.actor} at event {found.event}, "
            f"owner {found.owner or 'the free list'}",
            "no damaged content was read in this trace",
        ],
        rests_on=_rests_on(found),
    )


def _rests_on(found: OwnershipFinding) -> dict[str, str]:
    """Families that would tell of a share in the slots; nobody has one in the prefix cache's."""
    if found.owner == "tree" and found.what != what.READ_BEFORE_WRITE:
        return {}
    return dict.fromkeys(_EXCUSES.get(found.what, ()), POSSIBLE)


def _copied(cause: Cause, found: OwnershipFinding, roots: ReadRoots) -> Cause:
    """A copy wrote what was not its own, and nobody read it there."""
    return replace(cause, evidence=[*cause.evidence, _not_read(roots.read_later(found))])


def _not_read(later: OwnershipFinding | None) -> str:
    if later is None:
        return "no damaged content was read in this trace"
    return f"{later.actor} read it at event {later.event}, when another fault had hit it, too"


def _cause(found: OwnershipFinding, root: Root, roots: ReadRoots) -> Cause:
    cls, subtype = _CAUSES[found.what]
    if found.what == what.WRITE_BY_NON_OWNER and found.step is None:
        cls, subtype = "transfer_race", "copy_write_by_non_owner"
    elif found.what == what.WRITE_BY_NON_OWNER and found.actor is None:
        cls, subtype = "pad_or_dummy_write", "dummy_write"
    own = cls
    if root.what in _CAUSES and root.event != found.event:
        cls, subtype = _CAUSES[root.what][0], root.what
    elif not root.what and found.what in what.READS:
        shared = found.owner is None and root.by not in (None, found.actor)
        subtype = "shared_slot_refcount" if shared else "freed_while_mapped"
    nobody = "a copy" if found.step is None else "a padding row"
    by = (found.owner or root.by) if found.what in what.READS else found.actor
    caused, corrupting = root.event, None
    if found.what in what.MATCHES:
        by = found.owner
        if root.what == found.what and root.follows is not None:
            caused, corrupting = root.follows, found.event
    evidence = [
        f"{found.what}: {found.actor or nobody} at event {found.event}, "
        f"owner {found.owner or 'the free list'}"
    ]
    if found.what == what.READ_OF_FREE and root.by == found.actor:
        evidence.append(
            f"an earlier request called {root.by} had freed them at event {root.event}, and ended"
        )
    if found.what == what.READ_OF_FREE:
        # Matched before the free, named by the row only behind it: the free is to blame.
        cells = Counter(cell for s in root.slots if (cell := roots.cell(found, s)) is not None)
        evidence += [
            f"row {cell.row} was set to {n} of them at event {cell.set_at}, when they were free"
            for cell, n in cells.items()
        ]
    if found.what == what.MATCH_OF_FOREIGN and root.what == found.what and root.follows is None:
        subtype, by = "never_published", None
        evidence.append(
            f"nobody had published the slots, or given them to the cache: {found.owner} has them "
            "since it wrote them or was given them, and did nothing to make them a hit"
        )
    if found.what not in _MET_BY_READING:
        evidence.append(_not_read(roots.read_later(found)))
    culprit = Culprit(req=by, step=found.step, event=found.event)
    if found.what == what.READ_OF_FREE and not root.what:
        # What it did was to give them back: it had no part in the read.
        culprit = Culprit(req=by, step=None, event=root.event)
    if not root.surely:
        evidence.append(_MAY_BE_EARLIER)
    return Cause(
        cls=cls,
        subtype=subtype or found.what,
        cause_event=caused,
        corrupting_event=corrupting,
        culprit=culprit,
        ruled_out=[runner_up(found, root, cls, own)],
        confidence=CERTAIN if root.surely else PROBABLE,
        evidence=evidence,
        rests_on=_rests_on(found) if root.event == found.event else {},
    )
