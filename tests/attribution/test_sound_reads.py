"""Content is said to be sound when read only where it was compared: never what was skipped."""

from __future__ import annotations

import copy
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kvcanary_cli.abi.constants import PoolKind
from kvcanary_cli.attribution.diagnose import diagnose_trace
from kvcanary_cli.replay.collector import Collector
from kvcanary_cli.replay.driver import Replay
from kvcanary_cli.replay.options import ReplayOptions, Verify
from kvcanary_cli.replay.result import Capacities
from kvcanary_cli.report.finding_life import timeline
from tests.attribution.events import HEAD, decode, life, numbered
from tests.replay.documents import document
from tests.replay.faults import plant
from tests.replay.helpers import UNCHECKED, MemoryReader
from tests.replay.simulator import Settings, simulate

if TYPE_CHECKING:
    from kvcanary_cli.abi.plans import VerifyPlan, WritePlan
    from kvcanary_cli.attribution.result import Finding
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.violations import ViolationChunk
    from kvcanary_cli.replay.watcher import Reads
    from kvcanary_cli.trace.segment import Segment

Event = dict[str, Any]
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
FAULTS = ("swapped_cells", "stale_row", "wrong_token", "foreign_write", "skipped_write",
          "overwriting_copy", "changed_bytes")  # fmt: skip


def mid_run(head: Event, events: list[Event], at: int) -> tuple[Event, list[Event]]:
    """The recording began at event ``at``, while the server ran."""
    return head | {"starts_mid_run": True}, events[at:]


def gap(head: Event, events: list[Event], at: int) -> tuple[Event, list[Event]]:
    """Events before event ``at`` were lost."""
    return head, events[: at // 2] + events[at:]


def unknown_cells(head: Event, events: list[Event], at: int) -> tuple[Event, list[Event]]:
    """A copy brings slots what the trace does not tell."""
    mapped = sorted({slot for e in events[:at] if e["kind"] == "map" for slot in e["slots"]})
    unknown = [{"kind": "copy", "src": [900 + s], "dst": [s], "src_pool": "host"} for s in mapped]
    return head, renumbered([*events[:at], *unknown, *events[at:]])


def no_tokens(head: Event, events: list[Event], at: int) -> tuple[Event, list[Event]]:
    """Tokens were not recorded."""
    bare = [{k: v for k, v in event.items() if k != "input_ids"} for event in events]
    return head | {"tokens": "absent"}, bare


def as_it_is(head: Event, events: list[Event], at: int) -> tuple[Event, list[Event]]:
    return head, events


def renumbered(events: list[Event]) -> list[Event]:
    return [event | {"i": i} for i, event in enumerate(events)]


LOSSES = (mid_run, gap, unknown_cells, no_tokens, as_it_is)


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, int]]:
    """(event, slot) of all content that forwards of the target compared with anything."""
    found: set[tuple[int, int]] = set()
    after_plan = Collector.after_plan

    def watched(self: Collector, group: int, verify: VerifyPlan, write: WritePlan) -> None:
        after_plan(self, group, verify, write)
        forward = self.forward
        if forward is None or group or not verify.enable.item():
            return
        count = int(verify.verify_num_valid.item())
        for slot, token, before in zip(
            verify.verify_slot_indices[:count].tolist(),
            verify.verify_expected_tokens[:count].tolist(),
            verify.verify_prev_slot_indices[:count].tolist(),
            strict=True,
        ):
            if slot and (token != -1 or before):
                found.add((forward.event, slot))

    monkeypatch.setattr(Collector, "after_plan", watched)
    return found


def said_to_be_sound(findings: list[Finding]) -> set[tuple[int, int]]:
    return {
        (event.event, slot)
        for finding in findings
        if finding.facts is not None and finding.pool_kind == PoolKind.FULL.name
        for event in finding.facts.life
        if event.what == "verified"
        for slot in event.slots
    }


def _findings(head: Event, events: list[Event], **options: Any) -> list[Finding]:
    asked = ReplayOptions(backend="cpu", verify=Verify.FULL, **options)
    return list(diagnose_trace(MemoryReader(head, events), asked, UNCHECKED).findings)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[Event, list[Event]]:
    head, events = simulate(
        Settings(
            seed=draw(st.integers(0, 1 << 32)),
            page_size=draw(st.sampled_from([1, 2])),
            host_tier=draw(st.booleans()),
            kv_hash_every=draw(st.sampled_from([0, 0, 1, 3])),
            steps=24,
        )
    )
    planted = plant(
        draw(st.sampled_from(FAULTS)), random.Random(draw(st.integers(0, 1 << 32))), head, events
    )
    assume(planted is not None)
    assert planted is not None
    return head, planted[0]


@given(damaged(), st.sampled_from(LOSSES), st.floats(0.1, 0.6), st.booleans())
@settings(max_examples=15, suppress_health_check=SLOW)
def test_sound_reads_were_compared(
    compared: set[tuple[int, int]],
    trace: tuple[Event, list[Event]],
    loss: Any,
    where: float,
    late: bool,
) -> None:
    compared.clear()
    head, events = loss(*copy.deepcopy(trace), int(where * len(trace[1])))
    # Where only later steps are asked for, earlier ones are not clean for that.
    first = max(event.get("step", 0) for event in events) // 2 if late else None
    told = document(head, events, verify=Verify.FULL)
    wrong = {violation["event"] for violation in told["violations"]}
    said = said_to_be_sound(_findings(head, events, steps=(first, None) if late else None))
    assert said <= compared
    assert not {event for event, _slot in said} & wrong
    if head["tokens"] == "absent":
        assert not said
    assert document(head, events) == told


