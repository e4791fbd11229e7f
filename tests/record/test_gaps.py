"""Steps that were dropped: what the recorder tells behind them, and what a replay makes of it.

A clean run of a simulated engine goes through the recorder's own shadows and session; the sink
takes the events in memory and refuses chosen steps, as a full queue does.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcanary_cli.attribution.diagnose import Diagnosis, diagnose_trace
from kvcanary_cli.record import session as session_module
from kvcanary_cli.record.ledger import Ledger
from kvcanary_cli.record.options import RecordOptions
from kvcanary_cli.record.session import Session
from kvcanary_cli.record.shadows import HistoryShadow, LutShadow, TableShadow
from kvcanary_cli.replay.options import ReplayOptions
from tests.replay.helpers import UNCHECKED, MemoryReader, numbered
from tests.replay.simulator import Settings, simulate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvcanary_cli.record.sink import Group

Event = dict[str, Any]


class _Memory:
    """A sink without a disk.

    Attributes:
        taken: Events that it took.
        header: The header when it took the first.
        refuse: Whether it refuses the next group.
    """

    failure = None
    part_due = has_heard = False
    kept_rings = 0

    def __init__(
        self, _folder: Path, _name: str, header_of: Callable[[bool], Event], _options: Any
    ) -> None:
        self.taken: list[Event] = []
        self.header: Event = {}
        self.refuse = False
        self._header_of = header_of

    def offer(self, group: Group) -> bool:
        if not self.refuse:
            self.header = self.header or self._header_of(False)
            self.taken += group.events
        return not self.refuse

    def heard(self) -> None:
        return None

    def close(self, timeout_s: float = 0.0) -> None:
        return None


class _Recorder:
    """Records a run that is given as events: tables and owners are the recorder's own account."""

    def __init__(self, folder: Path, head: Event) -> None:
        pool = head["pool"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session_module, "Sink", _Memory)
            self.session = Session(
                RecordOptions(path=str(folder / "run.kvtrace"), tokens="raw"), dict(head)
            )
        self.sink: Any = self.session._sink
        self.table = np.zeros((pool["rows"], pool["row_len"]), dtype=np.int32)
        self.lut = np.zeros(pool["max_slot"] + 1, dtype=np.int64)
        self.ledger = Ledger(pool["max_slot"] + 1)
        self.rows, self.luts = TableShadow(self.table), LutShadow(len(self.lut))
        self.histories = HistoryShadow(self.session.tokens)
        self.tokens: dict[str, list[int]] = {}
        for state in (self.ledger, self.rows, self.luts, self.histories):
            self.session.add_state(state)

    def take(self, event: Event) -> None:
        """One event of the run happens."""
        event = {key: value for key, value in event.items() if key != "i"}
        slots = np.array(event.get("slots") or [], dtype=np.int64)
        emit = self.session.emit_all
        match event["kind"]:
            case "map":
                start = event["start"]
                self.table[event["row"], start : start + len(slots)] = slots
            case "alloc":
                emit(self.ledger.alloc(event["owner"], slots))
            case "free":
                emit(self.ledger.free(event["owner"], slots, event.get("reason") or ""))
            case "own":
                self.ledger.owner[slots] = self.ledger.code(event["owner"])
                emit([event])
            case "lut":
                self.lut[event["full"]] = event["swa"]
            case "history":
                known = self.tokens.setdefault(event["req"], [])
                del known[event["start"] :]
                known += event["ids"]
            case "forward":
                self._tell(event)
                emit([event])
            case "publish" | "unpublish":
                # Entries are named by ``own``; what the run says of them is the run's own.
                emit([event])
            case _:
                emit([event])

    def _tell(self, forward: Event) -> None:
        emit = self.session.emit_all
        for req in forward["reqs"]:
            if req is not None:
                emit(self.histories.show(req, self.tokens.get(req, []), []))
        emit(self.luts.show(self.lut))
        rows = forward["req_pool_indices"]
        full = [self.table.shape[1] if row else 0 for row in rows]
        used = [int(np.count_nonzero(self.table[row])) for row in rows]
        emit(self.rows.show(rows, [min(a, b) for a, b in zip(full, used, strict=True)]))


def record(folder: Path, head: Event, run: list[Event], dropped: Callable[[int], bool]) -> Any:
    """Header and events of the recording of ``run`` without steps; and the session."""
    recorder = _Recorder(folder, head)
    number = 0
    for k, event in enumerate(run):
        recorder.take(event)
        behind = run[k + 1 : k + 2]
        is_hash = bool(behind) and behind[0]["kind"] == "kv_hash"
        drafts = bool(behind) and behind[0].get("worker") == "draft"
        if event["kind"] in ("forward", "kv_hash") and not is_hash and not drafts:
            recorder.sink.refuse = dropped(number)
            recorder.session.commit(step=True)
            number += 1
    recorder.sink.refuse = False
    recorder.session.commit()
    recorder.session.close()
    return recorder.sink.header or head, recorder.sink.taken, recorder.session


