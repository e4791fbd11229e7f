"""Cuts of traces, and how they are compared with the whole."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kvcanary_cli.cut.make import Cut, cut_trace
from kvcanary_cli.replay.driver import replay_trace
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.trace.reader import open_trace

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kvcanary_cli.replay.result import ReplayResult
    from kvcanary_cli.replay.violations import Violation

    Steps = tuple[int | None, int | None]

Event = dict[str, Any]


def run(path: Path, **options: Any) -> ReplayResult:
    return replay_trace(open_trace(path), ReplayOptions(backend="cpu", **options))


def found(path: Path, **options: Any) -> list[Violation]:
    """All violations of a trace, in order."""
    return list(run(path, **options).violations)


def cut_to(source: Path, folder: Path, steps: Steps, reqs: Iterable[str] = ()) -> tuple[Path, Cut]:
    target = folder / "cut.jsonl"
    return target, cut_trace(source, target, steps=steps, reqs=reqs, overwrite=True)


def assert_same_verdict(source: Path, folder: Path, steps: Steps, **options: Any) -> None:
    """The cut alone shows what the whole trace shows at these steps, in every field."""
    whole = run(source, steps=steps, **options)
    target, _ = cut_to(source, folder, steps)
    alone = run(target, **options)
    assert list(alone.violations) == list(whole.violations)
    assert alone.coverage.entries_verified == whole.coverage.entries_verified
    assert alone.coverage.entries_written == whole.coverage.entries_written
    assert alone.coverage.sweep_entries == whole.coverage.sweep_entries
    assert _not_checked(alone) == _not_checked(whole)
    assert alone.coverage.token_entries == whole.coverage.token_entries
    assert alone.coverage.lost_events == 0


def _not_checked(result: ReplayResult) -> dict[str, int]:
    """Entries left out by reason; what copies lost is counted in the past, too."""
    reasons = result.coverage.skip_reasons.items()
    return {reason: count for reason, count in reasons if not reason.startswith("copied")}


def events_of(path: Path) -> list[Event]:
    return [event for segment in open_trace(path).segments() for event in segment.events()]


def forward_steps(path: Path) -> list[int]:
    return sorted({e["step"] for e in events_of(path) if e["kind"] == "forward"})


def write_jsonl(path: Path, head: Event, events: Iterable[Event]) -> Path:
    lines = [json.dumps(head), *map(json.dumps, events)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
