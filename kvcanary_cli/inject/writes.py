"""Writes that land late, come from padding rows, or never happen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.inject.edits import Edits
from kvcanary_cli.inject.planting import TRIES, FaultKind, Planted, watch

if TYPE_CHECKING:
    import random

    from kvcanary_cli.inject.clean_run import CleanRun, Row, Write


def print_of(run: CleanRun, write: Write, slot: int, pool: str, half: str = "k") -> int | None:
    """Fingerprint taken after ``write`` of ``slot``."""
    for at in range(write.at + 1, run.behind_forward(write.at)):
        event = run.events[at]
        if event["kind"] != "kv_hash" or event.get("pool", "full") != pool:
            continue
        if event.get("half", "k") == half and slot in event["slots"]:
            return int(event["hash"][event["slots"].index(slot)])
    return None


def rewritten(run: CleanRun, rng: random.Random) -> tuple[int, Write, Write] | None:
    """A slot, a write of it and the next one by another request, with a read behind that."""
    slots = [s for s, w in run.writes.items() if len(w) > 1]
    if not slots:
        return None
    slot = rng.choice(slots)
    writes = run.writes[slot]
    k = rng.randrange(len(writes) - 1)
    old, new = writes[k], writes[k + 1]
    until = writes[k + 2].at if k + 2 < len(writes) else None
    if old.req == new.req or not run.reads_between(slot, new.at, until):
        return None
    return slot, old, new


def frees_between(run: CleanRun, slot: int, after: int, before: int) -> list[int]:
    return [t.end for t in run.tenancies(slot) if t.end is not None and after < t.end < before]


def late_write(run: CleanRun, rng: random.Random) -> Planted | None:
    for _ in range(TRIES):
        drawn = rewritten(run, rng)
        if drawn is not None:
            planted = _late(run, *drawn)
            if planted is not None:
                return planted
    return None


def _late(run: CleanRun, slot: int, old: Write, new: Write) -> Planted | None:
    frees = frees_between(run, slot, old.at, new.at)
    row = next((r for r in run.rows[old.at] if r.req == old.req), None)
    if not frees or row is None or run.events[old.at]["forward_mode"] == "TARGET_VERIFY":
        return None
    at = run.behind_forward(new.at)
    cells = run.cells(row.row, old.at)
    as_read = [cells.get(p, 0) for p in range(old.position)]
    for cell in as_read:
        last = run.last_write(cell, at)
        if cell <= 0 or (last is not None and last.at > old.at):
            return None
    clean = run.events[old.at]
    forward = {
        "kind": "forward",
        "step": 0,
        "forward_mode": "DECODE",
        "reqs": [old.req],
        "req_pool_indices": [row.row],
        "seq_lens": [old.position + 1],
        "input_ids": [clean["input_ids"][old.token] if "input_ids" in clean else 0],
        "positions": [old.position],
        "out_cache_loc": [slot],
        "row_as_read": {str(row.row): as_read},
    }
    edits = Edits(run.events)
    if "launch" in run.records:
        launch = {"kind": "launch", "step": forward["step"], "req": old.req, "slots": [slot]}
        edits.insert(frees[-1], launch)
        edits.launched.append((launch, forward))
    edits.insert(at, forward)
    planted = Planted(
        edits=edits,
        slots={slot},
        causes=[frees[-1], forward],
        culprits={old.req},
        subtypes={"overlap_forward_after_free", "write_by_non_owner"},
        note=f"position {old.position} of {old.req} lands in slot {slot} after it changed hands",
    )
    value = print_of(run, old, slot, "full")
    if value is not None and at < len(run.events):
        planted.bytes.append((at, "full", "k", slot, value))
    return planted if watch(run, planted) else None


def stale_padding_slot(run: CleanRun, rng: random.Random) -> Planted | None:
    for _ in range(TRIES):
        at = rng.choice(run.forwards)
        event = run.events[at]
        following = next((f for f in run.forwards if f > at), None)
        if event["forward_mode"] != "DECODE" or None in event["reqs"] or following is None:
            continue
        read = [(s, r) for r in run.rows[following] for s in _held(run, r, following, at)]
        if not read:
            continue
        slot, row = rng.choice(read)
        planted = _padded(run, rng, at, slot)
        planted.victims = {row.req}
        # Without fingerprints, who reads the slot in the very forward that hits it reads damage.
        at_once = "kv_hash" not in run.records and any(
            slot in _held(run, r, at, at) for r in run.rows[at]
        )
        planted.step = run.step(at if at_once else following)
        planted.until = run.behind_forward(following)
        return planted
    return None


def _held(run: CleanRun, row: Row, at: int, before: int) -> list[int]:
    """Slots that ``row`` reads at ``at``, owned and written before ``before``."""
    cells = run.cells(row.row, at)
    slots = [cells.get(p, 0) for p in range(row.prefix)]
    written = set(run.events[before]["out_cache_loc"])
    return [
        s
        for s in slots
        if s > 0 and s not in written and run.owner(s, before) and run.last_write(s, before)
    ]


def _padded(run: CleanRun, rng: random.Random, at: int, slot: int) -> Planted:
    edits = Edits(run.events)
    event = edits.event(at)
    event["raw_bs"] = event.get("raw_bs", len(event["reqs"]))
    event["reqs"].append(None)
    for name, value in (
        ("req_pool_indices", 0),
        ("seq_lens", 1),
        ("input_ids", 0),
        ("positions", 0),
        ("out_cache_loc", slot),
        ("namespaces", None),
    ):
        if name in event:
            event[name].append(value)
    behind = run.behind_forward(at)
    value = rng.getrandbits(62)
    planted = Planted(
        edits=edits,
        slots={slot},
        causes=[at],
        subtypes={"stale_padded_tail", "dummy_write"},
        note=f"a padding row writes slot {slot}",
    )
    if behind < len(run.events):
        planted.bytes.append((behind, "full", "k", slot, value))
        swa = run.swa_slot(slot, at)
        if swa:
            planted.bytes.append((behind, "swa", "k", swa, value))
    return planted


def unwritten_read(run: CleanRun, rng: random.Random) -> Planted | None:
    for _ in range(TRIES):
        slot = rng.choice(list(run.writes))
        k = rng.randrange(len(run.writes[slot]))
        write = run.writes[slot][k]
        if run.events[write.at]["forward_mode"] == "TARGET_VERIFY":
            continue
        if _published_unread(run, slot, write.at):
            # Whoever meets it then reads what was published unwritten: that fault comes first.
            continue
        edits = Edits(run.events)
        edits.event(write.at)["out_cache_loc"][write.token] = -1
        planted = Planted(
            edits=edits,
            slots={slot},
            causes=[*[t.start for t in run.tenancies(slot) if t.start < write.at][-1:]],
            subtypes={"never_written_since_alloc"},
            note=f"{write.req} does not write position {write.position} into slot {slot}",
        )
        before = run.last_write(slot, write.at)
        if before is not None:
            planted.culprits = {before.req, None}
        if "kv_hash" in run.records:
            _keep_bytes(run, planted, slot, write, before, rng)
        if watch(run, planted):
            row = next(r for r in run.rows[write.at] if r.req == write.req)
            if write.token + 1 < row.first + row.count:
                # The row's next token is linked to it within the same forward.
                planted.also_step, planted.step = planted.step, run.step(write.at)
                planted.victims.add(write.req)
            return planted
    return None


def _published_unread(run: CleanRun, slot: int, after: int) -> bool:
    """Whether ``slot`` becomes visible in the prefix index before anybody reads it."""
    reads = run.reads_between(slot, after, None)
    stop = reads[0].at if reads else len(run.events)
    return any(
        event["kind"] == "publish" or (event["kind"] == "own" and event.get("entry") is not None)
        for event in run.events[after:stop]
        if event["kind"] in ("publish", "own") and slot in (event.get("slots") or ())
    )


def _keep_bytes(
    run: CleanRun,
    planted: Planted,
    slot: int,
    write: Write,
    before: Write | None,
    rng: random.Random,
) -> None:
    """The slot keeps the bytes that it had."""
    behind = run.behind_forward(write.at)
    if behind >= len(run.events):
        return
    for pool in ("full", "swa"):
        place = slot if pool == "full" else run.swa_slot(slot, write.at)
        if not place:
            continue
        old = None if before is None else print_of(run, before, place, pool)
        value = rng.getrandbits(62) if old is None else old
        planted.bytes.append((behind, pool, "k", place, value))
    for at in range(write.at + 1, behind):
        event = run.events[at]
        place = slot if event.get("pool", "full") == "full" else run.swa_slot(slot, write.at)
        if event["kind"] == "kv_hash" and place in event["slots"]:
            kept = [k for k, s in enumerate(event["slots"]) if s != place]
            changed = planted.edits.event(at)
            for name in ("slots", "hash"):
                changed[name] = [event[name][k] for k in kept]


KINDS = (
    FaultKind(
        "late_write",
        "late_write",
        "an overrun forward lands after its slot was freed and given to another",
        frozenset({"forward", "map", "alloc"}),
        late_write,
    ),
    FaultKind(
        "stale_padding_slot",
        "pad_or_dummy_write",
        "a padding row of a batch writes a live slot",
        frozenset({"forward", "map", "alloc"}),
        stale_padding_slot,
    ),
    FaultKind(
        "unwritten_read",
        "unwritten_read",
        "a slot is read that nobody wrote since its alloc",
        frozenset({"forward", "map", "alloc"}),
        unwritten_read,
    ),
)
