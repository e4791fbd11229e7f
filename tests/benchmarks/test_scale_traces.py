"""Generated traces of any size: accepted, clean, alike in every form, and shaped as a capture."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import scale_server, scale_traces
from kvcanary_cli.attribution.diagnose import diagnose_trace
from kvcanary_cli.replay.capacity_limits import NOT_CHECKED
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.trace.info import collect_info, validate
from kvcanary_cli.trace.reader import open_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CAPTURE = Path(__file__).parents[1] / "data" / "captures" / "clean_radix.jsonl.zst"


def _decode(path: Path) -> int:
    # 700 slots hold what runs at a time and little more, so that old prefixes are evicted.
    return scale_traces.decode_heavy(
        path, tokens=3000, slots=700, batch=8, prefill=40, decode=32, shared=8, groups=4
    )


def _prefill(path: Path) -> int:
    return scale_traces.prefill_heavy(
        path, tokens=4000, slots=1000, batch=3, prefill=300, decode=4, chunk=64
    )


def _context(path: Path) -> int:
    return scale_traces.long_context(path, context=700, steps=20, batch=3)


SHAPES: dict[str, Callable[[Path], int]] = {
    "decode": _decode,
    "prefill": _prefill,
    "context": _context,
}


def _events(path: Path) -> Iterator[dict[str, Any]]:
    for segment in open_trace(path).segments():
        yield from segment.events()


@pytest.mark.parametrize("shape", SHAPES)
def test_accepted_and_clean(shape: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.pt"
    recorded = SHAPES[shape](path)
    validation = validate(open_trace(path))
    assert (validation.tokens, validation.notes) == (recorded, ())
    diagnosis = diagnose_trace(open_trace(path), ReplayOptions(backend="cpu"), NOT_CHECKED)
    assert diagnosis.verdict == "clean"
    assert not diagnosis.findings
    assert diagnosis.replay.coverage.entries_written == recorded


@pytest.mark.parametrize("shape", SHAPES)
def test_every_form_holds_the_same_events(shape: str, tmp_path: Path) -> None:
    forms = [tmp_path / f"trace{suffix}" for suffix in (".pt", ".kvtrace", ".jsonl.zst")]
    for path in forms:
        SHAPES[shape](path)
    first, *others = (list(_events(path)) for path in forms)
    assert all(other == first for other in others)


def test_segments_are_cut_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _decode(tmp_path / "one.pt")
    monkeypatch.setattr(scale_server, "_SEGMENT_EVENTS", 50)
    _decode(tmp_path / "many.pt")
    kinds = collect_info(open_trace(tmp_path / "one.pt")).events
    assert collect_info(open_trace(tmp_path / "many.pt")).events == kinds


def test_slots_are_used_again(tmp_path: Path) -> None:
    _decode(tmp_path / "trace.pt")
    kinds = collect_info(open_trace(tmp_path / "trace.pt")).events
    assert kinds["free"] > 0
    assert kinds["unpublish"] >= kinds["free"]
    assert kinds["match"] > 0


def test_too_few_slots_are_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too small"):
        scale_traces.long_context(tmp_path / "trace.pt", context=100, steps=5, batch=2, slots=150)


#: What stands between two forwards, one letter a kind: ends of requests, evictions, then the new
#: slots, histories and cells of the next forward, each in batch order.
_LETTERS = {
    "own": "o", "history": "h", "finish": "e", "row_release": "r", "free": "f", "unpublish": "u",
    "alloc": "a", "match": "m", "map": "c",
}  # fmt: skip
_BETWEEN = re.compile(r"(o|f|u|h?er)*(fu*)*a+m*h*c+")


def _between_forwards(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    letters = ""
    for event in _events(path):
        if event["kind"] == "forward":
            yield letters, event
            letters = ""
        else:
            letters += _LETTERS[event["kind"]]


@pytest.mark.parametrize("shape", [*SHAPES, "capture"])
def test_events_stand_where_the_recorder_puts_them(shape: str, tmp_path: Path) -> None:
    path = CAPTURE
    if shape != "capture":
        path = tmp_path / "trace.pt"
        SHAPES[shape](path)
    for letters, forward in _between_forwards(path):
        assert _BETWEEN.fullmatch(letters), (letters, forward["i"])
        if forward["forward_mode"] == "DECODE":
            batch = len(forward["reqs"])
            assert letters.count("a") == batch
            # A cell that takes the slot that it had before is no change.
            assert letters.count("c") == batch or (shape == "capture" and "c" in letters)
