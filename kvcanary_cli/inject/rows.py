"""Faults of the request table: the data is healthy, the cells that lead to it are not."""

from __future__ import annotations

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
    if first["start"] != 0:
        return None
    later = [f for f in run.forwards if f > at][:12]
    tenants = {r.req for f in later for r in run.rows[f] if r.row == own_row}
    running = [
        r for f in later for r in run.rows[f] if r.row != own_row and _ran_before(run, r, at)
    ]
    if len(tenants) != 1 or not running:
        return None
    taker, victim = tenants.pop(), rng.choice(running)
    edits = Edits(run.events)
    release = edits.insert(at, {"kind": "row_release", "row": victim.row, "req": victim.req})
    end = _leaves(run, own_row, taker, at)
    for k in range(at, end + 1):
        event = run.events[k]
        if event["kind"] in ("map", "row_release") and event["row"] == own_row:
            edits.event(k)["row"] = victim.row
        elif event["kind"] == "forward" and taker in event["reqs"]:
            rows = edits.event(k)["req_pool_indices"]
            rows[event["reqs"].index(taker)] = victim.row
    # Recorders note changed cells only: what the old row held already must move, too.
    start = next(f for f in later if any(r.req == taker for r in run.rows[f]))
    if end < start:
        # It left the row again before it ran in it.
        return None
    cells = run.cells(own_row, start)
    length = max(r.prefix + r.count for r in run.rows[start] if r.req == taker)
    whole = [cells.get(p, 0) for p in range(length)]
    if min(whole, default=0) <= 0:
        return None
    edits.event(at)["slots"] = whole
    planted = Planted(
        edits=edits,
        slots=set(whole),
        causes=[release, at],
        culprits={taker},
        subtypes={"row_recycled_in_flight"},
        note=f"row {victim.row} of {victim.req}, still running, is given to {taker}",
    )
    suspects = set(run.cells(victim.row, end).values()) | set(run.cells(own_row, end).values())
    suspects |= set(whole)
    return planted if watch(run, planted, suspects - {0}) else None


def _ran_before(run: CleanRun, row: Row, at: int) -> bool:
    for forward in reversed(run.forwards):
        if forward < at:
            return any(r.req == row.req and r.row == row.row for r in run.rows[forward])
    return False


def _leaves(run: CleanRun, row: int, req: str, at: int) -> int:
    """Place of the release of ``row`` by ``req`` behind ``at``, or the end."""
    for k in run.by_kind.get("row_release", []):
        if k > at and run.events[k]["row"] == row and run.events[k]["req"] == req:
            return k
    return len(run.events) - 1


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
