"""Write a ``.kvtrace`` folder: numbered ``.pt`` segments, each durable before it is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.trace.manifest import Manifest, SegmentEntry, segment_name, unfinished_name
from kvcanary_cli.trace.pt_writer import PtPacker, save
from kvcanary_cli.trace.segment import SegmentBuilder
from kvcanary_cli.trace.writer import (
    TraceWriter,
    move_into_place,
    remove,
    sync_folder,
    temporary_name,
)

if TYPE_CHECKING:
    from pathlib import Path

    from kvcanary_cli.trace.header import TraceHeader
    from kvcanary_cli.trace.segment import Segment

#: About 32 MiB of values before they are narrowed.
_SEGMENT_VALUES = 4 << 20


class FolderWriter(TraceWriter):
    """Writes a folder; ``live`` ones can be read meanwhile and survive an exception.

    ``seal()`` ends the current segment, so that what was written so far is on disk.
    """

    def __init__(self, target: Path, header: TraceHeader, *, live: bool = False) -> None:
        super().__init__(header)
        self._target = target
        self._live = live
        self._folder = target if live else temporary_name(target)
        if live:
            remove(target)
        self._folder.mkdir()
        self._manifest = Manifest(dict(header.raw))
        self._manifest.write(self._folder)
        self._packer = PtPacker(header)
        self._first_i = self._last_i = 0

    def _write(self, segment: Segment) -> None:
        if not self._packer.events:
            self._first_i = int(segment.index[0])
        self._last_i = int(segment.index[-1])
        self._packer.append(segment)
        if self._packer.value_count >= _SEGMENT_VALUES:
            self._seal()

    def seal(self) -> None:
        """Write what is held back as a segment of its own, durable when this returns."""
        self.flush()
        if self._packer.events:
            self._seal()

    def drop_unsealed(self) -> None:
        """Forget what is held back, and what was half written of it when a seal failed."""
        self._builder = SegmentBuilder()
        self._packer = PtPacker(self.header)
        remove(self._folder / unfinished_name(len(self._manifest.segments)))

    def _seal(self) -> None:
        number = len(self._manifest.segments)
        unfinished = self._folder / unfinished_name(number)
        save(self._packer.arrays(), unfinished)
        unfinished.replace(self._folder / segment_name(number))
        self._manifest.segments.append(
            SegmentEntry(segment_name(number), self._packer.events, self._first_i, self._last_i)
        )
        self._manifest.write(self._folder)
        sync_folder(self._folder)
        self._packer = PtPacker(self.header)

    def _finish(self) -> None:
        self.seal()
        self._manifest.complete = True
        self._manifest.write(self._folder)
        sync_folder(self._folder)
        if not self._live:
            move_into_place(self._folder, self._target)

    def _abandon(self) -> None:
        if not self._live:
            remove(self._folder)
