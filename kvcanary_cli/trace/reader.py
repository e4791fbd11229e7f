"""Open a trace of any form and read it segment by segment.

>>> with_errors = open_trace("trace.jsonl.zst")      # doctest: +SKIP
>>> for segment in with_errors.segments(): ...       # doctest: +SKIP
"""

from __future__ import annotations

import hashlib
import os
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from kvcanary_cli.trace.ahead import read_ahead
from kvcanary_cli.trace.digest import BackgroundDigest, files_sha256
from kvcanary_cli.trace.errors import TraceError
from kvcanary_cli.trace.header import TraceHeader, parse_header
from kvcanary_cli.trace.jsonl import parse_segments, read_header_line
from kvcanary_cli.trace.lines import ZSTD_MAGIC, decompress_chunks, read_chunks, split_lines
from kvcanary_cli.trace.notes import TraceNotes
from kvcanary_cli.trace.remote import RemotePath, is_remote
from kvcanary_cli.trace.validate import StreamValidator, check_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvcanary_cli.trace.bounds import Bounds
    from kvcanary_cli.trace.located import LocatedSegment
    from kvcanary_cli.trace.problems import Problems
    from kvcanary_cli.trace.segment import Segment

STDIN = "-"
_COPY_AGAIN = "check the path; a trace is .jsonl, .jsonl.zst, .pt or a folder .kvtrace"


class TraceReader(ABC):
    """A trace that is open for reading.

    Attributes:
        name: How messages call it.
        header: Its header.
        notes: What was noticed; complete after the last segment.
        checked: Counts of what the last pass validated.
        bytes_total: Size of the input, or None if unknown (stdin).
        bytes_read: How much of it the current pass has read.
        wants_sha256: Whether the digest is computed beside the reading; callers that do not ask
            for it save the work.
    """

    name: str
    header: TraceHeader
    bytes_total: int | None
    bytes_read: int
    #: How many segments a thread prepares ahead, which pays where that is no Python.
    _reads_ahead = 0

    def __init__(self, name: str) -> None:
        self.name = name
        self.notes = TraceNotes()
        self.bytes_total = None
        self.bytes_read = 0
        self.wants_sha256 = True
        #: Makes ``Segment.prepared``, where a thread reads ahead beside the caller's own work.
        self.prepare: Callable[[Segment], object] | None = None
        self._validator: StreamValidator | None = None
        self._digest: BackgroundDigest | None = None

    @property
    def checked(self) -> StreamValidator:
        """The validator of the last pass, for its counts.

        Raises:
            ValueError: No pass has begun.
        """
        if self._validator is None:
            raise ValueError("segments() has not been called")
        return self._validator

    def start_digest(self) -> None:
        """Begin with what ``sha256`` asks for, where a thread can compute it beside other work.

        Reading does it anyway; a caller that has something else to do first gains that time.
        """
        if self._digest is None and (digested := self._digested()):
            self._digest = BackgroundDigest(*digested)

    def segments(self) -> Iterator[Segment]:
        """Read, validate and yield the trace's segments in order, from the beginning.

        Raises:
            TraceError: The trace cannot be used from here on.
        """
        self.notes.clear()
        self.notes.unknown_families = self.header.unknown_records
        validator = self._validator = StreamValidator(self.header, self.notes)
        if self.wants_sha256:
            self.start_digest()
        # Notes and counts are taken here, with each segment that the caller has got, so that they
        # do not depend on how far a thread has read.
        checked = self._checked_segments(validator.bounds)
        for located, problems in (
            read_ahead(checked, self._reads_ahead) if self._reads_ahead else checked
        ):
            validator.check(located, problems)
            segment = located.segment
            del located
            yield segment
            del segment
        self._note_end()

    def _checked_segments(self, bounds: Bounds) -> Iterator[tuple[LocatedSegment, Problems]]:
        for located in self._located_segments():
            segment = located.segment
            problems = check_columns(segment, bounds)
            if self.prepare is not None and problems.event is None:
                segment.prepared = self.prepare(segment)
            del segment
            yield located, problems
            del located

    def _note_end(self) -> None:
        """Add what is noted once all segments were read; most forms have nothing."""
        return

    def _digested(self) -> tuple[list[Path], bytes] | None:
        """Files that ``sha256`` is about, behind some bytes; None if reading computes it."""
        return None

    @abstractmethod
    def _located_segments(self) -> Iterator[LocatedSegment]: ...

    def sha256(self) -> str:
        """Hex digest of the input's bytes; of a folder's manifest and segments in order.

        Raises:
            TraceError: It is a pipe and has not been read to its end.
        """
        if self._digest is not None:
            return self._digest.result()
        digested = self._digested()
        assert digested is not None  # who computes it while reading has a method of its own
        return files_sha256(*digested)


