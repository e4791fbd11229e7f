"""What a run that was killed has left behind: all that was sealed, and word of what was not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.cli.main import main
from tests.engines.driving import COUNT
from tests.record.helpers import events, replay, steps

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def check(folder: Path, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check the trace of a sound run that was killed in the middle.

    Args:
        folder: The run's.
        trace: Of its one rank.
        capsys: Takes what the command says.
    """
    assert not (folder / "result.json").exists(), "it had ended before it was killed"
    written = steps(trace)
    assert written == list(range(len(written)))
    begun = (folder / COUNT).stat().st_size
    # A launch may be told as two forwards, never as none before it began.
    assert 0 < len(written) <= 2 * begun
    found = events(trace)
    assert [event["i"] for event in found] == list(range(len(found)))
    assert found[-1]["kind"] != "recording_ended"
    diagnosis = replay(trace)
    assert not diagnosis.ownership
    assert not diagnosis.findings
    assert not len(diagnosis.replay.violations)
    assert diagnosis.replay.coverage.ended_at_event is None
    capsys.readouterr()
    status = main(["replay", str(folder / "run.kvtrace")])
    said = " ".join(capsys.readouterr().out.split())
    assert status == 0, said
    assert "the recorder has not closed this trace: it still runs, or was killed" in said
    assert "which costs at most the last 1 s of events where the disk kept up" in said
