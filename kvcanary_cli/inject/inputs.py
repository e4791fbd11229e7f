"""Faults of what a forward is fed: positions and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.inject.edits import Edits
from kvcanary_cli.inject.planting import TRIES, FaultKind, Planted

if TYPE_CHECKING:
    import random

    from kvcanary_cli.inject.clean_run import CleanRun

_TEXT = ("DECODE", "EXTEND", "MIXED")


def _planted(run: CleanRun, edits: Edits, at: int, slots: set[int], reqs: set[str]) -> Planted:
    return Planted(
        edits=edits,
        slots=slots,
        causes=[at],
        culprits=set(reqs),
        victims=set(reqs),
        step=run.events[at]["step"],
        until=run.behind_forward(at),
    )


def _shifted(run: CleanRun, rng: random.Random, *, several: bool) -> Planted | None:
    for _ in range(TRIES):
        at = rng.choice(run.forwards)
        event = run.events[at]
        rows = [r for r in run.rows[at] if (r.count > 1) == several and r.count]
        if not rows or event["forward_mode"] not in (*_TEXT, "TARGET_VERIFY"):
            continue
        row = rng.choice(rows)
        places = range(row.first, row.first + row.count)
        if any(event["out_cache_loc"][k] <= 0 for k in places):
            continue
        by = rng.choice([1, 1, -1]) if row.prefix else 1
        limit = run.header["pool"]["row_len"]
        if max(event["positions"][k] for k in places) + by >= limit:
            continue
        edits = Edits(run.events)
        positions = edits.event(at)["positions"]
        for k in places:
            positions[k] += by
        slots = {event["out_cache_loc"][k] for k in places}
        planted = _planted(run, edits, at, slots, {row.req})
        planted.subtypes = {"constant_offset"}
        planted.note = f"positions of {row.req} are {by:+d} off"
        return planted
    return None


def shifted_position(run: CleanRun, rng: random.Random) -> Planted | None:
    return _shifted(run, rng, several=False)


def shifted_positions(run: CleanRun, rng: random.Random) -> Planted | None:
    return _shifted(run, rng, several=True)


def wrong_token(run: CleanRun, rng: random.Random) -> Planted | None:
    for _ in range(TRIES):
        at = rng.choice(run.forwards)
        event = run.events[at]
        rows = [r for r in run.rows[at] if r.count]
        if event["forward_mode"] not in _TEXT or "input_ids" not in event or not rows:
            continue
        row = rng.choice(rows)
        k = row.first + rng.randrange(row.count)
        tokens = [t for ids in run.history.values() for t in ids[:4] if t != event["input_ids"][k]]
        if event["out_cache_loc"][k] <= 0 or not tokens:
            continue
        edits = Edits(run.events)
        edits.event(at)["input_ids"][k] = token = rng.choice(tokens)
        planted = _planted(run, edits, at, {event["out_cache_loc"][k]}, {row.req})
        # The last token of a chunk may lie at a chunk's boundary: both are right then.
        ends = row.count > 1 and k == row.first + row.count - 1
        planted.subtypes = {"wrong_input_id", "chunk_boundary"} if ends else {"wrong_input_id"}
        planted.note = f"token {token} is fed to {row.req} in place of {event['input_ids'][k]}"
        return planted
    return None


def swapped_tokens(run: CleanRun, rng: random.Random) -> Planted | None:
    for _ in range(TRIES):
        at = rng.choice(run.forwards)
        event = run.events[at]
        rows = run.rows[at]
        if event["forward_mode"] != "DECODE" or "input_ids" not in event or len(rows) < 2:
            continue
        one, other = rng.sample(rows, 2)
        ids = event["input_ids"]
        if ids[one.first] == ids[other.first]:
            continue
        edits = Edits(run.events)
        changed = edits.event(at)["input_ids"]
        changed[one.first], changed[other.first] = ids[other.first], ids[one.first]
        slots = {event["out_cache_loc"][r.first] for r in (one, other)}
        planted = _planted(run, edits, at, slots, {one.req, other.req})
        planted.subtypes = {"wrong_input_id"}
        planted.note = f"sampled tokens of {one.req} and {other.req} are exchanged"
        return planted
    return None


def future_ring_wrap(run: CleanRun, rng: random.Random) -> Planted | None:
    """A request reads its ring entry after another one's token was put there."""
    for _ in range(TRIES):
        got = rng.choice(run.by_kind.get("future_get", [0]))
        event = run.events[got]
        if event["kind"] != "future_get":
            return None
        at = next((f for f in run.forwards if f > got), None)
        row = next((r for r in run.rows.get(at or -1, []) if r.req == event["req"]), None)
        if at is None or row is None or row.count != 1:
            continue
        others = [t for req, ids in run.history.items() if req != event["req"] for t in ids]
        others = [t for t in others if t != event["token"]]
        names = sorted(req for req in run.history if req != event["req"])
        if not others:
            continue
        edits = Edits(run.events)
        token, by = rng.choice(others), rng.choice(names)
        put = {"kind": "future_put", "ring": event["ring"], "req": by, "token": token}
        edits.insert(got, put)
        edits.event(got)["token"] = token
        edits.event(at)["input_ids"][row.first] = token
        slot = run.events[at]["out_cache_loc"][row.first]
        planted = _planted(run, edits, at, {slot}, {row.req})
        planted.causes, planted.culprits = [put], {by}
        planted.subtypes = {"future_ring_wrap"}
        planted.note = f"ring entry {event['ring']} of {row.req} is overwritten by {by}"
        return planted
    return None


KINDS = (
    FaultKind(
        "shifted_position",
        "position_misalign",
        "one token is fed at the position before or after its own",
        frozenset({"forward"}),
        shifted_position,
    ),
    FaultKind(
        "shifted_positions",
        "position_misalign",
        "all tokens of a row are fed one position off",
        frozenset({"forward"}),
        shifted_positions,
    ),
    FaultKind(
        "wrong_token",
        "wrong_token_fed",
        "a forward is fed a token that the request never had there",
        frozenset({"forward", "history"}),
        wrong_token,
    ),
    FaultKind(
        "swapped_tokens",
        "wrong_token_fed",
        "two requests are fed each other's sampled token",
        frozenset({"forward", "history"}),
        swapped_tokens,
    ),
    FaultKind(
        "future_ring_wrap",
        "wrong_token_fed",
        "a future ring entry is overwritten before it is read",
        frozenset({"forward", "history", "future"}),
        future_ring_wrap,
    ),
)
