"""Faults of the request table: the data is healthy, the cells that lead to it are not."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from kvcanary_cli.inject.edits import Edits
from kvcanary_cli.inject.planting import TRIES, FaultKind, Planted, watch

if TYPE_CHECKING:
    import random

    from kvcanary_cli.inject.clean_run import CleanRun, Row

_NEEDS = frozenset({"forward", "map"})


def reading_row(run: CleanRun, rng: random.Random, least: int) -> tuple[int, Row] | None:
    """A forward and one of its rows with a prefix of at least ``least``."""
    for _ in range(TRIES):
        at = rng.choice(run.forwards)
        rows = [r for r in run.rows[at] if r.prefix >= least]
        if rows and "row_as_read" not in run.events[at]:
            return at, rng.choice(rows)
    return None


def swapped_cells(run: CleanRun, rng: random.Random) -> Planted | None:
    place = reading_row(run, rng, 2)
    if place is None:
        return None
    at, row = place
    cells = run.cells(row.row, at)
    one, other = sorted(rng.sample(range(row.prefix), 2))
    if cells.get(one, 0) <= 0 or cells.get(other, 0) <= 0:
        return None
    edits = Edits(run.events)
    into = run.before_forward(at)
    first = edits.insert(into, _cell(row.row, one, cells[other]))
    second = edits.insert(into, _cell(row.row, other, cells[one]))
    planted = Planted(
        edits=edits,
        slots={cells[one], cells[other]},
        causes=[first, second],
        culprits={row.req},
        subtypes={"cells_rewritten"},
        note=f"cells {one} and {other} of row {row.row} change places",
    )
    return planted if watch(run, planted) else None


def _cell(row: int, position: int, slot: int) -> dict[str, object]:
    return {"kind": "map", "row": row, "start": position, "slots": [slot]}


def stale_cell(run: CleanRun, rng: random.Random) -> Planted | None:
    place = reading_row(run, rng, 1)
    if place is None:
        return None
    at, row = place
    other = rng.choice(run.rows[at])
    theirs = run.cells(other.row, at)
    position = rng.randrange(row.prefix)
    if not other.prefix:
        return None
    slot = theirs.get(rng.randrange(other.prefix), 0)
    if slot <= 0 or slot == run.cells(row.row, at).get(position) or slot in _written(run, at):
        return None
    edits = Edits(run.events)
    cause = edits.insert(run.before_forward(at), _cell(row.row, position, slot))
    planted = Planted(
        edits=edits,
        slots={slot},
        causes=[cause],
        culprits={row.req},
        subtypes={"cells_rewritten"},
        note=f"cell {position} of row {row.row} names slot {slot}, which belongs elsewhere",
    )
    return planted if watch(run, planted) else None


def _written(run: CleanRun, at: int) -> set[int]:
    return set(run.events[at]["out_cache_loc"])


def recycled_row(run: CleanRun, rng: random.Random) -> Planted | None:
    """A new request is given the row of one that still runs."""
    for _ in range(TRIES):
        planted = _recycled(run, rng, rng.choice(run.by_kind["map"]))
        if planted is not None:
            return planted
    return None


def _recycled(run: CleanRun, rng: random.Random, at: int) -> Planted | None:
    first = run.events[at]
    own_row = first["row"]
    later = [f for f in run.forwards if f > at][:12]
    start = next((f for f in later if own_row in {r.row for r in run.rows[f]}), None)
    if first["start"] != 0 or start is None:
        return None
    taker = next(r for r in run.rows[start] if r.row == own_row)
    stay = _stay(run, own_row, taker.req, at)
    running = [r for f in later for r in run.rows[f] if r.row != own_row and _has(run, r, at, f)]
    if stay is None or stay < start or not running:
        return None
    victim = rng.choice(running)
    edits = Edits(run.events)
    release = edits.insert(at, {"kind": "row_release", "row": victim.row, "req": victim.req})
    set_here: set[int] = set()
    for k in range(at, stay + 1):
        event = run.events[k]
        if event["kind"] in ("map", "row_release") and event["row"] == own_row:
            edits.event(k)["row"] = victim.row
            if event["kind"] == "map" and k < start:
                set_here |= set(range(event["start"], event["start"] + len(event["slots"])))
        elif event["kind"] == "forward" and taker.req in event["reqs"]:
            rows = edits.event(k)["req_pool_indices"]
            rows[event["reqs"].index(taker.req)] = victim.row
    # Recorders note changed cells only: what the old row held already must be set anew, too.
    cells = run.cells(own_row, start)
    whole = [cells.get(p, 0) for p in range(taker.prefix + taker.count)]
    if min(whole, default=0) <= 0:
        return None
    for position in sorted(set(range(len(whole))) - set_here):
        moved = {"kind": "map", "row": victim.row, "start": position, "slots": [whole[position]]}
        edits.insert(run.before_forward(start), moved)
    planted = Planted(
        edits=edits,
        slots=set(whole),
        causes=[release, at],
        culprits={taker.req},
        subtypes={"row_recycled_in_flight"},
        note=f"row {victim.row} of {victim.req}, still running, is given to {taker.req}",
    )
    suspects = set(run.cells(victim.row, stay).values()) | set(run.cells(own_row, stay).values())
    suspects |= set(whole)
    if not watch(run, planted, suspects - {0}):
        return None
    # Behind the end of the victim others get the row in their turn, and are to blame for theirs.
    gone = _gone(run, victim, at)
    return planted if gone is None or planted.until <= gone else None


def _gone(run: CleanRun, row: Row, at: int) -> int | None:
    """Place behind ``at`` where the request of ``row`` gives it back, or leaves; None = never."""
    return next(iter(_leavings(run, row.row, row.req, at, len(run.events))), None)


def _has(run: CleanRun, row: Row, at: int, then: int) -> bool:
    """Whether the request of ``row`` has it at place ``at``, and until forward ``then``."""
    before = (
        f
        for f in reversed(run.forwards[: bisect_left(run.forwards, at)])
        if row.row in {r.row for r in run.rows[f]}
    )
    ran = next(before, None)
    if ran is None or all(r.req != row.req for r in run.rows[ran] if r.row == row.row):
        return False
    return not _leavings(run, row.row, row.req, ran, then)


def _leavings(run: CleanRun, row: int, req: str, after: int, before: int) -> list[int]:
    """Places between two others where ``row`` was given back, or ``req`` left."""
    out = []
    for kind in ("row_release", "finish", "retract", "abort"):
        places = run.by_kind.get(kind, [])
        for k in places[bisect_right(places, after) : bisect_left(places, before)]:
            event = run.events[k]
            if (event["row"] == row) if kind == "row_release" else (event["req"] == req):
                out.append(k)
    return sorted(out)


def _stay(run: CleanRun, row: int, req: str, at: int) -> int | None:
    """Place up to which ``req`` has ``row`` from ``at`` on; None if it shares it with others."""
    end = len(run.events) - 1
    for k in run.by_kind.get("row_release", []):
        if k > at and run.events[k]["row"] == row:
            if run.events[k]["req"] != req:
                return None
            end = k
            break
    rows = [r for f in run.forwards if at < f < end for r in run.rows[f]]
    alone = all((r.row == row) == (r.req == req) for r in rows if row == r.row or req == r.req)
    return end if alone else None


KINDS = (
    FaultKind(
        "recycled_row",
        "stale_mapping",
        "a table row is given to another request while its own still runs",
        _NEEDS | {"request"},
        recycled_row,
    ),
    FaultKind(
        "swapped_cells", "stale_mapping", "two cells of a row change places", _NEEDS, swapped_cells
    ),
    FaultKind(
        "stale_cell", "stale_mapping", "a cell names a slot of another place", _NEEDS, stale_cell
    ),
)
