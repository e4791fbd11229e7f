"""Whatever an engine does, and whatever goes wrong: what must not matter to a diagnosis does not.

``test_invariance.py`` has real runs; here engines, faults and their number are drawn.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.attribution.events import HEAD, decode, life, numbered
from tests.attribution.helpers import diagnose
from tests.inject.test_simulated import ALONE, engine_settings, planted
from tests.replay import transforms
from tests.replay.documents import disturbed, document
from tests.replay.simulator import Settings, simulate

Event = dict[str, Any]
Trace = tuple[Event, list[Event]]
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def damaged(engine: Settings, seed: int) -> Trace:
    """A run with a fault, or with events that belong to no run; perhaps recorded in part.

    Requests are called ``nm000``, ``nm001`` and so on.
    """
    rng = random.Random(seed)
    head, events = simulate(engine)
    name = rng.choice([*ALONE, "soup"])
    made = None if name == "soup" else planted(engine, name, rng.getrandbits(16))
    events = made[1] if made is not None else disturbed(rng, head, events, rng.randint(1, 12))
    part = rng.choice(["whole", "whole", "whole", "families", "tokens", "mid-run", "lost"])
    match part:
        case "families":
            left_out = rng.sample([r for r in head["records"] if r != "forward"], 2)
            head, events = transforms.drop_families(head, events, set(left_out))
        case "tokens":
            head, events = transforms.drop_tokens(head, events)
        case "mid-run":
            head, events = transforms.start_mid_run(head, events, rng.randrange(len(events) // 2))
        case "lost":
            events = transforms.lose(events, rng.randrange(len(events)), rng.randint(1, 5))
    event(f"{name if made else 'soup'}, {part}")
    names = {req: f"nm{k:03}" for k, req in enumerate(transforms.requests_of(events))}
    return head, transforms.rename_requests(events, lambda req: names[req])


def _numbered_from(first: int, events: list[Event]) -> list[Event]:
    """Gaps stay where they are."""
    return [e | {"i": e["i"] - events[0]["i"] + first} for e in events]


def _document(head: Event, events: list[Event], **options: Any) -> Event:
    out = document(head, events, **options)
    out.get("trace", {}).pop("sha256", None)
    return out


@given(engine_settings(), st.integers(0, 1 << 32))
@settings(max_examples=15, suppress_health_check=SLOW)
def test_names_of_requests_and_numbers_of_events(engine: Settings, seed: int) -> None:
    """Whole documents are the same, texts included."""
    head, events = damaged(engine, seed)
    events = _numbered_from(10_000_000, events)
    told = json.dumps(_document(head, events))

    names = transforms.requests_of(events)
    other = dict(zip(names, random.Random(seed).sample(names, len(names)), strict=True))
    renamed = transforms.rename_requests(events, lambda name: other[name])
    expected = re.sub(r"nm\d{3}", lambda name: other.get(name[0], name[0]), told)
    assert _document(head, renamed) == json.loads(expected)

    later = _numbered_from(20_000_000, events)
    # Hashes are hexadecimal.
    expected = re.sub(r"(?<![\da-fA-Fx.])1(\d{7})(?![\da-fA-F])", r"2\1", told)
    assert _document(head, later) == json.loads(expected)


def _told(told: Event, slot: dict[int, int], row: dict[int, int]) -> Event:
    """What a document says in fields; lists by slot are sorted, texts and hashes left out."""

    def slots(values: list[int], pool_kind: str = "FULL") -> list[int]:
        return sorted(slot.get(s, s) if pool_kind == "FULL" else s for s in values)

    if "error" in told:
        return {"error": re.sub(r"\d+", "N", told["error"])}
    findings = [
        {name: f[name] for name in _OF_FINDING if name in f}
        | {
            "culprit": {k: row.get(v, v) if k == "req_table_row" else v for k, v in _culprit(f)},
            "slots": slots(f["slots"], f["pool_kind"]),
            "seam_slots": slots(f["seam_slots"], f["pool_kind"]),
            "ruled_out": [other["class"] for other in f["ruled_out"]],
        }
        for f in told["findings"]
    ]
    broken = [o | {"slots": slots(o["slots"])} for o in told["ownership"]]
    wrong = [
        {name: v[name] for name in _OF_VIOLATION}
        | {"slot": slots([v["slot"]], v["pool_kind"]), "row": row.get(v["row"], v["row"])}
        for v in told["violations"]
    ]
    return {
        "findings": findings,
        "ownership": sorted(broken, key=str),
        "violations": sorted(wrong, key=str),
        "coverage": told["coverage"],
        "verdict": told["verdict"],
    }


_OF_FINDING = (
    "id", "class", "subtype", "worker", "pool_kind", "first_bad_step", "cause_event",
    "cause_window", "corrupting_event", "victim", "confidence", "blast_radius", "violations",
    "lost_within", "unseen",
)  # fmt: skip
_OF_VIOLATION = (
    "step", "event", "worker", "pool_kind", "launch_tags", "check", "position",
    "expected_position", "req", "stored_token", "expected_token", "fail_reasons", "role",
)  # fmt: skip


def _culprit(finding: Event) -> list[tuple[str, Any]]:
    return list(finding["culprit"].items())


@given(engine_settings(), st.integers(0, 1 << 32))
@settings(max_examples=15, suppress_health_check=SLOW)
def test_numbers_of_slots_and_rows(engine: Settings, seed: int) -> None:
    head, events = damaged(engine, seed)
    rng = random.Random(seed)
    told = _document(head, events)

    page, top = engine.page_size, head["pool"]["max_slot"]
    starts = range(page, top - page + 2, page)
    slot = {
        a + k: b + k
        for a, b in zip(starts, rng.sample(starts, len(starts)), strict=True)
        for k in range(page)
    }
    moved = transforms.permute_slots(events, lambda s: slot.get(s, s))
    assert _told(_document(head, moved), {}, {}) == _told(told, slot, {})

    rows = range(1, engine.rows)
    row = dict(zip(rows, rng.sample(rows, len(rows)), strict=True))
    moved = transforms.permute_rows(events, lambda r: row.get(r, r))
    assert _told(_document(head, moved), {}, {}) == _told(told, {}, row)


@pytest.mark.parametrize("slots", list(itertools.permutations([4, 5, 6])))
def test_causes_of_one_read_are_told_in_the_order_of_their_events(slots: tuple[int, ...]) -> None:
    """Three cells are led to another's slots, one after the other, and read by one forward."""
    events = [
        *life("A", [11, 12, 13, 14], [1, 2, 3, 7], row=1, step=1),
        *life("B", [11, 12, 13], list(slots), row=2, step=2),
        *({"kind": "map", "row": 1, "start": k, "slots": [slot]} for k, slot in enumerate(slots)),
        *decode("A", 15, 8, row=1, position=4, step=3),
    ]
    events = numbered(events)
    cells = [e["i"] for e in events if e["kind"] == "map"][-4:-1]
    findings = diagnose(HEAD, events).findings
    assert [(f.cause_event, f.slots) for f in findings] == [
        (cell, {slot}) for cell, slot in zip(cells, slots, strict=True)
    ]
