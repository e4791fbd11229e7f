"""Diagnoses of shipped traces and of events in memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcanary_cli.attribution.diagnose import Diagnosis, diagnose_trace
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.trace.reader import open_trace
from tests.replay.helpers import UNCHECKED, MemoryReader

if TYPE_CHECKING:
    from collections.abc import Iterable

Event = dict[str, Any]
DATA = Path(__file__).parents[1] / "data"
CAPTURES = DATA / "captures"
SCENARIOS = DATA / "scenarios"


def diagnose_path(path: Path, backend: str = "cpu") -> Diagnosis:
    return diagnose_trace(open_trace(path), ReplayOptions(backend=backend), UNCHECKED)


def diagnose(head: Event, events: Iterable[Event], backend: str = "cpu") -> Diagnosis:
    reader = MemoryReader(head, events)
    return diagnose_trace(reader, ReplayOptions(backend=backend), UNCHECKED)


def events_of(path: Path) -> tuple[Event, list[Event]]:
    """Header and events of a trace, as dictionaries."""
    reader = open_trace(path)
    return dict(reader.header.raw), [e for s in reader.segments() for e in s.events()]
