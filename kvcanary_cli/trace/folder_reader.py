"""Read a ``.kvtrace`` folder, also while it is recorded and after its recorder was killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.trace.errors import DamagedTraceError, TraceError
from kvcanary_cli.trace.header import parse_header
from kvcanary_cli.trace.manifest import (
    MANIFEST,
    SegmentEntry,
    parse_manifest,
    segment_name,
    segment_numbers,
    unfinished_name,
)
from kvcanary_cli.trace.notes import TornSegment
from kvcanary_cli.trace.pt_compiled import pays
from kvcanary_cli.trace.pt_file import leading_pickle
from kvcanary_cli.trace.pt_layout import EVENTS_KEY
from kvcanary_cli.trace.pt_reader import StoredTrace, load_stored
from kvcanary_cli.trace.reader import TraceReader, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvcanary_cli.trace.located import LocatedSegment


class FolderReader(TraceReader):
    """A folder as it was when it was opened; segments that come later are not seen."""

    # Opening the next file takes as long as some segments of one.
    _reads_ahead = 2

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self._folder = folder
        try:
            self._manifest_bytes = (folder / MANIFEST).read_bytes()
        except FileNotFoundError:
            raise TraceError(
                self.name,
                f"the folder has no {MANIFEST}, expected a .kvtrace folder",
                hint="its segments are parts of one recording, not traces of ranks; copy the "
                "folder again, as a whole"
                if segment_numbers(folder)
                else "give the trace files in it one by one, or a .kvtrace folder",
            ) from None
        except OSError as error:
            raise unreadable(f"{self.name}/{MANIFEST}", error) from None
        where = f"{self.name}/{MANIFEST}"
        self._manifest = parse_manifest(self._manifest_bytes, where)
        self.header = parse_header(self._manifest.header, where)
        self._entries = [*self._manifest.segments, *self._unlisted()]
        self.notes.still_recording = not self._manifest.complete
        self.notes.seal_interval_s = self.header.seal_interval_s
        self._torn: list[TornSegment] = []
        self.bytes_total = sum(self._size(entry) for entry in self._entries)

    def _unlisted(self) -> list[SegmentEntry]:
        """Segments that were finished after the manifest was last written."""
        numbers = segment_numbers(self._folder)
        number = listed = len(self._manifest.segments)
        while (self._folder / segment_name(number)).is_file():
            number += 1
        strays = [n for n in numbers if n > number]
        # A recorder that runs makes segments in order: one that is there by now is no gap.
        if strays and not (self._folder / segment_name(number)).is_file():
            raise TraceError(
                self.name,
                f"segment {segment_name(number)} is missing although {segment_name(strays[0])} "
                "is there",
                hint="copy the folder again, as a whole; a segment of another recording does not "
                "belong in it",
            )
        if number > listed and self._manifest.complete:
            raise TraceError(
                self.name,
                f"segment {segment_name(listed)} is there, but {MANIFEST} lists {listed} segments "
                "and says that the recording is complete",
                hint="copy the folder again, as a whole; a segment of another recording does not "
                "belong in it",
            )
        return [SegmentEntry(segment_name(n), None, None, None) for n in range(listed, number)]

    def _size(self, entry: SegmentEntry) -> int:
        path = self._folder / entry.file
        return path.stat().st_size if path.is_file() else 0

    def _note_end(self) -> None:
        self.notes.torn += self._torn

    def _located_segments(self) -> Iterator[LocatedSegment]:
        self.bytes_read = 0
        self._torn = []
        assert self.bytes_total is not None
        compiled = pays(self.bytes_total)
        for number, entry in enumerate(self._entries):
            stored = self._load(entry, last=number == len(self._entries) - 1)
            if stored is not None:
                yield from stored.segments(compiled=compiled)
            self.bytes_read += self._size(entry)
        if not self._manifest.complete:
            self._note_unfinished(len(self._entries))

    def _load(self, entry: SegmentEntry, *, last: bool) -> StoredTrace | None:
        """Load a segment; None, and a note, if it is the last one and torn."""
        path = self._folder / entry.file
        try:
            if not path.is_file():
                raise DamagedTraceError(
                    str(path), "the segment is missing", hint="copy the folder again, as a whole"
                )
            stored = load_stored(path)
        except DamagedTraceError as error:
            if not last:
                raise
            events = entry.events
            if events is None:
                events = _events_before_tear(path)
            self._torn.append(TornSegment(entry.file, events, error.what))
            return None
        if dict(stored.header.raw) != self._manifest.header:
            raise TraceError(
                str(path),
                "its header is not the one of the manifest",
                hint="the folder mixes segments of two recordings; copy it again",
            )
        if entry.events is not None and entry.events != len(stored.kind):
            raise TraceError(
                str(path),
                f"holds {len(stored.kind)} events, expected {entry.events} (manifest)",
                hint="the folder mixes segments of two recordings; copy it again",
            )
        return stored

    def _note_unfinished(self, number: int) -> None:
        """Say what a killed recorder left half written."""
        path = self._folder / unfinished_name(number)
        events = _events_before_tear(path)
        if events is not None:
            self._torn.append(TornSegment(path.name, events, "it was not finished"))

    def _digested(self) -> tuple[list[Path], bytes]:
        paths = [self._folder / entry.file for entry in self._entries]
        return [path for path in paths if path.is_file()], self._manifest_bytes


def _events_before_tear(path: Path) -> int | None:
    """How many events a torn segment held, if its beginning still says so."""
    if not path.is_file():
        return None
    held = leading_pickle(path)
    events = None if held is None else held.get(EVENTS_KEY)
    return events if type(events) is int and events >= 0 else None