def test_sound_reads_are_told_where_they_are(compared: set[tuple[int, int]]) -> None:
    """So that the test above does not look at nothing."""
    said = 0
    for seed in range(12):
        head, events = simulate(Settings(seed=seed, steps=24))
        planted = plant("foreign_write", random.Random(seed), head, events)
        assert planted is not None
        for loss in (mid_run, gap, as_it_is):
            lossy = loss(head, planted[0], len(events) // 4)
            said += len(said_to_be_sound(_findings(*lossy)))
    assert said > 10


@pytest.mark.parametrize("every", [2, 3, 5])
def test_changed_bytes_lie_behind_the_last_fingerprint(every: int) -> None:
    """A read without a fingerprint in between does not say that the bytes were right."""
    windows = notes = 0
    for seed in range(30):
        head, events = simulate(Settings(seed=seed, kv_hash_every=every, steps=40))
        planted = plant("changed_bytes", random.Random(seed), head, events)
        if planted is None:
            continue
        for finding in _findings(head, planted[0]):
            if finding.subtype != "kv_bytes" or finding.cause_window is None:
                continue
            windows += 1
            (slot,) = finding.slots
            last, bad = finding.cause_window
            assert last <= _last_look(planted[0], slot, bad)
            assert finding.facts is not None
            notes += "its bytes were" in "\n".join(timeline(finding, finding.facts))
    assert windows > 5
    assert notes > 3


def _last_look(events: list[Event], slot: int, bad: int) -> int:
    """The last event before forward ``bad`` behind which the bytes of ``slot`` were as written."""
    forward, pending, last = -1, False, -1
    told = next(
        e["i"] for e in reversed(events[:bad]) if e["kind"] == "kv_hash" and slot in e["slots"]
    )
    for event in events[:told]:
        if event["kind"] == "forward":
            forward = event["i"]
            if pending or slot in event["out_cache_loc"]:
                last, pending = forward, False
        elif event["kind"] == "kv_hash" and slot in event["slots"]:
            last, pending = max(last, event["i"]), event["phase"] == "before"
        elif event["kind"] == "copy" and slot in event["dst"]:
            last = event["i"]
    return last


class _Soundness:
    """A watcher that notes of which forwards the replay says that they were checked and sound."""

    def __init__(self) -> None:
        self.replay: Replay | None = None
        self.told: dict[int, bool] = {}

    def ledger(self) -> None:
        return None

    def event(self, segment: Segment, k: int, kind: str, row: int) -> None:
        pass

    def begun(self, forward: Forward, reads: Reads, written: list[Any]) -> None:
        pass

    def finished(self, forward: Forward, found: list[ViolationChunk]) -> None:
        assert self.replay is not None
        self.told[forward.step] = self.replay.worker(forward.worker).collector.sound

    def swept(self, step: int, event: int, found: list[ViolationChunk]) -> None:
        pass

    def ended(self) -> None:
        pass


@pytest.mark.parametrize("room", range(1, 6))
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_what_an_overflow_left_unchecked_is_not_sound(room: int, backend: str) -> None:
    """Upstream's canary verifies nothing of a forward that reads more than it has room for."""
    prompt = life("A", [11, 12], [1, 2], row=1, step=1)
    steps = [decode("A", 20 + p, 1 + p, row=1, position=p, step=p) for p in range(2, 5)]
    events = [*prompt, *(event for step in steps for event in step)]
    reader = MemoryReader(HEAD, numbered(events))
    capacities = Capacities(verify=room, write_req=9, write_entry=9, source="--capacity")
    options = ReplayOptions(backend=backend, strict_upstream=True)
    watcher = _Soundness()
    watcher.replay = Replay(reader.header, options, capacities, watcher)
    for segment in reader.segments():
        watcher.replay.feed(segment)
    watcher.replay.flush()
    # A forward at step p reads p entries.
    assert watcher.told == {1: True, **{p: p <= room for p in range(2, 5)}}


@pytest.mark.parametrize("first", ["reader", "writer"])
@pytest.mark.parametrize("slot", [1, 2, 3])
def test_what_a_forward_overwrites_was_not_compared_where_it_was_not_known(
    first: str, slot: int
) -> None:
    """The recording begins behind A's prompt; B writes one of A's slots while A reads it."""
    rows = [("A", 1, 4, 14, 3, 4), ("B", 2, 3, 23, 2, slot)]
    rows = rows if first == "reader" else rows[::-1]
    names = ("reqs", "req_pool_indices", "seq_lens", "input_ids", "positions", "out_cache_loc")
    batch = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    events = numbered(
        [
            {"kind": "map", "row": 1, "start": 0, "slots": [1, 2, 3, 4]},
            {"kind": "history", "req": "A", "start": 0, "ids": [11, 12, 13, 14]},
            *life("B", [21, 22], [5, 6], row=2, step=1),
            {"kind": "history", "req": "B", "start": 2, "ids": [23]},
            {"kind": "alloc", "owner": "B", "slots": [7]},
            {"kind": "map", "row": 2, "start": 2, "slots": [7]},
            {"kind": "forward", "step": 2, "forward_mode": "DECODE", **batch},
            *decode("A", 15, 8, row=1, position=4, step=3),
        ]
    )
    findings = _findings(HEAD | {"starts_mid_run": True}, events)
    assert any(slot in finding.slots for finding in findings)
    read = next(e["i"] for e in events if e.get("step") == 2)
    assert (read, slot) not in said_to_be_sound(findings)
