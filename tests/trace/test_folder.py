"""The folder form: read while it is recorded, after a kill, and with a torn last segment."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvcanary_cli.cli.main import main
from kvcanary_cli.trace.errors import TraceError
from kvcanary_cli.trace.folder_writer import FolderWriter
from kvcanary_cli.trace.reader import open_trace
from kvcanary_cli.trace.writer import open_writer
from tests.trace.helpers import events_of, read_events, small_trace, write_trace


def _record(folder: Path, *, segments: int = 3) -> list[dict[str, Any]]:
    """Record ``segments`` segments of four events each, live, and close the folder."""
    header, _ = small_trace()
    written = []
    with open_writer(folder, header, live=True) as writer:
        assert isinstance(writer, FolderWriter)
        for number in range(segments):
            for event in _events(number):
                writer.write_event(event)
                written.append(event)
            writer.seal()
    return written


def _events(number: int) -> list[dict[str, Any]]:
    _, events = small_trace()
    for event in events:
        event["i"] += 4 * number
        if "step" in event:
            event["step"] += 2 * number
    return events


def test_it_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    header, _ = small_trace()
    folder = tmp_path / "a.kvtrace"
    with open_writer(folder, header, live=True) as writer:
        assert isinstance(writer, FolderWriter)
        for number in range(3):
            reader = open_trace(folder)
            assert len(events_of(reader)) == 4 * number
            assert reader.notes.still_recording
            assert not reader.notes.torn
            for event in _events(number):
                writer.write_event(event)
            assert len(read_events(folder)) == 4 * number
            writer.seal()
            # A reader that is already open keeps to what was there.
            assert len(events_of(reader)) == 4 * number
    reader = open_trace(folder)
    assert len(events_of(reader)) == 12
    assert reader.notes.messages() == []


def test_a_folder_is_as_good_as_one_file(tmp_path: Path) -> None:
    written = _record(tmp_path / "a.kvtrace")
    assert read_events(tmp_path / "a.kvtrace") == written
    assert sorted(p.name for p in (tmp_path / "a.kvtrace").iterdir()) == [
        "000000.pt",
        "000001.pt",
        "000002.pt",
        "manifest.json",
    ]


@pytest.mark.parametrize("kept", [0, 100, 0.5, 0.99])
@pytest.mark.parametrize("listed", [True, False])
def test_a_torn_last_segment_is_lost_alone(tmp_path: Path, kept: float, listed: bool) -> None:
    folder = tmp_path / "a.kvtrace"
    written = _record(folder)
    torn = folder / "000002.pt"
    data = torn.read_bytes()
    torn.write_bytes(data[: int(kept * len(data)) if isinstance(kept, float) else kept])
    if not listed:
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["segments"].pop()
        manifest["complete"] = False
        (folder / "manifest.json").write_text(json.dumps(manifest))
    reader = open_trace(folder)
    for _ in range(2):
        assert events_of(reader) == written[:8]
    note, *more = reader.notes.messages()
    assert len(more) == (0 if listed else 1)
    assert "segment 000002.pt is torn" in note
    # The pickle at a segment's head tells the number if the manifest does not.
    known = listed or kept in (0.5, 0.99)
    assert ("4 events are missing" if known else "an unknown number of events are missing") in note
    assert reader.notes.missing_events == (4 if known else 0)


def test_a_missing_last_segment_counts_as_torn(tmp_path: Path) -> None:
    folder = tmp_path / "a.kvtrace"
    written = _record(folder)
    (folder / "000002.pt").unlink()
    reader = open_trace(folder)
    assert events_of(reader) == written[:8]
    assert "4 events are missing (the segment is missing)" in reader.notes.messages()[0]


def test_damage_before_the_last_segment_is_refused(tmp_path: Path) -> None:
    for name, change in (
        ("torn", lambda path: path.write_bytes(path.read_bytes()[:500])),
        ("missing", lambda path: path.unlink()),
    ):
        folder = tmp_path / f"{name}.kvtrace"
        _record(folder)
        change(folder / "000001.pt")
        with pytest.raises(TraceError, match=r"000001\.pt"):
            read_events(folder)


def _rewrite_manifest(folder: Path, listed: int, *, complete: bool) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["segments"] = manifest["segments"][:listed]
    manifest["complete"] = complete
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("listed", range(4))
@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("gone", [(), (0,), (1,), (2,), (0, 1), (1, 2)])
def test_every_segment_is_read_or_told_missing(
    tmp_path: Path, listed: int, complete: bool, gone: tuple[int, ...]
) -> None:
    folder = tmp_path / "a.kvtrace"
    written = _record(folder)
    for number in gone:
        (folder / f"{number:06d}.pt").unlink()
    _rewrite_manifest(folder, listed, complete=complete)
    there = [n for n in range(3) if n not in gone]
    gap = any(n not in there for n in range(max(there, default=0)))
    contradicts = complete and max(there, default=0) >= listed
    lost = [n for n in range(listed - 1) if n in gone]
    if gap or contradicts or lost:
        with pytest.raises(TraceError, match=r"segment|a\.kvtrace") as caught:
            read_events(folder)
        assert "copy the folder again" in (caught.value.hint or "")
        return
    reader = open_trace(folder)
    assert events_of(reader) == [e for n in there for e in written[4 * n : 4 * n + 4]]
    assert reader.notes.still_recording == (not complete)
    assert reader.notes.missing_events == 4 * len([n for n in gone if n < listed])


def test_a_stray_segment_far_behind_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "a.kvtrace"
    _record(folder)
    shutil.copy(folder / "000002.pt", folder / "1000006.pt")
    with pytest.raises(TraceError, match=r"000003\.pt is missing although 1000006\.pt is there"):
        open_trace(folder)


@pytest.mark.parametrize("name", ["a.kvtrace", "renamed"])
@pytest.mark.parametrize("gone", [None, 0, 1])
def test_segments_without_a_manifest_are_no_rank_files(
    tmp_path: Path, name: str, gone: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a.kvtrace"
    _record(folder)
    (folder / "manifest.json").unlink()
    if gone is not None:
        (folder / f"{gone:06d}.pt").unlink()
    folder.rename(tmp_path / name)
    assert main(["replay", str(tmp_path / name)]) == 4
    told = capsys.readouterr().err
    assert "the folder has no manifest.json" in told
    assert "parts of one recording" in told


def test_a_folder_without_anything_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.kvtrace").mkdir()
    assert main(["replay", str(tmp_path / "a.kvtrace")]) == 4
    assert "one by one, or a .kvtrace folder" in capsys.readouterr().err


def test_a_folder_of_rank_traces_may_be_called_like_one(tmp_path: Path) -> None:
    recording = tmp_path / "run.kvtrace"
    recording.mkdir()
    for rank in range(2):
        _record(recording / f"tp{rank}.kvtrace")
    assert main(["replay", "-q", str(recording)]) in (0, 1)


def test_a_last_segment_that_is_unsafe_is_refused_not_skipped(tmp_path: Path) -> None:
    import torch

    folder = tmp_path / "a.kvtrace"
    _record(folder)
    torch.save({"format": torch.nn.Linear(1, 1)}, folder / "000002.pt")
    with pytest.raises(TraceError, match=r"needs torch\.nn\.modules\.linear\.Linear"):
        read_events(folder)


def test_order_and_steps_hold_across_segments(tmp_path: Path) -> None:
    folder = tmp_path / "a.kvtrace"
    _record(folder)
    shutil.copy(folder / "000000.pt", folder / "000001.pt")
    with pytest.raises(TraceError, match=r"000001\.pt: event 0 \(i=0\): 'i' goes from 3 to 0"):
        read_events(folder)


def test_segments_of_another_recording_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "a.kvtrace"
    _record(folder)
    header, _ = small_trace()
    write_trace(folder / "000001.pt", header | {"created_at": "later"}, _events(1))
    with pytest.raises(TraceError, match="its header is not the one of the manifest"):
        read_events(folder)
    write_trace(folder / "000001.pt", header, _events(1)[:3])
    with pytest.raises(TraceError, match=r"holds 3 events, expected 4 \(manifest\)"):
        read_events(folder)


_MANIFEST_CASES = [
    (lambda m: m.update(format="x"), "expected an object with 'format' = 'kvcanary-trace-folder'"),
    (lambda m: m.update(version=2), "folder version 2 is not known; this kvcanary reads: 1"),
    (lambda m: m.pop("complete"), "expected 'segments' (a list) and 'complete'"),
    (lambda m: m.pop("header"), "the header is missing"),
    (lambda m: m["header"].pop("pool"), "header field 'pool' must be an object"),
    (lambda m: m["segments"].pop(0), "segments[0] must have 'file' = '000000.pt'"),
    (lambda m: m["segments"][0].update(file="/etc/passwd"), "segments[0] must have 'file'"),
    (lambda m: m["segments"][1].update(events=-1), "segments[1] must have"),
]


@pytest.mark.parametrize(("change", "said"), _MANIFEST_CASES, ids=[c[1] for c in _MANIFEST_CASES])
def test_a_manifest_that_does_not_fit(tmp_path: Path, change: Any, said: str) -> None:
    folder = tmp_path / "a.kvtrace"
    _record(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(TraceError) as caught:
        read_events(folder)
    assert said in caught.value.message
    assert "a.kvtrace/manifest.json" in caught.value.message


def test_a_torn_manifest_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "a.kvtrace"
    _record(folder)
    data = (folder / "manifest.json").read_bytes()
    (folder / "manifest.json").write_bytes(data[: len(data) // 2])
    with pytest.raises(TraceError, match=r"manifest\.json: column \d+ is not valid JSON"):
        read_events(folder)


_KILLED = """
import os, signal, sys
from kvcanary_cli.trace.writer import open_writer
from tests.trace.test_folder import _events
from tests.trace.helpers import small_trace
with open_writer(sys.argv[1], small_trace()[0], live=True) as writer:
    for number in range(2):
        for event in _events(number):
            writer.write_event(event)
        writer.seal()
    writer.write_event(_events(2)[0])
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_recorder_sealed_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "a.kvtrace"
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(folder)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    # As if the kill had come while the third segment was written.
    unfinished = (folder / "000001.pt").read_bytes()[:-300]
    (folder / ".000002.pt.tmp").write_bytes(unfinished)
    reader = open_trace(folder)
    assert events_of(reader) == [*_events(0), *_events(1)]
    torn, running = reader.notes.messages()
    assert "segment .000002.pt.tmp is torn: 4 events are missing (it was not finished)" in torn
    assert "the recorder has not closed this trace" in running


def test_an_exception_keeps_what_was_recorded_live(tmp_path: Path) -> None:
    header, _ = small_trace()
    folder = tmp_path / "a.kvtrace"

    def record() -> None:
        with open_writer(folder, header, live=True) as writer:
            assert isinstance(writer, FolderWriter)
            for event in _events(0):
                writer.write_event(event)
            writer.seal()
            raise KeyError

    with pytest.raises(KeyError):
        record()
    assert read_events(folder) == _events(0)


def test_the_digest_covers_manifest_and_segments(tmp_path: Path) -> None:
    folder = tmp_path / "a.kvtrace"
    _record(folder)
    before = open_trace(folder).sha256()
    assert before == open_trace(folder).sha256()
    data = bytearray((folder / "000002.pt").read_bytes())
    data[-1] ^= 1
    (folder / "000002.pt").write_bytes(data)
    assert open_trace(folder).sha256() != before
