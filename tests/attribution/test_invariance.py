"""What must not matter: names of requests, numbers of slots and events, the backend."""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.inject.inject import inject_faults, load_run
from kvcanary_cli.inject.kinds import KINDS
from tests.attribution.helpers import CAPTURES, diagnose
from tests.replay.transforms import permute_slots, rename_requests, renumber, requests_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcanary_cli.attribution.diagnose import Diagnosis

FAULTS = ["early_free", "double_free", "late_write", "recycled_row", "wrong_token", "stale_cell"]
Event = dict[str, Any]


@pytest.fixture(scope="module", params=FAULTS)
def corrupt(request: pytest.FixtureRequest) -> tuple[Event, list[Event], Diagnosis]:
    run = load_run(str(CAPTURES / "clean_mixed_chunk.jsonl.zst"))
    kind = KINDS[request.param]
    events, _built = inject_faults(run, kind, step=None, seed=3, count=1, name="clean")
    return run.header, events, diagnose(run.header, events)


def _same(name: str | None) -> str | None:
    return name


def _told(
    diagnosis: Diagnosis,
    name: Callable[[Any], Any] = _same,
    slot: Callable[[int], int] = lambda s: s,
    shift: int = 0,
) -> list[Any]:
    """Findings and broken rules under other names; texts may name anything and are left out."""

    def event(i: int | None) -> int | None:
        return None if i is None else i + shift

    findings = [
        (
            f.cls,
            f.subtype,
            f.first_bad_step,
            event(f.cause_event),
            event(f.corrupting_event),
            name(f.victim),
            f.positions,
            name(f.culprit.req),
            f.culprit.step,
            event(f.culprit.event),
            sorted(map(slot, f.slots)),
            sorted(map(slot, f.seam_slots)),
            f.confidence,
            sorted(str(name(r)) for r in f.blast_radius),
            f.violations,
        )
        for f in diagnosis.findings
    ]
    owned = [
        (event(o.event), o.step, o.what, name(o.owner), name(o.actor), sorted(map(slot, o.slots)))
        for o in diagnosis.ownership
    ]
    return [findings, sorted(owned, key=str)]


def test_request_names(corrupt: tuple[Event, list[Event], Diagnosis]) -> None:
    head, events, clean = corrupt
    names = requests_of(events)
    shuffled = dict(zip(names, random.Random(1).sample(names, len(names)), strict=True))
    other = diagnose(head, rename_requests(events, lambda n: shuffled[n]))
    assert _told(other) == _told(clean, name=lambda n: shuffled.get(n, n))


def test_slot_numbers(corrupt: tuple[Event, list[Event], Diagnosis]) -> None:
    head, events, clean = corrupt
    numbers = list(range(1, head["pool"]["slots"] + 1))
    moved = [0, *random.Random(2).sample(numbers, len(numbers))]

    def slot(s: int) -> int:
        return moved[s] if s > 0 else s

    permuted = permute_slots(events, slot)
    other = diagnose(head, permuted)
    assert _told(other) == _told(clean, slot=slot)


def test_event_numbers(corrupt: tuple[Event, list[Event], Diagnosis]) -> None:
    head, events, clean = corrupt
    shift = 1000 - events[0]["i"]
    assert _told(diagnose(head, renumber(events, 1000))) == _told(clean, shift=shift)


def test_backend(corrupt: tuple[Event, list[Event], Diagnosis]) -> None:
    head, events, clean = corrupt
    last = max(f.first_bad_step or 0 for f in clean.findings) + 2
    end = next(
        (k for k, e in enumerate(events) if e["kind"] == "forward" and e["step"] > last),
        len(events),
    )
    one, other = (diagnose(head, events[:end], backend) for backend in ("cpu", "reference"))
    assert _told(one) == _told(other)
    assert [dataclasses.asdict(f) for f in one.findings] == [
        dataclasses.asdict(f) for f in other.findings
    ]
