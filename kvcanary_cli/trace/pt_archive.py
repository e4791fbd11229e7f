"""The zip archive of a ``torch.save`` file over a memory map, every record held to its checksum.

Only a few MiB of the map are resident at a time, however large the file is: what has been looked at
is given back to the system, which keeps it in its page cache if there is room.
"""

from __future__ import annotations

import mmap
import os
import struct
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from kvcanary_cli.trace.errors import DamagedTraceError, TraceError

if TYPE_CHECKING:
    from pathlib import Path

LOCAL_HEADER_BYTES = 30
LOCAL_HEADER_MAGIC = b"PK\x03\x04"
AGAIN = "copy the file again from where it was recorded"
_CHUNK_BYTES = 4 << 20
#: Below this, threads cost more than they save.
_THREADED_BYTES = 16 << 20
_MAX_THREADS = 4
#: Flags of encrypted and patched records, and of names in UTF-8.
_UNREADABLE_FLAGS, _UTF8_FLAG = 0x1 | 0x20 | 0x40, 0x800


class PtArchive:
    """A mapped archive whose records are whole.

    Attributes:
        records: Name to entry of the archive's directory.
        map: The file's bytes, read only.
    """

    def __init__(self, path: Path) -> None:
        """Map ``path`` and check every record.

        Raises:
            TraceError: A record is damaged, compressed, or there twice.
            zipfile.BadZipFile: The directory is damaged, among others that ``zipfile`` raises.
            OSError: The file cannot be read.
        """
        self._name = str(path)
        with zipfile.ZipFile(path) as archive:
            self.records = self._directory(archive)
        with path.open("rb") as file:
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        infos = list(self.records.values())
        total = sum(info.file_size for info in infos)
        workers = min(_MAX_THREADS, os.cpu_count() or 1)
        if total < _THREADED_BYTES or workers == 1:
            whole = [self._is_whole(info) for info in infos]
        else:
            with ThreadPoolExecutor(workers) as pool:
                whole = list(pool.map(self._is_whole, infos))
        for info, is_whole in zip(infos, whole, strict=True):
            if not is_whole:
                raise DamagedTraceError(
                    self._name,
                    f"the record '{info.filename}' is damaged (its checksum does not match)",
                    hint=AGAIN,
                )

    def _directory(self, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
        records: dict[str, zipfile.ZipInfo] = {}
        for info in archive.infolist():
            if info.filename in records:
                raise DamagedTraceError(
                    self._name, f"the archive holds '{info.filename}' twice", hint=AGAIN
                )
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                raise TraceError(
                    self._name,
                    f"the record '{info.filename}' is compressed, expected what torch.save writes",
                    hint="is this file a trace? a .pt that was zipped again must be written again "
                    "by `torch.save`",
                )
            records[info.filename] = info
        return records

    def start(self, info: zipfile.ZipInfo) -> int | None:
        """Where a record's bytes begin in the map; None if its own header is not there."""
        if info.header_offset < 0:
            return None
        head = self.map[info.header_offset : info.header_offset + LOCAL_HEADER_BYTES]
        if len(head) < LOCAL_HEADER_BYTES or not head.startswith(LOCAL_HEADER_MAGIC):
            return None
        name_bytes, extra_bytes = struct.unpack("<HH", head[26:30])
        return int(info.header_offset) + LOCAL_HEADER_BYTES + int(name_bytes) + int(extra_bytes)

    def _is_whole(self, info: zipfile.ZipInfo) -> bool:
        start = self.start(info)
        if start is None or start + info.file_size > len(self.map):
            return False
        flags, name_bytes = struct.unpack_from("<H18xH", self.map, info.header_offset + 6)
        name_at = info.header_offset + LOCAL_HEADER_BYTES
        coding = "utf-8" if flags & _UTF8_FLAG else "cp437"
        name = self.map[name_at : name_at + name_bytes].decode(coding, "replace")
        if (flags | info.flag_bits) & _UNREADABLE_FLAGS or name != info.orig_filename:
            return False
        checksum = 0
        with memoryview(self.map) as data:
            for at in range(start, start + info.file_size, _CHUNK_BYTES):
                stop = min(at + _CHUNK_BYTES, start + info.file_size)
                checksum = zlib.crc32(data[at:stop], checksum)
                self.release(at, stop)
        return checksum == info.CRC

    def read(self, info: zipfile.ZipInfo) -> bytes:
        """A record as bytes."""
        start = self.start(info)
        assert start is not None  # checked when the archive was opened
        return self.map[start : start + info.file_size]

    def release(self, start: int = 0, stop: int | None = None) -> None:
        """Give the pages of [start, stop) back; they are read again where they are needed."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        last = len(self.map) if stop is None else stop
        if last > first:
            self.map.madvise(mmap.MADV_DONTNEED, first, last - first)