def diagnose(head: Event, found: list[Event]) -> Diagnosis:
    plain = [
        {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in event.items()}
        for event in found
    ]
    return diagnose_trace(MemoryReader(head, plain, 37), ReplayOptions(backend="cpu"), UNCHECKED)


@st.composite
def runs(draw: st.DrawFn) -> Settings:
    page = draw(st.sampled_from([1, 1, 2, 4]))
    kind = draw(st.sampled_from(["plain", "window", "host", "chunks"]))
    return Settings(
        seed=draw(st.integers(0, 1 << 20)),
        page_size=page,
        window=6 if kind == "window" else 0,
        share=kind != "window",
        host_tier=kind == "host",
        kv_hash_every=draw(st.sampled_from([0, 1])),
        padding=draw(st.sampled_from(["none", "end"])),
        steps=18,
    )


@given(engine=runs(), seed=st.integers(0, 1 << 20), share=st.sampled_from([0.1, 0.3, 0.6]))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_dropped_steps_of_a_clean_run_raise_no_alarm(
    tmp_path_factory: pytest.TempPathFactory, engine: Settings, seed: int, share: float
) -> None:
    head, run = simulate(engine)
    chance = random.Random(seed)
    head, found, _ = record(
        tmp_path_factory.mktemp("t"), head, run, lambda _number: chance.random() < share
    )
    diagnosis = diagnose(head, found)
    assert not diagnosis.findings, [(f.cls, f.evidence) for f in diagnosis.findings]
    assert not diagnosis.ownership, diagnosis.ownership
    assert not len(diagnosis.replay.violations)
    coverage = diagnosis.replay.coverage
    if coverage.lost_events:
        assert any("nothing is taken as known" in note for note in coverage.notes)
    forwards = sum(event["kind"] == "forward" for event in found)
    assert diagnosis.replay.trace.forwards == forwards


def test_without_drops_the_recording_says_what_happened(tmp_path: Path) -> None:
    head, run = simulate(Settings(seed=3))
    head, found, session = record(tmp_path, head, run, lambda _number: False)
    assert session.dropped_steps == 0
    forwards = [event for event in run if event["kind"] == "forward"]
    assert [e["step"] for e in found if e["kind"] == "forward"] == [e["step"] for e in forwards]
    diagnosis = diagnose(head, found)
    assert diagnosis.verdict == "clean"
    whole = diagnose(head, numbered(run)).replay.coverage
    assert diagnosis.replay.coverage.entries_verified == whole.entries_verified


def _behind_gap(found: list[Event]) -> int:
    """Number of the first event behind the gap."""
    return next(k for k in range(1, len(found)) if found[k]["i"] != found[k - 1]["i"] + 1)


@pytest.mark.parametrize("seed", range(4))
def test_a_wrong_token_behind_the_gap_is_still_found(tmp_path: Path, seed: int) -> None:
    head, run = simulate(Settings(seed=seed, steps=30))
    head, found, session = record(tmp_path, head, run, lambda number: 3 <= number < 6)
    assert session.dropped_steps == 3
    k, b = next(
        (k, b)
        for k, event in enumerate(found)
        if k >= _behind_gap(found) and event["kind"] == "forward"
        for b, row in enumerate(event["req_pool_indices"])
        if row and event["forward_mode"] == "DECODE"
    )
    event = found[k] = {**found[k], "input_ids": list(found[k]["input_ids"])}
    event["input_ids"][b] = 7_777
    diagnosis = diagnose(head, found)
    assert [f.cls for f in diagnosis.findings] == ["wrong_token_fed"]
    assert diagnosis.findings[0].first_bad_step == event["step"]


@pytest.mark.parametrize("seed", range(4))
def test_a_slot_handed_out_twice_behind_the_gap_is_still_found(tmp_path: Path, seed: int) -> None:
    head, run = simulate(Settings(seed=seed, steps=30))
    head, found, _ = record(tmp_path, head, run, lambda number: 3 <= number < 6)
    k = next(
        k
        for k, event in enumerate(found)
        if k >= _behind_gap(found) and event["kind"] == "alloc" and event["owner"] != "tree"
    )
    # Another request gets the same slots right behind their owner.
    again = {**found[k], "owner": "stranger"}
    later = [{**event, "i": event["i"] + 1} for event in found[k:]]
    found = [*found[: k + 1], {**again, "i": found[k]["i"] + 1}, *later[1:]]
    rules = {(o.what, o.event) for o in diagnose(head, found).ownership}
    assert ("double_alloc", found[k + 1]["i"]) in rules


def test_a_fault_before_the_gap_is_not_lost(tmp_path: Path) -> None:
    head, run = simulate(Settings(seed=5, steps=24))
    head, found, _ = record(tmp_path, head, run, lambda number: 14 <= number < 16)
    k = next(k for k, e in enumerate(found) if e["kind"] == "forward" and e["step"] >= 3)
    found[k] = {**found[k], "input_ids": [7_777, *list(found[k]["input_ids"])[1:]]}
    diagnosis = diagnose(head, found)
    assert any(f.first_bad_step == found[k]["step"] for f in diagnosis.findings)
    assert diagnosis.verdict == "corrupt"
