"""Changes to a trace that must not change what a replay finds, or only its names."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from kvcanary_cli.trace.schema import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

Event = dict[str, Any]
Trace = tuple[Event, list[Event]]


def drop_families(head: Event, events: list[Event], families: set[str]) -> Trace:
    """The trace as a recorder without ``families`` would have written it."""
    out = [copy.copy(e) for e in events if KINDS[e["kind"]].family not in families]
    for event in out:
        if "graph" in families:
            event.pop("raw_bs", None)
    return head | {"records": [r for r in head["records"] if r not in families]}, renumber(out)


def drop_tokens(head: Event, events: list[Event]) -> Trace:
    """The trace as a recorder with ``tokens: absent`` would have written it."""
    out = []
    for event in events:
        if event["kind"] in ("history", "accept"):
            continue
        out.append({k: v for k, v in event.items() if k != "input_ids"})
    records = [r for r in head["records"] if r not in ("history", "spec")]
    return head | {"tokens": "absent", "records": records}, renumber(out)


def renumber(events: list[Event], first: int = 0) -> list[Event]:
    return [
        {"kind": event["kind"], "i": first + k}
        | {name: value for name, value in event.items() if name not in ("kind", "i")}
        for k, event in enumerate(events)
    ]


def start_mid_run(head: Event, events: list[Event], at: int) -> Trace:
    """The trace of a recorder that was switched on at event ``at``."""
    return head | {"starts_mid_run": True}, renumber(events[at:])


def lose(events: list[Event], at: int, count: int) -> list[Event]:
    """The trace of a recorder that lost ``count`` events behind the first ``at``."""
    return events[:at] + events[at + count :]


_NAMED_BY = ("req", "owner", "from", "by", "parent", "child")


def requests_of(events: list[Event]) -> list[str]:
    """Every request that an event names, in order."""
    names: dict[str, None] = {}
    for event in events:
        names |= dict.fromkeys(event[key] for key in _NAMED_BY if key in event)
        names |= dict.fromkeys(req for req in event.get("reqs", ()) if req is not None)
        if isinstance(event.get("src"), dict):
            names[event["src"]["req"]] = None
    return [name for name in names if name != "tree"]


def rename_requests(events: list[Event], name: Callable[[str], str]) -> list[Event]:
    """Every request under another name; the prefix cache keeps its own."""
    out = copy.deepcopy(events)
    for event in out:
        for key in _NAMED_BY:
            if key in event and event[key] != "tree":
                event[key] = name(event[key])
        if "reqs" in event:
            event["reqs"] = [None if req is None else name(req) for req in event["reqs"]]
        if isinstance(event.get("src"), dict):
            event["src"]["req"] = name(event["src"]["req"])
    return out


def permute_rows(events: list[Event], row: Callable[[int], int]) -> list[Event]:
    """Every table row under another number; row 0 stays."""
    out = copy.deepcopy(events)
    for event in out:
        if "row" in event:
            event["row"] = row(event["row"])
        if "req_pool_indices" in event:
            event["req_pool_indices"] = [row(r) for r in event["req_pool_indices"]]
        if "row_as_read" in event:
            event["row_as_read"] = {str(row(int(k))): v for k, v in event["row_as_read"].items()}
    return out


def permute_slots(events: list[Event], slot: Callable[[int], int]) -> list[Event]:
    """Every slot of the full and the draft pool under another number; slot 0 and -1 stay."""
    out = copy.deepcopy(events)

    def moved(values: list[int]) -> list[int]:
        return [slot(s) for s in values]

    pools = ("full", "draft")
    for event in out:
        if event["kind"] == "copy":
            for key in ("src", "dst"):
                if event.get(f"{key}_pool", "full") in pools and isinstance(event[key], list):
                    event[key] = moved(event[key])
            continue
        if event.get("pool", "full") not in pools:
            continue
        for key in ("slots", "out_cache_loc", "full"):
            if key in event:
                event[key] = moved(event[key])
        if "landed" in event and event["landed"]["pool"] in pools:
            event["landed"]["slots"] = moved(event["landed"]["slots"])
        if "row_as_read" in event:
            event["row_as_read"] = {row: moved(v) for row, v in event["row_as_read"].items()}
        if "copy_on_write" in event:
            event["copy_on_write"] = [moved(pair) for pair in event["copy_on_write"]]
        if "shared" in event:
            event["shared"] = moved(event["shared"])
    return out


def sprinkle_unknown(events: list[Event]) -> list[Event]:
    """Kinds and fields of a later version between and in the events."""
    out: list[Event] = []
    for k, event in enumerate(events):
        if k % 5 == 0:
            out.append({"kind": "x_later", "anything": {"deep": [1, None, "x"]}})
        out.append(event | ({"x_field": [k]} if k % 3 == 0 else {}))
    return renumber(out)
