"""Faults of the full-to-SWA translation: one lane fails, the full lane is clean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.inject.edits import Edits
from kvcanary_cli.inject.planting import TRIES, FaultKind, Planted
from kvcanary_cli.inject.rows import reading_row

if TYPE_CHECKING:
    import random

    from kvcanary_cli.inject.clean_run import CleanRun

_NEEDS = frozenset({"forward", "map", "lut"})


def stale_lut(run: CleanRun, rng: random.Random) -> Planted | None:
    """The table gives another live SWA slot for a position in the window."""
    for _ in range(TRIES):
        place = reading_row(run, rng, 2)
        if place is None:
            return None
        at, row = place
        slots = _window(run, at, row.row, row.prefix)
        other = rng.choice(run.rows[at])
        theirs = _window(run, at, other.row, other.prefix)
        if not slots or not theirs:
            continue
        (full, swa), (meant, wrong) = rng.choice(slots), rng.choice(theirs)
        if swa == wrong or full in run.events[at]["out_cache_loc"]:
            continue
        edits = Edits(run.events)
        lut = edits.insert(run.before_forward(at), {"kind": "lut", "full": [full], "swa": [wrong]})
        write = run.last_write(meant, at)
        readers = {
            r.req
            for r in run.rows[at]
            if full in {f for f, _s in _window(run, at, r.row, r.prefix)}
        }
        return Planted(
            edits=edits,
            slots={wrong},
            causes=[lut],
            subtypes={"stale_lut", "stale_translation_cache"},
            culprits={None if write is None else write.req},
            victims=readers,
            step=run.step(at),
            until=run.behind_forward(at),
            note=f"the table translates full slot {full} to {wrong}, not {swa}",
        )
    return None


def _window(run: CleanRun, at: int, row: int, prefix: int) -> list[tuple[int, int]]:
    """(full slot, SWA slot) of the positions in the window of a row."""
    cells = run.cells(row, at)
    first = max(0, prefix - run.header["pool"]["swa_window"])
    pairs = [(cells.get(p, 0), run.swa_slot(cells.get(p, 0), at)) for p in range(first, prefix)]
    return [(full, swa) for full, swa in pairs if full > 0 and swa > 0]


def mislanded_write(run: CleanRun, rng: random.Random) -> Planted | None:
    """A token lands in the SWA slot of another request."""
    for _ in range(TRIES):
        at = rng.choice(run.forwards)
        event = run.events[at]
        following = next((f for f in run.forwards if f > at), None)
        rows = [r for r in run.rows[at] if r.count == 1]
        if "landed" in event or following is None or not rows:
            continue
        row = rng.choice(rows)
        victims = [r for r in run.rows[following] if r.req != row.req]
        if not victims:
            continue
        victim = rng.choice(victims)
        held = _window(run, following, victim.row, victim.prefix)
        held = [(f, s) for f, s in held if f not in event["out_cache_loc"]]
        if not held:
            continue
        full, wrong = rng.choice(held)
        if run.swa_slot(full, at) != wrong:
            continue
        edits = Edits(run.events)
        slots = [run.swa_slot(s, at) if s > 0 else s for s in event["out_cache_loc"]]
        clean = slots[row.first]
        slots[row.first] = wrong
        edits.event(at)["landed"] = {"pool": "swa", "slots": slots}
        planted = Planted(
            edits=edits,
            slots={wrong, clean},
            causes=[at, *run_lut(run, event["out_cache_loc"][row.first], at)],
            subtypes={"stale_translation_cache", "stale_lut"},
            culprits={row.req},
            victims={
                r.req
                for r in run.rows[following]
                if {wrong, clean} & {s for _f, s in _window(run, following, r.row, r.prefix)}
            },
            step=run.step(following),
            until=run.behind_forward(following),
            note=f"{row.req} writes SWA slot {wrong}, the table says {clean}",
        )
        value = rng.getrandbits(62)
        behind = run.behind_forward(at)
        planted.bytes.append((behind, "swa", "k", wrong, value))
        return planted
    return None


def run_lut(run: CleanRun, full: int, at: int) -> list[int]:
    """Place of the lut event that holds for ``full`` at ``at``."""
    changes = [place for place, _swa in run.lut.get(full, []) if place < at]
    return changes[-1:]


KINDS = (
    FaultKind(
        "stale_lut",
        "bad_translation",
        "the translation table names another live slot",
        _NEEDS,
        stale_lut,
    ),
    FaultKind(
        "mislanded_write",
        "bad_translation",
        "a write lands where the translation table does not say",
        _NEEDS,
        mislanded_write,
    ),
)
