"""Write a trace in any form; a failed write leaves nothing behind.

The suffix decides the form: ``.jsonl``, ``.jsonl.zst``, ``.pt``, ``.kvtrace`` (a folder), or ``-``
for JSONL on stdout.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from kvcanary_cli.errors import UsageError
from kvcanary_cli.trace.header import TraceHeader, parse_header
from kvcanary_cli.trace.segment import SegmentBuilder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from kvcanary_cli.trace.segment import Segment

STDOUT = "-"
SUFFIXES = (".jsonl", ".jsonl.zst", ".pt", ".kvtrace")


class TraceWriter(ABC):
    """A trace that is open for writing; use it as a context manager.

    Leaving the block finishes the trace under its name; an exception removes what was written.
    Segments and single events may be mixed; they are written in the order given.
    """

    def __init__(self, header: TraceHeader) -> None:
        self.header = header
        self._builder = SegmentBuilder()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._abandon()
            return
        try:
            self.flush()
            self._finish()
        except BaseException:
            self._abandon()
            raise

    def write(self, segment: Segment) -> None:
        """Append all events of a segment."""
        self.flush()
        if len(segment):
            self._write(segment)

    def write_event(self, event: dict[str, Any]) -> None:
        """Append one event, given as the dictionary of its JSONL line.

        Raises:
            FieldError: A field is missing or of the wrong type.
        """
        self._builder.append(event, tokens_absent=self.header.tokens == "absent")
        if self._builder.full:
            self.flush()

    def flush(self) -> None:
        """Pass single events on that are still held back."""
        if len(self._builder):
            self._write(self._builder.finish())

    @abstractmethod
    def _write(self, segment: Segment) -> None: ...

    @abstractmethod
    def _finish(self) -> None: ...

    @abstractmethod
    def _abandon(self) -> None: ...


def open_writer(
    path: str | os.PathLike[str],
    header: TraceHeader | Mapping[str, Any],
    *,
    overwrite: bool = False,
    live: bool = False,
) -> TraceWriter:
    """Open a trace for writing.

    Args:
        path: Where to; its suffix decides the form.
        header: The trace's header, parsed or as the dictionary of its JSONL line.
        overwrite: Whether an existing trace of that name may be replaced.
        live: For a folder that is recorded into: it appears under its name at once, readers may
            follow it, and an exception keeps what was written.

    Raises:
        UsageError: The suffix is unknown, or the name exists.
        TraceError: The header does not fit the format.
        OSError: The file system refuses.
    """
    name = os.fspath(path)
    if not isinstance(header, TraceHeader):
        header = parse_header(dict(header), name)
    check_target(name, overwrite=overwrite)
    if name == STDOUT:
        return _JsonlWriter(None, header)
    target = Path(name)
    if name.endswith(".pt"):
        from kvcanary_cli.trace.pt_writer import PtWriter

        return PtWriter(target, header)
    if name.endswith(".kvtrace"):
        from kvcanary_cli.trace.folder_writer import FolderWriter

        return FolderWriter(target, header, live=live)
    return _JsonlWriter(target, header)


def check_target(path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Refuse a name that ``open_writer`` would refuse, before there is anything to write.

    Raises:
        UsageError: The suffix is unknown, or the name exists.
    """
    name = os.fspath(path)
    if name == STDOUT:
        return
    if not name.endswith(SUFFIXES):
        raise UsageError(
            f"{name}: the suffix decides the form of a trace; expected one of "
            + ", ".join(SUFFIXES),
            hint="for JSONL on stdout give - as the name",
        )
    if os.path.lexists(name) and not overwrite:
        raise UsageError(f"{name} exists already", hint="give another name, or --overwrite")


def temporary_name(target: Path) -> Path:
    """A name beside ``target`` for what is not finished yet."""
    return target.with_name(f".{target.name}.{os.getpid()}.tmp")


def sync_folder(folder: Path) -> None:
    """Make renames inside ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move_into_place(temporary: Path, target: Path) -> None:
    """Rename a finished file or folder to its name, replacing what is there."""
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    elif temporary.is_dir() and os.path.lexists(target):
        target.unlink()
    temporary.replace(target)
    sync_folder(target.parent)


def remove(path: Path) -> None:
    """Remove a file or folder if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def discard_stdout() -> None:
    """Send the rest of stdout nowhere: its reader is gone, and the final flush must not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


class _JsonlWriter(TraceWriter):
    def __init__(self, target: Path | None, header: TraceHeader) -> None:
        super().__init__(header)
        self._target = target
        self._temporary = None if target is None else temporary_name(target)
        self._file: BinaryIO = (
            sys.stdout.buffer if self._temporary is None else self._temporary.open("wb")
        )
        self._compressor: Any = None
        if target is not None and target.name.endswith(".zst"):
            import zstandard

            self._compressor = zstandard.ZstdCompressor(level=3).compressobj()
        self._put((json.dumps(header.raw) + "\n").encode())

    def _put(self, data: bytes) -> None:
        self._file.write(data if self._compressor is None else self._compressor.compress(data))

    def _write(self, segment: Segment) -> None:
        for event in segment.events():
            self._put((json.dumps(event) + "\n").encode())

    def _finish(self) -> None:
        if self._compressor is not None:
            self._file.write(self._compressor.flush())
        self._file.flush()
        if self._target is not None and self._temporary is not None:
            os.fsync(self._file.fileno())
            self._file.close()
            move_into_place(self._temporary, self._target)

    def _abandon(self) -> None:
        if self._temporary is not None:
            self._file.close()
            remove(self._temporary)
