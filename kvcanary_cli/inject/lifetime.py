"""Slots that change hands wrongly: freed twice, early, by a stranger, handed out while owned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcanary_cli.inject.clean_run import TREE, CleanRun
from kvcanary_cli.inject.edits import Edits, substitute
from kvcanary_cli.inject.planting import TRIES, FaultKind, Planted, first_bad_reads, watch

if TYPE_CHECKING:
    import random

_NEEDS = frozenset({"forward", "map", "alloc"})
# Forwards within which a rewritten slot must be read.
_NEAR = 12


@dataclass(frozen=True, slots=True)
class _Handover:
    """An alloc that will get a slot which a reader still names.

    Attributes:
        alloc: Place of the alloc.
        taker: Its owner.
        slots: What it got -> what it gets instead, a whole page.
        end: Free that ends the taker's tenancy.
        written: Place of the taker's first write.
        reader: Request that names the slot.
        mapped: Place of the map event that made it do so.
    """

    alloc: int
    taker: str
    slots: dict[int, int]
    end: int | None
    written: int
    reader: str
    mapped: int


def _handover(run: CleanRun, rng: random.Random) -> _Handover | None:
    alloc = rng.choice(run.by_kind["alloc"])
    event = run.events[alloc]
    taker = event["owner"]
    slot = rng.choice(event["slots"]) if event["slots"] else 0
    term = run.tenancy(slot, alloc + 1)
    write = run.next_write(slot, alloc)
    if taker == TREE or term is None or write is None or write.req != taker:
        return None
    if term.end is not None and write.at > term.end:
        return None
    later = [at for at in run.forwards if at > write.at][:_NEAR]
    if not later:
        return None
    at = rng.choice(later)
    rows = [r for r in run.rows[at] if r.req != taker and r.prefix]
    if not rows:
        return None
    row = rng.choice(rows)
    cells = run.cells(row.row, alloc)
    position = rng.randrange(row.prefix)
    stolen = cells.get(position, 0)
    mapped = _mapped_at(run, row.row, position, alloc)
    if stolen <= 0 or mapped is None or not _was_of(run, row.req, row.row, alloc):
        return None
    pages = _pages(run, slot, stolen)
    if pages is None or any(
        run.owner(s, alloc) != run.owner(stolen, alloc) for s in pages.values()
    ):
        return None
    if run.owner(stolen, alloc) is None:
        return None
    mine = set(_all_cells(run, taker, write.at))
    if not mine.isdisjoint(pages.values()) or run.cells(row.row, at).get(position) != stolen:
        return None
    if not set(pages) <= set(event["slots"]):
        return None
    return _Handover(alloc, taker, pages, term.end, write.at, row.req, mapped)


def _pages(run: CleanRun, slot: int, stolen: int) -> dict[int, int] | None:
    """The page of ``slot`` onto that of ``stolen``."""
    size = run.header["pool"].get("page_size", 1)
    ours, theirs = slot // size * size, stolen // size * size
    if ours == theirs:
        return None
    return {ours + k: theirs + k for k in range(size)}


def _mapped_at(run: CleanRun, row: int, position: int, before: int) -> int | None:
    for at in reversed(run.maps.get(row, [])):
        event = run.events[at]
        if at < before and event["start"] <= position < event["start"] + len(event["slots"]):
            return at
    return None


def _was_of(run: CleanRun, req: str, row: int, at: int) -> bool:
    """Whether ``req`` ran in ``row`` before ``at`` and has not left it."""
    for forward in reversed(run.forwards):
        if forward < at:
            for r in run.rows[forward]:
                if r.row == row:
                    return r.req == req
    return False


def _all_cells(run: CleanRun, req: str, at: int) -> list[int]:
    for forward in run.forwards:
        if forward >= at:
            for r in run.rows[forward]:
                if r.req == req:
                    return list(run.cells(r.row, forward).values())
    return []


def _given_away(run: CleanRun, hand: _Handover) -> Planted:
    """The taker gets the stolen page; nothing is freed yet."""
    edits = Edits(run.events)
    substitute(edits, hand.alloc, hand.end, hand.slots)
    _name_anew(run, edits, hand)
    return Planted(
        edits=edits,
        slots=set(hand.slots.values()),
        causes=[hand.alloc],
        culprits={hand.taker},
    )


def _name_anew(run: CleanRun, edits: Edits, hand: _Handover) -> None:
    """Set the cells that the clean run had no need to set, for they named the slot already.

    A request that gets a slot again which its row still names from before has no map event of it;
    with another slot it has one, and so has who gets the old one behind it.
    """
    cells: dict[tuple[int, int], dict[int, int]] = {}
    for slot, stolen in hand.slots.items():
        for named in run.named(slot):
            within = named.at > hand.alloc and (hand.end is None or named.at <= hand.end)
            if named.at < hand.alloc:
                use = run.first_use(named, hand.alloc, hand.end)
                if use is not None:
                    cells.setdefault((use, named.row), {})[named.position] = stolen
                    within = True
            if within and hand.end is not None:
                use = run.first_use(named, hand.end, None, but=hand.taker)
                if use is not None:
                    cells.setdefault((use, named.row), {})[named.position] = slot
    for (use, row), named_there in sorted(cells.items()):
        for start, slots in _stretches(named_there):
            event = {"kind": "map", "row": row, "start": start, "slots": slots}
            edits.insert(run.before_forward(use), event)


def _stretches(cells: dict[int, int]) -> list[tuple[int, list[int]]]:
    """Neighbouring positions together: the first one, and their slots."""
    out: list[tuple[int, list[int]]] = []
    for position in sorted(cells):
        if out and position == out[-1][0] + len(out[-1][1]):
            out[-1][1].append(cells[position])
        else:
            out.append((position, [cells[position]]))
    return out


def _drawn(run: CleanRun, rng: random.Random) -> _Handover | None:
    for _ in range(TRIES):
        hand = _handover(run, rng)
        if hand is not None:
            return hand
    return None


def _freed_before(run: CleanRun, rng: random.Random, owner: str | None) -> Planted | None:
    """A free of the stolen page in front of the alloc, by ``owner`` (None = whoever owns it)."""
    hand = _drawn(run, rng)
    if hand is None:
        return None
    planted = _given_away(run, hand)
    stolen = next(iter(hand.slots.values()))
    holder = run.owner(stolen, hand.alloc)
    at = rng.randint(max(hand.mapped + 1, hand.alloc - 8), hand.alloc)
    if any(run.owner(s, at) != holder for s in hand.slots.values()):
        at = hand.alloc
    at = run.before_forward(at)
    if owner is None:
        by = holder or TREE
    else:
        others = {r.req for f in run.forwards if abs(f - at) < 200 for r in run.rows[f]}
        choices = sorted(others - {holder})
        if not choices:
            return None
        by = rng.choice(choices)
    free = {"kind": "free", "owner": by, "slots": sorted(hand.slots.values())}
    if by == TREE:
        free["reason"] = "evict"
    planted.edits.insert(at, free)
    planted.causes = [free]
    return planted if _met(run, planted, at) else None


def _met(run: CleanRun, planted: Planted, at: int) -> bool:
    """Find who reads the damage first, and whose write that was: either holder hits the other.

    Who was served the slots behind place ``at`` suffers from the prefix index, too, which still
    shows them: that is another fault.
    """
    if not watch(run, planted):
        return False
    first = first_bad_reads(run, planted, planted.slots)
    for read in first:
        served = (run.events[k] for k in run.by_kind.get("match", []) if at <= k < planted.until)
        if any(e["req"] == read.req and read.slot in e["slots"] for e in served):
            return False
    planted.culprits = {read.writer for read in first}
    return True


def early_free(run: CleanRun, rng: random.Random) -> Planted | None:
    planted = _freed_before(run, rng, None)
    if planted is not None:
        planted.subtypes = {"freed_while_mapped", "shared_slot_refcount", "freed_by_dedup"}
        planted.note = "freed by its owner while a row still named it, and handed to another"
    return planted


def free_by_non_owner(run: CleanRun, rng: random.Random) -> Planted | None:
    planted = _freed_before(run, rng, "stranger")
    if planted is not None:
        planted.subtypes = {"free_by_non_owner"}
        planted.note = "freed by a request that never owned it, and handed to another"
    return planted


def double_alloc(run: CleanRun, rng: random.Random) -> Planted | None:
    hand = _drawn(run, rng)
    if hand is None:
        return None
    planted = _given_away(run, hand)
    planted.subtypes = {"double_alloc"}
    planted.note = "handed out while its owner still used it"
    return planted if _met(run, planted, hand.alloc) else None


def double_free(run: CleanRun, rng: random.Random) -> Planted | None:
    hand = _drawn(run, rng)
    if hand is None:
        return None
    stolen = next(iter(hand.slots.values()))
    ended = [t.end for t in run.tenancies(stolen) if t.end is not None and t.end < hand.alloc]
    if not ended:
        return None
    planted = _given_away(run, hand)
    at = ended[-1]
    if any(run.owner(s, at + 1) is not None for s in hand.slots.values()):
        return None
    again = {
        "kind": "free",
        "owner": run.events[at]["owner"],
        "slots": sorted(hand.slots.values()),
    }
    planted.edits.insert(at + 1, again)
    planted.causes = [again]
    planted.subtypes = {"double_free"}
    planted.note = "given back twice, so that two requests got it"
    return planted if _met(run, planted, hand.alloc) else None


KINDS = (
    FaultKind("double_free", "double_alloc", "a slot is given back twice", _NEEDS, double_free),
    FaultKind(
        "early_free", "use_after_free", "a slot is freed while a row names it", _NEEDS, early_free
    ),
    FaultKind(
        "free_by_non_owner",
        "double_alloc",
        "a slot is freed by a request that does not own it",
        _NEEDS,
        free_by_non_owner,
    ),
    FaultKind(
        "double_alloc", "double_alloc", "a slot is handed out while owned", _NEEDS, double_alloc
    ),
)
