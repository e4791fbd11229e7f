"""State as events: what stands at the head of a cut so that its first step finds what it needs.

The order is part of the meaning. Canary rows of slots that were not written since their ``alloc``
stand before it, the others behind it; what is freed is freed last; bytes that changed since they
were last checked come at the very end, as the fingerprints of the first step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.attribution.ledger import NEVER
from kvcanary_cli.cut.rows import changed_bytes, lane_rows, tier_bytes, tier_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kvcanary_cli.cut.requests import Selection
    from kvcanary_cli.cut.state import StateReplay

    Event = dict[str, Any]
    Ints = NDArray[np.int64]

#: Values that one event may hold: far below a line's limit, and little to hold at once.
MAX_VALUES = 200_000


def state_events(replay: StateReplay, selection: Selection | None) -> Iterator[Event]:
    """The events, without their ``i``, that make the state of ``replay``.

    Args:
        replay: State up to the cut, flushed.
        selection: What is kept of it, None = everything.
    """
    yield from replay.adapters.values()
    yield from _maps(replay, selection)
    yield from _lut(replay)
    yield from _histories(replay, selection)
    yield from lane_rows(replay, selection, written_since=False)
    yield from tier_rows(replay)
    yield from _owners(replay, free_only=False)
    yield from lane_rows(replay, selection, written_since=True)
    yield from _owners(replay, free_only=True)
    if selection is None:
        yield from _entries(replay)
    yield from _pending(replay, selection)
    yield from _ends(replay, selection)
    yield from _sidecars(replay)
    yield from tier_bytes(replay)
    yield from changed_bytes(replay, selection)


def parts(values: Ints, width: int = 1) -> Iterator[Ints]:
    """``values`` in pieces, for events that hold ``width`` values for each of them."""
    size = MAX_VALUES // width
    for start in range(0, len(values), size):
        yield values[start : start + size]


def _maps(replay: StateReplay, selection: Selection | None) -> Iterator[Event]:
    table = replay.pool.table
    readers: dict[int, list[str]] = {}
    for req, row in replay.readers_of_rows().items():
        if selection is None or req in selection.reqs:
            readers.setdefault(row, []).append(req)
    used = set(np.flatnonzero(table.any(axis=1)).tolist())
    rows = used | readers.keys()
    if selection is not None:
        rows &= selection.rows
    for row in sorted(rows):
        cells = np.flatnonzero(table[row])
        slots = table[row, : int(cells[-1]) + 1 if len(cells) else 0].astype(np.int64)
        reqs = readers.get(row, [])
        for req in reqs[:-1]:
            yield {"kind": "map", "row": row, "start": 0, "slots": [], "req": req}
        named = {"req": reqs[-1]} if reqs else {}
        if not len(slots):
            yield {"kind": "map", "row": row, "start": 0, "slots": []} | named
        start = 0
        at = replay.past.mapped(row, len(slots))
        for part in parts(slots, 2):
            stop = start + len(part)
            mapped: Event = {"kind": "map", "row": row, "start": start, "slots": part}
            yield mapped | named | {"at": at[start:stop]}
            start = stop


def _lut(replay: StateReplay) -> Iterator[Event]:
    lut = replay.pool.lut
    if lut is None:
        return
    # The last cell is the engine's own -1.
    for full in parts(np.flatnonzero(lut[:-1]), 2):
        yield {"kind": "lut", "full": full, "swa": lut[full]}


def _histories(replay: StateReplay, selection: Selection | None) -> Iterator[Event]:
    histories = replay.pool.histories
    if histories is None:
        return
    for req in histories.requests():
        if selection is not None and req not in selection.reqs:
            continue
        ids = histories.tokens(req)
        known = ids != -1
        edges = np.flatnonzero(np.diff(known, prepend=False, append=False)).tolist()
        positions, prints = histories.known_kv(req)
        runs = [
            (start + k * MAX_VALUES, part)
            for start, stop in zip(edges[::2], edges[1::2], strict=True)
            for k, part in enumerate(parts(ids[start:stop]))
        ]
        if not runs and not len(positions):
            runs = [(0, ids[:0])]
        for start, part in runs:
            yield {"kind": "history", "req": req, "start": start, "ids": part}
        at = 0
        for part in parts(positions, 2):
            kv = {"kv_pos": part, "kv": prints[at : at + len(part)]}
            at += len(part)
            yield {"kind": "history", "req": req, "start": 0, "ids": []} | kv


def _owners(replay: StateReplay, *, free_only: bool) -> Iterator[Event]:
    owners = replay.owners
    wanted = (owners.owner >= 0) & (owners.free if free_only else True)
    slots = np.flatnonzero(wanted)
    order = np.argsort(owners.owner[slots], kind="stable")
    slots = slots[order]
    codes = owners.owner[slots]
    for code in np.unique(codes).tolist():
        first, last = np.searchsorted(codes, [code, code + 1]).tolist()
        mine, name = slots[first:last], owners.names[code]
        for part in () if free_only else parts(mine, 2):
            event: Event = {"kind": "alloc", "owner": name, "slots": part}
            shared = replay.past.shared(part)
            seen = {"shared": shared} if len(shared) else {}
            yield event | _at(replay.past.allocated(part)) | seen
        if free_only:
            at, reasons = replay.past.freed(mine)
            for reason in sorted(set(reasons)):
                because = {"reason": reason} if reason else {}
                for picked in parts(np.flatnonzero([r == reason for r in reasons]), 2):
                    event = {"kind": "free", "owner": name, "slots": mine[picked]}
                    yield event | because | _at(at[picked])


def _at(events: Ints) -> Event:
    """The field ``at``, where all events are known."""
    return {"at": events} if (events != NEVER).all() else {}


def _entries(replay: StateReplay) -> Iterator[Event]:
    prefixes = replay.pool.prefixes
    for entry, places in prefixes.visible().items():
        event: Event = {
            "kind": "publish",
            "entry": entry,
            **replay.entries.get(entry, {}),
            "slots": places.slots,
            "start": int(places.positions[0]),
            "prev_slot": int(places.prev_slots[0]),
        }
        gone = prefixes.gone(entry)
        yield event | ({"gone": gone} if len(gone) else {})


def _pending(replay: StateReplay, selection: Selection | None) -> Iterator[Event]:
    """Work that was begun and has its effect in the cut, and what was accepted last."""
    groups = (
        replay.launches,
        replay.transfers.values(),
        replay.futures.values(),
        replay.accepts.values(),
    )
    for events in groups:
        for event in events:
            if selection is None or selection.keeps(event.get("req")):
                yield event


def _ends(replay: StateReplay, selection: Selection | None) -> Iterator[Event]:
    histories = replay.pool.histories
    if histories is None:
        return
    for req in histories.ended():
        if selection is None or req in selection.reqs:
            yield {"kind": replay.ends[req], "req": req}


def _sidecars(replay: StateReplay) -> Iterator[Event]:
    for name, pool, values, known in replay.past.sidecars.known():
        for slots in parts(known, 2):
            event: Event = {
                "kind": "sidecar_hash",
                "phase": "after",
                "step": replay.first - 1,
                "slots": slots,
                "hash": values[slots],
                "name": name,
            }
            yield event | ({} if pool == "full" else {"pool": pool})
