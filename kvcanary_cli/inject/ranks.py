"""A second rank that decides otherwise: a request hits a shorter prefix there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.inject.clean_run import is_target_forward
from kvcanary_cli.inject.edits import Edits
from kvcanary_cli.inject.planting import TRIES, FaultKind, Planted

if TYPE_CHECKING:
    import random

    from kvcanary_cli.inject.clean_run import CleanRun


def divergent_rank(run: CleanRun, rng: random.Random) -> Planted | None:
    extends = [f for f in run.forwards if run.events[f]["forward_mode"] in ("EXTEND", "MIXED")]
    for _ in range(TRIES if extends else 0):
        at = rng.choice(extends)
        event = run.events[at]
        rows = [r for r in run.rows[at] if r.prefix > 1 and r.count]
        if not rows:
            continue
        row = rng.choice(rows)
        tokens = run.history.get(row.req, [])
        end = run.ends.get(row.req)
        slot = _unused(run, at, end)
        if _has_draft(run, row.req):
            # Its draft worker would read, on this rank alone, what only the target wrote.
            continue
        if slot is None or len(tokens) <= row.prefix or "input_ids" not in event:
            continue
        edits = Edits(run.events)
        into = run.before_forward(at)
        position = row.prefix - 1
        alloc = edits.insert(into, {"kind": "alloc", "owner": row.req, "slots": [slot]})
        edits.insert(into, {"kind": "map", "row": row.row, "start": position, "slots": [slot]})
        changed = edits.event(at)
        changed["extend_prefix_lens"][row.b] -= 1
        changed["extend_seq_lens"][row.b] += 1
        for name, value in (
            ("input_ids", tokens[position]),
            ("positions", position),
            ("out_cache_loc", slot),
        ):
            changed[name].insert(row.first, value)
        if end is not None:
            edits.insert(end, {"kind": "free", "owner": row.req, "slots": [slot]})
            # Recorders note changed cells only: the next tenant may count on the old one.
            clean = run.cells(row.row, at)[position]
            if run.cells(row.row, end).get(position) == clean:
                back = {"kind": "map", "row": row.row, "start": position, "slots": [clean]}
                edits.insert(end + 1, back)
        return Planted(
            edits=edits,
            slots=set(),
            causes=[alloc],
            subtypes={"prefix_len"},
            victims={row.req},
            step=event["step"],
            until=run.behind_forward(at),
            note=f"{row.req} hits {position} positions on this rank, {row.prefix} on the other",
        )
    return None


def _has_draft(run: CleanRun, req: str) -> bool:
    """Whether a draft worker runs for the request, too."""
    return any(
        req in run.events[k]["reqs"]
        for k in run.by_kind["forward"]
        if not is_target_forward(run.events[k])
    )


def _unused(run: CleanRun, at: int, end: int | None) -> int | None:
    """A slot that nobody owns or gets from ``at`` to ``end``."""
    pool = run.header["pool"]
    reserved = set(pool.get("reserved", [0]))
    stop = len(run.events) if end is None else end
    for slot in range(pool.get("max_slot", pool["slots"]), 0, -1):
        busy = any(t.start < stop and (t.end is None or t.end > at) for t in run.tenancies(slot))
        if slot not in reserved and not busy and run.owner(slot, at) is None:
            return slot
    return None


KINDS = (
    FaultKind(
        "divergent_rank",
        "rank_divergence",
        "a second rank hits a shorter prefix for one request",
        frozenset({"forward", "map", "alloc", "history"}),
        divergent_rank,
        several_ranks=True,
    ),
)
