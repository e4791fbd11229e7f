"""Small valid traces, and ways to write and read them, for the tests of the trace package."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from kvcanary_cli.trace.reader import TraceReader, open_trace
from kvcanary_cli.trace.writer import open_writer

SCENARIOS = Path(__file__).parent.parent / "data" / "scenarios"
SUFFIXES = (".jsonl", ".jsonl.zst", ".pt", ".kvtrace")

HEADER: dict[str, Any] = {
    "kind": "header",
    "format": "kvcanary-trace",
    "version": 1,
    "engine": {"name": "synthetic"},
    "pool": {"slots": 15, "rows": 5, "row_len": 16, "swa_slots": 7, "swa_window": 4},
    "records": ["forward", "map", "alloc"],
}
EXTEND: dict[str, Any] = {
    "kind": "forward",
    "i": 2,
    "step": 1,
    "forward_mode": "EXTEND",
    "reqs": ["A", "B"],
    "req_pool_indices": [1, 2],
    "seq_lens": [3, 2],
    "input_ids": [11, 12, 13, 21, 22],
    "positions": [0, 1, 2, 0, 1],
    "out_cache_loc": [1, 2, 3, 4, 5],
    "extend_prefix_lens": [0, 0],
    "extend_seq_lens": [3, 2],
}
DECODE: dict[str, Any] = {
    "kind": "forward",
    "i": 3,
    "step": 2,
    "forward_mode": "DECODE",
    "reqs": ["A", None],
    "req_pool_indices": [1, 0],
    "seq_lens": [4, 1],
    "input_ids": [14, 0],
    "positions": [3, 0],
    "out_cache_loc": [6, 0],
}
EVENTS: list[dict[str, Any]] = [
    {"kind": "alloc", "i": 0, "owner": "A", "slots": [1, 2, 3]},
    {"kind": "map", "i": 1, "row": 1, "start": 0, "slots": [1, 2, 3]},
    EXTEND,
    DECODE,
]


def small_trace() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A header and four events, free to be changed."""
    return copy.deepcopy(HEADER), copy.deepcopy(EVENTS)


def jsonl_text(header: Any, events: list[Any]) -> str:
    return "".join(json.dumps(line) + "\n" for line in (header, *events))


def write_jsonl(path: Path, header: Any, events: list[Any]) -> Path:
    path.write_text(jsonl_text(header, events), encoding="utf-8")
    return path


def write_trace(path: Path, header: dict[str, Any], events: list[dict[str, Any]]) -> Path:
    """Write a trace in the form of ``path``'s suffix."""
    with open_writer(path, header, overwrite=True) as writer:
        for event in events:
            writer.write_event(event)
    return path


def read_events(path: str | Path) -> list[dict[str, Any]]:
    return events_of(open_trace(path))


def events_of(reader: TraceReader) -> list[dict[str, Any]]:
    return [event for segment in reader.segments() for event in segment.events()]
