"""Faults of the prefix cache, met by a request that the fault adds, and of its keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcanary_cli.inject.edits import Edits
from kvcanary_cli.inject.planting import TRIES, FaultKind, Planted, watch

if TYPE_CHECKING:
    import random

    from kvcanary_cli.inject.clean_run import CleanRun

Event = dict[str, Any]
_NEEDS = frozenset({"forward", "map", "alloc", "history", "prefix"})
_READER = "injected-reader"


def _visitor(
    run: CleanRun, edits: Edits, at: int, slots: list[int], tokens: list[int], entry: str
) -> bool:
    """A new request hits ``entry``, reads ``slots`` in one forward in front of ``at``, and leaves.

    Args:
        tokens: Its prompt, one token longer than ``slots``.
    """
    slot, row = _spare_slot(run, at), _spare_row(run, at)
    if slot is None or row is None or len(slots) + 1 > run.header["pool"]["row_len"]:
        return False
    n = len(slots)
    for event in (
        {"kind": "history", "req": _READER, "start": 0, "ids": tokens},
        {"kind": "match", "req": _READER, "entry": entry, "slots": slots},
        {"kind": "alloc", "owner": _READER, "slots": [slot]},
        {"kind": "map", "row": row, "start": 0, "slots": [*slots, slot]},
        {
            "kind": "forward",
            "step": 0,
            "forward_mode": "EXTEND",
            "reqs": [_READER],
            "req_pool_indices": [row],
            "seq_lens": [n + 1],
            "input_ids": [tokens[n]],
            "positions": [n],
            "out_cache_loc": [slot],
            "extend_prefix_lens": [n],
            "extend_seq_lens": [1],
        },
        {"kind": "free", "owner": _READER, "slots": [slot]},
        {"kind": "finish", "req": _READER},
        {"kind": "row_release", "row": row, "req": _READER},
    ):
        edits.insert(at, event)
    return True


def _spare_slot(run: CleanRun, at: int) -> int | None:
    """A slot that is free at ``at`` and holds nothing that is read later."""
    pool = run.header["pool"]
    reserved = set(pool.get("reserved", [0]))
    for slot in range(pool.get("max_slot", pool["slots"]), 0, -1):
        if slot not in reserved and run.owner(slot, at) is None:
            return slot
    return None


def _spare_row(run: CleanRun, at: int) -> int | None:
    """A table row that nobody has until the run maps it from its start."""
    for row in range(run.header["pool"]["rows"] - 1, 0, -1):
        later = [f for f in run.forwards if f >= at and any(r.row == row for r in run.rows[f])]
        if not later:
            return row
        maps = [k for k in run.maps.get(row, []) if at <= k < later[0]]
        fresh = [k for k in maps if run.events[k]["start"] == 0]
        if fresh and not any(r.row == row for r in _last_rows(run, at)):
            covered = len(run.cells(row, later[0]))
            length = max(r.prefix for r in run.rows[later[0]] if r.row == row)
            if covered >= length and len(run.events[fresh[0]]["slots"]) >= length:
                return row
    return None


def _last_rows(run: CleanRun, at: int) -> list[Any]:
    before = [f for f in run.forwards if f < at][-3:]
    return [r for f in before for r in run.rows[f]]


def premature_publish(run: CleanRun, rng: random.Random) -> Planted | None:
    """An entry becomes visible before the forward that writes its slots has run."""
    for _ in range(TRIES):
        at = rng.choice(run.forwards)
        event = run.events[at]
        rows = [r for r in run.rows[at] if r.count > 1 or r.prefix > 0]
        if event["forward_mode"] not in ("EXTEND", "MIXED", "DECODE") or not rows:
            continue
        row = rng.choice(rows)
        cells = run.cells(row.row, at)
        end = row.prefix + row.count
        tokens = run.history.get(row.req, [])
        slots = [cells.get(p, 0) for p in range(end)]
        ours = slots[row.prefix :]
        if len(tokens) <= end or min(slots, default=0) <= 0:
            continue
        if ours != event["out_cache_loc"][row.first : row.first + row.count]:
            continue
        edits = Edits(run.events)
        into = run.before_forward(at)
        entry = f"injected-{event['i']}"
        publish = edits.insert(
            into, {"kind": "publish", "entry": entry, "req": row.req, "slots": slots}
        )
        planted = Planted(
            edits=edits,
            slots=set(ours),
            causes=[publish],
            culprits={row.req},
            subtypes={"premature_publish"},
            histories={_READER: tokens[: end + 1]},
            note=f"{row.req} publishes positions {row.prefix} to {end - 1} before they are written",
        )
        if not _visitor(run, edits, into, slots, tokens[: end + 1], entry):
            continue
        edits.insert(into, {"kind": "unpublish", "entry": entry})
        if watch(run, planted):
            return planted
    return None


def phantom_hit(run: CleanRun, rng: random.Random) -> Planted | None:
    """An entry stays visible after its slots were freed and rewritten."""
    writes = [(s, k) for s, w in run.writes.items() for k in range(len(w) - 1)]
    for _ in range(TRIES if writes else 0):
        slot, k = rng.choice(writes)
        old, new = run.writes[slot][k : k + 2]
        frees = [t.end for t in run.tenancies(slot) if t.end and old.at < t.end < new.at]
        row = next((r for r in run.rows[old.at] if r.req == old.req), None)
        at = run.behind_forward(new.at)
        tokens = run.history.get(old.req, [])
        if not frees or row is None or at >= len(run.events) or len(tokens) <= old.position + 1:
            continue
        cells = run.cells(row.row, run.behind_forward(old.at))
        slots = [cells.get(p, 0) for p in range(old.position + 1)]
        if slots[-1] != slot or min(slots) <= 0 or old.req == new.req:
            continue
        if any(run.last_write(s, at) != run.last_write(s, old.at) for s in slots[:-1]):
            continue
        edits = Edits(run.events)
        entry = f"injected-{run.events[old.at]['i']}"
        shown = {"kind": "publish", "entry": entry, "req": old.req, "slots": slots}
        edits.insert(run.behind_forward(old.at), shown)
        tokens = tokens[: old.position + 2]
        planted = Planted(
            edits=edits,
            slots={slot},
            causes=[frees[0]],
            culprits={new.req},
            subtypes={"phantom_hit"},
            histories={_READER: tokens},
            note=f"an entry of {old.req} names slot {slot} after it went to {new.req}",
        )
        if not _visitor(run, edits, at, slots, tokens, entry):
            continue
        edits.insert(at, {"kind": "unpublish", "entry": entry})
        if watch(run, planted):
            return planted
    return None


def namespace_alias(run: CleanRun, rng: random.Random) -> Planted | None:
    """A request is served KV of another namespace."""
    for _ in range(TRIES):
        at = rng.choice(run.forwards)
        event = run.events[at]
        row = rng.choice(run.rows[at]) if run.rows[at] else None
        if row is None or not event.get("namespaces"):
            continue
        cells = run.cells(row.row, at)
        shared = {}
        for position in range(row.prefix):
            write = run.last_write(cells.get(position, 0), at)
            if write is not None and write.req != row.req:
                shared[cells[position]] = write
        if not shared:
            continue
        edits = Edits(run.events)
        name = f"{event['namespaces'][row.b] or 'base'}+injected"
        for f in run.forwards:
            if row.req in run.events[f]["reqs"] and run.events[f].get("namespaces"):
                edits.event(f)["namespaces"][run.events[f]["reqs"].index(row.req)] = name
        first = next(f for f in run.forwards if row.req in run.events[f]["reqs"])
        matches = [
            k
            for k in run.by_kind.get("match", [])
            if run.events[k]["req"] == row.req and k <= first
        ]
        if first != at:
            continue
        return Planted(
            edits=edits,
            slots=set(shared),
            causes=[at, *matches],
            culprits={w.req for w in shared.values()},
            subtypes={"namespace", "adapter_version"},
            victims={row.req},
            step=run.step(at),
            until=run.behind_forward(at),
            note=f"{row.req} runs under namespace {name} and reads another one's KV",
        )
    return None


KINDS = (
    FaultKind(
        "premature_publish",
        "prefix_index",
        "a prefix is matched before it is written",
        _NEEDS,
        premature_publish,
    ),
    FaultKind(
        "phantom_hit",
        "prefix_index",
        "a prefix is matched after its slots were freed",
        _NEEDS,
        phantom_hit,
    ),
    FaultKind(
        "namespace_alias",
        "key_aliasing",
        "a request is served KV of another namespace",
        frozenset({"forward", "map", "namespace"}),
        namespace_alias,
    ),
)
