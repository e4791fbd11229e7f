"""Bytes and their side data that change without a writer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcanary_cli.inject.edits import Edits
from kvcanary_cli.inject.planting import TRIES, FaultKind, Planted

if TYPE_CHECKING:
    import random

    from kvcanary_cli.inject.clean_run import CleanRun

_NEEDS = frozenset({"forward", "map", "kv_hash"})


def _flipped(run: CleanRun, rng: random.Random, at: int, pool: str, slot: int, old: int) -> Planted:
    """Bytes of ``slot`` change in front of place ``at``, where they are fingerprinted."""
    edits = Edits(run.events)
    edits.event(at)
    return Planted(
        edits=edits,
        slots={slot},
        causes=[],
        subtypes={"kv_bytes"},
        bytes=[(at, pool, "k", slot, old ^ 1 << rng.randrange(62))],
        note=f"bytes of {pool} slot {slot} change in front of event {run.events[at]['i']}",
    )


def _prints(run: CleanRun, phase: str) -> list[int]:
    return [
        k
        for k in run.by_kind.get("kv_hash", [])
        if run.events[k]["phase"] == phase
        and run.events[k].get("pool", "full") in ("full", "swa")
        and run.events[k].get("half", "k") == "k"
        and run.events[k]["slots"]
    ]


def flipped_kv_bytes(run: CleanRun, rng: random.Random) -> Planted | None:
    """Bytes change right before a forward that reads them."""
    prints = _prints(run, "before")
    for _ in range(TRIES if prints else 0):
        at = rng.choice(prints)
        event = run.events[at]
        k = rng.randrange(len(event["slots"]))
        forward = next(f for f in run.by_kind["forward"] if f > at)
        pool = event.get("pool", "full")
        if forward not in run.rows:
            continue
        readers = _readers(run, forward, pool).get(event["slots"][k])
        if not readers or not _was_printed(run, at, event["hash"][k]):
            continue
        planted = _flipped(run, rng, at, pool, event["slots"][k], event["hash"][k])
        planted.victims, planted.step = set(readers), run.step(forward)
        planted.until = run.behind_forward(forward)
        return planted
    return None


def _was_printed(run: CleanRun, at: int, value: int) -> bool:
    """Whether these bytes were fingerprinted behind a write; else nothing says how they were."""
    return any(value in run.events[k]["hash"] for k in _prints(run, "after") if k < at)


def _readers(run: CleanRun, forward: int, pool: str) -> dict[int, list[str]]:
    """Slot to the requests that read it in a forward; SWA slots only within the window."""
    out: dict[int, list[str]] = {}
    window = run.header["pool"].get("swa_window", 0)
    for row in run.rows[forward]:
        cells = run.cells(row.row, forward)
        first = 0 if pool == "full" else max(0, row.prefix - window)
        for position in range(first, row.prefix):
            slot = cells.get(position, 0)
            slot = run.swa_slot(slot, forward) if pool == "swa" else slot
            if slot:
                out.setdefault(slot, []).append(row.req)
    return out


def flipped_after_write(run: CleanRun, rng: random.Random) -> Planted | None:
    """Bytes of a just written slot change; its next reader meets them."""
    prints = _prints(run, "after")
    for _ in range(TRIES if prints else 0):
        at = rng.choice(prints)
        event = run.events[at]
        if event.get("pool", "full") != "full":
            continue
        k = rng.randrange(len(event["slots"]))
        slot = event["slots"][k]
        rewrite = run.next_write(slot, at)
        reads = run.reads_between(slot, at, None if rewrite is None else rewrite.at)
        if not reads:
            continue
        first = reads[0].at
        shown = next((p for p in _prints(run, "before") if at < p < first), None)
        into = run.before_forward(first)
        if shown is None or slot not in run.events[into].get("slots", ()):
            continue
        planted = _flipped(run, rng, into, "full", slot, event["hash"][k])
        behind = run.behind_forward(next(f for f in reversed(run.forwards) if f < at))
        planted.edits.changed.clear()
        planted.edits.event(behind)
        planted.bytes = [(behind, *planted.bytes[0][1:])]
        planted.victims = {run.row_of(r.at, r.b).req for r in reads if r.at == first}
        planted.step, planted.until = run.step(first), run.behind_forward(first)
        return planted
    return None


def flipped_cached_bytes(run: CleanRun, rng: random.Random) -> Planted | None:
    """Bytes of a slot that only the prefix cache holds change; a sweep meets them."""
    prints = _prints(run, "sweep")
    for _ in range(TRIES if prints else 0):
        at = rng.choice(prints)
        event = run.events[at]
        if event.get("pool", "full") != "full":
            continue
        k = rng.randrange(len(event["slots"]))
        slot = event["slots"][k]
        if run.owner(slot, at) != "tree" or not _is_published(run, slot, at):
            continue
        if not _was_printed(run, at, event["hash"][k]):
            continue
        planted = _flipped(run, rng, at, "full", slot, event["hash"][k])
        planted.step, planted.until = event["step"], min(at + 2, len(run.events))
        return planted
    return None


def _is_published(run: CleanRun, slot: int, at: int) -> bool:
    shown: dict[str, bool] = {}
    for event in run.events[:at]:
        if event["kind"] == "publish":
            shown[event["entry"]] = slot in event.get("slots", ())
        elif event["kind"] == "unpublish":
            shown.pop(event["entry"], None)
    return any(shown.values())


def sidecar_scale(run: CleanRun, rng: random.Random) -> Planted | None:
    """Scales beside a slot's KV change while the KV bytes stay."""
    seen: dict[tuple[str, int], int] = {}
    choices: list[tuple[int, int]] = []
    for at in run.by_kind.get("sidecar_hash", []):
        event = run.events[at]
        for k, (slot, value) in enumerate(zip(event["slots"], event["hash"], strict=True)):
            if event["phase"] == "after":
                seen[event["name"], slot] = value
            elif seen.get((event["name"], slot)) == value:
                choices.append((at, k))
    if not choices:
        return None
    at, k = rng.choice(choices)
    edits = Edits(run.events)
    changed: dict[str, Any] = edits.event(at)
    changed["hash"][k] ^= 1 << rng.randrange(62)
    write = run.last_write(changed["slots"][k], at)
    return Planted(
        edits=edits,
        slots={changed["slots"][k]},
        causes=[],
        subtypes={"sidecar_scale"},
        victims={write.req} if write is not None else set(),
        step=changed["step"],
        until=min(at + 1, len(run.events)),
        note=f"{changed['name']} of slot {changed['slots'][k]} changes",
    )


KINDS = (
    FaultKind(
        "flipped_kv_bytes",
        "payload_mutation",
        "KV bytes change before a forward reads them",
        _NEEDS,
        flipped_kv_bytes,
    ),
    FaultKind(
        "flipped_after_write",
        "payload_mutation",
        "KV bytes change right after they were written",
        _NEEDS,
        flipped_after_write,
    ),
    FaultKind(
        "flipped_cached_bytes",
        "payload_mutation",
        "KV bytes of a cached slot change before a sweep",
        _NEEDS | {"prefix", "alloc"},
        flipped_cached_bytes,
    ),
    FaultKind(
        "sidecar_scale",
        "payload_mutation",
        "scales change beside healthy KV bytes",
        frozenset({"forward", "sidecar_hash"}),
        sidecar_scale,
    ),
)
