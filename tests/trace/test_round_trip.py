"""Conversion between all forms keeps every value, field and unknown thing."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.errors import UsageError
from kvcanary_cli.trace import segment as segment_module
from kvcanary_cli.trace.convert import convert
from kvcanary_cli.trace.errors import TraceError
from kvcanary_cli.trace.reader import open_trace
from kvcanary_cli.trace.segment import SegmentBuilder
from kvcanary_cli.trace.writer import open_writer
from tests.trace.helpers import (
    SCENARIOS,
    SUFFIXES,
    events_of,
    jsonl_text,
    read_events,
    small_trace,
    write_jsonl,
    write_trace,
)
from tests.trace.strategies import Event, traces

if TYPE_CHECKING:
    from pathlib import Path

_SCENARIOS = sorted(SCENARIOS.rglob("*.jsonl"))


def test_there_are_scenarios() -> None:
    assert len(_SCENARIOS) == 17


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_scenarios_come_back_byte_for_byte(tmp_path: Path, suffix: str) -> None:
    for k, scenario in enumerate(_SCENARIOS):
        there, back = tmp_path / f"{k}{suffix}", tmp_path / f"{k}.back.jsonl"
        assert convert(scenario, there).events == len(scenario.read_text().splitlines()) - 1
        convert(there, back)
        assert back.read_bytes() == scenario.read_bytes(), scenario.name


def test_conversion_chains_through_all_forms(tmp_path: Path) -> None:
    scenario = SCENARIOS / "S13_pad_or_dummy_write.jsonl"
    current = scenario
    for k, suffix in enumerate([*SUFFIXES, *reversed(SUFFIXES)]):
        convert(current, current := tmp_path / f"{k}{suffix}")
    assert current.read_bytes() == scenario.read_bytes()


@given(trace=traces(), suffix=st.sampled_from(SUFFIXES))
@settings(max_examples=50, deadline=None)
def test_random_traces_survive(
    tmp_path_factory: pytest.TempPathFactory,
    trace: tuple[dict[str, object], list[Event]],
    suffix: str,
) -> None:
    header, events = trace
    folder = tmp_path_factory.mktemp("t")
    source = write_jsonl(folder / "a.jsonl", header, events)
    there, back = folder / f"b{suffix}", folder / "c.jsonl"
    convert(source, there)
    convert(there, back)
    assert back.read_bytes() == source.read_bytes()
    # The text alone would not tell 1 from 1.0 written alike, nor one field order from another.
    assert [list(e.items()) for e in read_events(there)] == [list(e.items()) for e in events]


@given(trace=traces(max_events=20), seed=st.integers(0, 1 << 30))
@settings(max_examples=30, deadline=None)
def test_cuts_into_segments_do_not_matter(
    tmp_path_factory: pytest.TempPathFactory,
    trace: tuple[dict[str, object], list[Event]],
    seed: int,
) -> None:
    header, events = trace
    rng = random.Random(seed)
    builder = SegmentBuilder()
    for event in events:
        builder.append(event, tokens_absent=True)
    whole = builder.finish()
    assert list(whole.events()) == events
    path = tmp_path_factory.mktemp("t") / "a.pt"
    with open_writer(path, header) as writer:
        start = 0
        while start < len(whole):
            stop = start + rng.randint(1, 5)
            part = whole.slice(start, stop)
            assert list(part.events()) == events[start:stop]
            if rng.random() < 0.5:
                writer.write(part)
            else:
                for event in part.events():
                    writer.write_event(event)
            start = stop
    assert read_events(path) == events


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_small_segments_read_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    scenario = SCENARIOS / "S13_pad_or_dummy_write.jsonl"
    path = tmp_path / f"a{suffix}"
    convert(scenario, path)
    want = read_events(path)
    monkeypatch.setattr(segment_module, "MAX_SEGMENT_EVENTS", 3)
    monkeypatch.setattr("kvcanary_cli.trace.pt_reader.MAX_SEGMENT_EVENTS", 3)
    reader = open_trace(path)
    sizes = [len(segment) for segment in reader.segments()]
    assert max(sizes) == 3
    assert events_of(reader) == want


def test_presence_and_unknown_things_are_kept(tmp_path: Path) -> None:
    header, events = small_trace()
    header |= {"x_future": {"deep": [1.5, None, "é"]}}
    events[0] |= {"x_note": {"big": 1 << 80}, "t": 5}
    events[3] |= {"raw_bs": 1, "namespaces": ["n", None]}
    events.append({"kind": "x_future", "i": 4, "what": [True, {"a": "\ud83d"}]})
    source = write_jsonl(tmp_path / "a.jsonl", header, events)
    for suffix in SUFFIXES:
        path = tmp_path / f"b{suffix}"
        result = convert(source, path)
        assert [n.split(":")[0] for n in result.notes] == [
            "unknown event kind 'x_future' (1 events)",
            "unknown field 'alloc.x_note' (1 events)",
        ]
        reader = open_trace(path)
        assert dict(reader.header.raw) == header
        assert json.loads(json.dumps(events_of(reader))) == json.loads(
            jsonl_text(None, events).split("\n", 1)[1].replace("\n", ",").rstrip(",").join("[]")
        )


def test_a_column_that_only_a_newer_version_knows_is_kept(tmp_path: Path) -> None:
    import torch

    header, events = small_trace()
    path = write_trace(tmp_path / "a.pt", header, events)
    state = torch.load(path, weights_only=True)
    tables = json.loads(state["tables"])
    next(t for t in tables if t["kind"] == "alloc")["columns"]["x_pages"] = "INTS"
    state |= {
        "tables": json.dumps(tables),
        "alloc.x_pages": torch.tensor([7, 8], dtype=torch.int16),
        "alloc.x_pages.offsets": torch.tensor([0, 2], dtype=torch.int8),
    }
    torch.save(state, path)
    reader = open_trace(path)
    assert events_of(reader)[0] == events[0] | {"x_pages": [7, 8]}
    assert reader.notes.unknown_fields == {"alloc.x_pages": 1}


def test_an_existing_trace_is_not_replaced_unless_asked(tmp_path: Path) -> None:
    header, events = small_trace()
    source = write_jsonl(tmp_path / "a.jsonl", header, events)
    for suffix in SUFFIXES:
        target = write_trace(tmp_path / f"b{suffix}", header, events[:1])
        with pytest.raises(UsageError, match="exists already"):
            convert(source, target)
        assert read_events(target) == events[:1]
        convert(source, target, overwrite=True)
        assert read_events(target) == events


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_failed_conversion_leaves_everything_as_it_was(tmp_path: Path, suffix: str) -> None:
    header, events = small_trace()
    source = write_jsonl(tmp_path / "a.jsonl", header, events)
    source.write_text(source.read_text() + "{broken\n")
    with pytest.raises(TraceError):
        convert(source, tmp_path / f"b{suffix}")
    old = write_trace(tmp_path / f"c{suffix}", header, events[:1])
    with pytest.raises(TraceError):
        convert(source, old, overwrite=True)
    assert read_events(old) == events[:1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jsonl", f"c{suffix}"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_trace_can_be_converted_onto_itself(tmp_path: Path, suffix: str) -> None:
    header, events = small_trace()
    path = write_trace(tmp_path / f"a{suffix}", header, events)
    convert(path, path, overwrite=True)
    assert read_events(path) == events


def test_the_suffix_must_name_a_form(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected one of \.jsonl"):
        open_writer(tmp_path / "a.json", small_trace()[0])


def test_torch_loads_the_pt_form_weights_only_and_mapped(tmp_path: Path) -> None:
    import torch

    header, events = small_trace()
    path = write_trace(tmp_path / "a.pt", header, events)
    state = torch.load(path, weights_only=True, mmap=True)
    assert json.loads(state["header"]) == header
    assert state["forward.positions"].tolist() == EXTEND_AND_DECODE_POSITIONS
    assert state["forward.positions"].dtype == torch.int8
    assert state["forward.positions.offsets"].tolist() == [0, 5, 7]
    assert state["forward.extend_seq_lens.present"].tolist() == [True, False]


EXTEND_AND_DECODE_POSITIONS = [0, 1, 2, 0, 1, 3, 0]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_table_without_rows_converts(tmp_path: Path, suffix: str) -> None:
    import torch

    header, events = small_trace()
    path = write_trace(tmp_path / "a.pt", header, events)
    state = torch.load(path, weights_only=True)
    tables = [{"kind": "finish", "rows": 0, "columns": {"req": "STR"}}]
    state |= {
        "tables": json.dumps(tables + json.loads(state["tables"])),
        "kind": state["kind"] + 1,
        "finish.req": torch.zeros(0, dtype=torch.int8),
    }
    torch.save(state, path)
    assert read_events(path) == events
    target = tmp_path / f"b{suffix}"
    convert(path, target)
    assert read_events(target) == events
