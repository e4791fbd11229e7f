"""A replay as the whole document that a user gets, and events to disturb a run with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kvcanary_cli.attribution.diagnose import diagnose_trace
from kvcanary_cli.attribution.report import Report
from kvcanary_cli.errors import InputError
from kvcanary_cli.replay.options import ReplayOptions, Verify
from kvcanary_cli.report.replay_json import json_parts
from tests.replay.helpers import UNCHECKED, MemoryReader, numbered

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

Event = dict[str, Any]


def document(
    head: Event, events: Sequence[Event], *, segment_events: int | None = None, **options: Any
) -> dict[str, Any]:
    """What ``kvcanary replay --format json`` says, or the error that it ends with."""
    options.setdefault("backend", "cpu")
    reader = MemoryReader(head, events, segment_events)
    try:
        diagnosis = diagnose_trace(reader, ReplayOptions(**options), UNCHECKED, ranks=False)
    except InputError as error:
        return {"error": error.message}
    out: dict[str, Any] = json.loads("".join(json_parts(Report.of([diagnosis]))))
    return out


def assert_incremental_is_full(head: Event, events: Sequence[Event], **options: Any) -> None:
    """Both ways to verify say the same, word for word."""
    full = document(head, events, verify=Verify.FULL, **options)
    incremental = document(head, events, verify=Verify.INCREMENTAL, **options)
    for name, value in full.items():
        assert incremental.get(name) == value, name
    assert incremental == full


# Soups.


def disturbed(rng: random.Random, head: Event, events: Sequence[Event], count: int) -> list[Event]:
    """The events with ``count`` random ones put in, told twice, or taken out.

    What comes out is no run of any engine; it only keeps within the pool.
    """
    out = [dict(event) for event in events]
    for _ in range(count):
        at = rng.randrange(len(out) + 1)
        roll = rng.random()
        if roll < 0.1 and at < len(out) and out[at]["kind"] != "forward":
            del out[at]
        elif roll < 0.2 and at < len(out) and out[at]["kind"] in ("map", "history", "kv_hash"):
            out.insert(min(len(out), at + rng.randrange(9)), dict(out[at]))
        else:
            out[at:at] = _random_event(rng, head, out)
    return numbered(out)


def _random_event(rng: random.Random, head: Event, events: Sequence[Event]) -> list[Event]:
    pool = head["pool"]
    top = pool.get("max_slot", pool["slots"])
    names = sorted(
        {event["req"] for event in events if event["kind"] == "history"} | {"stranger", "tree"}
    )

    def slots(most: int = 4) -> list[int]:
        return [rng.randint(1, top) for _ in range(rng.randint(1, most))]

    kind = rng.choice(_KINDS)
    owner, other = rng.choice(names), rng.choice(names)
    match kind:
        case "map":
            cells = slots(3)
            start = rng.randrange(min(12, pool["row_len"]) - len(cells))
            row = rng.randrange(1, pool["rows"])
            return [{"kind": "map", "row": row, "start": start, "slots": cells}]
        case "history":
            ids = [rng.randint(95, 115) for _ in range(rng.randint(1, 4))]
            return [{"kind": "history", "req": owner, "start": rng.randrange(10), "ids": ids}]
        case "copy":
            dst = slots()
            src: Any = [rng.randint(1, top) for _ in dst]
            if rng.random() < 0.3 and owner != "tree":
                src = {"req": owner, "pos": [rng.randrange(8) for _ in dst]}
            event = {"kind": "copy", "src": src, "dst": dst, "canary": rng.random() < 0.7}
            return [event | ({"by": other} if rng.random() < 0.5 else {})]
        case "kv_hash":
            named = slots()
            hashes = [rng.randint(0, 1 << 62) for _ in named]
            step = next((e["step"] for e in reversed(events) if e["kind"] == "forward"), 0)
            phase = rng.choice(["before", "after", "sweep"])
            return [
                {"kind": "kv_hash", "phase": phase, "step": step, "slots": named, "hash": hashes}
            ]
        case "alloc" | "free":
            return [{"kind": kind, "owner": owner, "slots": list(dict.fromkeys(slots()))}]
        case "own":
            event = {"kind": "own", "from": other, "owner": owner, "slots": slots()}
            return [event | ({"entry": rng.choice(_ENTRIES)} if rng.random() < 0.4 else {})]
        case "fork":
            return [{"kind": "fork", "parent": owner, "child": other, "shared": slots()}]
        case "publish":
            event = {"kind": "publish", "entry": rng.choice(_ENTRIES), "slots": slots()}
            return [event | ({"req": owner} if rng.random() < 0.7 else {})]
        case "unpublish":
            return [{"kind": "unpublish", "entry": rng.choice(_ENTRIES)}]
        case "match":
            entry = rng.choice(_ENTRIES)
            return [{"kind": "match", "req": owner, "entry": entry, "slots": slots()}]
        case "again":
            return _again(rng, events)
        case "lut" if pool.get("swa_slots"):
            full = slots()
            return [
                {
                    "kind": "lut",
                    "full": full,
                    "swa": [rng.randint(0, pool["swa_slots"]) for _ in full],
                }
            ]
        case "end":
            end = rng.choice(["finish", "abort", "retract"])
            return [{"kind": end, "req": owner}]
    return [{"kind": "row_release", "row": rng.randrange(1, pool["rows"]), "req": owner}]


def _again(rng: random.Random, events: Sequence[Event]) -> list[Event]:
    """Slots that some event named are given, taken or freed once more, by the same or another."""
    told = [event for event in events if event["kind"] in ("alloc", "free", "own")]
    if not told:
        return []
    event = rng.choice(told)
    names = [event.get("from", event["owner"]), rng.choice(told)["owner"]]
    kind, owner = rng.choice(["alloc", "free", "free", "own", "own"]), rng.choice(names)
    if kind == "own":
        return [{"kind": kind, "from": rng.choice(names), "owner": owner, "slots": event["slots"]}]
    return [{"kind": kind, "owner": owner, "slots": event["slots"]}]


_ENTRIES = ("soup", "any", "e1", "e2")
_KINDS = (
    "map", "map", "history", "history", "copy", "kv_hash", "alloc", "free", "own", "fork",
    "publish", "unpublish", "match", "again", "again", "lut", "end", "row_release",
)  # fmt: skip
