"""What makes reading fast changes nothing that is read: threads, checksums, shortcuts, cuts."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace.ahead import read_ahead
from kvcanary_cli.trace.columns import Column, Table
from kvcanary_cli.trace.digest import BackgroundDigest, files_sha256
from kvcanary_cli.trace.problems import KindView, Problems, Range
from kvcanary_cli.trace.pt_archive import PtArchive
from kvcanary_cli.trace.pt_compiled import CompiledCutter
from kvcanary_cli.trace.pt_reader import load_stored
from kvcanary_cli.trace.pt_slices import Cutter
from kvcanary_cli.trace.reader import open_trace
from kvcanary_cli.trace.schema import FieldType
from kvcanary_cli.trace.segment import Segment
from tests.trace.helpers import small_trace, write_trace
from tests.trace.strategies import traces

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FEW = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def _value_count(event: dict[str, Any]) -> int:
    """Values of an event as segments count them: itself, and each field or list item."""
    size = 1
    for name, value in event.items():
        if name not in ("kind", "i"):
            size += len(value) if isinstance(value, list) and name != "src" else 1
    return size


def _number_trace(path: Path, sizes: list[int]) -> list[dict[str, Any]]:
    """Histories of these lengths, interleaved with ends of requests."""
    header, _ = small_trace()
    events: list[dict[str, Any]] = []
    for k, size in enumerate(sizes):
        ids = list(range(size))
        events.append({"kind": "history", "i": 2 * k, "req": f"r{k % 5}", "start": 0, "ids": ids})
        events.append({"kind": "finish", "i": 2 * k + 1, "req": f"r{k % 3}"})
    write_trace(path, header, events)
    return events


@pytest.mark.parametrize("make", [Cutter, CompiledCutter])
@_FEW
@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=600),
    max_events=st.integers(1, 1500),
    max_values=st.integers(1, 2000) | st.just(1 << 20),
)
def test_segments_are_as_large_as_the_bounds_allow(
    make: type[Cutter], sizes: list[int], max_events: int, max_values: int, tmp_path: Path
) -> None:
    events = _number_trace(tmp_path / "t.pt", sizes)
    cutter = make(load_stored(tmp_path / "t.pt"))
    at = 0
    while at < len(events):
        segment, values = cutter.cut(max_events, max_values)
        mine = events[at : at + len(segment)]
        assert list(segment.events()) == mine
        assert values == sum(map(_value_count, mine))
        fits = len(mine) <= max_events and values < max_values
        assert fits or len(mine) == 1
        at += len(segment)
        if at < len(events) and len(mine) < max_events:
            assert values + _value_count(events[at]) >= max_values
    cutter.check_end()


@pytest.mark.parametrize("make", [Cutter, CompiledCutter])
@_FEW
@given(trace=traces(), max_events=st.integers(1, 6))
def test_cut_events_are_those_that_were_written(
    make: type[Cutter],
    trace: tuple[dict[str, Any], list[dict[str, Any]]],
    max_events: int,
    tmp_path: Path,
) -> None:
    header, events = trace
    write_trace(tmp_path / "t.pt", header, events)
    stored = load_stored(tmp_path / "t.pt")
    for _ in range(2):
        cutter = make(stored)
        found: list[dict[str, Any]] = []
        while len(found) < len(events):
            segment, _ = cutter.cut(max_events, 1 << 20)
            # Each segment has only the strings that it names.
            assert len(segment.strings) == len(set(segment.strings))
            assert_as_documented(segment)
            found += segment.events()
        assert found == events


def assert_as_documented(segment: Segment) -> None:
    """The arrays have the types that ``trace.segment`` lists, and the limits hold."""
    assert (segment.kind.dtype, segment.index.dtype, segment.row.dtype) == (
        *(np.int16, np.int64, np.int32),
    )
    for table in segment.tables.values():
        for column in table.columns.values():
            assert column.values.dtype == _TYPES.get(column.type, np.int32)
            assert column.offsets is None or column.offsets.dtype == np.int64
            if column.limits is not None:
                low, high = column.limits
                assert low <= int(column.values.min()) <= int(column.values.max()) <= high


_TYPES = {FieldType.INT: np.int64, FieldType.INTS: np.int64, FieldType.BOOL: np.int8}


@_FEW
@given(data=st.data())
def test_damage_is_found_where_zipfile_finds_it(data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "t.pt"
    header, events = small_trace()
    write_trace(path, header, events)
    raw = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(raw)
    try:
        with zipfile.ZipFile(path) as archive:
            whole = archive.testzip() is None
    except Exception:
        whole = False
    if whole:
        return  # the archive's own padding, or a field that nobody reads
    with pytest.raises((InputError, zipfile.BadZipFile, *_ZIP_ERRORS)):
        PtArchive(path)


_ZIP_ERRORS = (NotImplementedError, RuntimeError, ValueError, OSError, EOFError, KeyError)


@pytest.mark.parametrize("ahead", [1, 2, 5])
@pytest.mark.parametrize("stop", [0, 1, 7, None])
def test_reading_ahead_changes_nothing(stop: int | None, ahead: int) -> None:
    made: list[int] = []

    def numbers() -> Iterator[int]:
        for k in range(10):
            made.append(k)
            yield k

    found = []
    items = read_ahead(numbers(), ahead)
    for item in items:
        if item == stop:
            break
        found.append(item)
    items.close()  # type: ignore[attr-defined]
    assert found == list(range(10 if stop is None else stop))
    # The one that the caller stopped at, and those that are held back for it.
    assert len(made) <= len(found) + 1 + ahead
    assert not any(thread.name == "kvcanary-read" for thread in threading.enumerate())


def test_an_error_comes_after_what_stood_before_it() -> None:
    def numbers() -> Iterator[int]:
        yield 1
        yield 2
        raise InputError("here")

    found: list[int] = []
    with pytest.raises(InputError, match="here"):
        # What came before the error stays in the list.
        found.extend(read_ahead(numbers()))
    assert found == [1, 2]


@pytest.mark.parametrize("suffix", [".pt", ".kvtrace"])
def test_counts_are_those_of_the_segments_that_the_caller_has(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvcanary_cli.trace.pt_reader.MAX_SEGMENT_EVENTS", 10)
    path = tmp_path / f"t{suffix}"
    _number_trace(path, [3] * 50)
    reader = open_trace(path)
    seen = 0
    for segment in reader.segments():
        seen += len(segment)
        assert reader.checked.events == seen
        if seen >= 40:
            break
    assert reader.checked.events == 40


def test_a_torn_segment_is_noted_when_it_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvcanary_cli.trace.folder_writer._SEGMENT_VALUES", 10)
    monkeypatch.setattr("kvcanary_cli.trace.segment.MAX_SEGMENT_EVENTS", 10)
    path = tmp_path / "t.kvtrace"
    _number_trace(path, [3] * 30)
    last = sorted(path.glob("*.pt"))[-1]
    last.write_bytes(last.read_bytes()[:-50])
    reader = open_trace(path)
    for _ in reader.segments():
        assert not reader.notes.torn
    assert [torn.name for torn in reader.notes.torn] == [last.name]
    for _ in reader.segments():
        break
    assert not reader.notes.torn


def test_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / name for name in ("a", "b", "empty")]
    paths[0].write_bytes(b"x" * 3_000_000)
    paths[1].write_bytes(b"y")
    paths[2].write_bytes(b"")
    want = hashlib.sha256(b"head" + b"x" * 3_000_000 + b"y").hexdigest()
    assert files_sha256([]) == files_sha256(paths[2:]) == hashlib.sha256().hexdigest()
    monkeypatch.setattr("kvcanary_cli.trace.digest._CHUNK_BYTES", 1 << 20)
    assert files_sha256(paths, b"head") == want
    assert BackgroundDigest(paths, b"head").result() == want
    with pytest.raises(FileNotFoundError):
        BackgroundDigest([tmp_path / "gone"]).result()


@pytest.mark.parametrize("suffix", [".jsonl", ".pt", ".kvtrace"])
def test_a_digest_that_began_early_is_the_one_of_reading(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    start = BackgroundDigest.__init__

    def note(self: BackgroundDigest, *args: Any) -> None:
        begun.append(1)
        start(self, *args)

    monkeypatch.setattr(BackgroundDigest, "__init__", note)
    path = tmp_path / f"t{suffix}"
    _number_trace(path, [3] * 5)
    early, late = open_trace(path), open_trace(path)
    early.start_digest()
    assert len(begun) == (suffix != ".jsonl")  # reading of text computes it itself
    for reader in (early, late):
        assert sum(map(len, reader.segments())) == 10
    assert early.sha256() == late.sha256()
    assert len(begun) == 2 * (suffix != ".jsonl")


def test_mapped_pages_are_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large the file is, so many values at a time: counted, since memory is not ours."""
    monkeypatch.setattr("kvcanary_cli.trace.pt_reader._RELEASE_VALUES", 1000)
    monkeypatch.setattr("kvcanary_cli.trace.pt_reader.MAX_SEGMENT_VALUES", 500)
    released: list[tuple[int, ...]] = []
    monkeypatch.setattr(PtArchive, "release", lambda _self, *span: released.append(span))
    events = _number_trace(tmp_path / "t.pt", [90] * 100)
    monkeypatch.setattr("kvcanary_cli.trace.pt_reader._CHECKED_AT_ONCE", 10)
    PtArchive(tmp_path / "t.pt")
    before = len(released)
    assert before > 0  # each record's, once its checksum was computed
    reader = open_trace(tmp_path / "t.pt")
    # Offsets of one list a history, and the kind of every event.
    assert len(released) - 2 * before >= (len(events) // 2 + len(events)) // 10
    before = len(released)
    for _ in reader.segments():
        pass
    values = sum(map(_value_count, events))
    assert len(released) - before >= values // 1500


_RANGE = st.tuples(st.integers(-3, 3), st.integers(0, 6))


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(st.integers(-5, 9), max_size=12),
    bounds=_RANGE,
    ignored=st.lists(st.booleans(), min_size=12, max_size=12),
    present=st.lists(st.booleans(), min_size=12, max_size=12),
    uses=st.tuples(st.booleans(), st.booleans()),
)
def test_ranges_are_checked_as_one_by_one(
    values: list[int],
    bounds: tuple[int, int],
    ignored: list[bool],
    present: list[bool],
    uses: tuple[bool, bool],
) -> None:
    count, (low, width) = len(values), bounds
    column = Column(FieldType.INT, np.array(values, dtype=np.int64))
    if uses[0]:
        column.present = np.array(present[:count], dtype=np.bool_)
    ignore = np.array(ignored[:count], dtype=np.bool_) if uses[1] else None
    index = np.arange(count)
    segment = Segment(
        [], ["map"], np.zeros(count, np.int16), index, index.astype(np.int32),
        {"map": Table(count, {"start": column})},
    )  # fmt: skip
    problems = Problems()
    KindView(segment, "map", problems).check_range(
        "start", Range(low, low + width, "a number"), ignore=ignore
    )
    bad = [
        k
        for k, value in enumerate(values)
        if not low <= value <= low + width
        and (not uses[0] or present[k])
        and not (uses[1] and ignored[k])
    ]
    assert problems.event == (bad[0] if bad else None)