def open_trace(path: str | os.PathLike[str]) -> TraceReader:
    """Open a trace and read its header.

    The content decides the form; the name is only used in messages.

    Args:
        path: ``.jsonl``, ``.jsonl.zst``, ``.pt``, a ``.kvtrace`` folder, the URL of one of them,
            or ``-`` for JSONL (plain or zstd) on stdin.

    Raises:
        TraceError: It cannot be opened, or is no trace.
    """
    name = os.fspath(path)
    if name == STDIN:
        return _StreamReader(sys.stdin.buffer, "<stdin>")
    # It has the methods of a Path that readers use.
    place = cast("Path", RemotePath(name)) if is_remote(name) else Path(name)
    try:
        if place.is_dir():
            from kvcanary_cli.trace.folder_reader import FolderReader

            return FolderReader(place)
        if place.is_fifo() or place.is_char_device():
            # What is read from it once is gone: `kvcanary trace info <(ssh host cat t.jsonl)`.
            return _StreamReader(place.open("rb"), name)
        with place.open("rb") as file:
            head = file.read(8)
    except OSError as error:
        raise unreadable(name, error) from None
    if head.startswith(b"PK"):
        from kvcanary_cli.trace.pt_reader import PtReader

        return PtReader(place)
    _refuse_other_content(name, head)
    return _JsonlReader(place)


def unreadable(name: str, error: OSError) -> TraceError:
    """The error for a path that the operating system refuses."""
    return TraceError(name, f"cannot be read: {error.strerror or error}", hint=_COPY_AGAIN)


def _refuse_other_content(name: str, head: bytes) -> None:
    if not head:
        raise TraceError(name, "the file is empty", hint=_COPY_AGAIN)
    if head[0] == 0x80 or name.endswith(".pt"):
        raise TraceError(
            name,
            "expected a torch.save file (a zip archive), found "
            + (
                "a bare pickle, which can run code when loaded" if head[0] == 0x80 else "other data"
            ),
            hint="nothing was executed; write the trace again with `kvcanary trace convert`",
        )
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise TraceError(name, "the text is UTF-16, expected UTF-8", hint="save it as UTF-8")
    if head.startswith(b"\x1f\x8b"):
        raise TraceError(name, "gzip is not read", hint="decompress it, or compress with zstd")


class _JsonlReader(TraceReader):
    """A ``.jsonl`` or ``.jsonl.zst`` file."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path
        self._hex: str | None = None
        self.bytes_total = path.stat().st_size
        with path.open("rb") as file:
            header, where = read_header_line(self._lines(file), self.name)
        self.header = parse_header(header, where)

    def _lines(self, file: BinaryIO) -> Iterator[tuple[int, bytes, bool]]:
        compressed = file.read(4) == ZSTD_MAGIC
        file.seek(0)
        self.bytes_read = 0
        hasher = hashlib.sha256()

        def seen(chunk: bytes) -> None:
            self.bytes_read += len(chunk)
            hasher.update(chunk)

        chunks = read_chunks(file, seen)
        if compressed:
            chunks = decompress_chunks(chunks, self.name)
        yield from split_lines(chunks, self.name)
        self._hex = hasher.hexdigest()

    def _located_segments(self) -> Iterator[LocatedSegment]:
        try:
            with self._path.open("rb") as file:
                lines = self._lines(file)
                read_header_line(lines, self.name)
                absent = self.header.tokens == "absent"
                yield from parse_segments(lines, self.name, tokens_absent=absent)
        except OSError as error:
            raise unreadable(self.name, error) from None

    def sha256(self) -> str:
        if self._hex is None:
            self._hex = files_sha256([self._path])
        return self._hex


class _StreamReader(TraceReader):
    """JSONL, plain or zstd, on stdin or from a named pipe; it can be read once."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        super().__init__(name)
        self._hasher = hashlib.sha256()
        self._begun = self._ended = False
        chunks = read_chunks(file, self._seen)
        first = next(chunks, b"")
        chunks = _chain(first, chunks)
        if first.startswith(ZSTD_MAGIC):
            chunks = decompress_chunks(chunks, self.name)
        elif first.startswith(b"PK"):
            raise TraceError(
                self.name, "found a .pt trace, expected JSONL", hint="give the file's path instead"
            )
        else:
            _refuse_other_content(self.name, first[:8])
        self._lines = split_lines(chunks, self.name)
        header, where = read_header_line(self._lines, self.name)
        self.header = parse_header(header, where)

    def _seen(self, chunk: bytes) -> None:
        self.bytes_read += len(chunk)
        self._hasher.update(chunk)

    def _located_segments(self) -> Iterator[LocatedSegment]:
        if self._begun:
            raise TraceError(
                self.name,
                "a trace from a pipe can be read only once, and this command reads it again",
                hint="save it to a file first",
            )
        self._begun = True
        absent = self.header.tokens == "absent"
        yield from parse_segments(self._lines, self.name, tokens_absent=absent)
        self._ended = True

    def sha256(self) -> str:
        if not self._ended:
            raise TraceError(self.name, "it has not been read to its end", hint="save it to a file")
        return self._hasher.hexdigest()


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest
