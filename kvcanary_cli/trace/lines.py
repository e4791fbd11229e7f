"""Lines of a JSONL trace from a file, a zstd stream or stdin, at a bounded footprint."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from kvcanary_cli.trace.errors import TraceError
from kvcanary_cli.trace.schema import MAX_LINE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_CHUNK_BYTES = 1 << 18
#: A few bytes of zstd can stand for 128 KiB of zeros, so little is decompressed at a time.
_ZSTD_STEP_BYTES = 1 << 12


def read_chunks(file: BinaryIO, seen: Callable[[bytes], None]) -> Iterator[bytes]:
    """Raw chunks of ``file``; ``seen`` gets each one (progress, checksum)."""
    while chunk := file.read(_CHUNK_BYTES):
        seen(chunk)
        yield chunk


def decompress_chunks(chunks: Iterator[bytes], where: str) -> Iterator[bytes]:
    """Decompress zstd frames, one after another.

    Raises:
        TraceError: The data is damaged or ends inside a frame.
    """
    import zstandard

    decompressor = zstandard.ZstdDecompressor()
    frame = None
    for chunk in chunks:
        for start in range(0, len(chunk), _ZSTD_STEP_BYTES):
            data = chunk[start : start + _ZSTD_STEP_BYTES]
            while data:
                frame = frame or decompressor.decompressobj()
                try:
                    out = frame.decompress(data)
                except zstandard.ZstdError as error:
                    raise TraceError(
                        where,
                        f"the zstd data is damaged ({error})",
                        hint="copy the file again from where it was recorded",
                    ) from None
                if out:
                    yield out
                data = b""
                if frame.eof:
                    data, frame = frame.unused_data, None
    if frame is not None:
        raise TraceError(
            where,
            "the zstd data ends in the middle of a frame: the file is truncated",
            hint="copy the file again; `zstd -t` checks it",
        )


def split_lines(chunks: Iterator[bytes], where: str) -> Iterator[tuple[int, bytes, bool]]:
    """Split chunks into lines.

    Yields:
        Line number from 1, the line without its newline, and whether it had one.

    Raises:
        TraceError: A line is over ``MAX_LINE_BYTES``; it is not read to its end.
    """
    number = 0
    pending: list[bytes] = []
    pending_bytes = 0
    for chunk in chunks:
        head, newline, rest = chunk.partition(b"\n")
        pending.append(head)
        pending_bytes += len(head)
        if pending_bytes > MAX_LINE_BYTES:
            raise _too_long(where, number + 1)
        if not newline:
            continue
        number += 1
        yield number, b"".join(pending), True
        lines = rest.split(b"\n")
        last = lines.pop()
        for line in lines:
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise _too_long(where, number)
            yield number, line, True
        pending, pending_bytes = [last], len(last)
    if pending_bytes:
        yield number + 1, b"".join(pending), False


def _too_long(where: str, number: int) -> TraceError:
    return TraceError(
        f"{where}:{number}",
        f"the line is longer than {MAX_LINE_BYTES >> 20} MiB",
        hint="one event must fit on one line; split it, or use the .pt form",
    )
